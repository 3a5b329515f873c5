"""Whole nodes that transfer data: those of `rows_node.py` with staging, checkpoints and a pipeline process on each,
which runs where control leads; and executors of the simulated engine, on their machines and on others."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ebla.bulk.bulk_process import BulkConfig, BulkProcess
from ebla.bulk.bulk_transfers import TransferConfig
from ebla.bulk.compaction_service import CompactionServiceLimits
from ebla.bulk.stream_service import StreamService
from ebla.bulk.transfer_limits import TransferLimits
from ebla.model.errors import EblaError
from ebla.model.identity import ClusterId, HostId, JobId, Replica, SessionId
from ebla.model.records.jobs import JOBS_PREFIX, JobRecord
from ebla.model.stored_value import decode_stored
from ebla.model.transfers import FileMove
from ebla.pipeline.job_queue import QueueLimits
from ebla.pipeline.job_records import RecordLimits
from ebla.pipeline.job_run import RunLimits
from ebla.pipeline.job_scheduler import SchedulerLimits
from ebla.pipeline.pipeline_process import NAME, PipelineConfig, PipelineLimits, PipelineProcess
from ebla.ports.environment import Environment
from ebla.replica.replica_server import ReplicaServer
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.transfers import TransfersLedger
from ebla.sim.checkers.transfers_taps import TransferTaps
from ebla.sim.clusters.nodes import (
    BULK_SOCKET,
    CONTROL_SOCKET,
    DATA,
    HEARTBEAT_MS,
    SHARD_PORT,
    WIRE,
    SimCluster,
    SimCompactions,
    SimNode,
    SimShard,
    add_node,
    socket_of,
)
from ebla.sim.disk import ProcessDisk
from ebla.sim.transfers.attempts import SimExecutor
from ebla.sim.transfers.file_isolation import SimIsolation
from ebla.sim.transfers.flight import BulkHandle, SimFlightServer
from ebla.sim.transfers.spark_engine import SimSparkEngine, SimTransfers
from ebla.sim.world import Unit, World
from ebla.storage.codec.staging_format import checkpoints_folder, staging_folder
from ebla.storage.compaction.layer_build import BuildJob, BuildResult, run_build
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.transfers.cluster_client import ClusterAddresses, WireClusterClient
from ebla.transfers.transfer_client import TransferCallLimits
from ebla.wire.transfer_messages import CloseSessionAnswer, CloseSessionRequest
from ebla.wire.verbs import A, Q, Verb

NODES = 4
SHARED_HARDWARE = {2: 1}
"""Which nodes, counted from one, share the hardware of another: between them files can be linked."""
EXECUTOR_MACHINES = ("n1", "n3", "n4", "x1")
"""Where they run: on machines of nodes, and on their own."""
FLIGHT_PORT, VERBS_PORT = 7001, 7002
KILLED_SHARE, PAUSED_SHARE = 0.01, 0.015
"""How often a pipeline that leads is struck, each time it is looked at."""
ECHO_SHARE = 0.12
ECHO_S_MAX = 12.0
LIMITS = TransferLimits(
    puts_max=8,
    gets_max=10,
    free_bytes_min=2_000,
    barrier_ms=2_000,
    shard_ms=4_000,
    build_ms=10_000,
    sweep_ms=2_000,
    rows_merged_bytes_max=1_000,
)
PIPELINE = PipelineLimits(
    heartbeat_ms=500,
    silence_ms=2_500,
    queue=QueueLimits(
        book=SchedulerLimits(file_jobs_max=4, row_jobs_max=3, abandoned_after_ms=500),
        poll_ms=400,
        progress_ms=500,
        records=RecordLimits(watch_ms=1_000, answer_ms=2_000, retry_ms=200),
        backoff_first_ms=500,
        backoff_max_ms=4_000,
    ),
    run=RunLimits(topology_ms=4_000, compare_pause_ms=100, buckets_min=4, buckets_max=16, bucket_bytes=2_000),
    steps=TransferCallLimits(
        open_session_ms=3_000,
        close_session_ms=5_000,
        staging_ms=4_000,
        checkpoint_ms=6_000,
        seal_ms=10_000,
        adopt_ms=8_000,
        release_ms=2_000,
        patience_ms=8_000,
        pause_max_ms=1_000,
    ),
)
"""All of it shorter than in production: a storm is short, and what is given up in it should be tried again in it."""


@dataclass(slots=True, kw_only=True)
class TransferCluster(SimCluster):
    ledger: TransfersLedger
    engine: SimSparkEngine
    seats: dict[HostId, BulkHandle] = field(default_factory=dict)
    pipelines: dict[HostId, Unit] = field(default_factory=dict)
    is_stormy: bool = False
    limits: TransferLimits = LIMITS

    def watch_shard(self, seat: SimShard, replica: ReplicaServer, environment: Environment) -> None:
        assert isinstance(environment.disk, ProcessDisk)
        TransferTaps(self.ledger, seat.own, environment.disk).watch(replica)

    def executor_units(self) -> list[Unit]:
        return [executor.unit for executor in self.engine.executors]

    def close_answered(self, session: SessionId, down: Sequence[HostId]) -> None:
        self.ledger.closed(session, down)
        for node in self.nodes:
            for seat in node.shards:
                if not seat.unit.down and seat.taps is not None and seat.taps.inside is not None:
                    self.ledger.held(node.host, seat.unit.name, seat.taps.inside.guards.closing)
            process = node.bulk_process
            if not node.bulk.down and process is not None and process.guards is not None:
                self.ledger.held(node.host, node.bulk.name, process.guards.closing)

    def jobs(self) -> dict[JobId, JobRecord]:
        """As the node sees them that has come furthest."""
        processes = [node.control_process for node in self.nodes if not node.control.down]
        stores = [one.topology.store for one in processes if one is not None and one.topology.store is not None]
        furthest = max(stores, key=lambda store: store.revision.index)
        jobs = [decode_stored(JobRecord, furthest.entries[key].value).value for key in furthest.keys(JOBS_PREFIX)]
        return {job.id: job for job in jobs}


def build_cluster(world: World) -> TransferCluster:
    """Nodes and executors that are not yet started."""
    seats: dict[HostId, BulkHandle] = {}
    engine = SimSparkEngine(world=world, seat=lambda host: seats[host])
    ledger = TransfersLedger(fail=world.fail, now=world.now)
    cluster = TransferCluster(
        world=world,
        id=ClusterId(world.rng.uuid()),
        barriers=BarrierLedger(world.fail),
        ledger=ledger,
        engine=engine,
        seats=seats,
    )
    for number in range(NODES):
        name, beside = f"n{number + 1}", SHARED_HARDWARE.get(number + 1)
        world.machine(name, beside=None if beside is None else f"n{beside}").disk.lay_out(name)
        node = add_node(cluster, number, f"{DATA}/{name}", run_bulk)
        seats[node.host] = BulkHandle(node.bulk)
        main = partial(run_pipeline, cluster=cluster, number=number)
        unit = world.unit(f"{name}-pipe", main, machine=name, host_id=node.host)
        unit.expected_errors = node.bulk.expected_errors
        cluster.pipelines[node.host] = unit
    engine.note_files = partial(_note_files, cluster)
    engine.note_rows = ledger.sends_rows
    for number, machine in enumerate(EXECUTOR_MACHINES):
        engine.executors.append(SimExecutor(world, f"e{number + 1}", machine, engine))
    return cluster


def _note_files(cluster: TransferCluster, move: FileMove) -> None:
    node = next(one for one in cluster.nodes if one.host == move.source.host)
    folder = f"{checkpoints_folder(node.folder)}/{move.source.checkpoint}"
    cluster.ledger.sends_files(move, folder, cluster.world.disk_of(node.bulk.machine))


class _Builds:
    """`bulk.staging.LayerBuilding`."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def build(self, job: BuildJob, deadline_s: float) -> BuildResult:
        await asyncio.sleep(min(deadline_s, self._environment.rng.random()))
        return await run_build(MemoryEngine(self._environment.disk), self._environment.disk, job)


