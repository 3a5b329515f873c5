"""The front for wire clients: what it takes for a request, and how much time it leaves to answer."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from tests.unit.request.write_rig import Clock
from tests.unit.topology.small_cluster import TABLE
from tests.unit.wire.rig import SERVER_ADDRESS, introduction, running_rig

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import EblaError, InvalidRequest, Unavailable, WriteTimeout
from ebla.request.front import RowsFront, mutation_of
from ebla.request.router_types import Mutation, ReadPage, ReadQuery, RouterLimits
from ebla.storage.codec.key_codec import partition_prefix, row_key
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Lane
from ebla.wire.peers import connect
from ebla.wire.row_messages import RoutedWrite, RouteReadRequest, RouteWriteRequest
from ebla.wire.verbs import ROUTE_READ, ROUTE_WRITE, EmptyAnswer

KEY = row_key(partition_prefix(-7, b"pk"))
WRITE = RouteWriteRequest((RoutedWrite(TABLE, ((KEY, b"row"),)),), ConsistencyLevel.QUORUM)


@dataclass(kw_only=True)
class StubRouter:
    error: EblaError | None = None
    writes: list[tuple[Sequence[Mutation], ConsistencyLevel, int]] = field(default_factory=list)
    reads: list[ReadQuery] = field(default_factory=list)
    page_at_once: ReadPage | None = None

    def begin_write(
        self, mutations: Sequence[Mutation], level: ConsistencyLevel, timeout_ms: int
    ) -> "asyncio.Future[None]":
        self.writes.append((mutations, level, timeout_ms))
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.error is None:
            answer.set_result(None)
        else:
            answer.set_exception(self.error)
        return answer

    def try_read(self, query: ReadQuery, level: ConsistencyLevel) -> ReadPage | None:
        return self.page_at_once

    async def read(self, query: ReadQuery, level: ConsistencyLevel, timeout_ms: int) -> ReadPage:
        self.reads.append(query)
        return ReadPage(((KEY, b"row"),), b"next")


async def test_writes_and_reads_pass_to_the_router() -> None:
    router, serving = StubRouter(), True

    def require_serving() -> None:
        if not serving:
            raise Unavailable("not now")

    async with running_rig() as rig:
        RowsFront(router, Clock(), RouterLimits(answer_margin_ms=50), require_serving).serve(rig.server)
        caller, _ = await connect(rig.context(introduction(2)), SERVER_ADDRESS, ConnectionTarget(Lane.DATA))
        assert await caller.call(ROUTE_WRITE, WRITE, 1000) == EmptyAnswer()
        (mutation,), level, timeout_ms = router.writes[0]
        assert (mutation, level) == (Mutation(TABLE, -7, ((KEY, b"row"),)), ConsistencyLevel.QUORUM)
        assert 900 < timeout_ms <= 950, "the client hears of a timeout before its own time is over"
        read = RouteReadRequest(table=TABLE, spans=((KEY, None),), level=ConsistencyLevel.ONE, rows_max=10)
        page = await caller.call(ROUTE_READ, read, 1000)
        assert (page.items, page.position) == (((KEY, b"row"),), b"next")
        assert router.reads[0] == ReadQuery(table=TABLE, spans=((KEY, None),), rows_max=10, now_s=0)
        router.page_at_once = ReadPage((), b"")
        page = await caller.call(ROUTE_READ, read, 1000)
        assert (page.items, page.position) == ((), b"")
        assert len(router.reads) == 1, "what was answered at once is not asked again"
        router.error = WriteTimeout("1 of 2", required=2, received=1)
        with pytest.raises(WriteTimeout, match="1 of 2"):
            await caller.call(ROUTE_WRITE, WRITE, 1000)
        serving = False
        with pytest.raises(Unavailable, match="not now"):
            await caller.call(ROUTE_WRITE, WRITE, 1000)
        with pytest.raises(Unavailable, match="not now"):
            await caller.call(ROUTE_READ, read, 1000)
        caller.close("done")


@pytest.mark.parametrize(
    "items",
    [
        (),
        ((b"short", b"row"),),
        ((KEY, b"row"), (row_key(partition_prefix(-8, b"pk")), b"row")),
    ],
)
def test_what_is_no_write_of_one_partition_is_refused(items: tuple[tuple[bytes, bytes], ...]) -> None:
    with pytest.raises(InvalidRequest):
        mutation_of(RoutedWrite(TABLE, items))
