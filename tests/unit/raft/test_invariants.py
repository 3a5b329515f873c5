"""Each invariant notices a group that breaks it."""

from collections.abc import Callable

import pytest
from tests.scenarios.raft_harness.node import LongestTimeout

from ebla.raft.core import RaftCore
from ebla.raft.events import Campaign
from ebla.raft.invariants import RaftChecker, RaftInvariant, RaftInvariantBroken
from ebla.raft.messages import (
    NO_PEER,
    Entry,
    EntryKind,
    HardState,
    Membership,
    PeerId,
    SnapshotMeta,
    VoteResponse,
)
from ebla.raft.options import RaftOptions
from ebla.raft.state import RecoveredState

ONE, TWO, THREE = (PeerId(number) for number in (1, 2, 3))
TRIO = Membership(voters=(ONE, TWO, THREE))


class Disk:
    def __init__(self, *, has_all: bool) -> None:
        self._has_all = has_all

    def holds(self, index: int, term: int) -> bool:
        return self._has_all


ALL = {peer: Disk(has_all=True) for peer in TRIO.voters}
ONLY_ONE = {peer: Disk(has_all=peer == ONE) for peer in TRIO.voters}


def _core(peer: PeerId, term: int, *entries: Entry, commit: int = 10) -> RaftCore:
    past = RecoveredState(HardState(term, NO_PEER, commit), SnapshotMeta(10, 1, TRIO), entries)
    return RaftCore(RaftOptions(peer=peer, pre_vote=False, check_quorum=False), past, LongestTimeout(), 0)


def _elect(core: RaftCore) -> RaftCore:
    core.step(Campaign(), 0)
    for voter in TRIO.voters:
        core.step(VoteResponse(sender=voter, to=core.peer, term=core.term, granted=True), 0)
    return core


def _two_leaders(history: RaftChecker) -> None:
    history.observe(_elect(_core(ONE, 1)), ALL)
    history.observe(_elect(_core(TWO, 1)), ALL)


def _different_content(history: RaftChecker) -> None:
    history.observe(_core(ONE, 2, Entry(index=11, term=2, data=b"x")), ALL)
    history.observe(_core(TWO, 2, Entry(index=11, term=2, data=b"y")), ALL)


def _different_past(history: RaftChecker) -> None:
    history.observe(_core(ONE, 3, Entry(index=11, term=2), Entry(index=12, term=3)), ALL)
    history.observe(_core(TWO, 3, Entry(index=11, term=1), Entry(index=12, term=3)), ALL)


def _leader_without_committed(history: RaftChecker) -> None:
    history.observe(_core(ONE, 2, Entry(index=11, term=2), commit=11), ALL)
    history.observe(_elect(_core(TWO, 2)), ALL)


def _two_committed(history: RaftChecker) -> None:
    history.observe(_core(ONE, 2, Entry(index=11, term=2), commit=11), ALL)
    history.observe(_core(TWO, 3, Entry(index=11, term=3), commit=11), ALL)


def _wrong_applied(history: RaftChecker) -> None:
    history.observe(_core(ONE, 2, Entry(index=11, term=2), commit=11), ALL)
    history.applied(TWO, [Entry(index=11, term=1)])


def _two_changes(history: RaftChecker) -> None:
    change = EntryKind.MEMBERS
    history.observe(
        _core(ONE, 2, Entry(index=11, term=2, data=b"", kind=change), Entry(index=12, term=2, data=b"", kind=change)),
        ALL,
    )


def _term_forgotten(history: RaftChecker) -> None:
    history.left(VoteResponse(sender=ONE, to=TWO, term=5, granted=False))
    history.restarted(_core(ONE, 4))


def _two_votes(history: RaftChecker) -> None:
    history.left(VoteResponse(sender=ONE, to=TWO, term=5, granted=True))
    history.left(VoteResponse(sender=ONE, to=THREE, term=5, granted=True))


def _commit_taken_back(history: RaftChecker) -> None:
    history.observe(_core(ONE, 2, Entry(index=11, term=2), commit=11), ALL)
    history.observe(_core(ONE, 2, Entry(index=11, term=2), commit=10), ALL)


def _not_durable(history: RaftChecker) -> None:
    core = _elect(_core(ONE, 1))
    core.state.log.commit_to(11)
    history.observe(core, ONLY_ONE)


@pytest.mark.parametrize(
    ("breach", "label"),
    [
        (_two_leaders, "INV-RAFT-1"),
        (_different_content, "INV-RAFT-2"),
        (_different_past, "INV-RAFT-2"),
        (_leader_without_committed, "INV-RAFT-3"),
        (_two_committed, "INV-RAFT-4"),
        (_wrong_applied, "INV-RAFT-4"),
        (_two_changes, "INV-RAFT-5"),
        (_term_forgotten, "INV-RAFT-6"),
        (_two_votes, "INV-RAFT-6"),
        (_commit_taken_back, "INV-RAFT-6"),
        (_not_durable, "INV-RAFT-7"),
    ],
)
def test_noticed(breach: Callable[[RaftChecker], None], label: str) -> None:
    with pytest.raises(RaftInvariantBroken, match=label) as broken:
        breach(RaftChecker())
    assert broken.value.invariant is RaftInvariant(label)


def test_a_sound_group_passes() -> None:
    history = RaftChecker()
    history.observe(_core(ONE, 2, Entry(index=11, term=2), commit=11), ALL)
    history.observe(_core(TWO, 2, Entry(index=11, term=2), commit=10), ALL)
    history.observe(_elect(_core(TWO, 2, Entry(index=11, term=2), commit=11)), ALL)
    history.applied(ONE, [Entry(index=11, term=2)])
    assert history.committed_to == 11