async def run_bulk(environment: Environment, cluster: SimCluster, number: int) -> None:
    assert isinstance(cluster, TransferCluster)
    assert isinstance(environment.disk, ProcessDisk)
    node = cluster.nodes[number]
    seat = cluster.seats[node.host]
    node.bulk_process = seat.door = None

    def front(stream_service: StreamService) -> Coroutine[Any, Any, None]:
        seat.door = SimFlightServer(environment, stream_service)
        return seat.door.run()

    setup = BulkConfig(
        introduction=cluster.introduction(node.host, "bulk"),
        address=BULK_SOCKET,
        control_address=CONTROL_SOCKET,
        heartbeat_ms=HEARTBEAT_MS,
        compactions=CompactionServiceLimits(),
        wire=WIRE,
        report=cluster.report(node.bulk.name),
        pid=node.bulk.start_count,
        transfers=TransferConfig(
            staging_folder=staging_folder(node.folder),
            checkpoints_folder=checkpoints_folder(node.folder),
            flight=node.bulk.address(FLIGHT_PORT),
            peers_address=node.bulk.address(VERBS_PORT),
            shard_address=socket_of,
            machine=node.bulk.machine.name,
            isolation=SimIsolation(environment.disk),
            building=_Builds(environment),
            fronts=(front,),
            limits=cluster.limits,
        ),
    )
    node.bulk_process = BulkProcess(environment, setup, SimCompactions(environment))
    await node.bulk_process.run()


