"""Whole nodes on simulated machines: control, shards and the bulk process, each a unit that dies alone or with its
machine. They are composed like real nodes (`ebla.node`). The layer engine keeps its rows in memory, compactions and
layer builds run in the bulk process itself, and Arrow Flight is simulated."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ebla.bulk.stream_service import StreamService
from ebla.bulk.transfer_limits import TransferLimits
from ebla.control.group0.join_state import JoinStateFile
from ebla.control.group0.node import Group0Node
from ebla.control.leadership.activity_tasks import RunningHandle
from ebla.control.liveness.heartbeats import HeartbeatMonitor
from ebla.control.settings.settings_node import SettingsNode
from ebla.feed.topology_view import View
from ebla.journal.segmented_log import LogFailed
from ebla.model.errors import DiskFull, Refused
from ebla.model.identity import ClusterId, HostId, Replica, ShardNumber, StoreId, TableId
from ebla.model.schema import TableSchema
from ebla.node.bulk import transfer_config
from ebla.node.bulk_process import BulkProcess
from ebla.node.context import NodeContext
from ebla.node.control_process import ControlProcess
from ebla.node.group0_config import group0_config
from ebla.node.shard_process import ShardDeps, ShardProcess, ShardService, ShardServiceContext
from ebla.options import NodeLimits, NodeOptions, NodePorts, PipelineOptions
from ebla.ports.environment import Environment
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.rows_taps import ShardTaps, watched_replica_clients
from ebla.sim.clients import NodeConnection, peers_context
from ebla.sim.disk import ProcessDisk
from ebla.sim.remote_calls import CallServer
from ebla.sim.transfers.flight import BulkHandle, SimFlightServer
from ebla.sim.world import Main, Unit, World
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult
from ebla.storage.compaction.compactor import run_compaction
from ebla.storage.compaction.layer_build import BuildJob, BuildResult, run_build
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.manifest import ManifestFailed
from ebla.storage.store_limits import StoreLimits
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeState
from ebla.version import Feature
from ebla.wire.frames import Introduction
from ebla.wire.peers import Peers
from ebla.wire.topology_messages import StopNodeRequest
from ebla.wire.verbs import EmptyAnswer, ProcessStatus

SHARDS = (ShardNumber(0), ShardNumber(1))
DATA = "/data"
STORE_WAIT_S = 0.1
CLUSTER_NAME = "sim"
CONTROL_PORT = NodePorts().control
JOIN_S = 60.0
LIMITS = NodeLimits(write_timeout_ms=1_000, read_timeout_ms=1_500, compaction_ms=5_000)
"""Request timeouts so short that a barrier, which waits for running requests, often passes between two faults. The
limit of a compaction is so short that one whose answer was lost is over before the checks at the end."""
STORE = StoreLimits(
    segment_bytes=12_000,
    segments_max=4,
    retry_ms=100,
    bases_max=2,
    live_bytes_max=3_000,
    layers_open_max=24,
    free_bytes_min=600,
    upkeep_ms=500,
)
TRANSFERS = TransferLimits(
    puts_max=8,
    gets_max=10,
    free_bytes_min=2_000,
    barrier_ms=2_000,
    shard_ms=4_000,
    build_ms=10_000,
    sweep_ms=2_000,
    rows_merged_bytes_max=1_000,
)


@dataclass(slots=True, kw_only=True)
class SimShard:
    """`unit` and `own` outlive the shard's crashes. The rest belongs to its current incarnation; only read it."""

    unit: Unit
    own: Replica
    process: ShardProcess | None = None
    context: ShardServiceContext | None = None
    taps: ShardTaps | None = None
    calls: CallServer | None = None


