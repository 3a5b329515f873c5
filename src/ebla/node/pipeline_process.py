"""The pipeline process of a node: follows the topology, sends heartbeats to its control, runs jobs while that leads.

Each control process starts a pipeline when it becomes the leader and ends it when it is not any more. The pipeline runs
jobs only while its control allows it, and stops when control is silent. So two pipelines work on one job only for a
moment, and then the job's record and its session keep them apart.
"""

import asyncio

from ebla.feed.topology_view import View
from ebla.node.child_process import ChildProcess
from ebla.node.context import NodeContext
from ebla.observe.metrics import Metrics
from ebla.pipeline.job_queue import JobQueue, QueueConfig
from ebla.pipeline.job_runner import JobRunner
from ebla.pipeline.job_scheduler import JobLimits
from ebla.ports.environment import Environment
from ebla.ports.transfer_engine import EngineState, TransferEngine
from ebla.transfers.cluster_client import WireClusterClient
from ebla.transfers.record_store import WatchLimits
from ebla.transfers.transfer_client import TransferCallLimits, TransferClient
from ebla.wire.verbs import ChildBeatAnswer

NAME = "pipeline"


class PipelineProcess(ChildProcess):
    """The caller starts and stops the engine. No barrier waits for this process: it holds no version, and other
    processes carry out its effects, under a session."""

    limits = JobLimits()
    record_limits = WatchLimits()

    def __init__(self, environment: Environment, node: NodeContext, engine: TransferEngine) -> None:
        super().__init__(environment, node, NAME, Metrics())
        self.call_limits = TransferCallLimits(close_session_ms=node.limits.session_close_ms)
        self._engine = engine
        self._cluster: WireClusterClient | None = None
        self._active = asyncio.Event()
        self._inactive = asyncio.Event()
        self._inactive.set()
        self._answered_ms = environment.clock.boot_ms()

    @property
    def is_active(self) -> bool:
        """Whether it runs jobs now."""
        return self._active.is_set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            cluster = WireClusterClient(tasks, self.peers_context(), self.node.cluster_addresses)
            self._cluster = cluster
            tasks.create_task(self.new_follower(cluster).run())
            tasks.create_task(self.send_heartbeats(cluster))
            try:
                await self._run_jobs_while_active(cluster)
            finally:
                cluster.close("the pipeline stops")

    # ---- jobs

    async def _run_jobs_while_active(self, cluster: WireClusterClient) -> None:
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
        while True:
            await self._active.wait()
            node.report("pipeline.active", {})
            queue = JobQueue(cluster.control, runner, self._engine, queue_config)
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(queue.run())
                await self._inactive.wait()
                # Runs end where they are. The pipeline of the new leader closes their sessions and runs them again.
                running.cancel()
            node.report("pipeline.inactive", {})

    def _set_active(self, *, is_active: bool) -> None:
        set_now, clear_now = (self._active, self._inactive) if is_active else (self._inactive, self._active)
        set_now.set()
        clear_now.clear()

    # ---- control

    def serves(self) -> bool:
        return self.is_active and self._engine.status().state is EngineState.READY

    def control_answered(self, sent_ms: int, answer: ChildBeatAnswer) -> None:
        self._answered_ms = sent_ms
        self._set_active(is_active=answer.serving and self.view.is_known)

    def control_silent(self) -> None:
        if self.environment.clock.boot_ms() - self._answered_ms >= self.node.limits.feed_silence_ms:
            self._set_active(is_active=False)

    def on_view_installed(self, view: View) -> None:
        assert self._cluster is not None, "it follows while it runs"
        self._cluster.follow(view.snapshot)
