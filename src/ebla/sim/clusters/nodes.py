"""Whole nodes on simulated machines: control, two shards with their routers, and the bulk process, each a unit that
dies alone or with its machine. The same code as in production; the engine keeps its rows in memory, and folds are
made in one go."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ebla.bulk.bulk_process import BulkConfig, BulkProcess
from ebla.bulk.compaction_service import CompactionServiceLimits
from ebla.control.control_process import ControlConfig, ControlProcess
from ebla.control.group0.formation import FormationLimits
from ebla.control.group0.node import Group0Config
from ebla.control.liveness.heartbeats import LivenessLimits
from ebla.group0.members import Member, MemberRole
from ebla.journal.recovery import JournalLimits
from ebla.journal.segmented_log import LogFailed
from ebla.model.errors import DiskFull, Refused
from ebla.model.identity import Address, ClusterId, HostId, Replica, ShardNumber, TableId
from ebla.model.schema import TableSchema
from ebla.node.router_service import RouterConfig, RouterService
from ebla.observe.event_reporter import EventReporter
from ebla.observe.metrics import Metrics
from ebla.ports.environment import Environment
from ebla.replica.replica_server import ReplicaServer
from ebla.replica.shard_process import ShardConfig, ShardProcess
from ebla.replica.shard_services import ShardDeps, ShardService, ShardServiceContext
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.rows_taps import ShardTaps, watched_replica_clients
from ebla.sim.clusters.memory_compaction import compact_in_memory
from ebla.sim.world import Unit, World
from ebla.storage.commit_log import CommitLogLimits
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionLimits, CompactionResult
from ebla.storage.layers.memory_engine import MemoryEngine, MemoryLimits
from ebla.storage.manifest import ManifestFailed
from ebla.storage.store import StoreLimits
from ebla.topology.snapshot import Snapshot
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.verbs import ProcessStatus

CONTROL_PORT, SHARD_PORT = 7000, 7010
SHARDS = (ShardNumber(0), ShardNumber(1))
DATA = "/data"
CONTROL_SOCKET = Address("/data/run/control.sock")
BULK_SOCKET = Address("/data/run/bulk.sock")
CHILD_NAMES = ("bulk", "shard-0", "shard-1")
HEARTBEAT_MS = 1_000
FEED_SILENCE_MS = 5_000
WRITE_MS, READ_MS = 1_000, 1_500
"""So short that a barrier, which waits for what is under way, is often passed between two faults."""
WIRE = WireLimits()
STORE = StoreLimits(
    log=CommitLogLimits(log=JournalLimits(segment_bytes=12_000, batch_bytes_max=1 << 20), segments_max=4, retry_ms=100),
    compact=CompactionLimits(bases_max=2, live_bytes_max=3_000),
    layers_open_max=24,
    free_bytes_min=600,
    upkeep_ms=500,
)


def socket_of(number: ShardNumber) -> Address:
    return Address(f"/data/run/shard-{number}.sock")


@dataclass(slots=True, kw_only=True)
class SimShard:
    """What outlives the shard's crashes. The rest is of its present life, and only to be read."""

    unit: Unit
    own: Replica
    process: ShardProcess | None = None
    front: RouterService | None = None
    taps: ShardTaps | None = None


@dataclass(slots=True, kw_only=True)
class SimNode:
    host: HostId
    control: Unit
    shards: list[SimShard]
    bulk: Unit
    folder: str = DATA
    control_process: ControlProcess | None = None
    bulk_process: BulkProcess | None = None

    def units(self) -> list[Unit]:
        return [self.control, *(shard.unit for shard in self.shards), self.bulk]

    @property
    def snapshot(self) -> Snapshot | None:
        process = self.control_process
        return None if self.control.down or process is None else process.topology.snapshot


