"""What operators do to a cluster that grows and shrinks: they start new nodes, take nodes out, rebuild them, abort
requests, exclude and recover nodes, and change the schema. A node that has left is replaced by another one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import msgspec

from ebla.control.fault_points import FaultPoint
from ebla.group0.operations import Operation, OperationKind
from ebla.model.errors import EblaError
from ebla.model.identity import HostId, RequestId
from ebla.model.schema import TableOptions, TombstoneGc, decode_schema
from ebla.ports.environment import Environment
from ebla.sim.clusters.growing_nodes import GrowingCluster
from ebla.sim.clusters.nodes import LIMITS, SimNode
from ebla.sim.workloads.deleted_rows import DeletedRows
from ebla.sim.workloads.rows_client import RowsLoad
from ebla.sim.workloads.rows_table import COLUMNS
from ebla.sim.workloads.topology_driver import TopologyDriver
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import GlobalRequest, Keyspace, NodeRequest, Replication, Snapshot
from ebla.topology.states import GlobalRequestKind, NodeRequestKind, NodeState, Strategy
from ebla.wire.fault_messages import FaultKind
from ebla.wire.operation_messages import OperateRequest
from ebla.wire.schema_messages import (
    AlterKeyspaceRequest,
    CreateKeyspaceRequest,
    CreateTableRequest,
    DropTableRequest,
    TruncateTableRequest,
)
from ebla.wire.topology_messages import AbortTopologyRequest, SubmitTopologyRequest, TopologyRequest
from ebla.wire.verbs import ABORT_REQUEST, OPERATE, SUBMIT_REQUEST

THINK_S = 4.0
JOINS_AT_ONCE = 2
GIVE_UP_S = 20.0
"""A dead node is started again if no request about it is open by then."""
NODES_MIN = 3
"""Besides the first: a node leaves only if all three replicas of a row still have a node."""
OPERATE_MS = 20_000
ABORT_MS = 8_000
POINTS = tuple(
    point
    for point in FaultPoint
    if point.startswith(("topology.", "join.", "stream.", "atomic.", "leave.", "rebuild.", "gain."))
)
DELETED = "d"
"""The name of the tables whose tombstones are purged at once."""
ALTERED = Keyspace(name="alt", replication=Replication(Strategy.SIMPLE, (("", 3),)), on_tablets=False)
"""Its replication changes: nodes lose ranges and gain them again. It has only rows that are deleted, because an
acknowledged one can be lost that way."""
FACTORS = {2: 3, 3: 2}
"""One changes to the other."""


class SchemaChanger(TopologyDriver):
    """Creates the tables, then changes the schema in every state of a join. It moves nothing."""

    def __init__(
        self, environment: Environment, load: RowsLoad, home: SimNode, tasks: asyncio.TaskGroup, deleted: DeletedRows
    ) -> None:
        super().__init__(environment, load, home, tasks)
        self._deleted = deleted

    def _learn(self, snapshot: Snapshot) -> None:
        for table in snapshot.tables.values():
            if table.name == DELETED:
                self._deleted.tables[table.keyspace] = decode_schema(table.definition)
        kept = {id_: table for id_, table in snapshot.tables.items() if table.name != DELETED}
        super()._learn(replace(snapshot, tables=FrozenMap(kept)))

    async def _create_tables(self) -> None:
        purged = TableOptions(tombstone_gc=TombstoneGc.IMMEDIATE)
        for keyspace in self.keyspaces:
            await self._change_schema(CreateKeyspaceRequest(keyspace, if_not_exists=True))
            await self._create_table(keyspace, "t", TableOptions())
            await self._create_table(keyspace, DELETED, purged)
        await self._change_schema(CreateKeyspaceRequest(ALTERED, if_not_exists=True))
        await self._create_table(ALTERED, DELETED, purged)
        self._learn(await self._observe())

    async def _create_table(self, keyspace: Keyspace, name: str, options: TableOptions) -> None:
        await self._change_schema(
            CreateTableRequest(keyspace=keyspace.name, name=name, columns=COLUMNS, options=options, if_not_exists=True)
        )

    async def _step(self) -> None:
        await asyncio.sleep(self._rng.random() * THINK_S)
        snapshot = await self._observe()
        if self._load.stopping:
            await self._drop_passing(snapshot)
            return
        kind = self._rng.randrange(0, 100)
        if kind < 20:
            await self._add_column(snapshot)
        elif kind < 50:
            await self._alter_replication(snapshot)
        elif kind < 85:
            await self._come_and_go(snapshot)
        else:
            await self._truncate(snapshot)

    async def _alter_replication(self, snapshot: Snapshot) -> None:
        """Not while a node is excluded: it would become incomplete, and has to be replaced."""
        if not snapshot.excluded_hosts:
            ((place, factor),) = snapshot.keyspaces[ALTERED.name].replication.factors
            changed = Replication(Strategy.SIMPLE, ((place, FACTORS[factor]),))
            await self._change_schema(AlterKeyspaceRequest(msgspec.structs.replace(ALTERED, replication=changed)))

    async def _truncate(self, snapshot: Snapshot) -> None:
        """Only tables without readers: a truncated table has another id."""
        for table in snapshot.tables.values():
            if table.name == "p":
                await self._change_schema(TruncateTableRequest(table.keyspace, "p"))
                self._learn(await self._observe())
                return

    async def _drop_passing(self, snapshot: Snapshot) -> None:
        for table in snapshot.tables.values():
            if table.name == "p":
                await self._change_schema(DropTableRequest(table.keyspace, "p", if_exists=True))


@dataclass(slots=True, kw_only=True)
class OperatorCounts:
    """What was tried."""

    requested: int = 0
    aborts: int = 0
    refused_aborts: int = 0
    exclusions: int = 0
    leaves: int = 0
    removes: int = 0
    replaces: int = 0
    rebuilds: int = 0
    repairs: int = 0


@dataclass(slots=True, kw_only=True)
class GrowthOperator:
    """`run` until cancelled. Runs outside every process: operators do not die with nodes."""

    cluster: GrowingCluster
    environment: Environment
    joins_max: int
    on_start: Callable[[SimNode], None]
    """Called before a new node starts."""
    counts: OperatorCounts = field(default_factory=OperatorCounts)
    is_calm: bool = False
    """After the faults: recovers only."""

    async def run(self) -> None:
        rng = self.environment.rng
        actions: tuple[tuple[int, Callable[[], Awaitable[None]]], ...] = (
            (24, self._join),
            (32, self._abort),
            (40, self._leave),
            (44, self._remove),
            (47, self._replace),
            (50, self._rebuild),
            (53, self._repair_cdc),
            (63, self._exclude),
            (74, self._include),
            (89, self._crash_at),
            (100, self._pause_at),
        )
        while True:
            await asyncio.sleep(rng.random() * (1.0 if self.is_calm else THINK_S))
            self.replace_ended()
            drawn = rng.randrange(0, 100)
            act = self._include if self.is_calm else next(one for below, one in actions if drawn < below)
            try:
                await act()
            except EblaError:
                continue

    def replace_ended(self) -> None:
        """Stops the nodes that have left without knowing it. A node that could not be removed is started again."""
        newest = self.cluster.newest()
        for node in self.cluster.present():
            if self.cluster.state_of(node) is NodeState.LEFT and (node.control.down or self.is_calm):
                self.cluster.retire(node)
            until = self.cluster.dead.get(node.host)
            if until is None or newest is None or self.cluster.world.now() < until:
                continue
            if not any(one.is_open and node.host in one.presumed_dead for one in newest.node_requests.values()):
                del self.cluster.dead[node.host]
                for unit in (unit for unit in node.units() if unit.down):
                    unit.start()

    def joining(self) -> list[SimNode]:
        return [node for node in self.cluster.present() if self.cluster.state_of(node) is not NodeState.NORMAL]

    async def _join(self) -> None:
        newest = self.cluster.newest()
        if newest is None or len(self.joining()) >= JOINS_AT_ONCE or self.counts.requested >= self.joins_max:
            return
        self.counts.requested += 1
        self._start(self.cluster.grow())

    def _start(self, node: SimNode) -> None:
        self.on_start(node)
        for unit in node.units():
            unit.start()

    async def _abort(self) -> None:
        newest = self.cluster.newest()
        requests: list[TopologyRequest] = []
        if newest is not None:
            requests += (*newest.node_requests.values(), *newest.global_requests.values())
        opened = [one.id for one in requests if one.is_open]
        if opened:
            await self.abort(self.environment.rng.choice(opened))

    async def abort(self, request: RequestId) -> None:
        self.counts.aborts += 1
        connection = self.cluster.connection(self.environment, "operator", *self._normal())
        try:
            await connection.call(ABORT_REQUEST, AbortTopologyRequest(request=request, reason="not needed"), ABORT_MS)
        except EblaError:
            self.counts.refused_aborts += 1
            raise
        finally:
            connection.leave()

    async def _leave(self) -> None:
        node = self._draw_dispensable()
        if node is not None:
            self.counts.leaves += 1
            await self._submit(NodeRequestKind.LEAVE, node)

    async def _rebuild(self) -> None:
        self.counts.rebuilds += 1
        await self._submit(NodeRequestKind.REBUILD, self.environment.rng.choice(self._normal()))

    async def _remove(self) -> None:
        """The node is dead: its processes are not started again, unless the removal fails."""
        node = await self._lose_one()
        if node is not None:
            self.counts.removes += 1
            await self._submit(NodeRequestKind.REMOVE, node)

    async def _replace(self) -> None:
        node = await self._lose_one()
        if node is not None:
            self.counts.replaces += 1
            self._start(self.cluster.grow(node))

    async def _lose_one(self) -> SimNode | None:
        """It dies for good. None: no node may be lost now."""
        node = self._draw_dispensable()
        newest = self.cluster.newest()
        if node is None or newest is None or newest.excluded_hosts or self.cluster.dead:
            return None  # an excluded node would become incomplete, and those that hold tablets cannot be removed
        await self._die(node)
        return node

    async def _die(self, node: SimNode) -> None:
        """For good, unless no request about it comes. Until others notice it."""
        self.cluster.dead[node.host] = self.cluster.world.now() + GIVE_UP_S
        for unit in node.units():
            unit.kill()
        silent_s = 2 * LIMITS.peer_silence_ms / 1000
        await asyncio.sleep(silent_s)

    async def _repair_cdc(self) -> None:
        self.counts.repairs += 1
        kind = GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS
        own = self._normal()[0].host
        await self._send(GlobalRequest(id=RequestId(self.environment.rng.uuid()), kind=kind, initiator=own, start_ms=0))

    def _draw_dispensable(self) -> SimNode | None:
        """One that holds no tablet, because tablets cannot be moved yet, and not the first one: clients run beside
        it."""
        newest = self.cluster.newest()
        normal = [node for node in self._normal() if node is not self.cluster.nodes[0]]
        found = [node for node in normal if newest is not None and not newest.has_tablets(node.host)]
        if len(normal) < NODES_MIN:
            return None
        return self.environment.rng.choice(found) if found else None

    async def _submit(self, kind: NodeRequestKind, node: SimNode) -> None:
        request = RequestId(self.environment.rng.uuid())
        await self._send(NodeRequest(id=request, kind=kind, host=node.host, initiator=node.host, start_ms=0))

    async def _send(self, request: TopologyRequest) -> None:
        connection = self.cluster.connection(self.environment, "operator", *self._normal())
        try:
            await connection.call(SUBMIT_REQUEST, SubmitTopologyRequest(request=request), ABORT_MS)
        finally:
            connection.leave()

    async def _crash_at(self) -> None:
        """Control of a node dies when it gets to a step of a join."""
        process = self.environment.rng.choice(self.cluster.present()).live_control
        if process is not None:
            process.fault_points.set(self.environment.rng.choice(POINTS), FaultKind.CRASH, once=True)

    async def _pause_at(self) -> None:
        """Longer than a lease, sometimes: another leader has taken over when it goes on."""
        process = self.environment.rng.choice(self.cluster.present()).live_control
        if process is not None:
            point = self.environment.rng.choice(POINTS)
            process.fault_points.set(point, FaultKind.PAUSE, once=True)
            await asyncio.sleep(self.environment.rng.choice((0.5, 5.0, 15.0)) * self.environment.rng.random())
            process.fault_points.release(point)

    def release_points(self) -> None:
        for node in self.cluster.present():
            process = node.live_control
            if process is not None:
                for point in POINTS:
                    process.fault_points.release(point)

    async def _exclude(self) -> None:
        if self.cluster.dead:
            return
        host = self.environment.rng.choice(self._normal()).host
        self.counts.exclusions += 1
        await self._operate(OperationKind.EXCLUDE, host, is_forced=self.environment.rng.random() < 0.4)

    async def _include(self) -> None:
        """An incomplete node is never included again (INV-NODE-23). It is replaced."""
        newest = self.cluster.newest()
        for node in self.cluster.present():
            if newest is not None and node.host in newest.nodes and newest.nodes[node.host].is_incomplete:
                if node.host not in self.cluster.dead:
                    await self._die(node)
                    self._start(self.cluster.grow(node))
                return
        excluded = sorted({host for one in self.cluster.snapshots().values() for host in one.excluded_hosts})
        if excluded:
            await self._operate(OperationKind.INCLUDE, self.environment.rng.choice(excluded))

    async def _operate(self, kind: OperationKind, host: HostId, *, is_forced: bool = False) -> None:
        connection = self.cluster.connection(self.environment, "operator", *self._normal())
        operation = Operation(id=self.environment.rng.uuid(), kind=kind, hosts=(host,), is_forced=is_forced)
        try:
            await connection.call(OPERATE, OperateRequest(operation, forward=True), OPERATE_MS)
        finally:
            connection.leave()

    def _normal(self) -> list[SimNode]:
        present = self.cluster.present()
        return [node for node in present if self.cluster.state_of(node) is NodeState.NORMAL] or present
