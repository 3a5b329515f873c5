"""Rows over the wire for tests of real nodes: a table, single reads and writes, and clients that write without pause
and record the outcome of each write."""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.cluster.background import Background
from tests.cluster.group0_load import ask
from tests.cluster.node_calls import ask_socket, calling

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.model.consistency import ConsistencyLevel
from ebla.model.cql_types import parse_type
from ebla.model.errors import EblaError
from ebla.model.identity import TableId
from ebla.model.rows import Cell, Row
from ebla.model.schema import Column, ColumnKind, TableSchema, new_schema
from ebla.model.token import token_of
from ebla.storage.codec.key_codec import partition_prefix, prefix_end, row_key
from ebla.storage.codec.row_codec import decode_row, encode_row
from ebla.topology.snapshot import Keyspace, Replication
from ebla.topology.states import Strategy
from ebla.wire.client_connection import RpcClientConnection
from ebla.wire.row_messages import RoutedWrite, RouteReadRequest, RouteWriteRequest
from ebla.wire.schema_messages import CreateKeyspaceRequest, CreateTableRequest, SchemaAnswer, SchemaRequest
from ebla.wire.verbs import ROUTE_READ, ROUTE_WRITE, SCHEMA, A, Q, Verb

T = TypeVar("T")
DEADLINE_MS = 4_000
SCHEMA_MS = 20_000
PATIENCE_S = 20.0
NOW_S = 1
COLUMNS = (
    Column(name="k", type=parse_type("int"), kind=ColumnKind.PARTITION_KEY),
    Column(name="v", type=parse_type("bigint"), kind=ColumnKind.REGULAR),
)
QUORUM = ConsistencyLevel.QUORUM
ONE = ConsistencyLevel.ONE
ALL = ConsistencyLevel.ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A keyspace and its table `t` of numbers."""

    keyspace: str
    replicas: int = 3
    """Replicas in each datacenter."""
    on_tablets: bool = True
    datacenters: tuple[str, ...] = ("dc1",)


def create_table(node: LocalNode, wanted: Wanted) -> TableId:
    factors = tuple((datacenter, wanted.replicas) for datacenter in wanted.datacenters)
    replication = Replication(Strategy.NETWORK_TOPOLOGY, factors)
    keyspace = Keyspace(
        name=wanted.keyspace,
        replication=replication,
        on_tablets=wanted.on_tablets,
        initial_tablets=8 if wanted.on_tablets else 0,
    )
    ask(node, SCHEMA, SchemaRequest(CreateKeyspaceRequest(keyspace)), SCHEMA_MS)
    answer: SchemaAnswer = ask(
        node, SCHEMA, SchemaRequest(CreateTableRequest(keyspace=wanted.keyspace, name="t", columns=COLUMNS)), SCHEMA_MS
    )
    assert answer.changed
    assert answer.table is not None
    return answer.table


class Numbers:
    """The table's rows: each key has one number, which only grows; its timestamp is the number."""

    def __init__(self, table: TableId) -> None:
        self.table = table
        self.schema: TableSchema = new_schema((table, "any", "t"), COLUMNS)
        self._column = self.schema.column("v").number

    def write_of(self, key: int, number: int) -> RoutedWrite:
        value = Row(
            marker=None, deletion=None, cells={self._column: Cell(timestamp_us=number, value=number.to_bytes(8))}
        )
        item = (row_key(self._prefix(key)), encode_row(value, self.schema.version, self.schema.layouts[-1]))
        return RoutedWrite(self.table, (item,))

    def read_of(self, key: int, level: ConsistencyLevel) -> RouteReadRequest:
        prefix = self._prefix(key)
        return RouteReadRequest(
            table=self.table, spans=((prefix, prefix_end(prefix)),), level=level, rows_max=10, now_s=NOW_S
        )

    def number_in(self, value: bytes) -> int:
        cell = decode_row(value, self.schema.layouts).cells[self._column]
        assert cell.value is not None
        assert int.from_bytes(cell.value) == cell.timestamp_us
        return cell.timestamp_us

    async def write(self, shard: RpcClientConnection, numbers: dict[int, int], level: ConsistencyLevel) -> None:
        writes = tuple(self.write_of(key, number) for key, number in numbers.items())
        await shard.call(ROUTE_WRITE, RouteWriteRequest(writes, level), DEADLINE_MS)

    async def read(self, shard: RpcClientConnection, key: int, level: ConsistencyLevel) -> int | None:
        page = await shard.call(ROUTE_READ, self.read_of(key, level), DEADLINE_MS)
        assert len(page.items) <= 1, page
        assert not page.position
        return self.number_in(page.items[0][1]) if page.items else None

    @staticmethod
    def _prefix(key: int) -> bytes:
        serialized = key.to_bytes(4)
        return partition_prefix(token_of(serialized), serialized)


def socket_of(node: LocalNode, shard: int) -> Path:
    return node.folder.shard_socket(shard)


