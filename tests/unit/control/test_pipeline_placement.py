"""Where the pipeline runs, and for how long it may act."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
from tests.async_tests import settled
from tests.unit.topology.world import cluster, host

from ebla.control.leadership.leadership_node import LeadershipNode
from ebla.control.pipeline_placement import (
    NO_PERMIT,
    PIPELINE,
    PermitState,
    PipelinePlacement,
    should_run_pipeline,
)
from ebla.leadership.activities import ActivitySpec
from ebla.leadership.quorum import MAJORITY
from ebla.model.lease_settings import LeaseSettings
from ebla.observe.event_reporter import discard_event
from ebla.topology.snapshot import Node
from ebla.topology.states import NodeState
from ebla.wire.server import IncomingCall
from ebla.wire.verbs import PermitWatchRequest, ProcessStatus

SERVES, STARTS = (
    ProcessStatus(name="shard-1", pid=5, started_wall_us=0, serving=True),
    ProcessStatus(name="shard-0", pid=4, started_wall_us=0),
)
BULK = ProcessStatus(name="bulk", pid=6, started_wall_us=0, serving=True)


def node(state: NodeState = NodeState.NORMAL) -> Node:
    world, _ = cluster(1)
    return msgspec.structs.replace(world.snapshot.nodes[host(1)], state=state)


@pytest.mark.parametrize(
    ("own", "processes", "leads", "runs", "wanted"),
    [
        (node(), (STARTS, SERVES), True, False, True),
        (node(NodeState.REBUILDING), (SERVES,), True, False, True),
        (node(), (STARTS, BULK), True, False, False),
        (node(), (STARTS, BULK), True, True, True),
        (node(), (SERVES,), False, True, False),
        (node(NodeState.BOOTSTRAPPING), (SERVES,), True, False, False),
        (node(NodeState.LEFT), (SERVES,), True, True, False),
        (None, (SERVES,), True, False, False),
    ],
)
def test_it_runs_beside_the_leader_once_that_serves(
    own: Node | None, processes: tuple[ProcessStatus, ...], leads: bool, runs: bool, wanted: bool
) -> None:
    assert should_run_pipeline(own, processes, leads=leads, runs=runs) is wanted


# ---- permits


class FakeLeadership:
    """Runs one activity at a time and starts it at once."""

    def __init__(self) -> None:
        self.activities = self
        self.left_ms = 7_000
        self.number = 0
        self.task: asyncio.Task[None] | None = None
        self.specs: list[ActivitySpec] = []

    def settings(self) -> LeaseSettings:
        return LeaseSettings()

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def permit_ms(self) -> int:
        return self.left_ms

    @property
    def activity(self) -> "FakeLeadership":
        return self

    async def run(self, spec: ActivitySpec, body: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        self.specs.append(spec)
        self.number += 1
        self.task = asyncio.create_task(body(self))
        await asyncio.wait([self.task])

    def cancel(self) -> asyncio.Task[None]:
        assert self.task is not None
        self.task.cancel()
        return self.task


class FakeChildren:
    def __init__(self) -> None:
        self.pid = 42
        self.wanted: list[bool] = []
        self.kills: list[float] = []
        self.reap_s = 0.1

    def statuses(self) -> tuple[ProcessStatus, ...]:
        return (ProcessStatus(name=PIPELINE, pid=self.pid, started_wall_us=0),)

    def want(self, name: str, wanted: bool) -> None:
        assert name == PIPELINE
        self.wanted.append(wanted)

    def kill(self, name: str, reason: str) -> None:
        assert (name, "3000 ms" in reason) == (PIPELINE, True)
        loop = asyncio.get_running_loop()
        self.kills.append(loop.time())
        loop.call_later(self.reap_s, setattr, self, "pid", 0)


class Placed:
    def __init__(self) -> None:
        self.leadership, self.children = FakeLeadership(), FakeChildren()
        self.should_run = True
        self.placement = PipelinePlacement(
            self.children, cast("LeadershipNode", self.leadership), lambda _runs: self.should_run, discard_event
        )

    async def watch(self, stopped: int, pid: int = 42) -> int:
        request = PermitWatchRequest(pid=pid, stopped=stopped, hold_ms=10_000)
        return (await self.placement._watch_permit(request, cast("IncomingCall", None))).withdrawn


@asynccontextmanager
async def placed() -> AsyncIterator[Placed]:
    rig = Placed()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(rig.placement.run())
        await asyncio.sleep(1)
        yield rig
        running.cancel()


async def test_a_permit_is_for_the_pipeline_that_lives_and_as_long_as_the_leases() -> None:
    async with placed() as rig:
        assert rig.children.wanted == [True]
        assert [(spec.domain, spec.quorum) for spec in rig.leadership.specs] == [("pipeline", MAJORITY)]
        assert rig.placement.permit(42) == PermitState(1, 7_000)
        assert rig.placement.permit(41) == NO_PERMIT
        assert (rig.placement.is_acting(42), rig.placement.is_acting(41)) == (True, False)


async def test_a_withdrawal_is_told_at_once_and_the_activity_ends_when_it_is_confirmed() -> None:
    async with placed() as rig:
        rig.placement.permit(42)
        watching = asyncio.create_task(rig.watch(0))
        await settled()
        assert not watching.done()
        rig.should_run = False
        activity = rig.leadership.cancel()
        await settled()
        assert watching.result() == 1
        assert rig.placement.permit(42) == NO_PERMIT
        await asyncio.sleep(1)
        assert not activity.done()
        assert rig.children.wanted == [True], "it is not terminated before it has stopped to act"
        confirming = asyncio.create_task(rig.watch(1))
        await settled()
        assert activity.cancelled()
        await asyncio.sleep(1)
        assert (rig.children.wanted, rig.children.kills) == ([True, False], [])
        confirming.cancel()


async def test_one_that_does_not_confirm_is_killed_and_the_activity_ends_when_it_is_reaped() -> None:
    async with placed() as rig:
        rig.placement.permit(42)
        activity, began = rig.leadership.cancel(), asyncio.get_running_loop().time()
        await asyncio.sleep(2.9)
        activity.cancel()  # a second time, as at the end of the process
        await settled()
        assert (activity.done(), rig.children.kills) == (False, [])
        await asyncio.sleep(0.15)
        assert [killed - began for killed in rig.children.kills] == [pytest.approx(3.0, abs=0.01)]
        assert not activity.done()
        await asyncio.sleep(0.1)
        assert activity.cancelled()


async def test_the_activity_outlasts_the_registry_if_the_killed_one_is_never_reaped() -> None:
    async with placed() as rig:
        rig.children.reap_s = 1_000
        rig.placement.permit(42)
        activity = rig.leadership.cancel()
        (spec,) = rig.leadership.specs
        await asyncio.sleep(3 + spec.reap_ms / 1000 + 0.1)
        assert not activity.done()
        await asyncio.sleep(5)
        assert activity.cancelled()
        assert len(rig.children.kills) == 1


async def test_one_that_is_not_wanted_and_never_reaped_is_left_to_the_registry() -> None:
    async with placed() as rig:
        rig.children.reap_s = 1_000
        rig.placement.permit(42)
        rig.should_run = False
        await asyncio.sleep(20)
        assert (rig.leadership.number, len(rig.children.kills)) == (1, 1)
        activity = rig.leadership.cancel()
        (spec,) = rig.leadership.specs
        await asyncio.sleep(3 + spec.reap_ms / 1000 + 0.1)
        assert not activity.done()
        await asyncio.sleep(5)
        assert activity.cancelled()


async def test_nothing_is_waited_for_if_no_permit_was_given() -> None:
    async with placed() as rig:
        activity = rig.leadership.cancel()
        await settled()
        assert activity.cancelled()


async def test_a_confirmation_of_another_process_does_not_count() -> None:
    async with placed() as rig:
        rig.placement.permit(42)
        activity = rig.leadership.cancel()
        assert await rig.watch(0, pid=41) == 1
        stranger = asyncio.create_task(rig.watch(1, pid=41))
        await settled()
        assert not activity.done()
        stranger.cancel()