@dataclass(slots=True, kw_only=True)
class SimCluster:
    world: World
    id: ClusterId
    barriers: BarrierLedger
    nodes: list[SimNode] = field(default_factory=list)

    def units(self) -> list[Unit]:
        return [unit for node in self.nodes for unit in node.units()]

    def shards(self) -> list[SimShard]:
        return [shard for node in self.nodes for shard in node.shards]

    def barrier_returned(self, node: SimNode, snapshot: Snapshot) -> None:
        """Of the snapshot's version, on this node: what that promises must hold now, in every process that lives."""
        self.barriers.returned(node.host, snapshot)
        for shard in node.shards:
            if not shard.unit.down and shard.taps is not None:
                shard.taps.at_barrier(snapshot.version)
        bulk = node.bulk_process
        if not node.bulk.down and bulk is not None and bulk.view.is_known:
            version = bulk.view.current.version
            if version < snapshot.version:
                self.world.fail(f"INV-ROWS-4: {node.bulk.name} has version {version}, not {snapshot.version}")

    def schema(self, table: TableId) -> TableSchema:
        """As the first to hear of its newest version has it: a replica writes what it merges by the newest it knows."""
        views = [shard.process.view for shard in self.shards() if shard.process is not None]
        known = [view.current.schemas.get(table) for view in views if view.is_known]
        return max((one for one in known if one is not None), key=lambda one: one.version)

    def watch_shard(self, seat: SimShard, replica: ReplicaServer, environment: Environment) -> None:
        """For scenarios that look at more than rows: a life of a shard is about to serve."""

    def more_fronts(
        self, _seat: SimShard, _context: ShardServiceContext, _router: RouterService
    ) -> tuple[ShardService, ...]:
        """For scenarios whose shards serve more than rows."""
        return ()

    def introduction(self, host: HostId, process: str) -> Introduction:
        return Introduction(host=host, cluster=self.id, cluster_name="sim", process=process)

    def report(self, name: str) -> EventReporter:
        return lambda event, details: self.world.log(name, f"{event} {details}")


class _NoChildren:
    """Shards and bulk are units of the world, which starts and ends them."""

    def heard(self, name: str, pid: int) -> None:
        pass

    def statuses(self) -> tuple[ProcessStatus, ...]:
        return ()


