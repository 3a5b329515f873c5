"""A client of shards that does as little as a program in C would: ready-made requests, so many under way each.

A driver that knows the shards sends each request to one that has the row; so does this one, where it is told to.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import TableId
from ebla.model.rows import Cell, Row, RowMarker
from ebla.model.schema import TableSchema
from ebla.model.token import token_of
from ebla.storage.codec.key_codec import encode_clustering, partition_prefix, row_key
from ebla.storage.codec.row_codec import encode_row
from ebla.wire.frames import (
    PROTOCOL_NEWEST,
    PROTOCOL_OLDEST,
    AnswerFrame,
    HelloFrame,
    Introduction,
    Lane,
    RequestFrame,
    WelcomeFrame,
    encode,
)
from ebla.wire.row_messages import RoutedWrite, RouteReadRequest, RouteWriteRequest
from ebla.wire.verbs import ROUTE_READ, ROUTE_WRITE

DEADLINE_MS = 30_000
FRAME_BYTES_MAX = 1 << 20
TIMESTAMP_MARK = 0x1122334455667788
VALUE_BYTES = 100
FILL_ROWS = 100
BATCHES = 200
"""Different ones, so many of each kind."""
ANSWER_TAG = msgspec.inspect.type_info(AnswerFrame).tag  # type: ignore[attr-defined]  # of a struct it is there
WELCOME_TAG = msgspec.inspect.type_info(WelcomeFrame).tag  # type: ignore[attr-defined]  # of a struct it is there

Body = bytes
Bodies = Callable[[], Iterator[Body]]
"""Of requests of one verb; where they end, the client does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is sent to one shard."""

    node: LocalNode
    shard: int
    verb: int
    bodies: Bodies


@dataclass(slots=True, kw_only=True)
class LoadResult:
    """What clients saw in one spell of load."""

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
    """Like the reads below, something that another process can be given."""

    laid_out: Sequence[Sequence[bytes]]
    """Each around its timestamps."""

    def __call__(self) -> Iterator[Body]:
        draw = random.Random(len(self.laid_out))
        while True:
            yield next(_next_us).to_bytes(8).join(draw.choice(self.laid_out))


@dataclass(frozen=True, slots=True)
class _DrawnReads:
    bodies: Sequence[Body]

    def __call__(self) -> Iterator[Body]:
        draw = random.Random(len(self.bodies))
        while True:
            yield draw.choice(self.bodies)


class RowBodies:
    """Requests for the rows of one table: a partition key, a clustering column, a text of a hundred bytes.

    A write is laid out once and gets a new timestamp each time it is sent, as any real write has one: the store would
    otherwise see that nothing changes. The bytes of the timestamp are found by a mark.
    """

    def __init__(self, table: TableId, schema: TableSchema) -> None:
        self._table = table
        self._schema = schema

    def writes(self, keys: Sequence[int], shape: TableShape, level: ConsistencyLevel) -> Bodies:
        """Rows of partitions drawn by chance."""
        draw = random.Random(len(keys))
        count = BATCHES if shape.rows > 1 else len(keys)
        return _DrawnWrites([self._parts(draw.sample(keys, shape.partitions), shape, level) for _ in range(count)])

    def every(self, keys: Sequence[int], level: ConsistencyLevel) -> Bodies:
        """The first row of every partition, once."""

        def bodies() -> Iterator[Body]:
            for start in range(0, len(keys), FILL_ROWS):
                chosen = keys[start : start + FILL_ROWS]
                yield next(_next_us).to_bytes(8).join(self._parts(chosen, TableShape(len(chosen)), level))

        return bodies

    def reads(self, keys: Sequence[int], level: ConsistencyLevel) -> Bodies:
        return _DrawnReads([self._read(key, level) for key in keys])

    def _read(self, key: int, level: ConsistencyLevel) -> Body:
        start = self._row_key(key, 0)
        return encode(RouteReadRequest(table=self._table, spans=((start, start + b"\0"),), level=level, rows_max=1))

    def _parts(self, keys: Sequence[int], shape: TableShape, level: ConsistencyLevel) -> list[bytes]:
        """The request around its timestamps."""
        places = range(shape.rows_each)
        writes = tuple(RoutedWrite(self._table, tuple(self._item(key, place) for place in places)) for key in keys)
        found = encode(RouteWriteRequest(writes, level)).split(TIMESTAMP_MARK.to_bytes(8))
        assert len(found) == shape.rows + 1, "each row has one timestamp"
        return found

    def _row_key(self, key: int, place: int) -> bytes:
        serialized = key.to_bytes(8)
        prefix = partition_prefix(token_of(serialized), serialized)
        return row_key(prefix, encode_clustering(self._schema.clustering, (place.to_bytes(4),)))

    def _item(self, key: int, place: int) -> tuple[bytes, bytes]:
        column = self._schema.column("v").number
        text = random.Random(key).randbytes(VALUE_BYTES // 2).hex().encode()
        row = Row(
            marker=RowMarker(TIMESTAMP_MARK),
            deletion=None,
            cells={column: Cell(timestamp_us=TIMESTAMP_MARK, value=text)},
        )
        return self._row_key(key, place), encode_row(row, self._schema.version, self._schema.layouts[-1])


class ShardClient(asyncio.Protocol):
    """One connection that keeps so many requests under way until its time is over, then waits for the last answer."""

    def __init__(self, traffic: Traffic, in_flight: int, seconds: float) -> None:
        identity = traffic.node.folder.read_identity()
        assert identity is not None
        introduction = Introduction(
            host=identity.host, cluster=identity.cluster, cluster_name=identity.cluster_name, process="bench"
        )
        self._hello = HelloFrame(
            oldest=PROTOCOL_OLDEST,
            newest=PROTOCOL_NEWEST,
            lane=Lane.DATA,
            frame_bytes_max=FRAME_BYTES_MAX,
            introduction=introduction,
        )
        self._verb = traffic.verb
        self._bodies = traffic.bodies()
        self._in_flight = in_flight
        self._seconds = seconds
        self._ends_at = 0.0
        self._transport: asyncio.WriteTransport | None = None
        self._ids = itertools.count(1)
        self._sent: dict[int, float] = {}
        self._pending = b""
        self.spell = LoadResult()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        hello = encode(self._hello)
        self._transport.write(len(hello).to_bytes(4) + hello)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._pending += data
        out: list[bytes] = []
        at = 0
        pending = self._pending
        while len(pending) >= at + 4:
            end = at + 4 + int.from_bytes(pending[at : at + 4])
            if len(pending) < end:
                break
            self._frame(pending[at + 4 : end], now, out)
            at = end
        self._pending = pending[at:]
        if out:
            assert self._transport is not None
            self._transport.write(b"".join(out))

    def _frame(self, frame: bytes, now: float, out: list[bytes]) -> None:
        tag = frame[1]
        if tag == WELCOME_TAG:
            self._ends_at = now + self._seconds
            for _ in range(self._in_flight):
                self._send(now, out)
            return
        request_id = msgspec.msgpack.decode(frame, type=list)[1]
        self.spell.took_s.append(now - self._sent.pop(request_id))
        if tag == ANSWER_TAG:
            self.spell.answered += 1
        else:
            self.spell.failed += 1
            self.spell.failure = str(msgspec.msgpack.decode(frame))
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
        request_id = next(self._ids)
        self._sent[request_id] = now
        frame = encode(RequestFrame(id=request_id, verb=self._verb, remaining_ms=DEADLINE_MS, body=msgspec.Raw(body)))
        out.append(len(frame).to_bytes(4) + frame)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(f"the connection was lost: {exc}"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def load(traffic: Sequence[Traffic], in_flight: int, seconds: float) -> LoadResult:
    """All shards at once."""
    loop = asyncio.get_running_loop()
    clients = [ShardClient(one, in_flight, seconds) for one in traffic]
    began = time.perf_counter()
    try:
        for client, one in zip(clients, traffic):
            path = str(one.node.folder.shard_socket(one.shard))
            await loop.create_unix_connection(lambda made=client: made, path)  # type: ignore[misc]  # bound early
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


def writing(node: LocalNode, shard: int, bodies: Bodies) -> Traffic:
    return Traffic(node=node, shard=shard, verb=ROUTE_WRITE.number, bodies=bodies)


def reading(node: LocalNode, shard: int, bodies: Bodies) -> Traffic:
    return Traffic(node=node, shard=shard, verb=ROUTE_READ.number, bodies=bodies)
