"""Whole nodes on simulated machines: control, two shards with their routers, and the bulk process, each a unit that
dies alone or with its machine. The same code as in production; the engine keeps its rows in memory, and folds are
made in one go."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ebla.bulk.bulk_process import BulkProcess, BulkSetup
from ebla.bulk.fold_desk import DeskLimits
from ebla.control.control_process import ControlProcess, ControlSetup
from ebla.control.formation import FormationLimits
from ebla.control.group0_server import Group0Setup
from ebla.control.liveness import LivenessLimits
from ebla.group0.members import Member, Role
from ebla.journal.recovery import LogLimits
from ebla.journal.segments import LogFailed
from ebla.model.errors import DiskFull, Refused
from ebla.model.identity import Address, ClusterId, HostId, Replica, ShardNumber, TableId
from ebla.model.schema import TableSchema
from ebla.node.router_front import RouterFront, RouterSetup
from ebla.observe.metrics import Metrics
from ebla.ports.surroundings import Surroundings
from ebla.replica.fronts import Front, FrontContext, ShardParts
from ebla.replica.replica_server import ReplicaServer
from ebla.replica.shard_process import ShardProcess, ShardSetup
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.rows_taps import ShardTaps, watched_doors
from ebla.sim.workloads.small_fold import fold_in_memory
from ebla.sim.world import Unit, World
from ebla.storage.commit_log import CommitLogLimits
from ebla.storage.fold_plan import FoldJob, FoldLimits, FoldResult
from ebla.storage.manifest import ManifestFailed
from ebla.storage.memory import MemoryEngine, MemoryLimits
from ebla.storage.store import StoreLimits
from ebla.topology.snapshot import Snapshot
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.report import Report
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
    log=CommitLogLimits(log=LogLimits(segment_bytes=12_000, batch_bytes_max=1 << 20), segments_max=4, retry_ms=100),
    fold=FoldLimits(bases_max=2, live_bytes_max=3_000),
    layers_open_max=24,
    free_bytes_min=600,
    upkeep_ms=500,
)


def socket_of(number: ShardNumber) -> Address:
    return Address(f"/data/run/shard-{number}.sock")


@dataclass(slots=True)
class Shard:
    """What outlives the shard's crashes. The rest is of its present life, and only to be read."""

    unit: Unit
    own: Replica
    process: ShardProcess | None = None
    front: RouterFront | None = None
    taps: ShardTaps | None = None


@dataclass(slots=True)
class RowsNode:
    host: HostId
    control: Unit
    shards: list[Shard]
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


@dataclass(slots=True)
class RowsCluster:
    world: World
    id: ClusterId
    barriers: BarrierLedger
    nodes: list[RowsNode] = field(default_factory=list)

    def units(self) -> list[Unit]:
        return [unit for node in self.nodes for unit in node.units()]

    def shards(self) -> list[Shard]:
        return [shard for node in self.nodes for shard in node.shards]

    def barrier_returned(self, node: RowsNode, snapshot: Snapshot) -> None:
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

    def watch_shard(self, seat: Shard, replica: ReplicaServer, around: Surroundings) -> None:
        """For scenarios that look at more than rows: a life of a shard is about to serve."""

    def more_fronts(self, _seat: Shard, _context: FrontContext, _router: RouterFront) -> tuple[Front, ...]:
        """For scenarios whose shards serve more than rows."""
        return ()

    def introduction(self, host: HostId, process: str) -> Introduction:
        return Introduction(host, self.id, "sim", process)

    def report(self, name: str) -> Report:
        return lambda event, details: self.world.tell(name, f"{event} {details}")


class _NoChildren:
    """Shards and bulk are units of the world, which starts and ends them."""

    def heard(self, name: str, pid: int) -> None:
        pass

    def statuses(self) -> tuple[ProcessStatus, ...]:
        return ()


