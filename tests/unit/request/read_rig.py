"""A router's reads among replicas in memory, in simulated time. Replicas may end a page wherever a test says."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tests.unit.request.write_rig import CountedView, at_version
from tests.unit.storage.random_rows import MIXED
from tests.unit.topology.small_cluster import TABLE, cluster, node, replica

from ebla.feed.topology_view import view_of
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import DeadlineExceeded, EblaError, Stale
from ebla.model.identity import HistoryId, Replica, TopologyVersion
from ebla.model.rows import EMPTY_HEAD, PartitionHead
from ebla.model.schema import TableSchema, encode_schema
from ebla.model.transaction import Revision
from ebla.observe.metrics import Metrics
from ebla.request.read_router import ReadRouter
from ebla.request.router_types import ReadPage, ReadQuery, RouterDeps, RouterLimits
from ebla.sim.loop import simulated_loop
from ebla.sim.rng import SimRng
from ebla.storage.codec.key_codec import head_key, split_key
from ebla.storage.codec.live_rows import is_live_row
from ebla.storage.codec.row_codec import decode_head, is_head
from ebla.storage.codec.row_digest import digest_rows
from ebla.storage.layers.layer import Item
from ebla.storage.merge.row_merge import merge_values, without_deleted_cells
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Snapshot, Table
from ebla.topology.tablet_map import TabletMap, tablet_map
from ebla.wire.row_messages import (
    ReadRowsAnswer,
    ReadRowsRequest,
    Span,
    WriteRowsAnswer,
    WriteRowsRequest,
)

T = TypeVar("T")

A, B, C, D = (replica(number) for number in (1, 2, 3, 4))
NODES = [node(number, shard_count=1, ignore_msb=0) for number in (1, 2, 3, 4)]
ONE, QUORUM, ALL = ConsistencyLevel.ONE, ConsistencyLevel.QUORUM, ConsistencyLevel.ALL
EVERYTHING: tuple[Span, ...] = ((b"", None),)
NOW_S = 10

Cut = Callable[[], int]
"""After how many items a page ends, whatever was asked for."""


def in_simulated_time(work: Coroutine[Any, Any, T], seed: str = "reads") -> T:
    result: T = simulated_loop(SimRng(seed)).run_until_complete(work)
    return result


def never() -> int:
    return 1 << 30


class MemoryReplica:
    """Items of one table, read as a replica reads them."""

    def __init__(self, schema: TableSchema = MIXED, cut: Cut = never) -> None:
        self.schema = schema
        self.cut = cut
        self.items: dict[bytes, bytes] = {}

    def write(self, items: Iterable[Item]) -> None:
        for key, value in items:
            known = self.items.get(key)
            self.items[key] = value if known is None else merge_values(known, value, self.schema)

    def shown(self, spans: Sequence[Span], *, is_reversed: bool = False) -> list[Item]:
        """Merged items of the spans, rows without what heads delete."""
        found = []
        for key in sorted(self.items, reverse=is_reversed):
            if any(start <= key and (end is None or key < end) for start, end in spans):
                value = self._uncovered(key)
                if value is not None:
                    found.append((key, value))
        return found

    def _uncovered(self, key: bytes) -> bytes | None:
        value = self.items[key]
        if is_head(value):
            return value
        prefix, _, clustering = split_key(key)
        return without_deleted_cells(value, self._head(prefix), clustering, self.schema)

    def _head(self, prefix: bytes) -> PartitionHead:
        value = self.items.get(head_key(prefix))
        return EMPTY_HEAD if value is None else decode_head(value)

    def read(self, request: ReadRowsRequest) -> ReadRowsAnswer:
        stops_after = self.cut()
        taken: list[Item] = []
        live, counts = 0, dict[bytes, int]()
        is_whole = True
        for key, value in self.shown(request.spans, is_reversed=request.is_reversed):
            if live == request.rows_max or len(taken) == stops_after:
                is_whole = False
                break
            prefix = split_key(key)[0]
            is_row = not is_head(value)
            if is_row and request.partition_rows_max and counts.get(prefix, 0) == request.partition_rows_max:
                continue
            taken.append((key, value))
            if is_row and is_live_row(value, self.schema, request.now_s):
                live += 1
                counts[prefix] = counts.get(prefix, 0) + 1
        last_key = b"" if is_whole else taken[-1][0]
        digest = digest_rows(taken, self.schema, request.gc_before_s)
        return ReadRowsAnswer(
            items=() if request.digest_only else tuple(taken),
            digest=digest,
            is_whole=is_whole,
            last_key=last_key,
            live_rows=live,
        )


@dataclass(kw_only=True)
class MemoryClients:
    """To the replicas of a cluster. `delays_ms` and `errors` make a target slow or let it fail."""

    own: Replica
    schema: TableSchema = MIXED
    refused: frozenset[Replica] = frozenset()
    replicas: dict[Replica, MemoryReplica] = field(default_factory=dict)
    fence: int = 0
    delays_ms: dict[Replica, float] = field(default_factory=dict)
    errors: dict[Replica, Exception] = field(default_factory=dict)
    write_errors: dict[Replica, EblaError] = field(default_factory=dict)
    reads: list[tuple[Replica, ReadRowsRequest]] = field(default_factory=list)
    writes: list[tuple[Replica, WriteRowsRequest]] = field(default_factory=list)
    own_answers_at_once: bool = True
    on_read: Callable[[Replica], None] = lambda _: None

    def of(self, target: Replica) -> MemoryReplica:
        return self.replicas.setdefault(target, MemoryReplica(self.schema))

    async def read(self, target: Replica, request: ReadRowsRequest, deadline_ms: int) -> ReadRowsAnswer:
        if target != self.own or not self.own_answers_at_once:
            await self._travel(target, deadline_ms)
        return self._answer(target, request)

    async def read_own(self, request: ReadRowsRequest, deadline_ms: int) -> ReadRowsAnswer:
        return await self.read(self.own, request, deadline_ms)

    async def write(self, target: Replica, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer:
        await self._travel(target, deadline_ms)
        if target in self.write_errors:
            raise self.write_errors[target]
        self.writes.append((target, request))
        for write in request.writes:
            assert len({split_key(key)[0] for key, _ in write.items}) == 1, "a write has one partition"
            self._check(write.version)
            self.of(target).write(write.items)
        return WriteRowsAnswer()

    async def _travel(self, target: Replica, deadline_ms: int) -> None:
        delay_ms = self.delays_ms.get(target, 0)
        await asyncio.sleep(min(delay_ms, deadline_ms) / 1000)
        if delay_ms > deadline_ms:
            raise DeadlineExceeded("no answer in time")

    def _answer(self, target: Replica, request: ReadRowsRequest) -> ReadRowsAnswer:
        self.reads.append((target, request))
        self.on_read(target)
        if target in self.errors:
            raise self.errors[target]
        self._check(request.version)
        return self.of(target).read(request)

    def _check(self, version: TopologyVersion) -> None:
        if version < self.fence:
            raise Stale(f"version {version} is older than the fence {self.fence}")


class LoopClock:
    def boot_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def wall_us(self) -> int:
        return self.boot_ms() * 1000


def tablets_of(*replica_sets: Sequence[Replica]) -> TabletMap:
    return tablet_map(TABLE, [tuple(each) for each in replica_sets])


def snapshot_of(tablets: TabletMap | None, schema: TableSchema = MIXED, **kinds: Any) -> Snapshot:
    made = cluster(*kinds.pop("nodes", NODES), tablets=tablets, **kinds)
    table = Table(id=TABLE, keyspace="ks", name="t", definition=encode_schema(schema))
    return replace(made, tables=FrozenMap({TABLE: table}))


@dataclass(kw_only=True)
class ReadRig:
    reads: ReadRouter
    view: CountedView
    clients: MemoryClients
    metrics: Metrics

    def install(self, snapshot: Snapshot, version: int) -> None:
        revision = Revision(HistoryId(uuid.UUID(int=1)), version)
        self.view.install(view_of(at_version(snapshot, version), revision))

    def counted(self, name: str) -> float:
        return self.metrics.counters[name].series().value

    async def read(self, query: ReadQuery, level: ConsistencyLevel = QUORUM, ms: int = 1000) -> ReadPage:
        return await self.reads.read(query, level, ms)

    async def read_all(self, query: ReadQuery, level: ConsistencyLevel = QUORUM) -> list[ReadPage]:
        """Page after page."""
        pages = [await self.read(query, level)]
        while pages[-1].position:
            assert len(pages) < 1000, "the read has no end"
            pages.append(await self.read(replace_position(query, pages[-1].position), level))
        return pages


def replace_position(query: ReadQuery, position: bytes) -> ReadQuery:
    fields = {name: getattr(query, name) for name in query.__struct_fields__}
    return ReadQuery(**{**fields, "position": position})


@asynccontextmanager
async def running(
    snapshot: Snapshot, own: Replica = A, limits: RouterLimits | None = None, schema: TableSchema = MIXED
) -> AsyncIterator[ReadRig]:
    view, clients, metrics = CountedView(), MemoryClients(own=own, schema=schema), Metrics()
    async with asyncio.TaskGroup() as tasks:
        parts = RouterDeps(
            view=view,
            own=own,
            datacenter="dc1",
            clients=clients,
            clock=LoopClock(),
            limits=limits or RouterLimits(),
            metrics=metrics,
            tasks=tasks,
        )
        rig = ReadRig(reads=ReadRouter(parts), view=view, clients=clients, metrics=metrics)
        rig.install(snapshot, 5)
        yield rig
    assert view.held == view.released, "a version is still held"
    assert rig.reads.in_flight == 0
