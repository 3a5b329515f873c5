import uuid

import msgspec
import pytest
from tests.unit.topology.small_cluster import TABLE, request_id, session
from tests.unit.topology.world import cluster

from ebla.model.identity import HistoryId
from ebla.model.transaction import Revision
from ebla.topology.apply.command import apply_command
from ebla.topology.apply.draft import ProposedChange
from ebla.topology.commands import DropTable, OpenBulkSession
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.sessions import (
    BarrierProof,
    FrozenGuard,
    GuardRefusal,
    SessionStateMachine,
    sessions_to_close,
)
from ebla.topology.snapshot import Session, Snapshot
from ebla.topology.states import SessionKind

HISTORY, OTHER_HISTORY = HistoryId(uuid.UUID(int=1)), HistoryId(uuid.UUID(int=2))
STAGE = Session(id=session(1), kind=SessionKind.STAGE, table=TABLE, tablet=0)
JOB = Session(id=session(2), kind=SessionKind.BULK_JOB, request=request_id(3), deadline_ms=1000)
GUARD = FrozenGuard(STAGE.id)


def at(index: int, history: HistoryId = HISTORY) -> Revision:
    return Revision(history, index)


def listing(*sessions: Session) -> Snapshot:
    return Snapshot(sessions=FrozenMap({each.id: each for each in sessions}))


def book(*sessions: Session, index: int = 10) -> SessionStateMachine:
    return SessionStateMachine(at(0)).followed(listing(*sessions), at(index))


PROOF = BarrierProof(at(10), now_ms=0)


def test_a_session_is_drained_when_it_is_unlisted_and_its_last_guard_is_released() -> None:
    now = book(STAGE).entered(GUARD, PROOF).followed(listing(STAGE), at(11))
    assert now.is_drained, "a listed session is not closing, whatever guards it has"
    now = now.followed(listing(), at(12)).followed(listing(), at(13))
    assert list(now.closing()) == [STAGE.id]
    assert not now.is_drained
    assert now.released(GUARD).is_drained


def test_a_session_without_guards_is_closed_as_soon_as_it_is_seen_to_be_gone() -> None:
    now = book(STAGE).followed(listing(), at(11))
    assert now.is_drained


def test_a_guard_of_an_open_session_is_materialised() -> None:
    assert book(STAGE).refusal(GUARD, PROOF) is None
    assert book(STAGE).entered(GUARD, PROOF).guards == {STAGE.id: 1}


def test_without_a_read_barrier_no_guard_is_materialised() -> None:
    """Two cases, one rule: a process that has not yet seen the close, and one cut off from the quorum."""
    assert book(STAGE).refusal(GUARD, BarrierProof(None, 0)) is GuardRefusal.NO_BARRIER


def test_the_feed_must_have_reached_the_barrier() -> None:
    stale = book(STAGE, index=10)
    assert stale.refusal(GUARD, BarrierProof(at(11), 0)) is GuardRefusal.BEHIND_BARRIER
    assert stale.refusal(GUARD, BarrierProof(at(5, OTHER_HISTORY), 0)) is GuardRefusal.BEHIND_BARRIER


def test_a_session_that_is_not_listed_admits_nobody_even_while_guards_are_held() -> None:
    assert book().refusal(GUARD, PROOF) is GuardRefusal.NOT_LISTED
    closing = book(STAGE).entered(GUARD, PROOF).followed(listing(), at(11))
    assert closing.refusal(GUARD, BarrierProof(at(11), 0)) is GuardRefusal.NOT_LISTED
    with pytest.raises(AssertionError):
        closing.entered(GUARD, BarrierProof(at(11), 0))


def test_a_bulk_job_past_its_deadline_has_no_effects_even_before_it_is_closed() -> None:
    guard = FrozenGuard(JOB.id)
    assert book(JOB).refusal(guard, BarrierProof(at(10), 999)) is None
    assert book(JOB).refusal(guard, BarrierProof(at(10), 1000)) is GuardRefusal.PAST_DEADLINE


def test_a_barrier_waits_for_every_guard_of_closing_sessions_and_for_no_other() -> None:
    now = book(STAGE, JOB).entered(GUARD, PROOF).entered(GUARD, PROOF).entered(FrozenGuard(JOB.id), PROOF)
    now = now.followed(listing(JOB), at(11))
    assert list(now.closing()) == [STAGE.id]
    now = now.released(GUARD)
    assert not now.is_drained
    now = now.released(GUARD)
    assert now.is_drained


def test_a_closed_session_is_never_opened_again() -> None:
    closing = book(STAGE).entered(GUARD, PROOF).followed(listing(), at(11))
    with pytest.raises(AssertionError, match="never opened again"):
        closing.followed(listing(STAGE), at(12))


def test_the_leader_closes_jobs_that_ran_out_of_time_or_lost_their_table() -> None:
    world, _ = cluster(1, checking=False)
    table = world.create_table(1, 1)
    job = msgspec.structs.replace(JOB, table=table)
    dropping = apply_command(world.snapshot, DropTable(table))
    assert isinstance(dropping, ProposedChange)
    world.do(OpenBulkSession(job))
    assert sessions_to_close(world.snapshot, 999) == ()
    assert sessions_to_close(world.snapshot, 1000) == (job.id,)
    world.commit(dropping)
    assert sessions_to_close(world.snapshot, 999) == (job.id,)
