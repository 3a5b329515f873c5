"""The replica side of one shard on a simulated machine, with a topology that the test writes."""

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from tests.unit.storage.small_table import SMALL
from tests.unit.storage.store_rig import Rig, limits
from tests.unit.topology.small_cluster import network, node, replica

from ebla.feed.session_guards import SessionGuards
from ebla.feed.topology_view import TopologyView, View, view_of
from ebla.model.errors import Unavailable
from ebla.model.identity import HistoryId, Replica, SessionId, ShardNumber, TopologyVersion
from ebla.model.schema import TableSchema, encode_schema
from ebla.model.transaction import Revision
from ebla.observe.metrics import Metrics
from ebla.options import CommitLogMode
from ebla.ports.disk import Disk
from ebla.replica.replica_context import ReplicaContext, ReplicaLimits
from ebla.replica.replica_server import ReplicaServer
from ebla.replica.replica_stacks import ReplicaStacks
from ebla.replica.row_writes import ForwardWrites
from ebla.replica.shard_metrics import ShardMetrics
from ebla.sim.disk import ProcessDisk
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.store import ShardStore
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Keyspace, Session, Snapshot, Table, TopologyState
from ebla.topology.tablet_map import TabletMap
from ebla.wire.row_messages import Item, ReadRowsRequest, RowWrite, Span, WriteRowsAnswer, WriteRowsRequest

T = TypeVar("T")
HISTORY = HistoryId(uuid.UUID(int=99))
OWN = replica(1)
DATA = "/data"
NOW_S = 1_000


def small_cluster(
    tablets: TabletMap | None = None, *, version: int = 2, fence: int = 1, schema: TableSchema = SMALL
) -> Snapshot:
    """Three nodes and one table, on tablets if a map is given."""
    nodes = [node(number, tokens=(number,)) for number in (1, 2, 3)]
    return Snapshot(
        state=TopologyState(version=TopologyVersion(version), fence=TopologyVersion(fence)),
        nodes=FrozenMap({one.host: one for one in nodes}),
        keyspaces=FrozenMap({"ks": Keyspace(name="ks", replication=network(dc1=3), on_tablets=tablets is not None)}),
        tables=FrozenMap(
            {schema.id: Table(id=schema.id, keyspace="ks", name="small", definition=encode_schema(schema))}
        ),
        tablets=FrozenMap() if tablets is None else FrozenMap({schema.id: tablets}),
    )


def with_state(snapshot: Snapshot, version: int, fence: int) -> Snapshot:
    state = TopologyState(version=TopologyVersion(version), fence=TopologyVersion(fence))
    return dataclasses.replace(snapshot, state=state)


def with_sessions(snapshot: Snapshot, *sessions: Session) -> Snapshot:
    listed: FrozenMap[SessionId, Session] = FrozenMap({one.id: one for one in sessions})
    return dataclasses.replace(snapshot, sessions=listed)


class WallClock:
    def __init__(self) -> None:
        self.now_ms = NOW_S * 1000

    def boot_ms(self) -> int:
        return self.now_ms

    def wall_us(self) -> int:
        return self.now_ms * 1000


class ScriptedBarriers:
    """`session_guards.ReadBarriers`: the index of the next barrier is what the test says; None: there is no quorum."""

    def __init__(self) -> None:
        self.index: int | None = 1
        self.asked = 0
        self.changes = 0

    async def read_barrier(self, deadline_ms: int) -> Revision:
        assert deadline_ms > 0
        self.asked += 1
        if self.index is None:
            raise Unavailable("no quorum")
        return Revision(HISTORY, self.index)

    def changed(self) -> None:
        self.changes += 1


async def unexpected_forward(shard: ShardNumber, _request: WriteRowsRequest, _deadline_ms: int) -> WriteRowsAnswer:
    raise AssertionError(f"a write was forwarded to shard {shard}")


