"""The pipeline process of a node: follows the topology, keeps in touch with its control, runs jobs while that leads.

Every control starts one when it becomes the leader and ends it when it is not any more. It runs nothing unless its
control says so, and stops by itself where control is silent: two pipelines are at work on one job for a moment at most,
and then their records and sessions keep them apart.
"""

import asyncio
from dataclasses import dataclass, field

from ebla.feed.topology_follower import TopologyFollower, TopologyFollowerConfig
from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import EblaError
from ebla.observe.event_reporter import EventReporter
from ebla.options import DEFAULT_LIMITS
from ebla.pipeline.job_queue import JobQueue, QueueConfig, QueueLimits
from ebla.pipeline.job_run import RunDeps, RunLimits
from ebla.pipeline.job_runner import JobRunner
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
    """A pipeline whose control is silent for so long runs nothing."""
    queue: QueueLimits = field(default_factory=QueueLimits)
    run: RunLimits = field(default_factory=RunLimits)
    steps: TransferCallLimits = field(default_factory=TransferCallLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    introduction: Introduction
    """Its process name is the one its control knows it by."""
    places: ClusterAddresses
    wire: WireLimits
    report: EventReporter
    pid: int
    limits: PipelineLimits = field(default_factory=PipelineLimits)


class PipelineProcess:
    """The engine comes from outside, running."""

    def __init__(self, environment: Environment, setup: PipelineConfig, transfers: TransferEngine) -> None:
        self._environment = environment
        self._setup = setup
        self._transfers = transfers
        self._doors: WireClusterClient | None = None
        self._acts = asyncio.Event()
        self._rests = asyncio.Event()
        self._rests.set()
        self.view = TopologyView()

    @property
    def is_active(self) -> bool:
        """Whether it takes jobs up now."""
        return self._acts.is_set()

    async def run(self) -> None:
        """Until cancelled."""
        setup, around = self._setup, self._environment
        async with asyncio.TaskGroup() as tasks:
            context = PeersContext(
                transport=around.transport,
                rng=around.rng,
                introduction=setup.introduction,
                limits=setup.wire,
                report=setup.report,
            )
            self._doors = doors = WireClusterClient(tasks, context, setup.places)
            ours, poll_ms = setup.introduction, setup.limits.heartbeat_ms
            following = TopologyFollowerConfig(
                name=ours.process,
                pid=setup.pid,
                host=ours.host,
                clock=around.clock,
                report=setup.report,
                poll_ms=poll_ms,
            )
            follower = TopologyFollower(doors, following, self.view, self, self._report_of)
            tasks.create_task(follower.run())
            tasks.create_task(self._keep_in_touch(doors))
            try:
                await self._take_turns(doors)
            finally:
                doors.close("the pipeline stops")

    # ---- jobs, while control leads

    async def _take_turns(self, doors: WireClusterClient) -> None:
        setup, around = self._setup, self._environment
        while True:
            await self._acts.wait()
            setup.report("pipeline.acts", {})
            steps = TransferClient(doors, around.rng, setup.limits.steps, setup.report)
            parts = RunDeps(
                steps=steps,
                transfers=self._transfers,
                view=self.view,
                clock=around.clock,
                rng=around.rng,
                limits=setup.limits.run,
            )
            queue = JobQueue(
                doors.control,
                JobRunner(parts),
                self._transfers,
                QueueConfig(
                    host=setup.introduction.host,
                    pid=setup.pid,
                    clock=around.clock,
                    rng=around.rng,
                    report=setup.report,
                    limits=setup.limits.queue,
                ),
            )
            async with asyncio.TaskGroup() as tasks:
                acting = tasks.create_task(queue.run())
                await self._rests.wait()
                # Runs end where they are. Who leads now closes their sessions and runs them again.
                acting.cancel()
            setup.report("pipeline.rests", {})

    def _turn(self, *, is_active: bool) -> None:
        set_now, clear_now = (self._acts, self._rests) if is_active else (self._rests, self._acts)
        set_now.set()
        clear_now.clear()

    # ---- control

    async def _keep_in_touch(self, doors: WireClusterClient) -> None:
        setup, clock = self._setup, self._environment.clock
        heard_ms = clock.boot_ms()
        while True:
            sent_ms = clock.boot_ms()
            ready = self.is_active and self._transfers.status().state is EngineState.READY
            beat = ChildBeatRequest(setup.introduction.process, setup.pid, serving=ready)
            try:
                answer = await doors.control(CHILD_BEAT, beat, setup.limits.heartbeat_ms)
            except EblaError:
                if clock.boot_ms() - heard_ms >= setup.limits.silence_ms:
                    self._turn(is_active=False)
            else:
                heard_ms = sent_ms
                self._turn(is_active=answer.serving and self.view.is_known)
            await asyncio.sleep(setup.limits.heartbeat_ms / 1000)

    # ---- the topology

    async def prepare(self, view: View, before: View | None) -> None:
        """Nothing: no file here belongs to a version."""

    def on_view_installed(self, view: View) -> None:
        assert self._doors is not None, "it follows while it runs"
        self._doors.follow(view.snapshot)

    def _report_of(self, view: View) -> ChildReport:
        """No barrier waits for it: it holds no version, and its effects are other processes' under a session."""
        name, pid = self._setup.introduction.process, self._setup.pid
        return ChildReport(
            name=name,
            pid=pid,
            version=view.version,
            fence=view.fence,
            oldest_running=view.version,
            pending_replicas_open=True,
        )
