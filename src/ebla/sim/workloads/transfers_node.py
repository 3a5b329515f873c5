"""Whole nodes that transfer data: those of `rows_node.py` with staging, checkpoints and a pipeline process on each,
which runs where control leads; and executors of the simulated engine, on their machines and on others."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ebla.bulk.bulk_process import BulkProcess, BulkSetup
from ebla.bulk.data_plane import DataPlane
from ebla.bulk.fold_desk import DeskLimits
from ebla.bulk.transfer_limits import TransferLimits
from ebla.bulk.transfers import TransferSetup
from ebla.model.errors import EblaError
from ebla.model.identity import ClusterId, HostId, JobId, Replica, SessionId
from ebla.model.stored import decode_stored
from ebla.model.transfers import FileMove
from ebla.pipeline.doors import DoorPlaces, WireDoors
from ebla.pipeline.job_book import BookLimits
from ebla.pipeline.job_queue import QueueLimits
from ebla.pipeline.job_records import RecordLimits
from ebla.pipeline.pipeline_process import NAME, PipelineLimits, PipelineProcess, PipelineSetup
from ebla.pipeline.runs import RunLimits
from ebla.pipeline.transfer_steps import StepLimits
from ebla.ports.surroundings import Surroundings
from ebla.replica.replica_server import ReplicaServer
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.transfers import TransfersLedger
from ebla.sim.checkers.transfers_taps import TransferTaps
from ebla.sim.disk import LifeDisk
from ebla.sim.file_isolation import SimIsolation
from ebla.sim.flight_twin import BulkSeat, FlightTwin
from ebla.sim.transfer_attempts import Executor
from ebla.sim.transfers_twin import Engine, TransfersTwin
from ebla.sim.workloads.rows_node import (
    BULK_SOCKET,
    CONTROL_SOCKET,
    DATA,
    HEARTBEAT_MS,
    SHARD_PORT,
    WIRE,
    Folds,
    RowsCluster,
    RowsNode,
    Shard,
    add_node,
    socket_of,
)
from ebla.sim.world import Unit, World
from ebla.storage.build_rows import BuildJob, BuildResult, run_build
from ebla.storage.memory import MemoryEngine
from ebla.storage.staging_format import checkpoints_folder, staging_folder
from ebla.wire.jobs import JOBS_PREFIX, Job
from ebla.wire.transfer_messages import CloseSessionAnswer, CloseSessionRequest
from ebla.wire.verbs import A, Q, Verb

NODES = 4
BESIDE = {2: 1}
"""Which nodes, counted from one, share the hardware of another: between them files can be linked."""
EXECUTORS = ("n1", "n3", "n4", "x1")
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
        book=BookLimits(file_jobs_max=4, row_jobs_max=3, left_after_ms=500),
        look_ms=400,
        progress_ms=500,
        records=RecordLimits(watch_ms=1_000, answer_ms=2_000, again_ms=200),
        rest_first_ms=500,
        rest_max_ms=4_000,
    ),
    run=RunLimits(topology_ms=4_000, compare_pause_ms=100, buckets_min=4, buckets_max=16, bucket_bytes=2_000),
    steps=StepLimits(
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
class TransfersCluster(RowsCluster):
    ledger: TransfersLedger
    engine: Engine
    seats: dict[HostId, BulkSeat] = field(default_factory=dict)
    pipelines: dict[HostId, Unit] = field(default_factory=dict)
    is_stormy: bool = False
    limits: TransferLimits = LIMITS

    def watch_shard(self, seat: Shard, replica: ReplicaServer, around: Surroundings) -> None:
        assert isinstance(around.disk, LifeDisk)
        TransferTaps(self.ledger, seat.own, around.disk).watch(replica)

    def executor_units(self) -> list[Unit]:
        return [executor.unit for executor in self.engine.executors]

    def close_answered(self, session: SessionId, down: Sequence[HostId]) -> None:
        self.ledger.closed(session, down)
        for node in self.nodes:
            for seat in node.shards:
                if not seat.unit.down and seat.taps is not None and seat.taps.inside is not None:
                    self.ledger.held(node.host, seat.unit.name, seat.taps.inside.guards.closing)
            process = node.bulk_process
            if not node.bulk.down and process is not None and process.sessions.guards is not None:
                self.ledger.held(node.host, node.bulk.name, process.sessions.guards.closing)

    def jobs(self) -> dict[JobId, Job]:
        """As the node sees them that has come furthest."""
        processes = [node.control_process for node in self.nodes if not node.control.down]
        stores = [one.topology.store for one in processes if one is not None and one.topology.store is not None]
        furthest = max(stores, key=lambda store: store.revision.index)
        jobs = [decode_stored(Job, furthest.entries[key].value).value for key in furthest.keys(JOBS_PREFIX)]
        return {job.id: job for job in jobs}


def build_cluster(world: World) -> TransfersCluster:
    """Nodes and executors that are not yet started."""
    seats: dict[HostId, BulkSeat] = {}
    engine = Engine(world, lambda host: seats[host])
    ledger = TransfersLedger(world.fail, world.now)
    cluster = TransfersCluster(
        world, ClusterId(world.chance.uuid()), BarrierLedger(world.fail), ledger=ledger, engine=engine, seats=seats
    )
    for number in range(NODES):
        name, beside = f"n{number + 1}", BESIDE.get(number + 1)
        world.machine(name, beside=None if beside is None else f"n{beside}").disk.lay_out(name)
        node = add_node(cluster, number, f"{DATA}/{name}", bulk)
        seats[node.host] = BulkSeat(node.bulk)
        main = partial(pipeline, cluster=cluster, number=number)
        unit = world.unit(f"{name}-pipe", main, machine=name, host_id=node.host)
        unit.may_end = node.bulk.may_end
        cluster.pipelines[node.host] = unit
    engine.note_files = partial(_note_files, cluster)
    engine.note_rows = ledger.sends_rows
    for number, machine in enumerate(EXECUTORS):
        engine.executors.append(Executor(world, f"e{number + 1}", machine, engine))
    return cluster


def _note_files(cluster: TransfersCluster, move: FileMove) -> None:
    node = next(one for one in cluster.nodes if one.host == move.source.host)
    folder = f"{checkpoints_folder(node.folder)}/{move.source.checkpoint}"
    cluster.ledger.sends_files(move, folder, cluster.world.look_at(node.bulk.machine))


class _Builds:
    """`bulk.staging.LayerBuilding`."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    async def build(self, job: BuildJob, deadline_s: float) -> BuildResult:
        await asyncio.sleep(min(deadline_s, self._around.chance.random()))
        return await run_build(MemoryEngine(self._around.disk), self._around.disk, job)


