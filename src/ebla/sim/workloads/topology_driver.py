"""Changes the topology while rows are written: tablets go through every stage of a move, tables come and go, columns
are added, sessions are opened and closed, versions and fences advance.

It replaces the coordinator and is worse than one: two drivers run at once, each commits on what it read, resends stream
chunks after their session was closed, and dies at any point.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ebla.feed.topology_follower import TopologyFollower, TopologyFollowerConfig
from ebla.feed.topology_view import TopologyView, View
from ebla.group0.commands import Done
from ebla.model.cql_types import parse_type
from ebla.model.errors import EblaError
from ebla.model.identity import HostId, Replica, SessionId, TableId, TopologyVersion
from ebla.model.schema import Column, ColumnKind, decode_schema
from ebla.ports.environment import Environment
from ebla.sim.clusters.nodes import SHARDS, SimNode
from ebla.sim.workloads.rows_client import RowsLoad
from ebla.sim.workloads.rows_table import COLUMNS
from ebla.storage.codec.key_codec import encode_token
from ebla.topology.apply.command import Rejection, apply_commands
from ebla.topology.commands import (
    AdvanceTablets,
    CloseSessions,
    Command,
    LeaveMigrationTrack,
    OpenBulkSession,
    RaiseFence,
    RefreshNode,
    StartMoves,
    TabletAdvance,
    TabletMove,
)
from ebla.topology.snapshot import Keyspace, Replication, Session, Snapshot
from ebla.topology.states import SessionKind, Strategy, TabletStage, TransitionKind, TransitionState
from ebla.topology.tablet_map import TabletMap, TabletTransition
from ebla.topology.tablet_stages import StageAction, stage_row, tablet_stream
from ebla.wire.feed_messages import ChildReport, NodeBarrierRequest
from ebla.wire.group0_messages import ExecuteRequest
from ebla.wire.peers import Peers
from ebla.wire.row_messages import ReadRowsRequest, Span, StreamRowsRequest
from ebla.wire.schema_messages import (
    AlterTableRequest,
    CreateKeyspaceRequest,
    CreateTableRequest,
    DropTableRequest,
    SchemaAnswer,
    SchemaChange,
    SchemaRequest,
)
from ebla.wire.verbs import GROUP0_EXECUTE, NODE_BARRIER, READ_ROWS, SCHEMA, STREAM_ROWS

CALL_MS = 2_000
SCHEMA_MS = 4_000
THINK_S = 0.15
STREAM_ROWS_MAX = 12
"""Per chunk: a tablet takes several."""
LATE_CHUNKS_MAX = 40
COLUMNS_MAX = 4
CONCURRENT_MOVES = 2
"""Tablets that begin to move together."""
JOB_MS = 4 * 3_600_000
"""Longer than any clock jump."""
ON_TABLETS, ON_VNODES = "tab", "vno"
KEYSPACES = (
    Keyspace(
        name=ON_TABLETS,
        replication=Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 3),)),
        on_tablets=True,
        initial_tablets=4,
    ),
    Keyspace(name=ON_VNODES, replication=Replication(Strategy.SIMPLE, (("", 3),)), on_tablets=False),
)


MovingTablet = tuple[TabletMap, int, TabletTransition]


@dataclass(frozen=True, slots=True)
class LateStreamChunk:
    """A chunk of a stream whose session is closed."""

    target: Replica
    request: StreamRowsRequest


class _Following:
    """`feed.topology_follower.TopologySubscriber`."""

    async def prepare(self, view: View, before: View | None) -> None:
        """Nothing to do: it holds no replica."""

    def on_view_installed(self, view: View) -> None:
        """Nothing to do: it reads the view when it needs it."""


class TopologyDriver:
    keyspaces: Sequence[Keyspace] = KEYSPACES

    def __init__(self, environment: Environment, load: RowsLoad, home: SimNode, tasks: asyncio.TaskGroup) -> None:
        self._environment = environment
        self._rng = environment.rng
        self._load = load
        self._cluster = load.cluster
        self._home = home
        self._tasks = tasks
        self._late: list[LateStreamChunk] = []
        self.view = TopologyView()
        name = f"driver-{home.control.name}"
        own = self._cluster.context(home, name, 1)
        context = own.peers_context(environment, name)
        self._own, self._controls = Peers(tasks, context), Peers(tasks, context)
        self._own.set_address(home.host, own.control_socket)
        self._shards = {number: Peers(tasks, context) for number in SHARDS}
        ports = own.options.ports
        for node in self._cluster.nodes:
            self._controls.set_address(node.host, node.control.address(ports.control))
            for number, peers in self._shards.items():
                peers.set_address(node.host, node.control.address(ports.shards_from + number))
        config = TopologyFollowerConfig(name=name, pid=1, host=home.host, clock=environment.clock, report=own.report)
        self._follower = TopologyFollower(self._own, config, self.view, _Following(), self._report_of)

    def _report_of(self, view: View) -> ChildReport:
        return ChildReport(
            name=f"driver-{self._home.control.name}",
            pid=1,
            version=view.version,
            fence=view.fence,
            oldest_running=view.version,
            pending_replicas_open=True,
        )

    async def run(self) -> None:
        self._tasks.create_task(self._follower.run())
        while True:
            try:
                await (self._step() if self._load.tables else self._create_tables())
            except EblaError:
                pass  # the next read shows the outcome
            await asyncio.sleep(self._rng.random() * THINK_S)

    async def _create_tables(self) -> None:
        for keyspace in self.keyspaces:
            await self._change_schema(CreateKeyspaceRequest(keyspace, if_not_exists=True))
        for keyspace in self.keyspaces:
            for name in ("t", "p"):
                await self._change_schema(
                    CreateTableRequest(keyspace=keyspace.name, name=name, columns=COLUMNS, if_not_exists=True)
                )
        self._learn(await self._observe())

    # -- what to do --------------------------------------------------------------------------------------------------

    async def _step(self) -> None:
        snapshot = await self._observe()
        if self._late and self._rng.random() < 0.3:
            await self._send_late()
        moving: list[MovingTablet] = [
            (tablets, number, transition)
            for _, tablets in sorted(snapshot.tablets.items())
            for number, transition in tablets.transitions()
        ]
        if moving:
            await self._advance(snapshot, moving)
        elif snapshot.transition is TransitionState.TABLET_MIGRATION and self._rng.random() < 0.3:
            await self._commit(snapshot, LeaveMigrationTrack())
        elif not self._load.stopping:
            await self._begin(snapshot)
        elif snapshot.transition is not None:
            await self._commit(snapshot, LeaveMigrationTrack())
        else:
            await self._drop_passing(snapshot)

    async def _begin(self, snapshot: Snapshot) -> None:
        kind = self._rng.randrange(0, 100)
        if kind < 60:
            await self._start_move(snapshot)
        elif kind < 70:
            await self._bump(snapshot)
        elif kind < 80:
            await self._run_job(snapshot)
        elif kind < 88:
            await self._raise_fence(snapshot)
        elif kind < 92:
            await self._add_column(snapshot)
        else:
            await self._come_and_go(snapshot)

    async def _observe(self) -> Snapshot:
        revision = await self._follower.read_barrier(CALL_MS)
        await self.view.wait_revision(revision, CALL_MS / 1000)
        snapshot = self.view.current.snapshot
        self._cluster.barriers.saw(snapshot)
        return snapshot

    def _learn(self, snapshot: Snapshot) -> None:
        """Learns the schemas that every running node has, so that rows of the new version may be written."""
        for table in snapshot.tables.values():
            schema = decode_schema(table.definition)
            if table.name != "t":
                self._load.passing[table.keyspace] = schema
                continue
            known = self._load.tables.get(table.keyspace)
            if known is None or known.version < schema.version:
                self._load.tables[table.keyspace] = schema

    async def _commit(self, snapshot: Snapshot, *commands: Command) -> bool:
        """Returns whether it is certainly committed."""
        applied = apply_commands(snapshot, commands)
        if isinstance(applied, Rejection):
            self._cluster.world.log("driver", f"refused: {applied.reason}")
            return False
        answer = await self._own.call(self._home.host, GROUP0_EXECUTE, ExecuteRequest(applied.transaction), CALL_MS)
        done = isinstance(answer.answer, Done)
        if done:
            names = ", ".join(type(command).__name__ for command in commands)
            self._cluster.world.log("driver", f"version {applied.snapshot.version}: {names}")
            self._cluster.barriers.saw(applied.snapshot)
        return done

    async def _barrier(self, snapshot: Snapshot) -> bool:
        """On all nodes at once. A node that answers must keep the promise, even if another does not answer."""
        async with asyncio.TaskGroup() as asking:
            tasks = [asking.create_task(self._barrier_on(node, snapshot)) for node in self._cluster.nodes]
        return all(task.result() for task in tasks)

    async def _barrier_on(self, node: SimNode, snapshot: Snapshot) -> bool:
        request = NodeBarrierRequest(snapshot.version)
        try:
            await self._controls.call(node.host, NODE_BARRIER, request, CALL_MS)
        except EblaError:
            return False
        self._cluster.barrier_returned(node, snapshot)
        return True

    # -- tablets -----------------------------------------------------------------------------------------------------

    async def _start_move(self, snapshot: Snapshot) -> None:
        schema = self._load.tables[ON_TABLETS]
        tablets = snapshot.tablets.get(schema.id)
        if tablets is None:
            return
        numbers = sorted({self._rng.randrange(0, tablets.tablet_count) for _ in range(CONCURRENT_MOVES)})
        moves = tuple(self._draw_move(tablets, number) for number in numbers)
        await self._commit(snapshot, StartMoves(moves))

    def _draw_move(self, tablets: TabletMap, number: int) -> TabletMove:
        old = tablets.replicas(number)
        leaving = self._rng.choice(old)
        if self._rng.random() < 0.25:
            kind = TransitionKind.INTRANODE_MIGRATION
            coming = Replica(leaving.host, SHARDS[1 - leaving.shard])
        else:
            kind = TransitionKind.MIGRATION
            hosts = [node.host for node in self._cluster.nodes if all(node.host != each.host for each in old)]
            coming = Replica(self._rng.choice(hosts), self._rng.choice(SHARDS))
        new = tuple(coming if each == leaving else each for each in old)
        return TabletMove(table=tablets.table, tablet=number, kind=kind, new_replicas=new)

    async def _advance(self, snapshot: Snapshot, moving: Sequence[MovingTablet]) -> None:
        """Advances all of them by one step, sometimes only one, so that stages mix."""
        if self._rng.random() < 0.3:
            moving = [self._rng.choice(moving)]
        fence = TopologyVersion(0)
        if any(stage_row(transition).barrier for _, _, transition in moving):
            if not await self._barrier(snapshot):
                return
            fence = snapshot.version
        sent: list[LateStreamChunk] = []
        steps = []
        for tablets, number, transition in moving:
            if stage_row(transition).action in (StageAction.COPY_FILES, StageAction.LINK_FILES):
                await self._copy(snapshot, tablets, number, sent)
            gives_up = transition.stage is TabletStage.STREAMING and self._rng.random() < 0.15
            session = SessionId(self._rng.uuid())
            steps.append(
                TabletAdvance(
                    table=tablets.table,
                    tablet=number,
                    leaving=transition.stage,
                    session=session,
                    failed=gives_up,
                    hopeless=gives_up,
                )
            )
        if await self._commit(snapshot, AdvanceTablets(tuple(steps), fence)):
            self._late = (self._late + sent)[-LATE_CHUNKS_MAX:]

    async def _copy(self, snapshot: Snapshot, tablets: TabletMap, number: int, sent: list[LateStreamChunk]) -> None:
        """From the leaving replica, by this version, so that the fence of its stage is already set."""
        transition = tablets.transition(number)
        assert transition is not None
        assert transition.session is not None
        stream = tablet_stream(tablets.replicas(number), transition, ())
        start = encode_token(tablets.after_token(number) + 1 if number else tablets.after_token(number))
        end = encode_token(tablets.last_token(number) + 1) if number + 1 < tablets.tablet_count else None
        for target in stream.destinations:
            job = _Job(version=snapshot.version, table=tablets.table, session=transition.session, span=(start, end))
            await self._stream(job, stream.sources[0], target, sent)

    async def _stream(self, job: "_Job", source: Replica, target: Replica, sent: list[LateStreamChunk]) -> None:
        start, end = job.span
        while True:
            now_s = self._environment.clock.wall_us() // 1_000_000
            request = ReadRowsRequest(
                version=job.version, table=job.table, spans=((start, end),), rows_max=STREAM_ROWS_MAX, now_s=now_s
            )
            page = await self._shards[source.shard].call(source.host, READ_ROWS, request, CALL_MS)
            if page.items:
                await self._send(target, StreamRowsRequest(job.session, job.table, page.items), sent)
            if page.is_whole:
                return
            start = page.last_key + b"\0"

    async def _send(self, target: Replica, piece: StreamRowsRequest, sent: list[LateStreamChunk]) -> None:
        sent.append(LateStreamChunk(target, piece))
        if self._rng.random() < 0.3:
            self._tasks.create_task(self._send_again(target, piece))
        await self._shards[target.shard].call(target.host, STREAM_ROWS, piece, CALL_MS)

    async def _send_again(self, target: Replica, piece: StreamRowsRequest) -> None:
        """At any time, whatever the state of the session."""
        await asyncio.sleep(self._rng.random() * self._rng.random() * 3)
        try:
            await self._shards[target.shard].call(target.host, STREAM_ROWS, piece, CALL_MS)
        except EblaError:
            pass

    async def _send_late(self) -> None:
        """The session is certainly closed: the chunk must be refused."""
        late = self._rng.choice(self._late)
        try:
            await self._shards[late.target.shard].call(late.target.host, STREAM_ROWS, late.request, CALL_MS)
        except EblaError:
            return
        self._load.found(f"INV-ROWS-3: {late.target} took rows of session {late.request.session}, which is closed")

    # -- versions, jobs and tables -----------------------------------------------------------------------------------

    def _refresh(self, snapshot: Snapshot, host: HostId) -> RefreshNode:
        """Sets another release, which the node corrects: two new versions, for vnodes and tablets alike."""
        node = snapshot.node(host)
        release = f"sim {snapshot.version}"
        return RefreshNode(
            host=host,
            release_version=release,
            address=node.address,
            shard_count=node.shard_count,
            ignore_msb=node.ignore_msb,
            supported_features=node.supported_features,
        )

    async def _bump(self, snapshot: Snapshot) -> None:
        await self._commit(snapshot, self._refresh(snapshot, self._rng.choice(self._cluster.nodes).host))

    async def _raise_fence(self, snapshot: Snapshot) -> None:
        if await self._barrier(snapshot):
            await self._commit(snapshot, RaiseFence(snapshot.version))

    async def _run_job(self, snapshot: Snapshot) -> None:
        """Merges rows of a vnode table from one replica into another, under a session."""
        table = self._load.tables[ON_VNODES].id
        session = SessionId(self._rng.uuid())
        deadline_ms = self._environment.clock.wall_us() // 1000 + JOB_MS
        opened = OpenBulkSession(Session(id=session, kind=SessionKind.BULK_JOB, table=table, deadline_ms=deadline_ms))
        refreshed = self._refresh(snapshot, self._home.host)
        if not await self._commit(snapshot, opened, refreshed):
            return
        sent: list[LateStreamChunk] = []
        snapshot = await self._observe()
        source, target = self._rng.choice(self._cluster.shards()), self._rng.choice(self._cluster.shards())
        try:
            job = _Job(version=snapshot.version, table=table, session=session, span=(b"", None))
            await self._stream(job, source.own, target.own, sent)
        finally:
            snapshot = await self._observe()
            closing = (CloseSessions((session,)), self._refresh(snapshot, self._home.host))
            if await self._commit(snapshot, *closing):
                self._late = (self._late + sent)[-LATE_CHUNKS_MAX:]

    async def _add_column(self, snapshot: Snapshot) -> None:
        keyspace = self._rng.choice([one.name for one in self.keyspaces])
        count = len(self._load.tables[keyspace].columns)
        if count < len(COLUMNS) + COLUMNS_MAX:
            name = f"x{snapshot.version}"
            added = Column(name=name, type=parse_type("int"), kind=ColumnKind.REGULAR)
            await self._change_schema(AlterTableRequest(keyspace=keyspace, name="t", added=(added,)))
            self._learn(await self._observe())

    async def _come_and_go(self, snapshot: Snapshot) -> None:
        keyspace = self._rng.choice([one.name for one in self.keyspaces])
        there = [table for table in snapshot.tables.values() if (table.keyspace, table.name) == (keyspace, "p")]
        if there:
            await self._change_schema(DropTableRequest(keyspace, "p", if_exists=True))
            return
        answer = await self._change_schema(
            CreateTableRequest(keyspace=keyspace, name="p", columns=COLUMNS, if_not_exists=True)
        )
        made = (await self._observe()).tables.get(answer.table) if answer.table is not None else None
        if made is not None:
            self._load.passing[keyspace] = decode_schema(made.definition)

    async def _drop_passing(self, snapshot: Snapshot) -> None:
        for table in snapshot.tables.values():
            if table.name == "p":
                await self._change_schema(DropTableRequest(table.keyspace, "p", if_exists=True))

    async def _change_schema(self, change: SchemaChange) -> SchemaAnswer:
        return await self._own.call(self._home.host, SCHEMA, SchemaRequest(change), SCHEMA_MS)


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is streamed, by which version, and under which session."""

    version: TopologyVersion
    table: TableId
    session: SessionId
    span: Span
