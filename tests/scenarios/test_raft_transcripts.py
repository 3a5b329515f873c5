"""Our own transcripts: cases that no recorded one covers, and interleavings that a random search rarely finds."""

from pathlib import Path

import pytest
from tests.scenarios.raft_harness.cluster import COMMANDS, Cluster
from tests.scenarios.raft_harness.transcript import replay

_FILES = sorted((Path(__file__).parent / "raft").glob("*.txt"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    replay(path, COMMANDS, Cluster().run)
