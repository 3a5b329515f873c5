"""Rows over CQL for tests of real nodes: a table, single reads and writes, and clients that write without pause and
record the outcome of each write."""

import errno
import itertools
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.cluster.background import Background
from tests.cluster.group0_load import ask
from tests.cluster.node_calls import ask_socket

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.model.consistency import ConsistencyLevel
from ebla.model.cql_types import parse_type
from ebla.model.errors import EblaError, Unreachable
from ebla.model.identity import TableId
from ebla.model.schema import Column, ColumnKind, TableSchema, new_schema
from ebla.model.token import token_of
from ebla.source.cql_client import BoundStatement, CqlConnection, CqlSecurity
from ebla.storage.codec.key_codec import partition_prefix, prefix_end
from ebla.storage.codec.row_codec import decode_row
from ebla.topology.snapshot import Keyspace, Replication
from ebla.topology.states import Strategy
from ebla.wire.row_messages import Span
from ebla.wire.schema_messages import CreateKeyspaceRequest, CreateTableRequest, SchemaAnswer, SchemaRequest
from ebla.wire.verbs import SCHEMA, A, Q, Verb

T = TypeVar("T")
DEADLINE_MS = 4_000
SCHEMA_MS = 20_000
PATIENCE_S = 20.0
COLUMNS = (
    Column(name="k", type=parse_type("int"), kind=ColumnKind.PARTITION_KEY),
    Column(name="v", type=parse_type("bigint"), kind=ColumnKind.REGULAR),
)
QUORUM = ConsistencyLevel.QUORUM
ONE = ConsistencyLevel.ONE
ALL = ConsistencyLevel.ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A keyspace and its table `t` of numbers."""

    keyspace: str
    replicas: int = 3
    """Replicas in each datacenter."""
    on_tablets: bool = True
    datacenters: tuple[str, ...] = ("dc1",)


def create_table(node: LocalNode, spec: TableSpec) -> "Numbers":
    factors = tuple((datacenter, spec.replicas) for datacenter in spec.datacenters)
    replication = Replication(Strategy.NETWORK_TOPOLOGY, factors)
    keyspace = Keyspace(
        name=spec.keyspace,
        replication=replication,
        on_tablets=spec.on_tablets,
        initial_tablets=8 if spec.on_tablets else 0,
    )
    ask(node, SCHEMA, SchemaRequest(CreateKeyspaceRequest(keyspace)), SCHEMA_MS)
    answer: SchemaAnswer = ask(
        node, SCHEMA, SchemaRequest(CreateTableRequest(keyspace=spec.keyspace, name="t", columns=COLUMNS)), SCHEMA_MS
    )
    assert answer.changed
    assert answer.table is not None
    return Numbers(spec.keyspace, answer.table)


class Numbers:
    """The table's rows: each key has one number, which only grows; its timestamp is the number."""

    def __init__(self, keyspace: str, table: TableId) -> None:
        self.table = table
        self._name = f"{keyspace}.t"
        self._schema: TableSchema = new_schema(table, keyspace, "t", COLUMNS)

    def write(self, shard: CqlConnection, numbers: dict[int, int], level: ConsistencyLevel) -> None:
        updates = [
            f"UPDATE {self._name} USING TIMESTAMP {number} SET v = {number} WHERE k = {key}"
            for key, number in numbers.items()
        ]
        text = updates[0] if len(updates) == 1 else f"BEGIN UNLOGGED BATCH {'; '.join(updates)}; APPLY BATCH"
        shard.query(BoundStatement(text), level, DEADLINE_MS / 1000, None)

    def read(self, shard: CqlConnection, key: int, level: ConsistencyLevel) -> int | None:
        text = f"SELECT v, writetime(v) FROM {self._name} WHERE k = {key}"
        rows = shard.query(BoundStatement(text), level, DEADLINE_MS / 1000, None).rows
        if not rows:
            return None
        ((number, written_us),) = rows
        assert number is not None
        assert number == written_us
        return int.from_bytes(number)

    @staticmethod
    def span_of(key: int) -> Span:
        """The stored rows of a key."""
        serialized = key.to_bytes(4)
        prefix = partition_prefix(token_of(serialized), serialized)
        return prefix, prefix_end(prefix)

    def number_in(self, value: bytes) -> int:
        cell = decode_row(value, self._schema.layouts).cells[self._schema.column("v").number]
        assert cell.value is not None
        return int.from_bytes(cell.value)