def asking_shard(node: LocalNode, shard: int) -> AbstractAsyncContextManager[RpcClientConnection]:
    return calling(node, socket_of(node, shard))


def ask_shard(node: LocalNode, shard: int, verb: Verb[Q, A], request: Q, deadline_ms: int = DEADLINE_MS) -> A:
    return ask_socket(node, socket_of(node, shard), verb, request, deadline_ms)


def write_numbers(
    rows: Numbers, at: tuple[LocalNode, int], numbers: dict[int, int], level: ConsistencyLevel = QUORUM
) -> None:
    """Repeats until acknowledged: the same numbers have the same timestamps, so a write may be repeated."""
    _patiently(lambda: write_once(rows, at, numbers, level), PATIENCE_S)


def write_once(rows: Numbers, at: tuple[LocalNode, int], numbers: dict[int, int], level: ConsistencyLevel) -> None:
    async def run() -> None:
        async with asking_shard(*at) as shard:
            await rows.write(shard, numbers, level)

    asyncio.run(run())


def read_numbers(
    rows: Numbers, at: tuple[LocalNode, int], keys: Sequence[int], level: ConsistencyLevel = QUORUM
) -> list[int | None]:
    """On a busy machine a shard may lose its right to serve for a moment."""
    return _patiently(lambda: read_once(rows, at, keys, level), PATIENCE_S)


def read_once(
    rows: Numbers, at: tuple[LocalNode, int], keys: Sequence[int], level: ConsistencyLevel
) -> list[int | None]:
    async def run() -> list[int | None]:
        async with asking_shard(*at) as shard:
            return [await rows.read(shard, key, level) for key in keys]

    return asyncio.run(run())


def _patiently(work: Callable[[], T], seconds: float) -> T:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except EblaError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.05)


@dataclass(slots=True)
class KeyStory:
    """The outcomes of the writes to one key, which has one writer."""

    tried: int = 0
    acknowledged: int = 0
    acknowledged_at: list[float] = field(default_factory=list)


class RowsLoad(Background):
    """One client per given shard, each with its own keys, writes at QUORUM and reads back in between."""

    KEYS_EACH = 25
    KEYS_APART = 1_000_000
    _loads = itertools.count(1)

    def __init__(self, rows: Numbers, shards: Sequence[tuple[LocalNode, int]]) -> None:
        super().__init__(2 * DEADLINE_MS / 1000 + 5)
        self._rows = rows
        self._shards = list(shards)
        # Different keys for every load: rows of another load would hide what this one loses.
        self._first_key = next(self._loads) * self.KEYS_APART
        self.stories: dict[int, KeyStory] = {}
        self.lost: list[str] = []
        self.errors: dict[str, int] = {}

    @property
    def acknowledged(self) -> int:
        return sum(len(story.acknowledged_at) for story in self.stories.values())

    def longest_pause_s(self, since: float, until: float) -> float:
        """The longest time between two acknowledgements of any client."""
        moments = sorted(at for story in self.stories.values() for at in story.acknowledged_at if since <= at <= until)
        return max(later - earlier for earlier, later in itertools.pairwise([since, *moments, until]))

    def check(self, at: tuple[LocalNode, int]) -> None:
        """Nothing acknowledged is missing, and nothing is there that was not written."""
        keys = sorted(self.stories)
        for key, found in zip(keys, read_numbers(self._rows, at, keys)):
            story = self.stories[key]
            assert story.acknowledged <= (found or 0) <= story.tried, f"key {key}: {found} for {story}"
        assert not self.lost

    def work(self) -> None:
        asyncio.run(self._clients())

    async def _clients(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(len(self._shards)):
                tasks.create_task(self._client(number))

    async def _client(self, number: int) -> None:
        """Moves on to the next shard when one fails, as a driver does."""
        first = self._first_key + number * self.KEYS_EACH
        keys = range(first, first + self.KEYS_EACH)
        for key in keys:
            self.stories[key] = KeyStory()
        turn = itertools.cycle(keys)
        for shard in itertools.cycle(range(number, number + len(self._shards))):
            if self.stopped.is_set():
                return
            try:
                async with asking_shard(*self._shards[shard % len(self._shards)]) as caller:
                    while not self.stopped.is_set():
                        await self._once(caller, next(turn))
            except EblaError as error:
                name = f"{type(error).__name__}: {error.message[:60]}"
                self.errors[name] = self.errors.get(name, 0) + 1
                await asyncio.sleep(0.02)

    async def _once(self, shard: RpcClientConnection, key: int) -> None:
        story = self.stories[key]
        story.tried += 1
        await self._rows.write(shard, {key: story.tried}, QUORUM)
        story.acknowledged = story.tried
        story.acknowledged_at.append(time.monotonic())
        if story.tried % 4 == 0:
            found = await self._rows.read(shard, key, QUORUM)
            if (found or 0) < story.acknowledged:
                self.lost.append(f"key {key}: {found} after {story.acknowledged} was acknowledged")