# ---- the pipeline


async def run_pipeline(environment: Environment, cluster: TransferCluster, number: int) -> None:
    node = cluster.nodes[number]
    unit = cluster.pipelines[node.host]
    places = ClusterAddresses(
        own=node.host,
        control_socket=CONTROL_SOCKET,
        bulk_socket=BULK_SOCKET,
        shard_socket_of=socket_of,
        bulk_port=VERBS_PORT,
        shard_port_first=SHARD_PORT,
    )
    introduction, report = cluster.introduction(node.host, NAME), cluster.report(unit.name)
    setup = PipelineConfig(
        introduction=introduction, places=places, wire=WIRE, report=report, pid=unit.start_count, limits=PIPELINE
    )
    await _WatchedPipeline(environment, setup, SimTransfers(environment, cluster.engine), cluster).run()


class _WatchedPipeline(PipelineProcess):
    """Tells what its calls were answered. Now and then one arrives once more, late, as from a pipeline that was frozen
    and does not know yet that its time is over."""

    def __init__(
        self, environment: Environment, setup: PipelineConfig, transfers: SimTransfers, cluster: TransferCluster
    ) -> None:
        super().__init__(environment, setup, transfers)
        self._rng = environment.rng
        self._cluster = cluster

    async def _take_turns(self, doors: WireClusterClient) -> None:
        async with asyncio.TaskGroup() as echoing:
            self._watch(doors, echoing)
            await super()._take_turns(doors)

    def _watch(self, doors: WireClusterClient, echoing: asyncio.TaskGroup) -> None:
        control, bulk_, shard = doors.control, doors.bulk, doors.shard

        async def watched_control(verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
            answer = await control(verb, request, deadline_ms)
            if isinstance(request, CloseSessionRequest) and isinstance(answer, CloseSessionAnswer):
                self._cluster.close_answered(request.session, answer.down)
            return answer

        async def watched_bulk(host: HostId, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
            if self._rng.random() < ECHO_SHARE:
                echoing.create_task(self._echo(partial(bulk_, host, verb, request, deadline_ms)))
            return await bulk_(host, verb, request, deadline_ms)

        async def watched_shard(replica: Replica, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
            if self._rng.random() < ECHO_SHARE:
                echoing.create_task(self._echo(partial(shard, replica, verb, request, deadline_ms)))
            return await shard(replica, verb, request, deadline_ms)

        doors.control = watched_control  # type: ignore[method-assign]  # notes, and does the same
        doors.bulk = watched_bulk  # type: ignore[method-assign]  # does the same twice
        doors.shard = watched_shard  # type: ignore[method-assign]  # does the same twice

    async def _echo(self, ask: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(self._rng.random() * self._rng.random() * ECHO_S_MAX)
        try:
            await ask()
        except EblaError:
            pass  # nobody waits for it


async def supervise_pipelines(cluster: TransferCluster) -> None:
    """What each control does with its own: one where it leads, and none for long where it does not. Some outlive the
    lead for a while, and some die or stop under it."""
    rng = cluster.world.rng.fork("pipelines")
    while True:
        await asyncio.sleep(rng.between(0.1, 0.6))
        for node in cluster.nodes:
            unit = cluster.pipelines[node.host]
            if not _leads(node):
                if not unit.down and rng.happens(0.3):
                    unit.kill()
            elif unit.down:
                unit.start()
            elif cluster.is_stormy and rng.happens(KILLED_SHARE):
                unit.kill()
            elif cluster.is_stormy and rng.happens(PAUSED_SHARE):
                unit.pause()
                cluster.world.loop.call_later(rng.exponential(4.0), unit.resume, context=cluster.world.kernel)


def _leads(node: SimNode) -> bool:
    process = node.control_process
    group0 = None if node.control.down or process is None else process._group0  # noqa: SLF001  # what it acts by itself
    return group0 is not None and group0.is_running and group0.running.raft.is_leader