async def bulk(around: Surroundings, cluster: RowsCluster, number: int) -> None:
    assert isinstance(cluster, TransfersCluster)
    assert isinstance(around.disk, LifeDisk)
    node = cluster.nodes[number]
    seat = cluster.seats[node.host]
    node.bulk_process = seat.door = None

    def front(plane: DataPlane) -> Coroutine[Any, Any, None]:
        seat.door = FlightTwin(around, plane)
        return seat.door.run()

    setup = BulkSetup(
        cluster.introduction(node.host, "bulk"),
        BULK_SOCKET,
        CONTROL_SOCKET,
        HEARTBEAT_MS,
        DeskLimits(),
        WIRE,
        cluster.report(node.bulk.name),
        node.bulk.lives,
        TransferSetup(
            staging_folder(node.folder),
            checkpoints_folder(node.folder),
            node.bulk.address(FLIGHT_PORT),
            node.bulk.address(VERBS_PORT),
            socket_of,
            node.bulk.machine.name,
            SimIsolation(around.disk),
            _Builds(around),
            (front,),
            cluster.limits,
        ),
    )
    node.bulk_process = BulkProcess(around, setup, Folds(around))
    await node.bulk_process.run()


# ---- the pipeline


async def pipeline(around: Surroundings, cluster: TransfersCluster, number: int) -> None:
    node = cluster.nodes[number]
    unit = cluster.pipelines[node.host]
    places = DoorPlaces(node.host, CONTROL_SOCKET, BULK_SOCKET, socket_of, VERBS_PORT, SHARD_PORT)
    introduction, report = cluster.introduction(node.host, NAME), cluster.report(unit.name)
    setup = PipelineSetup(introduction, places, WIRE, report, unit.lives, PIPELINE)
    await _WatchedPipeline(around, setup, TransfersTwin(around, cluster.engine), cluster).run()


