"""A cluster of one process behind the questions that a table client asks: control's and a shard's."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.unit.cql.world import CountingChance, DictRows, StillClock
from tests.unit.topology.world import HISTORY, World, cluster

from ebla.client.table_client import TableClient
from ebla.control.topology.schema_plan import PlanningState, plan_schema_change
from ebla.feed.topology_view import TopologyView, view_of
from ebla.model.errors import EblaError
from ebla.model.identity import TableId
from ebla.model.transaction import Revision
from ebla.request.front import mutation_of
from ebla.request.router_types import ReadQuery
from ebla.topology.apply.command_batch import apply_commands
from ebla.topology.apply.draft import ProposedChange
from ebla.wire.group0_messages import FoundKeyValue, Group0ReadAnswer
from ebla.wire.row_messages import RouteReadAnswer
from ebla.wire.schema_messages import SchemaAnswer
from ebla.wire.verbs import GROUP0_READ, ROUTE_READ, ROUTE_WRITE, SCHEMA, EmptyAnswer, Verb

T = TypeVar("T")
PAGE_KEYS = 7


class OneProcess:
    """`asked` names the verbs in order, `levels` the levels of rows written and read."""

    def __init__(self, nodes: int = 3) -> None:
        self.world: World
        self.world, _ = cluster(nodes)
        self._view = TopologyView()
        self._install()
        self._rows = DictRows(self._view)
        self.rng = CountingChance()
        self.asked: list[str] = []
        self.levels: list[str] = []
        self.failing: EblaError | None = None

    def run(self, work: Callable[[TableClient], Awaitable[T]]) -> T:
        asks: Any = (self.ask_control, self.ask_shard)
        ports: Any = (StillClock(), self.rng)

        async def run() -> T:
            async with asyncio.TaskGroup() as tasks:
                client = TableClient(tasks, asks, ports)
                try:
                    await client.refresh(1000)
                    return await work(client)
                except EblaError as error:
                    failure = error
            raise failure

        return asyncio.run(run())

    def with_table_client(self, _data: Path, _name: str | None, work: Callable[[TableClient], Awaitable[T]]) -> T:
        """In the place of `cli.tables.table_access.with_table_client`."""
        return self.run(work)

    def _install(self) -> None:
        before = self._view.current if self._view.is_known else None
        snapshot = self.world.snapshot
        self._view.install(view_of(snapshot, Revision(HISTORY, int(snapshot.version)), before))

    async def ask_control(self, verb: Verb[Any, Any], request: Any, _deadline_ms: int) -> Any:
        self.asked.append(verb.name)
        if verb is GROUP0_READ:
            return self._page(request.start)
        assert verb is SCHEMA
        planned = plan_schema_change(request.wish, PlanningState(self.world.snapshot), TableId(self.rng.uuid()))
        if not planned.commands:
            return SchemaAnswer(changed=False, version=self.world.snapshot.version, table=planned.table)
        applied = apply_commands(self.world.snapshot, planned.commands)
        assert isinstance(applied, ProposedChange), applied
        self.world.commit(applied)
        self._install()
        return SchemaAnswer(changed=True, version=self.world.snapshot.version, table=planned.table)

    def _page(self, start: int) -> Group0ReadAnswer:
        keys = [FoundKeyValue(key, value, at) for key, (value, at) in sorted(self.world.group0.values.items())]
        revision = Revision(HISTORY, self.world.group0.index)
        return Group0ReadAnswer(revision, tuple(keys[start : start + PAGE_KEYS]), more=start + PAGE_KEYS < len(keys))

    async def ask_shard(self, verb: Verb[Any, Any], request: Any, deadline_ms: int) -> Any:
        self.asked.append(verb.name)
        self.levels.append(request.level.name)
        if self.failing is not None:
            raise self.failing
        if verb is ROUTE_WRITE:
            await self._rows.begin_write([mutation_of(write) for write in request.writes], request.level, deadline_ms)
            return EmptyAnswer()
        assert verb is ROUTE_READ
        query = ReadQuery(
            table=request.table,
            spans=request.spans,
            rows_max=request.rows_max,
            now_s=request.now_s,
            is_reversed=request.is_reversed,
            partition_rows_max=request.partition_rows_max,
            position=request.position,
        )
        page = await self._rows.read(query, request.level, deadline_ms)
        return RouteReadAnswer(page.items, page.position)
