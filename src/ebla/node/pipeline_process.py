"""The pipeline process of a node: follows the topology, sends heartbeats to its control, runs jobs under its permits.

Each control process starts a pipeline when it becomes the leader. The pipeline acts only while it has a permit, which
control gives for a limited time with its answers to heartbeats, and withdraws when its leases are lost. So two
pipelines never act at the same time. Should they do so all the same, because a machine stood still with its clock, the
job's record and its session keep them apart.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ebla.aio.wakeup import Wakeup
from ebla.feed.topology_follower import FeedControlClient
from ebla.feed.topology_view import View
from ebla.model.errors import EblaError, Fault
from ebla.model.identity import JobId
from ebla.model.transfers import TransferResult, TransferTask
from ebla.node.child_process import ChildProcess
from ebla.node.context import NodeContext
from ebla.observe.metrics import Metrics
from ebla.pipeline.job_queue import JobQueue, QueueConfig
from ebla.pipeline.job_runner import JobRunner
from ebla.pipeline.job_scheduler import JobLimits
from ebla.pipeline.ring_streaming import StreamContext, StreamWatcher
from ebla.ports.clock import Clock
from ebla.ports.environment import Environment
from ebla.ports.transfer_engine import EngineState, EngineStatus, TaskCounts, TransferEngine
from ebla.transfers.cluster_client import WireClusterClient
from ebla.transfers.record_store import WatchLimits
from ebla.transfers.transfer_client import TransferCallLimits, TransferClient
from ebla.wire.topology_messages import StreamWatchAnswer, StreamWatchRequest
from ebla.wire.verbs import PERMIT_WATCH, STREAM_WATCH, ChildBeatAnswer, PermitWatchRequest

NAME = "pipeline"
IDLE_S = 1.0
"""The longest wait between two looks at the permit: the boot clock and the loop's clock may differ."""
RETRY_S = 0.2


class PermitEnded(EblaError):
    """This pipeline may not act now; nothing was sent."""

    fault = Fault.US
    is_transient = True


