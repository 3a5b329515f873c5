"""A CQL client that does as little as a driver in C would: prepared frames, a fixed number in flight on each
connection.

It connects to the port where clients choose their shard by their own port, as Scylla's drivers do. A driver that knows
the shards sends each request to one that has the row; so does this one, where a benchmark asks for it.
"""

import asyncio
import hashlib
import itertools
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.model.consistency import ConsistencyLevel
from ebla.model.schema import TableSchema

DEADLINE_MS = 30_000
VALUE_BYTES = 100
FILL_ROWS = 100
BATCHES = 200
"""Different ones, so many of each kind."""
_HEADER = struct.Struct(">BBhBi")
_REQUEST_VERSION = 4
_STARTUP, _RESULT, _PREPARE, _EXECUTE, _BATCH = 0x01, 0x08, 0x09, 0x0A, 0x0D
_VALUES_AND_TIMESTAMP, _VALUES_WITHOUT_METADATA, _TIMESTAMP = 0x21, 0x03, 0x20
_UNLOGGED = 1
_STREAMS = 1 << 15

Body = bytes
Bodies = Callable[[], Iterator[Body]]
"""Of requests of one opcode; where they end, the client does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is sent to one shard."""

    node: LocalNode
    shard: int
    bodies: "RequestBodies"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBodies:
    """Requests of one opcode, and the statement they execute. Another process can be given one."""

    statement: str
    opcode: int
    bodies: Bodies


@dataclass(slots=True, kw_only=True)
class LoadResult:
    """The results of the clients in one interval of load."""

    answered: int = 0
    failed: int = 0
    seconds: float = 0.0
    took_s: list[float] = field(default_factory=list)
    failure: str = ""
    """The last one, as it came."""

    @property
    def per_s(self) -> float:
        return self.answered / self.seconds


@dataclass(frozen=True, slots=True)
class TableShape:
    """Of one write request."""

    partitions: int = 1
    rows_each: int = 1

    @property
    def rows(self) -> int:
        return self.partitions * self.rows_each