class SimCompactions:
    """`bulk.fold_desk.Folding`."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def compact(self, job: CompactionJob, deadline_s: float) -> CompactionResult:
        await asyncio.sleep(min(deadline_s, self._environment.rng.random()))
        return await compact_in_memory(MemoryEngine(self._environment.disk), job)


class _Watching:
    """`replica.fronts.Front`: sees each view in the step in which it is installed."""

    def __init__(self, taps: ShardTaps) -> None:
        self.attach = taps.attach
        self.on_view_installed = taps.on_view_installed

    def close(self) -> None:
        pass


class BulkMain(Protocol):
    def __call__(self, environment: Environment, cluster: SimCluster, number: int) -> Coroutine[Any, Any, None]: ...


def add_node(cluster: SimCluster, number: int, folder: str = DATA, bulk_main: BulkMain | None = None) -> SimNode:
    """One that is not yet started, on the machine of its name."""
    world, name = cluster.world, f"n{number + 1}"
    host = HostId(world.rng.uuid())
    control = world.unit(name, partial(_control, cluster=cluster, number=number), host_id=host)
    shards = []
    for shard in SHARDS:
        main = partial(_shard, cluster=cluster, number=number, shard=shard)
        unit = world.unit(f"{name}-s{shard}", main, machine=name, host_id=host)
        shards.append(SimShard(unit=unit, own=Replica(host, shard)))
    main_of_bulk = partial(bulk_main or _bulk, cluster=cluster, number=number)
    bulk = world.unit(f"{name}-bulk", main_of_bulk, machine=name, host_id=host)
    node = SimNode(host=host, control=control, shards=shards, bulk=bulk, folder=folder)
    for unit in node.units():
        unit.expected_errors = (DiskFull, OSError, Refused, LogFailed, ManifestFailed)
    cluster.nodes.append(node)
    return node


async def _control(environment: Environment, cluster: SimCluster, number: int) -> None:
    node = cluster.nodes[number]
    introduction = cluster.introduction(node.host, "control")
    own = node.control.address(CONTROL_PORT)
    group0 = Group0Config(
        member=Member(host=node.host, role=MemberRole.LEARNER, address=own, rack=f"rack{number % 3}"),
        cluster=cluster.id,
        cluster_name=introduction.cluster_name,
        contacts=tuple(each.control.address(CONTROL_PORT) for each in cluster.nodes),
        folder=f"{node.folder}/group0",
        snapshot_entries_max=60,
        kept_entries=20,
        formation=FormationLimits(ask_again_ms=300),
    )
    setup = ControlConfig(
        introduction=introduction,
        address=own,
        local_address=CONTROL_SOCKET,
        group0=group0,
        liveness=LivenessLimits(),
        wire=WIRE,
        report=cluster.report(node.control.name),
        pid=node.control.start_count,
        release="sim",
        child_names=CHILD_NAMES,
        shard_count=len(SHARDS),
        num_tokens=4,
    )
    stop = asyncio.Event()
    node.control_process = process = ControlProcess(environment, setup, _NoChildren(), stop)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(process.run())
        await stop.wait()
        serving.cancel()
        raise Refused(process.gave_up or "asked to stop")


async def _shard(environment: Environment, cluster: SimCluster, number: int, shard: ShardNumber) -> None:
    node = cluster.nodes[number]
    seat = node.shards[shard]
    seat.process = seat.front = seat.taps = None
    setup = ShardConfig(
        introduction=cluster.introduction(node.host, f"shard-{shard}"),
        number=shard,
        folder=f"{node.folder}/shard-{shard}",
        address=seat.unit.address(SHARD_PORT + shard),
        local_address_of=socket_of,
        control_address=CONTROL_SOCKET,
        heartbeat_ms=HEARTBEAT_MS,
        feed_silence_ms=FEED_SILENCE_MS,
        wire=WIRE,
        report=cluster.report(seat.unit.name),
        pid=seat.unit.start_count,
        bulk_address=BULK_SOCKET,
        store=STORE,
    )
    taps = ShardTaps(cluster.barriers, seat.own, cluster.world.loop.time)
    router = RouterConfig(
        datacenter="dc1",
        shards_from=SHARD_PORT,
        socket_of=socket_of,
        write_timeout_ms=WRITE_MS,
        read_timeout_ms=READ_MS,
        make_doors=watched_replica_clients(taps, environment.rng),
    )

    def services(context: ShardServiceContext) -> tuple[ShardService, ...]:
        taps.watch(context.replica)
        cluster.watch_shard(seat, context.replica, environment)
        seat.front, seat.taps = RouterService(context, router), taps
        return seat.front, _Watching(taps), *cluster.more_fronts(seat, context, seat.front)

    engine = MemoryEngine(environment.disk, MemoryLimits(unflushed_bytes_max=6_000))
    seat.process = ShardProcess(environment, setup, ShardDeps(engine=engine, metrics=Metrics(), services=services))
    await seat.process.run()


async def _bulk(environment: Environment, cluster: SimCluster, number: int) -> None:
    node = cluster.nodes[number]
    node.bulk_process = None
    setup = BulkConfig(
        introduction=cluster.introduction(node.host, "bulk"),
        address=BULK_SOCKET,
        control_address=CONTROL_SOCKET,
        heartbeat_ms=HEARTBEAT_MS,
        compactions=CompactionServiceLimits(),
        wire=WIRE,
        report=cluster.report(node.bulk.name),
        pid=node.bulk.start_count,
    )
    node.bulk_process = BulkProcess(environment, setup, SimCompactions(environment))
    await node.bulk_process.run()