@dataclass(slots=True, kw_only=True)
class SimNode:
    number: int
    host: HostId
    folder: str
    control: Unit
    shards: list[SimShard]
    bulk: Unit
    flight: BulkHandle
    control_process: ControlProcess | None = None
    """Of the incarnation `control_started`; only read it."""
    control_started: int = 0
    bulk_process: BulkProcess | None = None
    has_children: bool = True
    """False: only control runs."""
    replaced: "SimNode | None" = None
    """The node whose place it takes when it joins, in the same rack."""
    hidden_features: tuple[Feature, ...] = ()
    """Takes effect at its next start, as an upgrade does."""

    def units(self) -> list[Unit]:
        children = [*(shard.unit for shard in self.shards), self.bulk]
        return [self.control, *children] if self.has_children else [self.control]

    @property
    def live_control(self) -> ControlProcess | None:
        """None while control is down or has only just started."""
        is_current = not self.control.down and self.control_started == self.control.start_count
        return self.control_process if is_current else None

    @property
    def snapshot(self) -> Snapshot | None:
        return None if self.live_control is None else self.live_control.topology.snapshot

    @property
    def settings(self) -> SettingsNode | None:
        """None until they are read."""
        return None if self.live_control is None else self.live_control.settings


class SimChildren:
    """`node.control_process.ChildProcesses`: the world starts and ends the node's other processes."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def heard(self, name: str, pid: int) -> None:
        pass

    def statuses(self) -> tuple[ProcessStatus, ...]:
        return tuple(ProcessStatus(name=name, pid=0, started_wall_us=0) for name in self._names)

    def want(self, name: str, wanted: bool) -> None:
        pass

    def kill(self, name: str, reason: str) -> None:
        pass


class SimControlProcess(ControlProcess):
    watch_settings: Callable[[SettingsNode], None] | None = None
    """Called once the settings are read, before they take part in anything."""
    watch_order: Callable[[RunningHandle], None] | None = None
    """Called before an order to stop takes effect."""

    async def _stop_ordered(self, request: StopNodeRequest, handle: RunningHandle, deadline_ms: int) -> EmptyAnswer:
        if self.watch_order is not None:
            self.watch_order(handle)
        return await super()._stop_ordered(request, handle, deadline_ms)

    async def _open_settings(self, group0: Group0Node, liveness: HeartbeatMonitor, peers: Peers) -> SettingsNode:
        settings = await super()._open_settings(group0, liveness, peers)
        if self.watch_settings is not None:
            self.watch_settings(settings)
        return settings


@dataclass(slots=True, kw_only=True)
class SimCluster:
    world: World
    id: ClusterId
    barriers: BarrierLedger
    nodes: list[SimNode] = field(default_factory=list)
    limits: NodeLimits = LIMITS
    transfer_limits: TransferLimits = TRANSFERS
    stop_s: float = 0.0
    """How long a control process that must stop still serves. A real one ends its children in this time."""
    accompany: Callable[[SimNode, ControlProcess], Coroutine[Any, Any, None]] | None = None
    """Runs in each incarnation of a control process beside it: a scenario's own work in that process."""

    # -- building ----------------------------------------------------------------------------------------------------

    def add_node(
        self, *, shards: tuple[ShardNumber, ...] = SHARDS, has_children: bool = True, beside: str | None = None
    ) -> SimNode:
        """A node that is not yet started, on the machine of its name. `beside`: see `World.machine`."""
        number, world = len(self.nodes), self.world
        name = f"n{number + 1}"
        world.machine(name, beside=beside).disk.lay_out(name)
        host = HostId(world.rng.uuid())
        control = world.unit(name, partial(self._run_control, number), host_id=host)
        sim_shards = []
        for shard in shards:
            main = partial(self._run_shard, number, shard)
            unit = world.unit(f"{name}-s{shard}", main, machine=name, host_id=host)
            sim_shards.append(SimShard(unit=unit, own=Replica(host, shard)))
        bulk = world.unit(f"{name}-bulk", partial(self._run_bulk, number), machine=name, host_id=host)
        node = SimNode(
            number=number,
            host=host,
            folder=f"{DATA}/{name}",
            control=control,
            shards=sim_shards,
            bulk=bulk,
            flight=BulkHandle(bulk),
            has_children=has_children,
        )
        for unit in node.units():
            unit.expected_errors = (DiskFull, OSError, Refused, LogFailed, ManifestFailed)
        self.nodes.append(node)
        return node

    def start_beside(self, node: SimNode, name: str, main: Main) -> Unit:
        """A process of the scenario on the machine of a node."""
        home = node.control.name
        unit = self.world.unit(f"{home}-{name}", main, machine=home, host_id=node.host)
        unit.start()
        return unit

    def context(self, node: SimNode, name: str, pid: int) -> NodeContext:
        """For a process of the node; `name` is the one in the log."""
        options = NodeOptions(
            data=node.folder,
            address=node.control.host,
            cluster_name=CLUSTER_NAME,
            peers=tuple(each.control.host for each in self.nodes),
            rack=f"rack{(node.replaced or node).number % 3}",
            replace="" if node.replaced is None else str(node.replaced.host),
            shards=len(node.shards),
            num_tokens=4,
            hidden_features=node.hidden_features,
            fault_points=True,
            limits=self.limits,
            pipeline=PipelineOptions(enabled=self.has_pipelines),
        )
        return NodeContext(
            options=options,
            host=node.host,
            cluster=self.id,
            cluster_name=CLUSTER_NAME,
            report=self.world.reporter(name),
            pid=pid,
            release="sim",
            crash=partial(self.world.loop.call_soon, node.control.kill, context=self.world.kernel),
        )

    def connection(self, environment: Environment, process: str, *nodes: SimNode) -> NodeConnection:
        """For a client outside the cluster, to the control process of any of these nodes, by default of all."""
        host = HostId(environment.rng.uuid())
        introduction = Introduction(host=host, cluster=self.id, cluster_name=CLUSTER_NAME, process=process)
        addresses = [node.control.address(CONTROL_PORT) for node in nodes or self.nodes]
        return NodeConnection(peers_context(environment, introduction), addresses)

    def watch_shard(
        self,
        shard: SimShard,  # noqa: ARG002  # for subclasses
        context: ShardServiceContext,  # noqa: ARG002  # for subclasses
        node: NodeContext,  # noqa: ARG002  # for subclasses
    ) -> tuple[ShardService, ...]:
        """Called in each incarnation of a shard before it serves. Subclasses observe it and add services."""
        return ()

    def watch_settings(self, node: SimNode, settings: SettingsNode, environment: Environment) -> None:
        """Called in each incarnation of control before its settings take part in anything. For subclasses."""

    @property
    def has_pipelines(self) -> bool:
        return False

    def children_of(self, node: SimNode) -> SimChildren:
        names = (*(f"shard-{shard.own.shard}" for shard in node.shards), "bulk")
        return SimChildren(*names if node.has_children else ())

    # -- the processes -----------------------------------------------------------------------------------------------

    async def _run_control(self, number: int, environment: Environment) -> None:
        node = self.nodes[number]
        unit = node.control
        own = self.context(node, unit.name, unit.start_count)
        group0 = replace(group0_config(own), snapshot_entries_max=60, kept_entries=20, formation_retry_ms=300)
        children = self.children_of(node)
        stop = asyncio.Event()
        node.control_process = process = SimControlProcess(environment, own, group0, children, stop)
        process.watch_settings = lambda settings: self.watch_settings(node, settings, environment)
        node.control_started = unit.start_count
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(process.run())
            if self.accompany is not None:
                tasks.create_task(self.accompany(node, process))
            await stop.wait()
            await asyncio.sleep(self.stop_s)
            serving.cancel()
            raise Refused(process.gave_up or "asked to stop")

    async def _run_shard(self, number: int, shard: ShardNumber, environment: Environment) -> None:
        node = self.nodes[number]
        sim_shard = node.shards[shard]
        sim_shard.process = sim_shard.context = sim_shard.taps = sim_shard.calls = None
        own = self.context(node, sim_shard.unit.name, sim_shard.unit.start_count)
        taps = ShardTaps(self.barriers, sim_shard.own, self.world.loop.time)

        def services(context: ShardServiceContext) -> tuple[ShardService, ...]:
            sim_shard.context, sim_shard.taps, sim_shard.calls = context, taps, CallServer()
            context.tasks.create_task(sim_shard.calls.run())
            taps.watch(context.replica)
            return _ViewWatcher(taps), *self.watch_shard(sim_shard, context, own)

        deps = ShardDeps(
            engine=MemoryEngine(environment.disk, unflushed_bytes_max=6_000),
            store=STORE,
            services=services,
            replica_clients=watched_replica_clients(taps, environment.rng),
        )
        store = await self._store_of(environment, own, shard)
        sim_shard.process = ShardProcess(environment, own, shard, store, deps)
        await sim_shard.process.run()

    async def _store_of(self, environment: Environment, node: NodeContext, shard: ShardNumber) -> StoreId:
        """As control would tell the shard when it starts it: the store that the mark says is there."""
        mark = JoinStateFile(environment.disk, f"{node.folder.group0.absolute()}-mark")
        while True:
            stores = (await mark.load()).stores
            if shard < len(stores) and stores[shard].is_created:
                return stores[shard].store
            await asyncio.sleep(STORE_WAIT_S)

    async def _run_bulk(self, number: int, environment: Environment) -> None:
        assert isinstance(environment.disk, ProcessDisk)
        node = self.nodes[number]
        node.bulk_process = node.flight.server = None

        def streams(service: StreamService) -> Coroutine[Any, Any, None]:
            node.flight.server = SimFlightServer(environment, service)
            return node.flight.server.run()

        work = SimBulkWork(environment)
        own = self.context(node, node.bulk.name, node.bulk.start_count)
        config = transfer_config(
            own,
            machine=node.bulk.machine.name,
            isolation=environment.disk,
            builder=work,
            streams=streams,
        )
        config = replace(config, limits=self.transfer_limits)
        node.bulk_process = BulkProcess(environment, own, work, config)
        await node.bulk_process.run()

    # -- what scenarios look at --------------------------------------------------------------------------------------

    def snapshots(self) -> dict[str, Snapshot]:
        """The topology that each running control process shows, by the name of its unit."""
        return {node.control.name: node.snapshot for node in self.nodes if node.snapshot is not None}

    async def wait_all_normal(self) -> None:
        """Until every node shows that all are in the ring."""

        def states() -> dict[str, list[NodeState]]:
            return {name: [node.state for node in each.members()] for name, each in self.snapshots().items()}

        expected = {node.control.name: [NodeState.NORMAL] * len(self.nodes) for node in self.nodes}
        reached = await self.world.wait_for(lambda: states() == expected, JOIN_S)
        self.world.check(reached, f"not every node is in the ring: {states()}")

    def units(self) -> list[Unit]:
        return [unit for node in self.nodes for unit in node.units()]

    def shards(self) -> list[SimShard]:
        return [shard for node in self.nodes for shard in node.shards]

    def shard(self, replica: Replica) -> SimShard:
        return next(shard for shard in self.shards() if shard.own == replica)

    def bulk_of(self, host: HostId) -> BulkHandle:
        return next(node.flight for node in self.nodes if node.host == host)

    def barrier_returned(self, node: SimNode, snapshot: Snapshot) -> None:
        """A barrier of the snapshot's version returned on this node: every live process must keep its promise now."""
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
        """The newest version that any shard knows: a replica encodes merged rows by the newest version it knows."""
        views = [shard.process.view for shard in self.shards() if shard.process is not None]
        known = [view.current.schemas.get(table) for view in views if view.is_known]
        return max((one for one in known if one is not None), key=lambda one: one.version)


class _ViewWatcher:
    """`ShardService`: shows each view to the taps in the step in which it is installed."""

    def __init__(self, taps: ShardTaps) -> None:
        self._taps = taps

    def on_view_installed(self, view: View) -> None:
        self._taps.on_view_installed(view)

    def close(self) -> None:
        pass


class SimBulkWork:
    """`bulk.compaction_service.CompactionRunner` and `bulk.staging.RowLayerBuilder`."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def compact(self, job: CompactionJob, deadline_s: float) -> CompactionResult:
        return await run_compaction(await self._begin(deadline_s), self._environment.disk, job)

    async def build(self, job: BuildJob, deadline_s: float) -> BuildResult:
        return await run_build(await self._begin(deadline_s), self._environment.disk, job)

    async def _begin(self, deadline_s: float) -> MemoryEngine:
        await asyncio.sleep(min(deadline_s, self._environment.rng.random()))
        return MemoryEngine(self._environment.disk)