_next_us = itertools.count(time.time_ns() // 1000)


@dataclass(frozen=True, slots=True)
class _DrawnWrites:
    without_timestamps: Sequence[Body]

    def __call__(self) -> Iterator[Body]:
        draw = random.Random(len(self.without_timestamps))
        while True:
            yield draw.choice(self.without_timestamps) + next(_next_us).to_bytes(8)


@dataclass(frozen=True, slots=True)
class _DrawnReads:
    bodies: Sequence[Body]

    def __call__(self) -> Iterator[Body]:
        draw = random.Random(len(self.bodies))
        while True:
            yield draw.choice(self.bodies)


class RowBodies:
    """Requests for the rows of one table: a partition key, a clustering column, a text of a hundred bytes.

    A write gets a new timestamp each time it is sent, as any real write has one: the store would otherwise see that
    nothing changes.
    """

    def __init__(self, schema: TableSchema) -> None:
        key, place = schema.partition_key[0].name, schema.clustering[0].name
        self._insert = f"INSERT INTO {schema.full_name} ({key}, {place}, v) VALUES (?, ?, ?)"
        self._select = f"SELECT v FROM {schema.full_name} WHERE {key} = ? AND {place} = ?"

    def writes(self, keys: Sequence[int], shape: TableShape, level: ConsistencyLevel) -> RequestBodies:
        """Rows of random partitions."""
        draw = random.Random(len(keys))
        if shape.rows == 1:
            made = [execute_body(self._insert, _row(key, 0), level, _VALUES_AND_TIMESTAMP) for key in keys]
            return RequestBodies(statement=self._insert, opcode=_EXECUTE, bodies=_DrawnWrites(made))
        made = [self._batch(draw.sample(keys, shape.partitions), shape, level) for _ in range(BATCHES)]
        return RequestBodies(statement=self._insert, opcode=_BATCH, bodies=_DrawnWrites(made))

    def every(self, keys: Sequence[int], level: ConsistencyLevel) -> RequestBodies:
        """The first row of every partition, once."""

        def bodies() -> Iterator[Body]:
            for start in range(0, len(keys), FILL_ROWS):
                chosen = keys[start : start + FILL_ROWS]
                yield self._batch(chosen, TableShape(len(chosen)), level) + next(_next_us).to_bytes(8)

        return RequestBodies(statement=self._insert, opcode=_BATCH, bodies=bodies)

    def reads(self, keys: Sequence[int], level: ConsistencyLevel) -> RequestBodies:
        made = [execute_body(self._select, _row(key, 0)[:2], level, _VALUES_WITHOUT_METADATA) for key in keys]
        return RequestBodies(statement=self._select, opcode=_EXECUTE, bodies=_DrawnReads(made))

    def _batch(self, keys: Sequence[int], shape: TableShape, level: ConsistencyLevel) -> Body:
        rows = [_row(key, place) for key in keys for place in range(shape.rows_each)]
        return batch_body(self._insert, rows, level)


def batches(
    statement: str, rows: Callable[[], Iterator[Sequence[Sequence[bytes]]]], level: ConsistencyLevel
) -> RequestBodies:
    """Unlogged batches of one statement, each with these rows of values."""

    def bodies() -> Iterator[Body]:
        for some in rows():
            yield batch_body(statement, some, level) + next(_next_us).to_bytes(8)

    return RequestBodies(statement=statement, opcode=_BATCH, bodies=bodies)


def _row(key: int, place: int) -> tuple[bytes, ...]:
    text = random.Random(key).randbytes(VALUE_BYTES // 2).hex().encode()
    return key.to_bytes(8), place.to_bytes(4), text


def _statement_id(statement: str) -> bytes:
    """As a node gives it to a connection without a keyspace."""
    return hashlib.md5(statement.encode(), usedforsecurity=False).digest()


def _values(values: Sequence[bytes]) -> bytes:
    return len(values).to_bytes(2) + b"".join(len(value).to_bytes(4) + value for value in values)


def execute_body(statement: str, values: Sequence[bytes], level: ConsistencyLevel, flags: int) -> Body:
    """Without the timestamp that the flags may promise."""
    found = _statement_id(statement)
    return len(found).to_bytes(2) + found + int(level).to_bytes(2) + bytes((flags,)) + _values(values)


def batch_body(statement: str, rows: Sequence[Sequence[bytes]], level: ConsistencyLevel) -> Body:
    """Without its timestamp."""
    found = _statement_id(statement)
    item = b"\1" + len(found).to_bytes(2) + found
    head = bytes((_UNLOGGED,)) + len(rows).to_bytes(2)
    return head + b"".join(item + _values(row) for row in rows) + int(level).to_bytes(2) + bytes((_TIMESTAMP,))


class ShardClient(asyncio.Protocol):
    """One connection that keeps a number of requests in flight until its time is over, then waits for the last
    answer."""

    def __init__(self, traffic: Traffic, in_flight: int, seconds: float) -> None:
        self._requests = traffic.bodies
        self._bodies = traffic.bodies.bodies()
        self._in_flight = in_flight
        self._seconds = seconds
        self._ends_at = 0.0
        self._transport: asyncio.WriteTransport | None = None
        self._greetings = 2
        """Outstanding answers to STARTUP and PREPARE."""
        self._streams = itertools.count()
        self._sent: dict[int, float] = {}
        self._pending = b""
        self.spell = LoadResult()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        statement = self._requests.statement.encode()
        options = (1).to_bytes(2) + _string("CQL_VERSION") + _string("3.0.0")
        prepare = len(statement).to_bytes(4) + statement
        self._transport.write(_frame(_STARTUP, 0, options) + _frame(_PREPARE, 0, prepare))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        pending = self._pending + data
        out: list[bytes] = []
        at = 0
        while len(pending) >= at + _HEADER.size:
            _, _, stream, opcode, size = _HEADER.unpack_from(pending, at)
            end = at + _HEADER.size + size
            if len(pending) < end:
                break
            self._frame_received(stream, opcode, pending[at + _HEADER.size : end], now, out)
            at = end
        self._pending = pending[at:]
        if out:
            assert self._transport is not None
            self._transport.write(b"".join(out))

    def _frame_received(self, stream: int, opcode: int, body: bytes, now: float, out: list[bytes]) -> None:
        if self._greetings:
            assert opcode, body
            self._greetings -= 1
            if not self._greetings:
                self._ends_at = now + self._seconds
                for _ in range(self._in_flight):
                    self._send(now, out)
            return
        self.spell.took_s.append(now - self._sent.pop(stream))
        if opcode == _RESULT:
            self.spell.answered += 1
        else:
            self.spell.failed += 1
            self.spell.failure = str(body)
        self._answered(now, out)

    def _answered(self, now: float, out: list[bytes]) -> None:
        if now < self._ends_at:
            self._send(now, out)
        elif not self._sent and not self.done.done():
            self.done.set_result(None)

    def _send(self, now: float, out: list[bytes]) -> None:
        body = next(self._bodies, None)
        if body is None:
            self._ends_at = now
            if not self._sent and not self.done.done():
                self.done.set_result(None)
            return
        stream = next(self._streams) % _STREAMS
        self._sent[stream] = now
        out.append(_frame(self._requests.opcode, stream, body))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(f"the connection was lost: {exc}"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _string(text: str) -> bytes:
    return len(text).to_bytes(2) + text.encode()


def _frame(opcode: int, stream: int, body: bytes) -> bytes:
    return _HEADER.pack(_REQUEST_VERSION, 0, stream, opcode, len(body)) + body


def socket_to(node: LocalNode, shard: int) -> socket.socket:
    """Connects from a local port that chooses the shard."""
    _, choosing = node.options.cql_addresses
    draw = random.Random()
    for _ in range(200):
        port = draw.randrange(20_000, 60_000) // node.options.shards * node.options.shards + shard
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            found.bind(("127.0.0.1", port))
            found.connect((choosing.host, choosing.port))
        except OSError:
            found.close()
            continue
        found.setblocking(False)
        return found
    raise RuntimeError(f"no port from which shard {shard} of {node.name} can be reached")


class RequestFailed(Exception):
    """The node answered with an error, or not in time."""


class ShardSession:
    """One request after another, on one connection."""

    def __init__(self, requests: RequestBodies) -> None:
        self._requests = requests
        self._bodies = requests.bodies()
        self._streams = itertools.count(1)

    async def open(self, node: LocalNode, shard: int) -> None:
        self._reader, self._writer = await asyncio.open_connection(sock=socket_to(node, shard))
        statement = self._requests.statement.encode()
        options = (1).to_bytes(2) + _string("CQL_VERSION") + _string("3.0.0")
        for opcode, body in ((_STARTUP, options), (_PREPARE, len(statement).to_bytes(4) + statement)):
            self._writer.write(_frame(opcode, 0, body))
            await self._answer(0)

    async def send_next(self, timeout_s: float) -> None:
        """Raises `RequestFailed`."""
        stream = next(self._streams) % _STREAMS
        self._writer.write(_frame(self._requests.opcode, stream, next(self._bodies)))
        try:
            async with asyncio.timeout(timeout_s):
                await self._answer(stream)
        except TimeoutError:
            raise RequestFailed("no answer in time") from None

    async def _answer(self, stream: int) -> None:
        """Skips late answers to requests that were given up."""
        while True:
            _, _, found, opcode, size = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            body = await self._reader.readexactly(size)
            if found == stream:
                break
        if not opcode:
            raise RequestFailed(str(body))

    def close(self) -> None:
        self._writer.close()


async def load(traffic: Sequence[Traffic], in_flight: int, seconds: float) -> LoadResult:
    """All shards at once."""
    loop = asyncio.get_running_loop()
    clients = [ShardClient(one, in_flight, seconds) for one in traffic]
    began = time.perf_counter()
    try:
        for client, one in zip(clients, traffic):
            sock = socket_to(one.node, one.shard)
            await loop.create_connection(lambda made=client: made, sock=sock)  # type: ignore[misc]  # bound early
        async with asyncio.timeout(seconds + DEADLINE_MS / 1000 + 5):
            for client in clients:
                await client.done
    finally:
        for client in clients:
            client.close()
    spell = LoadResult(seconds=time.perf_counter() - began)
    for client in clients:
        spell.answered += client.spell.answered
        spell.failed += client.spell.failed
        spell.took_s += client.spell.took_s
        spell.failure = client.spell.failure or spell.failure
    return spell


def traffic_to(node: LocalNode, shard: int, bodies: RequestBodies) -> Traffic:
    return Traffic(node=node, shard=shard, bodies=bodies)
