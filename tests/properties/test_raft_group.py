"""Whole groups under a seeded adversary keep every invariant, and recover once it stops."""

import pytest
from tests.scenarios.raft_harness.adversary import Adversary, Harshness

from ebla.raft.messages import PeerId
from ebla.raft.options import RaftOptions

HARSH = Harshness(crash=25, cut=12, heal=12, lose=120, repeat=60, change=0, transfer=8)
CHANGING = Harshness(crash=10, change=30, transfer=10, snapshot=25)


def _plain(peer: PeerId) -> RaftOptions:
    """Without pre-vote and check-quorum: any election disturbs the leader."""
    return RaftOptions(peer=peer, election_ticks=3, check_quorum=False, pre_vote=False, message_bytes_max=100)


def _guarded(peer: PeerId) -> RaftOptions:
    return RaftOptions(peer=peer, election_ticks=5, inflight_messages_max=3, apply_bytes_max=60, message_bytes_max=100)


@pytest.mark.parametrize("seed", range(1, 13))
def test_mixed(seed: int) -> None:
    adversary = Adversary(seed, 3 + seed % 5)
    adversary.run(12_000)
    adversary.settle()
    assert adversary.history.committed_to > 20
    assert len(adversary.history.leaders) > 2


@pytest.mark.parametrize("seed", range(101, 113))
def test_harsh_elections(seed: int) -> None:
    adversary = Adversary(seed, (3, 5)[seed % 2], HARSH, _plain)
    adversary.run(15_000)
    adversary.settle()
    assert len(adversary.history.leaders) > 5


@pytest.mark.parametrize("seed", range(201, 213))
def test_changing_memberships(seed: int) -> None:
    adversary = Adversary(seed, 5 + seed % 3, CHANGING, _guarded)
    adversary.run(15_000)
    adversary.settle()
    assert adversary.changes_applied > 5


@pytest.mark.parametrize("seed", range(301, 305))
def test_calm_reads(seed: int) -> None:
    adversary = Adversary(seed, 3, Harshness(crash=2, cut=4, heal=8, lose=10, repeat=10, change=0), _guarded)
    adversary.run(15_000)
    adversary.settle()
    assert adversary.reads_answered > 50


def test_same_seed_same_run() -> None:
    first, second = Adversary(7, 5), Adversary(7, 5)
    first.run(4_000)
    second.run(4_000)
    assert first.flying == second.flying
    assert first.history.committed == second.history.committed
