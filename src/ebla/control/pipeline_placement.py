"""Where the pipeline runs, and for how long it may act: its job queue is an activity of the leader.

Control starts the pipeline beside the leader. Spark may start before the quorum of leases holds; jobs run only under a
permit, which heartbeat answers carry while the activity runs. The activity has ended when the pipeline confirms that it
has stopped, or is reaped: only then do the nodes grant their leases to the next leader, whose pipeline then acts alone.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ebla.aio.wakeup import Wakeup
from ebla.control.leadership.activity_tasks import RunningHandle
from ebla.control.leadership.leadership_node import LeadershipNode
from ebla.control.topology.node_barrier import SHARD_PREFIX
from ebla.leadership.activities import ActivitySpec
from ebla.leadership.quorum import MAJORITY
from ebla.model.errors import EblaError
from ebla.observe.event_reporter import EventReporter
from ebla.topology.snapshot import Node
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import PERMIT_WATCH, PermitWatchAnswer, PermitWatchRequest, ProcessStatus

PIPELINE = "pipeline"
PLACE_MS = 250
REAP_MS = 1_000
"""How long a killed pipeline may take to be reaped before control restarts. `grace_ms` leaves room for it."""
REAP_CHECK_S = 0.02


@dataclass(frozen=True, slots=True)
class PermitState:
    number: int
    left_ms: int


NO_PERMIT = PermitState(0, 0)


class PipelineChild(Protocol):
    """The supervisor of the node's children, for the pipeline."""

    def statuses(self) -> tuple[ProcessStatus, ...]: ...

    def want(self, name: str, wanted: bool) -> None: ...

    def kill(self, name: str, reason: str) -> None: ...


class PipelinePlacement:
    def __init__(
        self,
        children: PipelineChild,
        leadership: LeadershipNode,
        should_run: Callable[[bool], bool],
        report: EventReporter,
    ) -> None:
        """`should_run`: whether the pipeline should run here, given whether it does."""
        self._children = children
        self._leadership = leadership
        self._should_run = should_run
        self._report = report
        self._changed = Wakeup()
        self._wanted = False
        self._activity: RunningHandle | None = None
        """Until the pipeline has stopped to act under it."""
        self._withdrawn = 0
        self._acting_pid = 0
        """The process that got a permit of the activity; 0: none did."""
        self._stopped = 0
        self._last_reason = ""

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._place())
            tasks.create_task(self._lead())

    def serve_on(self, server: Server) -> None:
        server.serve(PERMIT_WATCH, self._watch_permit)

    async def _place(self) -> None:
        runs = False
        while True:
            self._wanted = self._should_run(runs)
            # One that may still act is ended by its activity, which withdraws its permit first.
            before, runs = runs, self._wanted or (runs and self._activity is not None)
            if runs is not before:
                self._report("pipeline.wanted" if runs else "pipeline.not_wanted", {})
                self._children.want(PIPELINE, runs)
            await asyncio.sleep(PLACE_MS / 1000)

    # ---- the activity

    async def _lead(self) -> None:
        while True:
            if self._wanted:
                spec = ActivitySpec(
                    name="jobs",
                    domain="pipeline",
                    quorum=MAJORITY,
                    wait_ms=self._leadership.settings().period_ms,
                    reap_ms=REAP_MS,
                )
                try:
                    await self._leadership.activities.run(spec, self._permit_acting)
                except EblaError as error:
                    self._report_wait(error.message)
            await asyncio.sleep(PLACE_MS / 1000)

    async def _permit_acting(self, handle: RunningHandle) -> None:
        """The body of the activity. When it is cancelled, it withdraws the permit and ends once nothing acts under it:
        this node must not grant its lease again before. A further cancellation waits for that too."""
        self._activity, self._acting_pid, self._last_reason = handle, 0, ""
        cancelled: asyncio.CancelledError | None = None
        try:
            while self._wanted:
                await self._changed.wait(PLACE_MS / 1000)
        except asyncio.CancelledError as error:
            cancelled = error
        self._withdrawn = number = handle.activity.number
        self._changed.wake()
        stop_ms, since_ms = self._leadership.settings().activity_stop_ms, self._leadership.now_ms()
        cancelled_ms, is_killed = since_ms, False
        while self._acts(number):
            now_ms = self._leadership.now_ms()
            passed_ms = now_ms - since_ms
            # The registry has ended control before, if that could help. It does so only with what it has cancelled.
            if cancelled is not None and now_ms >= cancelled_ms + stop_ms + 2 * REAP_MS:
                break
            if passed_ms >= stop_ms and not is_killed:
                is_killed = True
                self._report("pipeline.not_stopped", {"waited_ms": stop_ms})
                self._children.kill(PIPELINE, f"did not stop to act within {stop_ms} ms")
            try:
                await self._changed.wait(REAP_CHECK_S if is_killed else (stop_ms - passed_ms) / 1000)
            except asyncio.CancelledError as error:
                if cancelled is None:
                    cancelled, cancelled_ms = error, self._leadership.now_ms()
        self._activity = None
        if cancelled is not None:
            raise cancelled

    def _acts(self, number: int) -> bool:
        """Whether a process may act under the permit now."""
        return self._acting_pid != 0 and self._acting_pid == self._pid() and self._stopped < number

    def _pid(self) -> int:
        return next((one.pid for one in self._children.statuses() if one.name == PIPELINE), 0)

    def _report_wait(self, why: str) -> None:
        if why != self._last_reason:  # once, not at every try
            self._last_reason = why
            self._report("pipeline.waits", {"reason": why})

    # ---- permits

    def permit(self, pid: int) -> PermitState:
        """For the answer to a heartbeat of this process."""
        handle = self._activity
        # The last heartbeat of a process that was reaped may still be in flight.
        if handle is None or pid != self._pid() or handle.activity.number <= self._withdrawn:
            return NO_PERMIT
        left_ms = handle.permit_ms()
        if left_ms > 0:
            self._acting_pid = pid
        return PermitState(handle.activity.number, left_ms)

    def is_acting(self, pid: int) -> bool:
        """Whether this process has a permit that was not withdrawn."""
        handle = self._activity
        return (
            handle is not None and handle.activity.number > self._withdrawn and pid == self._acting_pid == self._pid()
        )

    async def _watch_permit(self, request: PermitWatchRequest, _call: IncomingCall) -> PermitWatchAnswer:
        if request.pid == self._acting_pid and request.stopped > self._stopped:
            self._stopped = request.stopped
            self._changed.wake()
        until_ms = self._leadership.now_ms() + request.hold_ms
        while self._withdrawn <= request.stopped and self._leadership.now_ms() < until_ms:
            await self._changed.wait((until_ms - self._leadership.now_ms()) / 1000)
        return PermitWatchAnswer(self._withdrawn)


def should_run_pipeline(own: Node | None, processes: Sequence[ProcessStatus], *, leads: bool, runs: bool) -> bool:
    """Whether the pipeline should run beside this control process. `own`: this node in the topology.

    The pipeline runs on the leader of group 0. Two may run for a moment, on the leader and on a former one that does
    not know yet; only one has a permit to act. Starting Java takes the processor for a while, so it waits until clients
    are served. A running pipeline is not stopped because a shard restarts."""
    if not leads or own is None or not own.takes_clients:
        return False
    return runs or any(process.serving for process in processes if process.name.startswith(SHARD_PREFIX))
