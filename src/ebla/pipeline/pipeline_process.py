"""The pipeline process of a node: follows the topology, sends heartbeats to its control, runs jobs while that leads.

Each control process starts a pipeline when it becomes the leader and ends it when it is not any more. The pipeline runs
jobs only while its control allows it, and stops when control is silent. So two pipelines work on one job only for a
moment, and then the job's record and its session keep them apart.
"""

import asyncio
from dataclasses import dataclass, field

from ebla.feed.topology_follower import TopologyFollower, TopologyFollowerConfig
from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import EblaError
from ebla.observe.event_reporter import EventReporter
from ebla.options import DEFAULT_LIMITS
from ebla.pipeline.job_queue import JobQueue, QueueConfig, QueueLimits
from ebla.pipeline.job_runner import JobRunner, RunDeps, RunLimits
from ebla.ports.environment import Environment
from ebla.ports.transfer_engine import EngineState, TransferEngine
from ebla.transfers.cluster_client import ClusterAddresses, WireClusterClient
from ebla.transfers.transfer_client import TransferCallLimits, TransferClient
from ebla.wire.feed_messages import ChildReport
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.peers import PeersContext
from ebla.wire.verbs import CHILD_BEAT, ChildBeatRequest

NAME = "pipeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLimits:
    heartbeat_ms: int = DEFAULT_LIMITS.child_heartbeat_ms
    silence_ms: int = DEFAULT_LIMITS.feed_silence_ms
    """After so long without an answer from control the pipeline runs no jobs."""
    queue: QueueLimits = field(default_factory=QueueLimits)
    run: RunLimits = field(default_factory=RunLimits)
    calls: TransferCallLimits = field(default_factory=TransferCallLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    introduction: Introduction
    """Its process name is the one that control knows this process by."""
    addresses: ClusterAddresses
    wire: WireLimits
    report: EventReporter
    pid: int
    limits: PipelineLimits = field(default_factory=PipelineLimits)


class PipelineProcess:
    """The caller starts and stops the engine."""

    def __init__(self, environment: Environment, config: PipelineConfig, engine: TransferEngine) -> None:
        self._environment = environment
        self._config = config
        self._engine = engine
        self._cluster: WireClusterClient | None = None
        self._active = asyncio.Event()
        self._inactive = asyncio.Event()
        self._inactive.set()
        self.view = TopologyView()

    @property
    def is_active(self) -> bool:
        """Whether it runs jobs now."""
        return self._active.is_set()

    async def run(self) -> None:
        """Until cancelled."""
        config, environment = self._config, self._environment
        async with asyncio.TaskGroup() as tasks:
            context = PeersContext(
                transport=environment.transport,
                rng=environment.rng,
                introduction=config.introduction,
                limits=config.wire,
                report=config.report,
            )
            self._cluster = cluster = WireClusterClient(tasks, context, config.addresses)
            following = TopologyFollowerConfig(
                name=config.introduction.process,
                pid=config.pid,
                host=config.introduction.host,
                clock=environment.clock,
                report=config.report,
                poll_ms=config.limits.heartbeat_ms,
            )
            follower = TopologyFollower(cluster, following, self.view, self, self._report_of)
            tasks.create_task(follower.run())
            tasks.create_task(self._send_heartbeats(cluster))
            try:
                await self._run_jobs_while_active(cluster)
            finally:
                cluster.close("the pipeline stops")

    # ---- jobs

    async def _run_jobs_while_active(self, cluster: WireClusterClient) -> None:
        config, environment = self._config, self._environment
        client = TransferClient(cluster, environment.rng, config.limits.calls, config.report)
        deps = RunDeps(
            client=client,
            engine=self._engine,
            topology=self.view,
            clock=environment.clock,
            rng=environment.rng,
            limits=config.limits.run,
        )
        while True:
            await self._active.wait()
            config.report("pipeline.active", {})
            queue = JobQueue(
                cluster.control,
                JobRunner(deps),
                self._engine,
                QueueConfig(
                    host=config.introduction.host,
                    pid=config.pid,
                    clock=environment.clock,
                    rng=environment.rng,
                    report=config.report,
                    limits=config.limits.queue,
                ),
            )
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(queue.run())
                await self._inactive.wait()
                # Runs end where they are. The pipeline of the new leader closes their sessions and runs them again.
                running.cancel()
            config.report("pipeline.inactive", {})

    def _set_active(self, *, is_active: bool) -> None:
        set_now, clear_now = (self._active, self._inactive) if is_active else (self._inactive, self._active)
        set_now.set()
        clear_now.clear()

    # ---- control

    async def _send_heartbeats(self, cluster: WireClusterClient) -> None:
        config, clock = self._config, self._environment.clock
        last_answer_ms = clock.boot_ms()
        while True:
            sent_ms = clock.boot_ms()
            is_serving = self.is_active and self._engine.status().state is EngineState.READY
            beat = ChildBeatRequest(config.introduction.process, config.pid, serving=is_serving)
            try:
                answer = await cluster.control(CHILD_BEAT, beat, config.limits.heartbeat_ms)
            except EblaError:
                if clock.boot_ms() - last_answer_ms >= config.limits.silence_ms:
                    self._set_active(is_active=False)
            else:
                last_answer_ms = sent_ms
                self._set_active(is_active=answer.serving and self.view.is_known)
            await asyncio.sleep(config.limits.heartbeat_ms / 1000)

    # ---- the topology

    async def prepare(self, view: View, before: View | None) -> None:
        """Does nothing: no file of this process belongs to a version."""

    def on_view_installed(self, view: View) -> None:
        assert self._cluster is not None, "it follows while it runs"
        self._cluster.follow(view.snapshot)

    def _report_of(self, view: View) -> ChildReport:
        """No barrier waits for this process: it holds no version, and other processes carry out its effects, under a
        session."""
        return ChildReport(
            name=self._config.introduction.process,
            pid=self._config.pid,
            version=view.version,
            fence=view.fence,
            oldest_running=view.version,
            pending_replicas_open=True,
        )
