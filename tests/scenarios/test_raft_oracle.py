"""Recorded transcripts of etcd-io/raft replay against the core.

They are not part of this repository: they are read from `../shared/oracle/raft` beside the checkout and from the folder
named in EBLA_RAFT_ORACLE, whichever is there. Any further file of the same kind dropped into either is replayed too.
"""

import os
from pathlib import Path

import pytest
from tests.scenarios.raft_harness.arithmetic import (
    MEMBERSHIP_COMMANDS,
    QUORUM_COMMANDS,
    MembershipTable,
    run_quorum,
)
from tests.scenarios.raft_harness.cluster import COMMANDS, Cluster
from tests.scenarios.raft_harness.transcript import replay

_BESIDE = Path(__file__).resolve().parents[2].parent / "shared" / "oracle" / "raft"
_NAMED = os.environ.get("EBLA_RAFT_ORACLE", "")
_FOLDERS = [folder for folder in (_BESIDE, Path(_NAMED) if _NAMED else None) if folder is not None and folder.is_dir()]


def _files(kind: str) -> list[object]:
    found = [path for folder in _FOLDERS for path in sorted((folder / kind).glob("*.txt"))]
    if not found:
        reason = f"no transcripts: neither {_BESIDE}/{kind} nor $EBLA_RAFT_ORACLE/{kind} holds any"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id=f"no {kind} transcripts")]
    return [pytest.param(path, id=path.stem) for path in found]


@pytest.mark.parametrize("path", _files("quorum"))
def test_oracle_quorum(path: Path) -> None:
    replay(path, QUORUM_COMMANDS, run_quorum)


@pytest.mark.parametrize("path", _files("confchange"))
def test_oracle_membership(path: Path) -> None:
    replay(path, MEMBERSHIP_COMMANDS, MembershipTable().run)


@pytest.mark.parametrize("path", _files("interaction"))
def test_oracle_interaction(path: Path) -> None:
    replay(path, COMMANDS, Cluster().run)
