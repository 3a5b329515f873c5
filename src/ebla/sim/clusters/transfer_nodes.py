"""Nodes that transfer data: those of `nodes.py` with a pipeline process on each, which runs where control leads, and
executors of the simulated Spark engine, on the nodes' machines and on others."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from ebla.control.pipeline_placement import PIPELINE
from ebla.control.settings.settings_node import SettingsNode
from ebla.model.errors import EblaError
from ebla.model.identity import ClusterId, HostId, JobId, Replica, SessionId
from ebla.model.lease_settings import LeaseSettings
from ebla.model.records.jobs import JOBS_PREFIX, JobRecord
from ebla.model.stored_value import decode_stored
from ebla.model.transfers import FileMove
from ebla.node.context import NodeContext
from ebla.node.pipeline_process import PipelineProcess
from ebla.node.shard_process import ShardService, ShardServiceContext
from ebla.pipeline.job_scheduler import JobLimits
from ebla.ports.environment import Environment
from ebla.settings_store.registry import LEASES, Setting
from ebla.sim.checkers.leadership import LeadershipRecord
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.transfers import TransfersLedger
from ebla.sim.checkers.transfers_taps import TransferTaps
from ebla.sim.clusters.nodes import SimChildren, SimCluster, SimNode, SimShard
from ebla.sim.disk import ProcessDisk
from ebla.sim.transfers.attempts import SimExecutor
from ebla.sim.transfers.spark_engine import SimSparkEngine, SimTransfers
from ebla.sim.world import Unit, World
from ebla.storage.codec.staging_format import checkpoints_folder
from ebla.transfers.cluster_client import WireClusterClient
from ebla.transfers.record_store import WatchLimits
from ebla.transfers.transfer_client import TransferCallLimits
from ebla.wire.transfer_messages import CloseSessionAnswer, CloseSessionRequest
from ebla.wire.verbs import A, ProcessStatus, Q, Verb

T = TypeVar("T")

NODES = 4
SHARED_HARDWARE = {1: "n1"}
"""Which nodes, by number, share the hardware of another: between them files can be linked."""
EXECUTOR_MACHINES = ("n1", "n3", "n4", "x1")
"""Machines of nodes, and one of their own."""
KILLED_SHARE, PAUSED_SHARE = 0.01, 0.015
"""How often an active pipeline is killed or paused, per check."""
ECHO_SHARE = 0.12
ECHO_S_MAX = 12.0
HEARTBEAT_MS, SILENCE_MS = 500, 2_500
"""Of a pipeline. All of its limits are shorter than in production: a storm is short, and what a run gives up should be
retried within the storm."""
JOBS = JobLimits(
    file_jobs_max=4,
    row_jobs_max=3,
    poll_ms=400,
    progress_ms=500,
    backoff_first_ms=500,
    backoff_max_ms=4_000,
    topology_ms=4_000,
    compare_pause_ms=100,
    bucket_bytes=2_000,
    buckets_min=4,
    buckets_max=16,
)
LEASE_SETTINGS = LeaseSettings(period_ms=4_000, grace_ms=2_000, activity_stop_ms=600)
RECORDS = WatchLimits(watch_ms=1_000, answer_ms=2_000, retry_ms=200)
CALLS = TransferCallLimits(
    open_session_ms=3_000,
    close_session_ms=5_000,
    staging_ms=4_000,
    checkpoint_ms=6_000,
    seal_ms=10_000,
    adopt_ms=8_000,
    release_ms=2_000,
    patience_ms=8_000,
    pause_max_ms=1_000,
)


@dataclass(slots=True, kw_only=True)
class TransferCluster(SimCluster):
    ledger: TransfersLedger
    engine: SimSparkEngine
    pipelines: dict[HostId, Unit] = field(default_factory=dict)
    wanted: dict[HostId, bool] = field(default_factory=dict)
    """Which pipelines their control processes want to run."""
    leaders: LeadershipRecord = field(default_factory=LeadershipRecord)
    terms: dict[HostId, int] = field(default_factory=dict)
    """Under which term each pipeline acts."""
    permitted_effects: int = 0
    is_stormy: bool = False

    def watch_shard(
        self,
        shard: SimShard,
        context: ShardServiceContext,
        node: NodeContext,  # noqa: ARG002  # for subclasses
    ) -> tuple[ShardService, ...]:
        disk = context.environment.disk
        assert isinstance(disk, ProcessDisk)
        TransferTaps(self.ledger, shard.own, disk).watch(context.replica)
        return ()

    def executor_units(self) -> list[Unit]:
        return [executor.unit for executor in self.engine.executors]

    def close_answered(self, session: SessionId, down: Sequence[HostId]) -> None:
        self.ledger.closed(session, down)
        for node in self.nodes:
            for shard in node.shards:
                if not shard.unit.down and shard.taps is not None and shard.taps.replica is not None:
                    self.ledger.held(node.host, shard.unit.name, shard.taps.replica.context.guards.closing)
            process = node.bulk_process
            if not node.bulk.down and process is not None and process.guards is not None:
                self.ledger.held(node.host, node.bulk.name, process.guards.closing)

    def watch_closes(self, clients: WireClusterClient) -> None:
        """Reports which closes of sessions were answered."""
        control = clients.control

        async def watched(verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
            answer = await control(verb, request, deadline_ms)
            if isinstance(request, CloseSessionRequest) and isinstance(answer, CloseSessionAnswer):
                self.close_answered(request.session, answer.down)
            return answer

        clients.control = watched  # type: ignore[method-assign]  # records, and does the same

    def jobs(self) -> dict[JobId, JobRecord]:
        """As the node with the newest state sees them."""
        processes = [node.control_process for node in self.nodes if not node.control.down]
        stores = [one.topology.store for one in processes if one is not None and one.topology.store is not None]
        newest = max(stores, key=lambda store: store.revision.index)
        jobs = [decode_stored(JobRecord, newest.entries[key].value).value for key in newest.keys(JOBS_PREFIX)]
        return {job.id: job for job in jobs}

    def add_pipeline(self, node: SimNode) -> None:
        unit = self.world.unit(
            f"{node.control.name}-pipe", partial(self._run_pipeline, node), machine=node.control.name, host_id=node.host
        )
        unit.expected_errors = node.bulk.expected_errors
        self.pipelines[node.host] = unit

    @property
    def has_pipelines(self) -> bool:
        return bool(self.pipelines)

    def children_of(self, node: SimNode) -> SimChildren:
        if node.host not in self.pipelines:
            return SimCluster.children_of(self, node)
        self.wanted.pop(node.host, None)
        # As a real node does at its start: no child of the predecessor may live.
        self.world.loop.call_soon(self.pipelines[node.host].kill, context=self.world.kernel)
        return _WatchedChildren(self, node)

    def watch_settings(
        self,
        node: SimNode,  # noqa: ARG002  # for subclasses
        settings: SettingsNode,
        environment: Environment,  # noqa: ARG002  # for subclasses
    ) -> None:
        value = settings.value
        short: dict[str, Any] = {LEASES.name: LEASE_SETTINGS} if self.pipelines else {}

        def with_short_leases(setting: Setting[T]) -> T:
            return short.get(setting.name) or value(setting)

        settings.value = with_short_leases  # type: ignore[method-assign]  # a storm is short

    def acts(self, host: HostId, permit: int) -> None:
        """A pipeline has passed the check of its permit. INV-LEASE-4: no newer leader's job queue has started."""
        self.permitted_effects += 1
        for node in self.nodes:
            leadership = None if node.live_control is None else node.live_control.leadership
            known = {} if leadership is None else leadership.core.registry.activities
            for activity in known.values():
                if activity.domain == "pipeline" and activity.has_started:
                    self.leaders.started("pipeline", activity.term)
            if node.host == host and permit in known:
                self.terms[host] = known[permit].term
            elif node.host == host and leadership is not None:
                self.world.fail(f"INV-LEASE-4: the pipeline of {host} acts after its activity has ended")
        problem = self.leaders.acted("pipeline", self.terms.get(host, 0))
        if problem is not None:
            self.world.fail(problem)

    async def _run_pipeline(self, node: SimNode, environment: Environment) -> None:
        unit = self.pipelines[node.host]
        own = self.context(node, unit.name, unit.start_count)
        limits = msgspec.structs.replace(own.limits, child_heartbeat_ms=HEARTBEAT_MS, feed_silence_ms=SILENCE_MS)
        own = replace(own, options=msgspec.structs.replace(own.options, limits=limits))
        await _WatchedPipeline(environment, own, SimTransfers(environment, self.engine), self).run()

    def note_files(self, move: FileMove) -> None:
        node = next(one for one in self.nodes if one.host == move.source.host)
        folder = f"{checkpoints_folder(node.folder)}/{move.source.checkpoint}"
        self.ledger.sends_files(move, folder, self.world.disk_of(node.bulk.machine))