class Permit:
    """The right to act, by the boot clock: a process that was stopped finds its permit over when it continues."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_ms = 0
        self._withdrawn = 0
        self.number = 0

    @property
    def left_ms(self) -> int:
        return max(0, self._until_ms - self._clock.boot_ms())

    def renew(self, number: int, until_ms: int) -> None:
        """An answer that was on its way when its permit was withdrawn gives nothing."""
        self.number = number
        self._until_ms = until_ms if number > self._withdrawn else 0

    def withdraw(self, number: int) -> None:
        self._withdrawn = max(self._withdrawn, number)
        if self.number <= self._withdrawn:
            self._until_ms = 0

    def check(self) -> None:
        """Immediately before each effect, in the same turn of the loop. Raises `PermitEnded`."""
        if self.left_ms == 0:
            raise PermitEnded("the pipeline has no permit to act now", advice="the pipeline of the leader runs the job")


@dataclass(frozen=True, slots=True)
class PermittedEngine:
    """`ports.transfer_engine.TransferEngine` that starts nothing without a permit."""

    engine: TransferEngine
    permit: Permit

    def status(self) -> EngineStatus:
        return self.engine.status()

    def tasks(self, job: JobId) -> TaskCounts:
        return self.engine.tasks(job)

    async def run(self, job: JobId, work: Sequence[TransferTask]) -> Sequence[TransferResult]:
        self.permit.check()
        return await self.engine.run(job, work)


class PipelineProcess(ChildProcess):
    """The caller starts and stops the engine. No barrier waits for this process: it holds no version, and other
    processes carry out its effects, under a session."""

    limits = JobLimits()
    record_limits = WatchLimits()

    def __init__(self, environment: Environment, node: NodeContext, engine: TransferEngine) -> None:
        super().__init__(environment, node, NAME, Metrics())
        self.call_limits = TransferCallLimits(close_session_ms=node.limits.session_close_ms)
        self.permit = Permit(environment.clock)
        self._engine = PermittedEngine(engine, self.permit)
        self._cluster: WireClusterClient | None = None
        self._acting = 0
        self._changed = Wakeup()

    @property
    def acting_under(self) -> int:
        """The number of the permit under which it runs jobs now; 0: it runs none."""
        return self._acting

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            cluster = WireClusterClient(
                tasks, self.peers_context(), self.node.cluster_addresses, before_send=self.permit.check
            )
            self._cluster = cluster
            tasks.create_task(self.new_follower(cluster).run())
            tasks.create_task(self.send_heartbeats(cluster))
            tasks.create_task(self._watch_permit(cluster))
            try:
                await self._run_jobs_under_permits(cluster)
            finally:
                cluster.close("the pipeline stops")

    # ---- jobs

    async def _run_jobs_under_permits(self, cluster: WireClusterClient) -> None:
        node, environment = self.node, self.environment
        client = TransferClient(cluster, environment.rng, self.call_limits, node.report)
        runner = JobRunner(
            client=client,
            engine=self._engine,
            topology=self.view,
            clock=environment.clock,
            rng=environment.rng,
            limits=self.limits,
        )
        queue_config = QueueConfig(
            host=node.host,
            pid=node.pid,
            clock=environment.clock,
            rng=environment.rng,
            report=node.report,
            limits=self.limits,
            records=self.record_limits,
        )
        streams = StreamContext(client=client, engine=self._engine, topology=self.view)
        while True:
            while not self._may_act(self.permit.number):
                await self._changed.wait(IDLE_S)
            self._acting = number = self.permit.number
            node.report("pipeline.active", {"permit": number})
            queue = JobQueue(cluster.control, runner, self._engine, queue_config)
            watcher = StreamWatcher(streams, partial(self._watch_streams, cluster), node.pid)
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(queue.run()), tasks.create_task(watcher.run())]
                while self._may_act(number):
                    await self._changed.wait(min(IDLE_S, self.permit.left_ms / 1000))
                # Runs end where they are. The next pipeline closes the sessions of jobs and runs them again; orders of
                # the coordinator continue under the session of the topology.
                for one in running:
                    one.cancel()
            self._acting = 0
            self._changed.wake()
            node.report("pipeline.inactive", {"permit": number})

    async def _watch_streams(
        self, control: FeedControlClient, request: StreamWatchRequest, deadline_ms: int
    ) -> StreamWatchAnswer:
        return await control.call(self.node.host, STREAM_WATCH, request, deadline_ms)

    def _may_act(self, number: int) -> bool:
        return self.view.is_known and self.permit.number == number and self.permit.left_ms > 0

    # ---- control

    def serves(self) -> bool:
        return self._acting != 0 and self._engine.status().state is EngineState.READY

    def control_answered(self, sent_ms: int, answer: ChildBeatAnswer) -> None:
        self.permit.renew(answer.permit, sent_ms + answer.permit_ms)
        self._changed.wake()

    async def _watch_permit(self, control: FeedControlClient) -> None:
        """Learns of a withdrawal at once, and confirms it once nothing runs under the permit any more."""
        stopped, hold_ms = 0, self.node.limits.child_heartbeat_ms
        while True:
            request = PermitWatchRequest(pid=self.node.pid, stopped=stopped, hold_ms=hold_ms)
            try:
                answer = await control.call(self.node.host, PERMIT_WATCH, request, 2 * hold_ms)
            except EblaError:
                await asyncio.sleep(RETRY_S)
                continue
            self.permit.withdraw(answer.withdrawn)
            self._changed.wake()
            while 0 < self._acting <= answer.withdrawn:
                await self._changed.wait(IDLE_S)
            stopped = answer.withdrawn

    def on_view_installed(self, view: View) -> None:
        assert self._cluster is not None, "it follows while it runs"
        self._cluster.follow(view.snapshot)
        self._changed.wake()
