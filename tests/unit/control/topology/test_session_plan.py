"""What opening and closing a session mean, from what the topology says."""

import uuid

import msgspec
import pytest
from tests.unit.topology.world import World, cluster

from ebla.control.topology.bulk_sessions import (
    SessionTimes,
    new_opening,
    plan_close,
    plan_open,
    refresh_watched,
    sessions_to_end,
)
from ebla.model.errors import InvalidRequest, NotFound, Refused, Stale
from ebla.model.identity import JobId, SessionId, TableId
from ebla.topology.commands import CloseSessions, OpenBulkSession
from ebla.topology.states import NodeRequestKind
from ebla.wire.transfer_messages import OpenSessionRequest

SESSION, JOB = SessionId(uuid.UUID(int=5)), JobId(uuid.UUID(int=6))


def asking(world: World) -> OpenSessionRequest:
    return OpenSessionRequest(session=SESSION, table=world.create_table(2, 1), job=JOB, life_ms=1_000)


def test_a_session_opens_once_and_is_found_by_its_id() -> None:
    world, _ = cluster(2)
    opening = new_opening(asking(world), world.snapshot, 9_000)
    command = plan_open(opening, world.snapshot)
    assert isinstance(command, OpenBulkSession)
    assert (command.session.deadline_ms, command.known_version) == (9_000, world.snapshot.version)
    world.do(command)
    assert plan_open(opening, world.snapshot) is None


def test_an_id_that_is_used_for_something_else_is_wrong() -> None:
    world, _ = cluster(2)
    request = asking(world)
    command = plan_open(new_opening(request, world.snapshot, 9_000), world.snapshot)
    assert command is not None
    world.do(command)
    other = msgspec.structs.replace(request, job=JobId(uuid.UUID(int=7)))
    with pytest.raises(InvalidRequest, match="something else"):
        plan_open(new_opening(other, world.snapshot, 9_000), world.snapshot)


def test_what_was_closed_is_told_from_what_is_new() -> None:
    """INV-XFER-1."""
    world, _ = cluster(2)
    request = asking(world)
    opening = new_opening(request, world.snapshot, 9_000)
    command = plan_open(opening, world.snapshot)
    assert command is not None
    world.do(command)
    world.do(CloseSessions((SESSION,)))
    with pytest.raises(Stale, match="closed"):
        plan_open(opening, world.snapshot)
    late = new_opening(request, world.snapshot, 9_000)
    with pytest.raises(Stale, match="closed"):
        plan_open(late, world.snapshot)


def test_the_version_that_the_asker_names_counts() -> None:
    world, _ = cluster(2)
    request = msgspec.structs.replace(asking(world), known_version=3)
    assert new_opening(request, world.snapshot, 9_000).known_version == 3


def test_a_table_that_is_not_there() -> None:
    world, _ = cluster(2)
    request = OpenSessionRequest(session=SESSION, table=TableId(uuid.UUID(int=1)), job=JOB, life_ms=1_000)
    with pytest.raises(NotFound):
        plan_open(new_opening(request, world.snapshot, 9_000), world.snapshot)


def test_only_bulk_jobs_are_closed_here_and_only_once() -> None:
    world, coordinator = cluster(2)
    world.ask(NodeRequestKind.REBUILD, 2)
    coordinator.step()
    (running,) = world.snapshot.sessions
    with pytest.raises(Refused, match="ends with it"):
        plan_close(running, world.snapshot)


def test_one_that_is_closed_before_its_opening_came_is_never_opened() -> None:
    """INV-XFER-1: its owner has given it up, and only its deadline would close it."""
    world, _ = cluster(2)
    opening = new_opening(asking(world), world.snapshot, 9_000)
    closing = plan_close(SESSION, world.snapshot)
    assert closing is not None
    world.do(closing)
    with pytest.raises(Stale, match="closed"):
        plan_open(opening, world.snapshot)
    assert plan_close(SESSION, world.snapshot) is None


def test_no_session_outlives_what_any_may_whatever_its_deadline_says() -> None:
    world, _ = cluster(2)
    far_ahead = plan_open(new_opening(asking(world), world.snapshot, 1 << 60), world.snapshot)
    assert far_ahead is not None
    world.do(far_ahead)
    watched = refresh_watched({}, world.snapshot, 1_000)
    assert watched == {SESSION: 1_000}
    assert refresh_watched(watched, world.snapshot, 5_000) == watched
    assert sessions_to_end(world.snapshot, watched, SessionTimes(0, 60_999, 60_000)) == ()
    assert sessions_to_end(world.snapshot, watched, SessionTimes(0, 61_000, 60_000)) == (SESSION,)
    assert sessions_to_end(world.snapshot, watched, SessionTimes(1 << 60, 1_000, 60_000)) == (SESSION,)
    world.do(CloseSessions((SESSION,)))
    assert refresh_watched(watched, world.snapshot, 6_000) == {}


def test_sessions_of_operations_are_not_watched() -> None:
    world, coordinator = cluster(2)
    world.ask(NodeRequestKind.REBUILD, 2)
    coordinator.step()
    assert len(world.snapshot.sessions) == 1
    assert refresh_watched({}, world.snapshot, 1_000) == {}