class _WatchedPipeline(PipelineProcess):
    """Tells what its calls were answered. Now and then one arrives once more, late, as from a pipeline that was frozen
    and does not know yet that its time is over."""

    def __init__(
        self, around: Surroundings, setup: PipelineSetup, transfers: TransfersTwin, cluster: TransfersCluster
    ) -> None:
        super().__init__(around, setup, transfers)
        self._chance = around.chance
        self._cluster = cluster

    async def _take_turns(self, doors: WireDoors) -> None:
        async with asyncio.TaskGroup() as echoing:
            self._watch(doors, echoing)
            await super()._take_turns(doors)

    def _watch(self, doors: WireDoors, echoing: asyncio.TaskGroup) -> None:
        control, bulk_, shard = doors.control, doors.bulk, doors.shard

        async def watched_control(verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
            answer = await control(verb, request, deadline_ms)
            if isinstance(request, CloseSessionRequest) and isinstance(answer, CloseSessionAnswer):
                self._cluster.close_answered(request.session, answer.down)
            return answer

        async def watched_bulk(host: HostId, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
            if self._chance.random() < ECHO_SHARE:
                echoing.create_task(self._echo(partial(bulk_, host, verb, request, deadline_ms)))
            return await bulk_(host, verb, request, deadline_ms)

        async def watched_shard(replica: Replica, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
            if self._chance.random() < ECHO_SHARE:
                echoing.create_task(self._echo(partial(shard, replica, verb, request, deadline_ms)))
            return await shard(replica, verb, request, deadline_ms)

        doors.control = watched_control  # type: ignore[method-assign]  # notes, and does the same
        doors.bulk = watched_bulk  # type: ignore[method-assign]  # does the same twice
        doors.shard = watched_shard  # type: ignore[method-assign]  # does the same twice

    async def _echo(self, ask: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(self._chance.random() * self._chance.random() * ECHO_S_MAX)
        try:
            await ask()
        except EblaError:
            pass  # nobody waits for it


async def supervise_pipelines(cluster: TransfersCluster) -> None:
    """What each control does with its own: one where it leads, and none for long where it does not. Some outlive the
    lead for a while, and some die or stop under it."""
    chance = cluster.world.chance.fork("pipelines")
    while True:
        await asyncio.sleep(chance.between(0.1, 0.6))
        for node in cluster.nodes:
            unit = cluster.pipelines[node.host]
            if not _leads(node):
                if not unit.down and chance.happens(0.3):
                    unit.kill()
            elif unit.down:
                unit.start()
            elif cluster.is_stormy and chance.happens(KILLED_SHARE):
                unit.kill()
            elif cluster.is_stormy and chance.happens(PAUSED_SHARE):
                unit.pause()
                cluster.world.loop.call_later(chance.exponential(4.0), unit.resume, context=cluster.world.kernel)


def _leads(node: RowsNode) -> bool:
    process = node.control_process
    group0 = None if node.control.down or process is None else process._group0  # noqa: SLF001  # what it acts by itself
    return group0 is not None and group0.is_running and group0.running.raft.is_leader
