"""A CQL client that does as little as a driver in C would: ready-made frames, so many under way on each connection.

It connects to the port where clients choose their shard by the port they come from, as Scylla's drivers do.
"""

import asyncio
import itertools
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from benchmarks.row_client import LoadResult
from ebla.cli.cluster.local_cluster import LocalNode
from ebla.model.consistency import ConsistencyLevel

_HEADER = struct.Struct(">BBhBi")
_REQUEST_VERSION = 4
_ERROR, _STARTUP, _READY, _RESULT, _PREPARE, _EXECUTE = 0x00, 0x01, 0x02, 0x08, 0x09, 0x0A
_CODES = {ConsistencyLevel.ONE: 1, ConsistencyLevel.QUORUM: 4}
_VALUES_AND_TIMESTAMP, _VALUES_WITHOUT_METADATA = 0x21, 0x03
WAIT_S = 10.0

Bodies = Iterator[tuple[bytes, ...]]
"""The values of requests, one after another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CqlTraffic:
    """What is sent to one shard: a prepared statement with these values."""

    node: LocalNode
    shard: int
    statement: str
    values: Callable[[], Bodies]
    level: ConsistencyLevel
    is_write: bool


def rows_of(keys: Sequence[int], texts: bool) -> Callable[[], Bodies]:
    """Values of upserts (`texts`) or point reads of rows drawn by chance."""
    place = (0).to_bytes(4)
    made = [
        (key.to_bytes(8), place, random.Random(key).randbytes(50).hex().encode()) if texts else (key.to_bytes(8), place)
        for key in keys
    ]

    def values() -> Bodies:
        draw = random.Random(len(keys))
        while True:
            yield draw.choice(made)

    return values


class CqlClient(asyncio.Protocol):
    def __init__(self, traffic: CqlTraffic, in_flight: int, seconds: float) -> None:
        self._traffic = traffic
        self._values = traffic.values()
        self._in_flight = in_flight
        self._seconds = seconds
        self._ends_at = 0.0
        self._transport: asyncio.WriteTransport | None = None
        self._pending = b""
        self._sent = [0.0] * in_flight
        self._under_way = 0
        self._head = b""
        self._next_us = itertools.count(time.time_ns() // 1000)
        self.spell = LoadResult()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        options = {"CQL_VERSION": "3.0.0"}
        body = len(options).to_bytes(2) + b"".join(_string(part) for pair in options.items() for part in pair)
        self._write(_frame(_STARTUP, 0, body))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        pending = self._pending + data
        out: list[bytes] = []
        at = 0
        while len(pending) >= at + 9:
            _, _, stream, opcode, size = _HEADER.unpack_from(pending, at)
            end = at + 9 + size
            if len(pending) < end:
                break
            self._answer(stream, opcode, pending[at + 9 : end], now, out)
            at = end
        self._pending = pending[at:]
        if out:
            self._write(b"".join(out))

    def _answer(self, stream: int, opcode: int, body: bytes, now: float, out: list[bytes]) -> None:
        if opcode == _READY:
            statement = self._traffic.statement.encode()
            out.append(_frame(_PREPARE, 0, len(statement).to_bytes(4) + statement))
            return
        if not self._head:
            assert opcode == _RESULT, body
            self._begin(body[6 : 6 + int.from_bytes(body[4:6])], now, out)
            return
        self.spell.took_s.append(now - self._sent[stream])
        self._under_way -= 1
        if opcode == _RESULT:
            self.spell.answered += 1
        else:
            assert opcode == _ERROR, opcode
            self.spell.failed += 1
        if now < self._ends_at:
            self._send(stream, now, out)
        elif not self._under_way and not self.done.done():
            self.done.set_result(None)

    def _begin(self, statement_id: bytes, now: float, out: list[bytes]) -> None:
        flags = _VALUES_AND_TIMESTAMP if self._traffic.is_write else _VALUES_WITHOUT_METADATA
        level = _CODES[self._traffic.level]
        self._head = len(statement_id).to_bytes(2) + statement_id + level.to_bytes(2) + bytes((flags,))
        self._ends_at = now + self._seconds
        for stream in range(self._in_flight):
            self._send(stream, now, out)

    def _send(self, stream: int, now: float, out: list[bytes]) -> None:
        values = next(self._values)
        parts = [self._head, len(values).to_bytes(2)]
        for value in values:
            parts += (len(value).to_bytes(4), value)
        if self._traffic.is_write:
            parts.append(next(self._next_us).to_bytes(8))
        self._sent[stream] = now
        self._under_way += 1
        out.append(_frame(_EXECUTE, stream, b"".join(parts)))

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

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
    """Connected, from a port that chooses the shard."""
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


async def load(traffic: Sequence[CqlTraffic], in_flight: int, seconds: float) -> LoadResult:
    """All shards at once."""
    loop = asyncio.get_running_loop()
    clients = [CqlClient(one, in_flight, seconds) for one in traffic]
    began = time.perf_counter()
    try:
        for client, one in zip(clients, traffic):
            sock = socket_to(one.node, one.shard)
            await loop.create_connection(lambda made=client: made, sock=sock)  # type: ignore[misc]  # bound early
        async with asyncio.timeout(seconds + WAIT_S):
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
    return spell