def socket_of(node: LocalNode, shard: int) -> Path:
    return node.folder.shard_socket(shard)


@contextmanager
def cql_to(node: LocalNode, shard: int) -> Iterator[CqlConnection]:
    """A connection to this very shard: on the second CQL port, a client chooses its shard by its own port."""
    _, choosing = node.options.cql_addresses
    for _ in range(100):
        port = random.randrange(20_000, 60_000) // node.options.shards * node.options.shards + shard
        connected = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            connected.bind(("127.0.0.1", port))
            connected.settimeout(DEADLINE_MS / 1000)
            connected.connect((choosing.host, choosing.port))
        except OSError as error:
            connected.close()
            if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                continue
            raise Unreachable(f"{choosing}: {error}") from None
        with CqlConnection(connected, str(choosing)) as connection:
            connection.handshake(CqlSecurity(), time.monotonic() + DEADLINE_MS / 1000)
            yield connection
        return
    raise Unreachable(f"no port from which shard {shard} of {node.name} can be reached")


def ask_shard(node: LocalNode, shard: int, verb: Verb[Q, A], request: Q, deadline_ms: int = DEADLINE_MS) -> A:
    return ask_socket(node, socket_of(node, shard), verb, request, deadline_ms)


def write_numbers(
    rows: Numbers, at: tuple[LocalNode, int], numbers: dict[int, int], level: ConsistencyLevel = QUORUM
) -> None:
    """Repeats until acknowledged: the same numbers have the same timestamps, so a write may be repeated."""
    _patiently(lambda: write_once(rows, at, numbers, level), PATIENCE_S)


def write_once(rows: Numbers, at: tuple[LocalNode, int], numbers: dict[int, int], level: ConsistencyLevel) -> None:
    with cql_to(*at) as shard:
        rows.write(shard, numbers, level)


def read_numbers(
    rows: Numbers, at: tuple[LocalNode, int], keys: Sequence[int], level: ConsistencyLevel = QUORUM
) -> list[int | None]:
    """On a busy machine a shard may lose its right to serve for a moment."""
    return _patiently(lambda: read_once(rows, at, keys, level), PATIENCE_S)


def read_once(
    rows: Numbers, at: tuple[LocalNode, int], keys: Sequence[int], level: ConsistencyLevel
) -> list[int | None]:
    with cql_to(*at) as shard:
        return [rows.read(shard, key, level) for key in keys]


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
        with ThreadPoolExecutor(len(self._shards)) as clients:
            for running in [clients.submit(self._client, number) for number in range(len(self._shards))]:
                running.result()

    def _client(self, number: int) -> None:
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
                with cql_to(*self._shards[shard % len(self._shards)]) as connection:
                    while not self.stopped.is_set():
                        self._once(connection, next(turn))
            except EblaError as error:
                name = f"{type(error).__name__}: {error.message[:60]}"
                self.errors[name] = self.errors.get(name, 0) + 1
                time.sleep(0.02)

    def _once(self, shard: CqlConnection, key: int) -> None:
        story = self.stories[key]
        story.tried += 1
        self._rows.write(shard, {key: story.tried}, QUORUM)
        story.acknowledged = story.tried
        story.acknowledged_at.append(time.monotonic())
        if story.tried % 4 == 0:
            found = self._rows.read(shard, key, QUORUM)
            if (found or 0) < story.acknowledged:
                self.lost.append(f"key {key}: {found} after {story.acknowledged} was acknowledged")
