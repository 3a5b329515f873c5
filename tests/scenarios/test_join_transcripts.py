"""The join handshake: a new node, the member that receives its request, and the coordinator that answers it."""

from pathlib import Path

import pytest
from tests.scenarios.join_harness import COMMANDS, JoinCluster
from tests.scenarios.raft_harness.transcript import replay

_FILES = sorted((Path(__file__).parent / "join").glob("*.txt"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    replay(path, COMMANDS, JoinCluster().run)


def test_the_transcripts_show_every_class_of_refusal() -> None:
    shown = set()
    for path in _FILES:
        cluster = JoinCluster()
        replay(path, COMMANDS, cluster.run)
        shown |= cluster.shown
    assert {"InvalidRequest", "Refused", "Unavailable"} <= shown
