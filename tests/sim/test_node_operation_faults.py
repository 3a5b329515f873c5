"""One fault in each state of a leave, a remove, a replace and a rebuild, and an abort in each.

The cluster has four nodes and three replicas of each range: every other node is a source and a destination.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.sim.topology_rig import ENDED, JOINED, OUTAGE_S, TopologyRig, is_idle, run_on_vnodes

from ebla.control.fault_points import FaultPoint
from ebla.group0.operations import OperationKind
from ebla.model.identity import RequestId
from ebla.sim.clusters.nodes import SimNode
from ebla.topology.states import NodeRequestKind, RequestOutcome, TransitionState

LEAVE, REMOVE = NodeRequestKind.LEAVE, NodeRequestKind.REMOVE
REPLACE, REBUILD = NodeRequestKind.REPLACE, NodeRequestKind.REBUILD
DONE, FAILED = RequestOutcome.DONE, RequestOutcome.FAILED
EITHER = (DONE, FAILED)
"""Time decides whether a stream has ended before its node is gone."""

Strike = Callable[[TopologyRig, SimNode], Awaitable[None]]
Role = Callable[[TopologyRig, SimNode], SimNode]


# ---- whom it hits


def coordinator(rig: TopologyRig, _subject: SimNode) -> SimNode:
    return rig.leader()


def subject(_rig: TopologyRig, subject: SimNode) -> SimNode:
    return subject


def other(rig: TopologyRig, subject: SimNode) -> SimNode:
    return next(one for one in rig.old if one not in (rig.leader(), subject) and one.host not in rig.dead)


# ---- what happens to it


async def crashes(rig: TopologyRig, node: SimNode) -> None:
    for unit in node.units():
        unit.kill()
    await asyncio.sleep(OUTAGE_S / 2)
    if rig.cluster.state_of(node) is not ENDED:
        rig.restart(node)


async def is_away(rig: TopologyRig, node: SimNode) -> None:
    """For longer than `peer_timeout_ms`."""
    for unit in node.units():
        unit.kill()
    await asyncio.sleep(3 * OUTAGE_S)
    if rig.cluster.state_of(node) is not ENDED:
        rig.restart(node)


async def is_cut_off(rig: TopologyRig, node: SimNode) -> None:
    network = rig.world.network
    rest = [unit for one in rig.cluster.present() if one is not node for unit in one.units()]
    for one, two in ((one.name, two.name) for one in node.units() for two in rest):
        network.cut(one, two)
        network.cut(two, one)
    await asyncio.sleep(OUTAGE_S)
    network.heal()


async def is_excluded(rig: TopologyRig, node: SimNode) -> None:
    for unit in node.units():
        unit.kill()
    await rig.operate(OperationKind.EXCLUDE, node, is_forced=True)
    await asyncio.sleep(OUTAGE_S)
    if rig.cluster.state_of(node) is not ENDED:
        rig.restart(node)
    await rig.until(lambda: is_idle(rig), "the operation has ended")
    if rig.cluster.state_of(node) is not ENDED:
        await rig.operate(OperationKind.INCLUDE, node)


async def is_aborted(rig: TopologyRig, node: SimNode) -> None:
    refusal = await rig.abort(node)
    newest = rig.cluster.newest()
    assert newest is not None, "a node runs"
    is_late = newest.transition in (TransitionState.WRITE_BOTH_READ_NEW, TransitionState.LEFT_TOKEN_RING)
    assert refusal.startswith("too late") if is_late else not refusal


# ---- in which state


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    kind: NodeRequestKind
    point: FaultPoint
    role: Role
    strike: Strike
    outcomes: Sequence[RequestOutcome]
    aborted_at: FaultPoint | None = None
    """Before `point`, which is on the way back."""

    def __str__(self) -> str:
        return f"{self.kind}-{self.point.removeprefix('topology.')}-{self.role.__name__}-{self.strike.__name__}"


STREAMING = FaultPoint.WRITE_BOTH_READ_OLD_ENTERED
FORTH: dict[NodeRequestKind, tuple[FaultPoint, ...]] = {
    LEAVE: (
        FaultPoint.TABLET_DRAINING_ENTERED,
        STREAMING,
        FaultPoint.WRITE_BOTH_READ_NEW_ENTERED,
        FaultPoint.LEFT_TOKEN_RING_ENTERED,
    ),
    REMOVE: (FaultPoint.TABLET_DRAINING_ENTERED, STREAMING, FaultPoint.WRITE_BOTH_READ_NEW_ENTERED),
    REPLACE: (
        FaultPoint.JOIN_GROUP0_ENTERED,
        FaultPoint.TABLET_DRAINING_ENTERED,
        STREAMING,
        FaultPoint.WRITE_BOTH_READ_NEW_ENTERED,
    ),
    REBUILD: (FaultPoint.REBUILD_STARTED,),
}
BACK: dict[NodeRequestKind, tuple[FaultPoint, ...]] = {
    LEAVE: (FaultPoint.ROLLBACK_TO_NORMAL_ENTERED, FaultPoint.TABLET_MIGRATION_ENTERED),
    REMOVE: (FaultPoint.ROLLBACK_TO_NORMAL_ENTERED, FaultPoint.TABLET_MIGRATION_ENTERED),
    REPLACE: (FaultPoint.LEFT_TOKEN_RING_ENTERED,),
}
NO_RETURN = (FaultPoint.WRITE_BOTH_READ_NEW_ENTERED, FaultPoint.LEFT_TOKEN_RING_ENTERED)


def roles_of(kind: NodeRequestKind) -> tuple[Role, ...]:
    """The subject of a remove is dead."""
    return (coordinator, other) if kind is REMOVE else (coordinator, subject, other)


def outcomes_of(point: FaultPoint, role: Role, strike: Strike) -> Sequence[RequestOutcome]:
    """Of a request that nobody aborts. A node that was not accepted yet may have to start its join again."""
    if point is FaultPoint.JOIN_GROUP0_ENTERED and role is subject:
        return EITHER
    if strike is is_excluded and point not in NO_RETURN:
        return (FAILED,) if role is subject else EITHER
    return (DONE,)


def all_cases() -> Iterator[Case]:
    for kind, points in FORTH.items():
        for point in points:
            for role in roles_of(kind):
                for strike in (crashes, is_cut_off, is_excluded):
                    outcomes = outcomes_of(point, role, strike)
                    yield Case(kind=kind, point=point, role=role, strike=strike, outcomes=outcomes)
            ended = (DONE,) if point in NO_RETURN else (FAILED,)
            yield Case(kind=kind, point=point, role=subject, strike=is_aborted, outcomes=ended)
    for kind, points in BACK.items():
        for point in points:
            for role in roles_of(kind):
                for strike in (crashes, is_cut_off, is_excluded):
                    yield Case(
                        kind=kind, point=point, role=role, strike=strike, outcomes=(FAILED,), aborted_at=STREAMING
                    )


EXTRA = (
    Case(kind=LEAVE, point=STREAMING, role=subject, strike=is_away, outcomes=(FAILED,)),
    Case(kind=LEAVE, point=FaultPoint.LEFT_TOKEN_RING_ENTERED, role=subject, strike=is_away, outcomes=(DONE,)),
    Case(kind=LEAVE, point=FaultPoint.LEAVE_REQUEST_DONE, role=coordinator, strike=crashes, outcomes=(DONE,)),
    Case(kind=LEAVE, point=FaultPoint.LEAVE_STOP_SENT, role=coordinator, strike=crashes, outcomes=(DONE,)),
    Case(
        kind=LEAVE,
        point=FaultPoint.WRITE_BOTH_READ_OLD_AFTER_ACTION,
        role=subject,
        strike=is_aborted,
        outcomes=(FAILED,),
    ),
    Case(
        kind=REMOVE,
        point=FaultPoint.WRITE_BOTH_READ_OLD_AFTER_ACTION,
        role=coordinator,
        strike=crashes,
        outcomes=(DONE,),
    ),
    Case(
        kind=REMOVE,
        point=FaultPoint.WRITE_BOTH_READ_NEW_BEFORE_COMMIT,
        role=coordinator,
        strike=crashes,
        outcomes=(DONE,),
    ),
    Case(
        kind=REPLACE,
        point=FaultPoint.WRITE_BOTH_READ_NEW_BEFORE_COMMIT,
        role=coordinator,
        strike=crashes,
        outcomes=(DONE,),
    ),
    Case(kind=REBUILD, point=FaultPoint.REBUILD_STARTED, role=subject, strike=is_away, outcomes=(FAILED,)),
    Case(kind=REBUILD, point=FaultPoint.REBUILD_AFTER_ACTION, role=subject, strike=is_aborted, outcomes=(FAILED,)),
)
ALWAYS = (
    "leave-write_both_read_new.entered-coordinator-crashes",
    "leave-write_both_read_old.entered-subject-is_away",
    "leave-leave.request_done-coordinator-crashes",
    "remove-write_both_read_old.entered-subject-is_aborted",
    "replace-write_both_read_new.before_commit-coordinator-crashes",
    "rebuild-rebuild.started-subject-is_away",
)
"""The others run in `make sim-long`."""


def cases() -> Iterator[Any]:
    for case in (*all_cases(), *EXTRA):
        yield pytest.param(case, id=str(case), marks=() if str(case) in ALWAYS else pytest.mark.long)


@pytest.mark.parametrize("case", list(cases()))
def test_an_operation_survives_one_fault(case: Case) -> None:
    async def tell(rig: TopologyRig, node: SimNode) -> None:
        dead = next(one for one in rig.old if one is not rig.leader())
        if case.kind in (REMOVE, REPLACE):
            await rig.die(dead)
        rig.stop_at(case.aborted_at or case.point)
        moved, request = await submit(rig, case.kind, dead if case.kind in (REMOVE, REPLACE) else node, dead)
        await rig.until(lambda: rig.is_stopped(case.aborted_at or case.point), f"{case.point} is reached")
        if case.kind in (REMOVE, REPLACE):
            await rig.lose_vote(dead)
        if case.aborted_at is not None:
            assert not await rig.abort(moved)
            rig.stop_at(case.point)
            rig.release(case.aborted_at)
            await rig.until(lambda: rig.is_stopped(case.point), f"{case.point} is reached")
        striking = asyncio.create_task(_coroutine(case.strike(rig, case.role(rig, moved))))
        await asyncio.sleep(0.5)
        rig.release(case.point)
        await striking
        await rig.until(lambda: rig.outcome_of(request) is not RequestOutcome.RUNNING, "the request ends")
        ended = rig.outcome_of(request)
        assert ended in case.outcomes, rig.request_of(moved)
        if ended is FAILED:
            rig.dead.pop(dead.host, None)
        goes = {LEAVE: ended is DONE, REMOVE: ended is DONE, REPLACE: True, REBUILD: False}[case.kind]
        gone = dead if case.kind is REPLACE and ended is DONE else moved
        assert await rig.end(gone) is (ENDED if goes else JOINED)

    run_on_vnodes(tell)


async def submit(rig: TopologyRig, kind: NodeRequestKind, node: SimNode, dead: SimNode) -> tuple[SimNode, RequestId]:
    """The node that the operation moves, and the request."""
    if kind is REPLACE:
        new = await rig.join(dead)
        return new, rig.request_of(new).id
    return node, await rig.submit(kind, node)


async def _coroutine(work: Awaitable[None]) -> None:
    await work
