"""Whole nodes on simulated machines: control, shards and the bulk process, each a unit that dies alone or with its
machine. They are composed like real nodes (`ebla.node`). The layer engine keeps its rows in memory, compactions and
layer builds run in one go, and Arrow Flight is simulated."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ebla.bulk.bulk_process import BulkProcess
from ebla.bulk.stream_service import StreamService
from ebla.bulk.transfer_limits import TransferLimits
from ebla.control.control_process import ControlProcess
from ebla.control.group0.formation import FormationLimits
from ebla.feed.topology_view import View
from ebla.journal.recovery import JournalLimits
from ebla.journal.segmented_log import LogFailed
from ebla.model.errors import DiskFull, Refused
from ebla.model.identity import ClusterId, HostId, Replica, ShardNumber, TableId
from ebla.model.schema import TableSchema
from ebla.node.bulk import bulk_config
from ebla.node.context import NodeContext
from ebla.node.control import control_config
from ebla.node.shard import shard_config
from ebla.node.shard_process import ShardDeps, ShardProcess, ShardService, ShardServiceContext
from ebla.observe.event_reporter import EventReporter
from ebla.options import NodeLimits, NodeOptions, NodePorts
from ebla.ports.environment import Environment
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.rows_taps import ShardTaps, watched_replica_clients
from ebla.sim.clusters.memory_compaction import compact_in_memory
from ebla.sim.disk import ProcessDisk
from ebla.sim.remote_calls import CallServer
from ebla.sim.transfers.file_isolation import SimIsolation
from ebla.sim.transfers.flight import BulkHandle, SimFlightServer
from ebla.sim.world import Unit, World
from ebla.storage.commit_log import CommitLogLimits
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionLimits, CompactionResult
from ebla.storage.compaction.layer_build import BuildJob, BuildResult, run_build
from ebla.storage.layers.memory_engine import MemoryEngine, MemoryLimits
from ebla.storage.manifest import ManifestFailed
from ebla.storage.store import StoreLimits
from ebla.topology.snapshot import Snapshot
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.peers import PeersContext
from ebla.wire.verbs import ProcessStatus

SHARDS = (ShardNumber(0), ShardNumber(1))
DATA = "/data"
CLUSTER_NAME = "sim"
CONTROL_PORT = NodePorts().control
WIRE = WireLimits()
LIMITS = NodeLimits(write_timeout_ms=1_000, read_timeout_ms=1_500)
"""Request timeouts so short that a barrier, which waits for running requests, often passes between two faults."""
STORE = StoreLimits(
    log=CommitLogLimits(log=JournalLimits(segment_bytes=12_000, batch_bytes_max=1 << 20), segments_max=4, retry_ms=100),
    compaction=CompactionLimits(bases_max=2, live_bytes_max=3_000),
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

    def units(self) -> list[Unit]:
        children = [*(shard.unit for shard in self.shards), self.bulk]
        return [self.control, *children] if self.has_children else [self.control]

    @property
    def snapshot(self) -> Snapshot | None:
        """None while control is down or has only just started."""
        is_current = not self.control.down and self.control_started == self.control.start_count
        return self.control_process.topology.snapshot if is_current and self.control_process is not None else None


class SimChildren:
    """`control.control_process.ChildProcesses`: the world starts and ends the node's other processes."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def heard(self, name: str, pid: int) -> None:
        pass

    def statuses(self) -> tuple[ProcessStatus, ...]:
        return tuple(ProcessStatus(name=name, pid=0, started_wall_us=0) for name in self._names)


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

    def context(self, node: SimNode, name: str, pid: int) -> NodeContext:
        """For a process of the node; `name` is the one in the log."""
        options = NodeOptions(
            data=node.folder,
            address=node.control.host,
            cluster_name=CLUSTER_NAME,
            peers=tuple(each.control.host for each in self.nodes),
            rack=f"rack{node.number % 3}",
            shards=len(node.shards),
            limits=self.limits,
        )
        return NodeContext(
            options=options,
            host=node.host,
            cluster=self.id,
            cluster_name=CLUSTER_NAME,
            report=self.report(name),
            pid=pid,
        )

    def peers_context(self, environment: Environment, node: NodeContext, process: str) -> PeersContext:
        """For a client that calls the cluster's processes over the wire, as a process of the node."""
        return PeersContext(
            transport=environment.transport,
            rng=environment.rng,
            introduction=node.introduction(process),
            limits=WIRE,
            report=node.report,
        )

    def introduction(self, host: HostId, process: str) -> Introduction:
        """For a client outside the cluster's nodes."""
        return Introduction(host=host, cluster=self.id, cluster_name=CLUSTER_NAME, process=process)

    def report(self, name: str) -> EventReporter:
        return lambda event, details: self.world.log(name, f"{event} {details}")

    def watch_shard(
        self,
        shard: SimShard,  # noqa: ARG002  # for subclasses
        context: ShardServiceContext,  # noqa: ARG002  # for subclasses
        node: NodeContext,  # noqa: ARG002  # for subclasses
    ) -> tuple[ShardService, ...]:
        """Called in each incarnation of a shard before it serves. Subclasses observe it and add services."""
        return ()

    # -- the processes -----------------------------------------------------------------------------------------------

    async def _run_control(self, number: int, environment: Environment) -> None:
        node = self.nodes[number]
        unit = node.control
        config = control_config(self.context(node, unit.name, unit.start_count))
        group0 = replace(
            config.group0, snapshot_entries_max=60, kept_entries=20, formation=FormationLimits(retry_ms=300)
        )
        config = replace(config, group0=group0, num_tokens=4, release="sim")
        names = (*(f"shard-{shard.own.shard}" for shard in node.shards), "bulk")
        children = SimChildren(*names if node.has_children else ())
        stop = asyncio.Event()
        node.control_process = process = ControlProcess(environment, config, children, stop)
        node.control_started = unit.start_count
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(process.run())
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
            engine=MemoryEngine(environment.disk, MemoryLimits(unflushed_bytes_max=6_000)),
            services=services,
            replica_clients=watched_replica_clients(taps, environment.rng),
        )
        sim_shard.process = ShardProcess(environment, shard_config(own, shard, STORE), deps)
        await sim_shard.process.run()

    async def _run_bulk(self, number: int, environment: Environment) -> None:
        assert isinstance(environment.disk, ProcessDisk)
        node = self.nodes[number]
        node.bulk_process = node.flight.server = None

        def streams(service: StreamService) -> Coroutine[Any, Any, None]:
            node.flight.server = SimFlightServer(environment, service)
            return node.flight.server.run()

        config = bulk_config(
            self.context(node, node.bulk.name, node.bulk.start_count),
            machine=node.bulk.machine.name,
            isolation=SimIsolation(environment.disk),
            builder=SimLayerBuilds(environment),
            streams=streams,
        )
        assert config.transfers is not None
        config = replace(config, transfers=replace(config.transfers, limits=self.transfer_limits))
        node.bulk_process = BulkProcess(environment, config, SimCompactions(environment))
        await node.bulk_process.run()

    # -- what scenarios look at --------------------------------------------------------------------------------------

    def snapshots(self) -> dict[str, Snapshot]:
        """The topology that each running control process shows, by the name of its unit."""
        return {node.control.name: node.snapshot for node in self.nodes if node.snapshot is not None}

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


class SimCompactions:
    """`bulk.compaction_service.CompactionRunner`."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def compact(self, job: CompactionJob, deadline_s: float) -> CompactionResult:
        await asyncio.sleep(min(deadline_s, self._environment.rng.random()))
        return await compact_in_memory(MemoryEngine(self._environment.disk), job)


class SimLayerBuilds:
    """`bulk.staging.RowLayerBuilder`."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def build(self, job: BuildJob, deadline_s: float) -> BuildResult:
        await asyncio.sleep(min(deadline_s, self._environment.rng.random()))
        return await run_build(MemoryEngine(self._environment.disk), self._environment.disk, job)