def build_cluster(world: World) -> TransferCluster:
    """Nodes and executors that are not yet started."""
    engine = SimSparkEngine(world=world)
    ledger = TransfersLedger(fail=world.fail, now=world.now)
    cluster = TransferCluster(
        world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail), ledger=ledger, engine=engine
    )
    for number in range(NODES):
        cluster.add_pipeline(cluster.add_node(beside=SHARED_HARDWARE.get(number)))
    engine.bulk_of, engine.note_files, engine.note_rows = cluster.bulk_of, cluster.note_files, ledger.sends_rows
    for number, machine in enumerate(EXECUTOR_MACHINES):
        engine.executors.append(SimExecutor(world, f"e{number + 1}", machine, engine))
    return cluster


class _WatchedChildren(SimChildren):
    """The processes of a node with a pipeline, which `supervise_pipelines` starts and ends."""

    def __init__(self, cluster: TransferCluster, node: SimNode) -> None:
        self._cluster = cluster
        self._pipeline = cluster.pipelines[node.host]
        self._host = node.host
        shards = {f"shard-{shard.own.shard}": shard.unit for shard in node.shards}
        self._units = {**shards, "bulk": node.bulk, PIPELINE: self._pipeline}

    def statuses(self) -> tuple[ProcessStatus, ...]:
        return tuple(
            ProcessStatus(name=name, pid=0 if unit.down else unit.start_count, started_wall_us=0)
            for name, unit in self._units.items()
            if name != PIPELINE or not unit.down
        )

    def want(self, name: str, wanted: bool) -> None:  # noqa: ARG002  # there is one
        self._cluster.wanted[self._host] = wanted

    def kill(self, name: str, reason: str) -> None:  # noqa: ARG002  # there is one
        world = self._cluster.world
        world.loop.call_soon(self._pipeline.kill, context=world.kernel)


