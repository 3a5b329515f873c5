"""An in-process table store: real plans and real merging over a dict, without wire and replicas."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from tests.unit.topology.world import cluster

from ebla.control.topology.schema_plan import plan_schema_change
from ebla.cql.executor import ClientState, CqlExecutor, PendingResponse, StartedRequest
from ebla.cql.system_tables.node_info import SystemTableSources
from ebla.cql.system_tables.schema_tables import system_tables
from ebla.feed.topology_view import TopologyView, view_of
from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import HistoryId, HostId, Replica, ShardNumber, TableId
from ebla.model.transaction import Revision
from ebla.model.values import decode
from ebla.options import DEFAULT_LIMITS
from ebla.request.paging import PageBuilder, check_query
from ebla.request.router_types import Mutation, ReadPage, ReadQuery
from ebla.request.short_reads import LiveRowContext, SettledPage
from ebla.request.timestamps import WriteTimestamps
from ebla.storage.merge.row_merge import merge_values, without_deleted_rows
from ebla.topology.apply.command import apply_commands
from ebla.topology.apply.draft import ProposedChange
from ebla.wire.cql.frames import BatchKind
from ebla.wire.cql.messages import BatchItem, BoundValue, CqlResponse, QueryParameters, Rows
from ebla.wire.group0_messages import Group0Report
from ebla.wire.schema_messages import SchemaAnswer, SchemaChange
from ebla.wire.verbs import StatusAnswer

NOW_US = 1_700_000_000_000_000


class StillClock:
    def __init__(self) -> None:
        self.now_us = NOW_US

    def wall_us(self) -> int:
        return self.now_us

    def boot_ms(self) -> int:
        return self.now_us // 1000


class CountingRng:
    """Bytes that never repeat."""

    def __init__(self) -> None:
        self._drawn = 0

    def bytes(self, count: int) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(count, "little")

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.bytes(16), version=4)


class DictRows:
    """Behaves as replicas with reconciliation, with one copy of every row."""

    def __init__(self, view: TopologyView) -> None:
        self._view = view
        self.tables: dict[TableId, dict[bytes, bytes]] = {}
        self.queries: list[ReadQuery] = []
        self.rows_per_page = 10_000

    def write(
        self, mutations: Sequence[Mutation], _level: ConsistencyLevel, _timeout_ms: int
    ) -> "asyncio.Future[None]":
        for mutation in mutations:
            schema = self._view.current.schemas[mutation.table]
            stored = self.tables.setdefault(mutation.table, {})
            for key, value in mutation.items:
                known = stored.get(key)
                stored[key] = value if known is None else merge_values(known, value, schema)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def read(self, query: ReadQuery, _level: ConsistencyLevel, _timeout_ms: int) -> ReadPage:
        check_query(query)
        self.queries.append(query)
        schema = self._view.current.schemas[query.table]
        stored = sorted(self.tables.get(query.table, {}).items())
        uncovered = list(without_deleted_rows(stored, schema))
        builder = PageBuilder(query, 1 << 30)
        items = [item for item in uncovered if any(_within(item[0], span) for span in builder.rest)]
        if query.is_reversed:
            items.reverse()
        builder.take(SettledPage(tuple(items), None), builder.rest, LiveRowContext(schema, query.now_s))
        return builder.page()


def _within(key: bytes, span: tuple[bytes, bytes | None]) -> bool:
    return span[0] <= key and (span[1] is None or key < span[1])


class Cql:
    """One client. `rows` returns Python values."""

    def __init__(self, nodes: int = 3) -> None:
        self.topology, self.coordinator = cluster(nodes)
        self.view = TopologyView()
        self.install()
        self.group0: Group0Report | None = None
        self.rows_store = DictRows(self.view)
        self.clock = StillClock()
        self.rng = CountingRng()
        self.timestamps = WriteTimestamps(self.clock, DEFAULT_LIMITS.timestamp_ahead_max_ms)
        self.own = Replica(next(self.topology.snapshot.members()).host, ShardNumber(0))
        self.executor = CqlExecutor(
            view=self.view,
            router=self.rows_store,
            timestamps=self.timestamps,
            change_schema=self.change,
            virtual=system_tables(self._facts(self.own.host)),
            cluster_name="test cluster",
            clock=self.clock,
            rng=self.rng,  # type: ignore[arg-type]  # all that is drawn here are bytes and ids
            own=self.own,
            limits=DEFAULT_LIMITS,
        )
        self.session = ClientState(peer="test")
        self.run("CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1}")
        self.run("USE ks")

    def install(self) -> None:
        """What the topology has come to is seen by the next statement."""
        snapshot = self.topology.snapshot
        revision = Revision(HistoryId(uuid.UUID(int=1)), int(snapshot.version))
        before = self.view.current if self.view.is_known else None
        self.view.install(view_of(snapshot, revision, before))

    def _facts(self, host: HostId) -> SystemTableSources:
        return SystemTableSources(
            view=self.view,
            host=host,
            cluster_name="test cluster",
            release="0.1",
            cql_port=9042,
            clients=lambda: (),
            config=lambda: (("shards", "2", "default"),),
            status=self._status,
            history=lambda: ((NOW_US, 7, "version 7: tables changed"),),
        )

    async def _status(self) -> StatusAnswer:
        """What a control process would answer."""
        return StatusAnswer(
            host=self.own.host,
            cluster=None,
            cluster_name="test cluster",
            address="127.0.0.1",
            started_wall_us=0,
            group0=self.group0,
        )

    async def change(self, requested: SchemaChange, _deadline_ms: int) -> SchemaAnswer:
        planned = plan_schema_change(requested, self.topology.snapshot, TableId(self.rng.uuid()))
        if not planned.commands:
            return SchemaAnswer(changed=False, version=self.topology.snapshot.version, table=planned.table)
        applied = apply_commands(self.topology.snapshot, planned.commands)
        assert isinstance(applied, ProposedChange), applied
        self.topology.commit(applied)
        self.install()
        return SchemaAnswer(changed=True, version=self.topology.snapshot.version, table=planned.table)

    def answer(self, text: str, *values: BoundValue, **changes: Any) -> CqlResponse:
        parameters = QueryParameters(values=values, **changes)
        return self.finish(lambda: self.executor.begin_query(self.session, text, parameters))

    def finish(self, begin: Callable[[], StartedRequest]) -> CqlResponse:
        """Begins a request in a loop of its own, and waits for its response."""

        async def run() -> CqlResponse:
            return await finished(begin())

        return asyncio.run(run())

    def run(self, text: str, *values: BoundValue, **changes: Any) -> Any:
        return self.answer(text, *values, **changes).result

    def found(self, text: str, *values: BoundValue, **changes: Any) -> Rows:
        result = self.run(text, *values, **changes)
        assert isinstance(result, Rows)
        return result

    def rows(self, text: str, *values: BoundValue, **changes: Any) -> list[tuple[Any, ...]]:
        return python_rows(self.found(text, *values, **changes))

    def batch(self, *items: BatchItem, kind: BatchKind = BatchKind.UNLOGGED, **changes: Any) -> CqlResponse:
        return self.finish(lambda: self.executor.begin_batch(self.session, kind, items, QueryParameters(**changes)))

    def pages(self, text: str, size: int) -> list[list[tuple[Any, ...]]]:
        found: list[list[tuple[Any, ...]]] = []
        state: bytes | None = None
        while True:
            page = self.found(text, page_size=size, paging_state=state)
            found.append(python_rows(page))
            state = page.paging_state
            if state is None:
                return found


async def finished(started: StartedRequest) -> CqlResponse:
    if isinstance(started, CqlResponse):
        return started
    if isinstance(started, PendingResponse):
        await started.done
        return started.response
    return await started


def python_rows(found: Rows) -> list[tuple[Any, ...]]:
    kinds = [column.type for column in found.columns]
    return [
        tuple(None if value is None else decode(kind, value) for kind, value in zip(kinds, row, strict=True))
        for row in found.rows
    ]