class ShardRig:
    """What a shard is made of, without its process."""

    def __init__(
        self, disk: Disk, store: ShardStore, bounds: ReplicaLimits, own: Replica, forward: ForwardWrites | None
    ) -> None:
        self.store = store
        self.view = TopologyView()
        self.reports: list[tuple[str, object]] = []
        self.stacks = ReplicaStacks(store, self.view, own, lambda event, details: self.reports.append((event, details)))
        self.barriers = ScriptedBarriers()
        self.clock = WallClock()
        self.guards = SessionGuards(self.view, self.barriers, self.clock)
        self.context = ReplicaContext(
            view=self.view,
            store=store,
            stacks=self.stacks,
            guards=self.guards,
            disk=disk,
            data_folder=DATA,
            shard=own.shard,
            limits=bounds,
        )
        server = ReplicaServer(
            self.context, forward or unexpected_forward, ShardMetrics(Metrics()), serves=lambda: True
        )
        self.server, self.writer, self.streams = server, server.writer, server.streams
        self.checkpoints, self.adoptions = server.checkpoints, server.adoptions
        self._index = 0
        self.index_is_version = False
        """Whether revisions go on where those of an earlier life of the shard ended."""

    async def follow(self, snapshot: Snapshot) -> View:
        """The next version, prepared and installed."""
        self._index = snapshot.version if self.index_is_version else self._index + 1
        before = self.view.current if self.view.is_known else None
        view = view_of(snapshot, Revision(HISTORY, self._index), before)
        await self.stacks.prepare(view)
        self.install(view)
        return view

    def install(self, view: View) -> None:
        self.view.install(view)
        self.stacks.on_view_installed(view)
        self.guards.on_view_installed(view)

    async def write(self, *writes: RowWrite, deadline_ms: int = 1_000) -> WriteRowsAnswer:
        return await self.writer.write(WriteRowsRequest(writes), deadline_ms)


class HeldSyncs:
    """Syncs of the log that end when the test lets them."""

    def __init__(self, store: ShardStore) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self._wait = store.wait_durable
        store.wait_durable = self._held  # type: ignore[method-assign] # only how long it takes is the test's

    async def _held(self, sequence: int) -> None:
        self.begun.set()
        await self.may_end.wait()
        await self._wait(sequence)


def write_of(*items: Item, version: int = 2) -> RowWrite:
    return RowWrite(TopologyVersion(version), SMALL.id, items)


def read_of(*spans: Span, rows_max: int = 1_000, version: int = 2, **fields: object) -> ReadRowsRequest:
    base = ReadRowsRequest(
        version=TopologyVersion(version), table=SMALL.id, spans=spans or ((b"", None),), rows_max=rows_max, now_s=NOW_S
    )
    values = {name: getattr(base, name) for name in base.__struct_fields__}
    return ReadRowsRequest(**{**values, **fields})


def tablet_of(tablets: TabletMap, item: Item) -> int:
    return tablets.number_of(decode_token(item[0]))


@asynccontextmanager
async def open_shard(
    rig: Rig,
    disk: ProcessDisk,
    *,
    bounds: ReplicaLimits | None = None,
    own: Replica = OWN,
    forward: ForwardWrites | None = None,
) -> AsyncIterator[ShardRig]:
    async with rig.store(disk) as store, asyncio.TaskGroup() as tasks:
        shard = ShardRig(disk, store, bounds or ReplicaLimits(version_wait_ms=200), own, forward)
        settling = tasks.create_task(shard.stacks.run())
        yield shard
        settling.cancel()


def in_shard(
    work: Callable[[ShardRig], Awaitable[T]],
    *,
    rig: Rig | None = None,
    mode: CommitLogMode = CommitLogMode.SYNC,
    bounds: ReplicaLimits | None = None,
    own: Replica = OWN,
    forward: ForwardWrites | None = None,
) -> T:
    """One life of a shard."""
    made = rig or Rig(bounds=limits(mode))

    async def main(disk: ProcessDisk) -> T:
        async with open_shard(made, disk, bounds=bounds, own=own, forward=forward) as shard:
            return await work(shard)

    return made.machine.run(main)