class _WatchedPipeline(PipelineProcess):
    """Reports the answers to its calls. Some calls arrive once more, late, as from a pipeline that was frozen and does
    not know that it no longer leads."""

    limits = JOBS
    record_limits = RECORDS

    def __init__(
        self, environment: Environment, node: NodeContext, transfers: SimTransfers, cluster: TransferCluster
    ) -> None:
        super().__init__(environment, node, transfers)
        self.call_limits = CALLS
        self._rng = environment.rng
        self._watched = cluster
        check = self.permit.check

        def watched_check() -> None:
            check()
            cluster.acts(node.host, self.permit.number)

        self.permit.check = watched_check  # type: ignore[method-assign]  # records, and does the same

    async def _run_jobs_under_permits(self, cluster: WireClusterClient) -> None:
        async with asyncio.TaskGroup() as echoing:
            self._watch(cluster, echoing)
            await super()._run_jobs_under_permits(cluster)

    def _watch(self, clients: WireClusterClient, echoing: asyncio.TaskGroup) -> None:
        self._watched.watch_closes(clients)
        bulk_, shard = clients.bulk, clients.shard
        bulk_peers, shard_peers = clients._bulk, clients._shards  # noqa: SLF001  # a late frame passes no check

        async def watched_bulk(host: HostId, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
            if self._rng.random() < ECHO_SHARE:
                echoing.create_task(self._echo(partial(bulk_peers.call, host, verb, request, deadline_ms)))
            return await bulk_(host, verb, request, deadline_ms)

        async def watched_shard(replica: Replica, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
            if self._rng.random() < ECHO_SHARE:
                late = shard_peers.of(replica.shard)
                echoing.create_task(self._echo(partial(late.call, replica.host, verb, request, deadline_ms)))
            return await shard(replica, verb, request, deadline_ms)

        clients.bulk = watched_bulk  # type: ignore[method-assign]  # does the same twice
        clients.shard = watched_shard  # type: ignore[method-assign]  # does the same twice

    async def _echo(self, ask: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(self._rng.random() * self._rng.random() * ECHO_S_MAX)
        try:
            await ask()
        except EblaError:
            pass  # no caller waits for it


async def supervise_pipelines(cluster: TransferCluster) -> None:
    """As each supervisor does: a pipeline runs where control wants it, and is ended soon where it does not. Some
    outlive that for a while, and some die or pause during it."""
    rng = cluster.world.rng.fork("pipelines")
    while True:
        await asyncio.sleep(rng.between(0.1, 0.6))
        for node in cluster.nodes:
            unit = cluster.pipelines[node.host]
            if node.control.down or not cluster.wanted.get(node.host):
                if not unit.down and rng.happens(0.3):
                    unit.kill()
            elif unit.down:
                unit.start()
            elif cluster.is_stormy and rng.happens(KILLED_SHARE):
                unit.kill()
            elif cluster.is_stormy and rng.happens(PAUSED_SHARE):
                unit.pause()
                cluster.world.loop.call_later(rng.exponential(4.0), unit.resume, context=cluster.world.kernel)
