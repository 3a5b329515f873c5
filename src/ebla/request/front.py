"""Rows for clients that speak the wire: `route_write` and `route_read`, served by any shard for any table."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import InvalidRequest
from ebla.ports.clock import Clock
from ebla.request.router_types import Mutation, ReadPage, ReadQuery, RouterLimits
from ebla.storage.codec.key_codec import TOKEN_BYTES, decode_token
from ebla.wire.row_messages import RoutedWrite, RouteReadAnswer, RouteReadRequest, RouteWriteRequest
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import ROUTE_READ, ROUTE_WRITE, EmptyAnswer

_DONE = EmptyAnswer()
_KEY_BYTES_MIN = TOKEN_BYTES + 2


class Routing(Protocol):
    """What a front asks of a router."""

    def write(
        self, mutations: Sequence[Mutation], level: ConsistencyLevel, timeout_ms: int
    ) -> "asyncio.Future[None]": ...

    def read(self, query: ReadQuery, level: ConsistencyLevel, timeout_ms: int) -> Coroutine[Any, Any, ReadPage]: ...


class RowsFront:
    def __init__(
        self, router: Routing, clock: Clock, limits: RouterLimits, require_serving: Callable[[], None]
    ) -> None:
        """`require_serving` raises where the shard may not serve now."""
        self._router = router
        self._clock = clock
        self._require_serving = require_serving
        self._margin_ms = limits.answer_margin_ms

    def serve(self, server: Server) -> None:
        server.serve_future(ROUTE_WRITE, self._write, _done)
        server.serve_eagerly(ROUTE_READ, self._read)

    def _write(self, request: RouteWriteRequest, call: IncomingCall) -> "asyncio.Future[None]":
        self._require_serving()
        mutations = [mutation_of(write) for write in request.writes]
        return self._router.write(mutations, request.level, self._timeout_ms(call))

    async def _read(self, request: RouteReadRequest, call: IncomingCall) -> RouteReadAnswer:
        self._require_serving()
        query = ReadQuery(
            table=request.table,
            spans=request.spans,
            rows_max=request.rows_max,
            now_s=request.now_s or self._clock.wall_us() // 1_000_000,
            is_reversed=request.is_reversed,
            partition_rows_max=request.partition_rows_max,
            position=request.position,
        )
        page = await self._router.read(query, request.level, self._timeout_ms(call))
        return RouteReadAnswer(page.items, page.position)

    def _timeout_ms(self, call: IncomingCall) -> int:
        """A little less than the client's own: it must hear how far its request came before it stops listening."""
        remaining_ms = call.remaining_ms()
        return remaining_ms - min(self._margin_ms, remaining_ms // 4)


def _done(_: None) -> EmptyAnswer:
    return _DONE


def mutation_of(write: RoutedWrite) -> Mutation:
    items = write.items
    if not items:
        raise InvalidRequest("a write without items")
    token = items[0][0][:TOKEN_BYTES]
    for key, _ in items:
        if len(key) <= _KEY_BYTES_MIN:
            raise InvalidRequest(f"a key of {len(key)} bytes is none")
        if key[:TOKEN_BYTES] != token:
            raise InvalidRequest("the items of one write belong to one partition", advice="send one write for each")
    return Mutation(write.table, decode_token(items[0][0]), items)
