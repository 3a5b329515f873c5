"""Tables from outside of a node: statements run here, their rows are written and read by any shard of the cluster."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from ebla.client.topology_reader import VerbCaller, read_topology
from ebla.cql.describe import SchemaDescriber
from ebla.cql.executor import CqlExecutor, ExecutorDeps
from ebla.feed.topology_view import TopologyView, view_of
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import EblaError
from ebla.model.identity import HostId, Replica, ShardNumber
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.request.router_types import Mutation, ReadPage, ReadQuery
from ebla.request.timestamps import TimestampGenerator
from ebla.topology.snapshot import Snapshot
from ebla.wire.cql.messages import ClientState, CqlResponse, QueryParameters, Rows
from ebla.wire.row_messages import RoutedWrite, RouteReadRequest, RouteWriteRequest
from ebla.wire.schema_messages import SchemaAnswer, SchemaChange, SchemaRequest
from ebla.wire.verbs import ROUTE_READ, ROUTE_WRITE, SCHEMA

NOBODY = Replica(HostId(UUID(int=0)), ShardNumber(0))


class RemoteRows:
    """The router of a shard, over the wire."""

    def __init__(self, tasks: asyncio.TaskGroup, ask_shard: VerbCaller) -> None:
        self._tasks = tasks
        self._ask = ask_shard

    def begin_write(
        self, mutations: Sequence[Mutation], level: ConsistencyLevel, timeout_ms: int
    ) -> "asyncio.Future[None]":
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        writes = tuple(RoutedWrite(mutation.table, mutation.items) for mutation in mutations)
        self._tasks.create_task(self._write(RouteWriteRequest(writes, level), timeout_ms, answer))
        return answer

    def try_read(self, _query: ReadQuery, _level: ConsistencyLevel) -> None:
        """Nothing is here to be read at once."""

    async def _write(self, request: RouteWriteRequest, timeout_ms: int, answer: "asyncio.Future[None]") -> None:
        """An error is for whoever waits for the answer, and must not end the group."""
        try:
            await self._ask(ROUTE_WRITE, request, timeout_ms)
        except EblaError as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(None)

    async def read(self, query: ReadQuery, level: ConsistencyLevel, timeout_ms: int) -> ReadPage:
        request = RouteReadRequest(
            table=query.table,
            spans=query.spans,
            level=level,
            rows_max=query.rows_max,
            is_reversed=query.is_reversed,
            partition_rows_max=query.partition_rows_max,
            position=query.position,
            now_s=query.now_s,
        )
        answer = await self._ask(ROUTE_READ, request, timeout_ms)
        return ReadPage(answer.items, answer.position)


class TableClient:
    """What it has under way lives in the group given here."""

    def __init__(self, tasks: asyncio.TaskGroup, asks: tuple[VerbCaller, VerbCaller], ports: tuple[Clock, Rng]) -> None:
        """`asks` are for the control process and a shard of one node."""
        self._ask_control, ask_shard = asks
        self._view = TopologyView()
        clock, rng = ports
        rows, timestamps = RemoteRows(tasks, ask_shard), TimestampGenerator(clock)
        self._executor = CqlExecutor(
            ExecutorDeps(
                view=self._view,
                router=rows,
                next_timestamp_us=timestamps.next_us,
                schema=self,
                virtual={},
                describe=SchemaDescriber(""),
                clock=clock,
                rng=rng,
                own=NOBODY,
            )
        )
        self._session = ClientState(peer="client")

    @property
    def snapshot(self) -> Snapshot:
        return self._view.current.snapshot

    async def refresh(self, deadline_ms: int) -> None:
        """Learns the topology and the schema as they are now."""
        snapshot, revision = await read_topology(self._ask_control, deadline_ms)
        self._view.install(view_of(snapshot, revision))

    async def change(self, wish: SchemaChange, deadline_ms: int) -> SchemaAnswer:
        answer = await self._ask_control(SCHEMA, SchemaRequest(wish), deadline_ms)
        await self.refresh(deadline_ms)
        return answer

    async def run(self, text: str, values: Sequence[bytes | None] = (), **changes: Any) -> CqlResponse:
        return await self._executor.query(self._session, text, QueryParameters(values=values, **changes))

    async def every_row(self, text: str, take: Callable[[Rows], bool], page_size: int, level: ConsistencyLevel) -> None:
        """Page by page, until there are no more or `take` wants none."""
        state: bytes | None = None
        while True:
            found = (await self.run(text, level=level, page_size=page_size, paging_state=state)).result
            assert isinstance(found, Rows)
            state = found.paging_state
            if not take(found) or state is None:
                return
