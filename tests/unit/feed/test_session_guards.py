"""Guards that are entered by what the feed has brought. Those behind a read barrier: `replica/test_guards.py`."""

import uuid

import pytest
from tests.unit.replica.shard_rig import HISTORY, NOW_S, ScriptedBarriers, WallClock, with_sessions
from tests.unit.topology.small_cluster import cluster, node

from ebla.feed.session_guards import SessionClosed, SessionGuards
from ebla.feed.topology_view import TopologyView, view_of
from ebla.model.errors import Unavailable
from ebla.model.identity import SessionId
from ebla.model.transaction import Revision
from ebla.topology.snapshot import Session
from ebla.topology.states import SessionKind

SESSION = SessionId(uuid.UUID(int=31))
OPEN = Session(id=SESSION, kind=SessionKind.BULK_JOB, deadline_ms=(NOW_S + 1) * 1000)


class Rig:
    def __init__(self) -> None:
        self.view = TopologyView()
        self.barriers = ScriptedBarriers()
        self.clock = WallClock()
        self.guards = SessionGuards(self.view, self.barriers, self.clock, barrier_ms=100)
        self._index = 0

    def follow(self, *sessions: Session) -> None:
        self._index += 1
        view = view_of(with_sessions(cluster(node(1)), *sessions), Revision(HISTORY, self._index))
        self.view.install(view)
        self.guards.on_view_installed(view)


def closing(rig: Rig) -> list[SessionId]:
    return list(rig.guards.closing)


def test_it_asks_for_no_barrier_and_is_counted_like_any_other() -> None:
    """INV-XFER-1."""
    rig = Rig()
    rig.follow(OPEN)
    with rig.guards.hold_guard_without_barrier(SESSION):
        assert rig.guards.held == 1
        rig.follow()
        assert closing(rig) == [SESSION]
        assert rig.barriers.changes == 0
    assert rig.guards.held == 0
    assert closing(rig) == []
    assert rig.barriers.changes == 1, "a barrier may wait for it"
    assert rig.barriers.asked == 0


def test_the_end_of_a_guard_of_an_open_session_is_no_news() -> None:
    rig = Rig()
    rig.follow(OPEN)
    with rig.guards.hold_guard_without_barrier(SESSION):
        pass
    assert rig.barriers.changes == 0


def test_what_is_closed_late_or_unknown_is_refused() -> None:
    rig = Rig()
    with pytest.raises(Unavailable), rig.guards.hold_guard_without_barrier(SESSION):
        pass
    rig.follow(OPEN)
    assert rig.guards.listed(SESSION) == OPEN
    rig.clock.now_ms += 1000
    with pytest.raises(SessionClosed, match="deadline"), rig.guards.hold_guard_without_barrier(SESSION):
        pass
    rig.follow()
    with pytest.raises(SessionClosed, match="closed"), rig.guards.hold_guard_without_barrier(SESSION):
        pass
    assert rig.guards.listed(SESSION) is None
    assert rig.guards.held == 0


async def test_catching_up_is_to_reach_a_barrier() -> None:
    rig = Rig()
    rig.follow(OPEN)
    rig.barriers.index = 2
    with pytest.raises(Unavailable, match="revision 2"):
        await rig.guards.catch_up(1_000)
    rig.follow()
    await rig.guards.catch_up(1_000)
    rig.barriers.index = None
    with pytest.raises(Unavailable, match="quorum"):
        await rig.guards.catch_up(1_000)
