"""The pipeline process against a control of the test's own: it acts under a permit, and never without one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from tests.async_tests import settled
from tests.unit.bulk.bulk_process_rig import CONTROL, OURS, Control, state
from tests.unit.pipeline.jobs_rig import LoopClock, ScriptedEngine, SmallGroup0
from tests.unit.wire.rig import MemoryTransport

from ebla.aio.wakeup import Wakeup
from ebla.model.identity import JobId, SessionId, TopologyVersion
from ebla.model.lease_settings import LeaseSettings
from ebla.node.context import NodeContext
from ebla.node.pipeline_process import Permit, PermitEnded, PermittedEngine, PipelineProcess
from ebla.observe.event_reporter import discard_event
from ebla.options import NodeLimits, NodeOptions
from ebla.ports.environment import Environment
from ebla.runtime.file_disk import FileDisk
from ebla.sim.rng import SimRng
from ebla.topology.keys import STATE
from ebla.wire.server import IncomingCall
from ebla.wire.topology_messages import StreamOrder, StreamWatchAnswer, StreamWatchRequest
from ebla.wire.verbs import (
    GROUP0_EXECUTE,
    GROUP0_READ,
    GROUP0_WATCH,
    PERMIT_WATCH,
    STREAM_WATCH,
    ChildBeatAnswer,
    ChildBeatRequest,
    PermitWatchAnswer,
    PermitWatchRequest,
    Verb,
)


class PausableClock(LoopClock):
    """Jumps as the boot clock does for a process that was stopped meanwhile."""

    paused_ms = 0

    def boot_ms(self) -> int:
        return super().boot_ms() + self.paused_ms


class PermitControl(Control):
    """Answers each heartbeat with `permit`, after `answer_s`; `requests` are those of the job queue."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        super().__init__(tasks)
        self.permit = (0, 0)
        self.answer_s = 0.0
        self.withdrawn = 0
        self.changed = Wakeup()
        self.confirmed = 0
        self.requests = 0
        self._group0 = SmallGroup0()
        self.server.serve(PERMIT_WATCH, self._watch)
        self.stream_watches: list[StreamWatchRequest] = []
        self.order = StreamWatchAnswer(0)
        self.server.serve(STREAM_WATCH, self._watch_streams)
        for verb in (GROUP0_READ, GROUP0_EXECUTE, GROUP0_WATCH):
            self._serve_group0(verb)

    def _serve_group0(self, verb: Verb[Any, Any]) -> None:
        async def answer(request: Any, _call: IncomingCall) -> Any:
            self.requests += 1
            return await self._group0.ask(verb, request, 1000)

        self.server.serve(verb, answer)

    async def _beat(self, beat: ChildBeatRequest, _call: IncomingCall) -> ChildBeatAnswer:  # type: ignore[override]  # late
        self.beats.append(beat)
        permit = self.permit
        await asyncio.sleep(self.answer_s)
        return ChildBeatAnswer(serving=True, permit=permit[0], permit_ms=permit[1])

    def withdraw(self, number: int) -> None:
        self.withdrawn, self.permit = number, (0, 0)
        self.changed.wake()

    async def _watch(self, request: PermitWatchRequest, _call: IncomingCall) -> PermitWatchAnswer:
        self.confirmed = max(self.confirmed, request.stopped)
        if self.withdrawn <= request.stopped:
            await self.changed.wait(request.hold_ms / 1000)
        return PermitWatchAnswer(self.withdrawn)

    async def _watch_streams(self, request: StreamWatchRequest, _call: IncomingCall) -> StreamWatchAnswer:
        self.stream_watches.append(request)
        if request.seen == self.order.number:
            await asyncio.sleep(request.hold_ms / 1000)
        return self.order


class Rig:
    def __init__(self, tasks: asyncio.TaskGroup, heartbeat_ms: int) -> None:
        self.transport = MemoryTransport()
        self.control = PermitControl(tasks)
        self.clock = PausableClock()
        self.engine = ScriptedEngine(SimRng("engine"))
        environment = Environment(clock=self.clock, rng=SimRng("rig"), disk=FileDisk(), transport=self.transport)
        assert OURS.cluster is not None
        node = NodeContext(
            options=NodeOptions(data="/", limits=NodeLimits(child_heartbeat_ms=heartbeat_ms)),
            host=OURS.host,
            cluster=OURS.cluster,
            cluster_name=OURS.cluster_name,
            report=discard_event,
            pid=42,
        )
        self.process = PipelineProcess(environment, node, self.engine)


@asynccontextmanager
async def running(heartbeat_ms: int = 1_000) -> AsyncIterator[Rig]:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, heartbeat_ms)
        await rig.transport.listen(CONTROL, rig.control.server.accept)
        process = tasks.create_task(rig.process.run())
        rig.control.tell(3, {STATE: state(7)}, reset=True)
        yield rig
        process.cancel()
        rig.control.server.close("the test is over")