class Folds:
    """`bulk.fold_desk.Folding`."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    async def fold(self, job: FoldJob, deadline_s: float) -> FoldResult:
        await asyncio.sleep(min(deadline_s, self._around.chance.random()))
        return await fold_in_memory(MemoryEngine(self._around.disk), job)


class _Watching:
    """`replica.fronts.Front`: sees each view in the step in which it is installed."""

    def __init__(self, taps: ShardTaps) -> None:
        self.attach = taps.attach
        self.installed = taps.installed

    def close(self) -> None:
        pass


class BulkMain(Protocol):
    def __call__(self, around: Surroundings, cluster: RowsCluster, number: int) -> Coroutine[Any, Any, None]: ...


def add_node(cluster: RowsCluster, number: int, folder: str = DATA, bulk_main: BulkMain | None = None) -> RowsNode:
    """One that is not yet started, on the machine of its name."""
    world, name = cluster.world, f"n{number + 1}"
    host = HostId(world.chance.uuid())
    control = world.unit(name, partial(_control, cluster=cluster, number=number), host_id=host)
    shards = []
    for shard in SHARDS:
        main = partial(_shard, cluster=cluster, number=number, shard=shard)
        unit = world.unit(f"{name}-s{shard}", main, machine=name, host_id=host)
        shards.append(Shard(unit, Replica(host, shard)))
    main_of_bulk = partial(bulk_main or _bulk, cluster=cluster, number=number)
    bulk = world.unit(f"{name}-bulk", main_of_bulk, machine=name, host_id=host)
    node = RowsNode(host, control, shards, bulk, folder)
    for unit in node.units():
        unit.may_end = (DiskFull, OSError, Refused, LogFailed, ManifestFailed)
    cluster.nodes.append(node)
    return node


async def _control(around: Surroundings, cluster: RowsCluster, number: int) -> None:
    node = cluster.nodes[number]
    introduction = cluster.introduction(node.host, "control")
    own = node.control.address(CONTROL_PORT)
    group0 = Group0Setup(
        Member(node.host, Role.LEARNER, own, rack=f"rack{number % 3}"),
        cluster.id,
        introduction.cluster_name,
        tuple(each.control.address(CONTROL_PORT) for each in cluster.nodes),
        f"{node.folder}/group0",
        snapshot_entries_max=60,
        kept_entries=20,
        formation=FormationLimits(ask_again_ms=300),
    )
    setup = ControlSetup(
        introduction,
        own,
        CONTROL_SOCKET,
        group0,
        LivenessLimits(),
        WIRE,
        cluster.report(node.control.name),
        node.control.lives,
        "sim",
        child_names=CHILD_NAMES,
        shard_count=len(SHARDS),
        num_tokens=4,
    )
    stop = asyncio.Event()
    node.control_process = process = ControlProcess(around, setup, _NoChildren(), stop)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(process.run())
        await stop.wait()
        serving.cancel()
        raise Refused(process.gave_up or "asked to stop")


async def _shard(around: Surroundings, cluster: RowsCluster, number: int, shard: ShardNumber) -> None:
    node = cluster.nodes[number]
    seat = node.shards[shard]
    seat.process = seat.front = seat.taps = None
    setup = ShardSetup(
        cluster.introduction(node.host, f"shard-{shard}"),
        shard,
        f"{node.folder}/shard-{shard}",
        seat.unit.address(SHARD_PORT + shard),
        socket_of,
        CONTROL_SOCKET,
        HEARTBEAT_MS,
        FEED_SILENCE_MS,
        WIRE,
        cluster.report(seat.unit.name),
        seat.unit.lives,
        bulk_address=BULK_SOCKET,
        store=STORE,
    )
    taps = ShardTaps(cluster.barriers, seat.own, cluster.world.loop.time)
    router = RouterSetup(
        "dc1",
        SHARD_PORT,
        socket_of,
        write_timeout_ms=WRITE_MS,
        read_timeout_ms=READ_MS,
        make_doors=watched_doors(taps, around.chance),
    )

    def fronts(context: FrontContext) -> tuple[Front, ...]:
        taps.watch(context.replica)
        cluster.watch_shard(seat, context.replica, around)
        seat.front, seat.taps = RouterFront(context, router), taps
        return seat.front, _Watching(taps), *cluster.more_fronts(seat, context, seat.front)

    engine = MemoryEngine(around.disk, MemoryLimits(unflushed_bytes_max=6_000))
    seat.process = ShardProcess(around, setup, ShardParts(engine, Metrics(), fronts))
    await seat.process.run()


async def _bulk(around: Surroundings, cluster: RowsCluster, number: int) -> None:
    node = cluster.nodes[number]
    node.bulk_process = None
    setup = BulkSetup(
        cluster.introduction(node.host, "bulk"),
        BULK_SOCKET,
        CONTROL_SOCKET,
        HEARTBEAT_MS,
        DeskLimits(),
        WIRE,
        cluster.report(node.bulk.name),
        node.bulk.lives,
    )
    node.bulk_process = BulkProcess(around, setup, Folds(around))
    await node.bulk_process.run()