async def test_it_acts_only_under_a_permit() -> None:
    async with running() as rig:
        await asyncio.sleep(5)
        assert (rig.process.acting_under, rig.control.requests) == (0, 0)
        rig.control.permit = (1, 3_000)
        await asyncio.sleep(3)
        assert rig.process.acting_under == 1
        assert rig.control.requests > 0
        rig.control.permit = (1, 0)
        await asyncio.sleep(1.5)
        assert rig.process.acting_under == 0


async def test_it_follows_the_orders_of_the_coordinator_under_a_permit_alone() -> None:
    async with running() as rig:
        order = StreamOrder(session=SessionId(UUID(int=1)), version=TopologyVersion(7), request=UUID(int=2))
        rig.control.order = StreamWatchAnswer(1, order)
        await asyncio.sleep(5)
        assert rig.control.stream_watches == []
        rig.control.permit = (1, 3_000)
        await asyncio.sleep(5)
        reported = [one.result for one in rig.control.stream_watches if one.seen == 1]
        assert reported[-1] is not None
        # The topology of the test is not in a transition.
        assert (reported[-1].session, reported[-1].is_done) == (order.session, False)
        assert "session" in reported[-1].error
        rig.control.permit = (1, 0)
        await asyncio.sleep(1.5)
        count = len(rig.control.stream_watches)
        await asyncio.sleep(5)
        assert len(rig.control.stream_watches) == count


async def test_a_permit_counts_from_the_sending_of_the_heartbeat() -> None:
    async with running() as rig:
        rig.control.permit, rig.control.answer_s = (1, 800), 0.9
        await asyncio.sleep(6)
        assert rig.control.beats
        assert (rig.process.acting_under, rig.control.requests) == (0, 0)


async def test_it_stops_when_control_is_silent_for_the_time_of_the_permit() -> None:
    async with running() as rig:
        rig.control.permit = (1, 3_000)
        await asyncio.sleep(5)
        assert rig.process.acting_under == 1
        rig.control.answer_s = 100.0
        await asyncio.sleep(3.1)
        assert rig.process.acting_under == 0
        before = rig.control.requests
        await asyncio.sleep(20)
        assert rig.control.requests == before


async def test_a_withdrawal_stops_it_at_once_and_is_confirmed() -> None:
    async with running(heartbeat_ms=2_000) as rig:
        rig.control.permit = (1, 60_000)
        await asyncio.sleep(4.1)
        assert rig.process.acting_under == 1
        beats = len(rig.control.beats)
        rig.control.withdraw(1)
        await settled()
        assert (rig.process.acting_under, rig.control.confirmed) == (0, 1)
        assert len(rig.control.beats) == beats
        with pytest.raises(PermitEnded):
            rig.process.permit.check()


async def test_an_answer_that_is_later_than_the_withdrawal_gives_nothing() -> None:
    async with running() as rig:
        rig.control.permit, rig.control.answer_s = (1, 60_000), 0.5
        await asyncio.sleep(1.6)  # the answer to the second heartbeat is on its way
        rig.control.withdraw(1)
        await asyncio.sleep(1)
        assert (rig.process.acting_under, rig.control.confirmed) == (0, 1)
        rig.control.permit = (2, 60_000)
        await asyncio.sleep(3)
        assert rig.process.acting_under == 2


async def test_one_that_was_stopped_does_nothing_when_it_continues() -> None:
    async with running() as rig:
        rig.control.permit = (1, 3_000)
        await asyncio.sleep(3)
        assert rig.process.acting_under == 1
        rig.control.permit, before = (0, 0), rig.control.requests
        rig.clock.paused_ms = 30_000
        with pytest.raises(PermitEnded) as error:
            rig.process.permit.check()
        assert error.value.outcome == "not_applied"
        await asyncio.sleep(5)
        assert (rig.process.acting_under, rig.control.requests) == (0, before)


async def test_the_engine_starts_nothing_without_a_permit() -> None:
    clock, engine = PausableClock(), ScriptedEngine(SimRng("engine"))
    permit = Permit(clock)
    permitted, job = PermittedEngine(engine, permit), JobId(OURS.host)
    with pytest.raises(PermitEnded):
        await permitted.run(job, ())
    permit.renew(1, clock.boot_ms() + 100)
    await permitted.run(job, ())
    assert len(engine.ran) == 1


def test_by_default_a_permit_outlasts_a_heartbeat_that_is_not_answered() -> None:
    """A lease is renewed halfway to its revoke deadline, so this much is left of a permit in the worst case."""
    leases, limits = LeaseSettings(), NodeLimits()
    answer_ms = max(limits.child_heartbeat_ms, limits.feed_silence_ms // 3)
    assert (leases.period_ms - leases.grace_ms) // 2 > 2 * limits.child_heartbeat_ms + answer_ms
