"""Statements of clients carried out: parsed and compiled once, then run against the router or this node's own state."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ebla.aio.eager_step import NEEDS_TASK, NeedsTask, resume_in_task
from ebla.cql.catalog import Catalog, StoredTable, VirtualTables
from ebla.cql.lru_cache import LruCache
from ebla.cql.parse.parser import parse
from ebla.cql.parse.statements import (
    AlterKeyspaceStatement,
    AlterTableStatement,
    BatchStatement,
    CallStatement,
    CreateKeyspaceStatement,
    CreateTableStatement,
    DeleteStatement,
    DescribeStatement,
    DropKeyspaceStatement,
    DropTableStatement,
    InsertStatement,
    ParsedStatement,
    SelectStatement,
    TruncateStatement,
    UnsupportedStatement,
    UpdateStatement,
    UseStatement,
)
from ebla.cql.plan.batch_plan import BatchPlan, plan_batch
from ebla.cql.plan.binder import BoundRequest, ValueSource, values_in_marker_order
from ebla.cql.plan.call_plan import CallPlan, CallService, call_result_rows, plan_call
from ebla.cql.plan.list_reads import read_known_lists
from ebla.cql.plan.modification_plan import KnownLists, ModificationPlan, WriteTime, plan_modification
from ebla.cql.plan.point_select import PointSelectPlan, point_select
from ebla.cql.plan.schema_plan import SchemaPlan, plan_schema
from ebla.cql.plan.select_plan import SelectPlan, plan_select
from ebla.cql.tablet_routing import tablet_payload, tablet_payload_of_token
from ebla.feed.topology_view import TopologyView, View
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import AlreadyExists, InvalidRequest, NotFound, TooLarge, Unprepared
from ebla.model.identity import Replica
from ebla.model.schema import TableSchema
from ebla.model.values import decode_duration
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.request.read_plan import SINGLE_REPLICA_LEVELS
from ebla.request.router_types import Mutation, ReadPage, ReadQuery
from ebla.storage.codec.key_codec import partition_prefix_of
from ebla.wire.cql.frames import BatchKind
from ebla.wire.cql.messages import (
    BatchItem,
    ClientState,
    CqlResponse,
    KeyspaceSet,
    PendingResponse,
    PreparedResult,
    QueryParameters,
    Rows,
    SchemaChangeResult,
    Unset,
    Void,
)
from ebla.wire.schema_messages import SchemaAnswer, SchemaChange, TruncateTableRequest

VOID_RESPONSE = CqlResponse(Void())
SCHEMA_STATEMENTS = (
    CreateKeyspaceStatement,
    AlterKeyspaceStatement,
    DropKeyspaceStatement,
    CreateTableStatement,
    AlterTableStatement,
    DropTableStatement,
)
UNLOGGED_WARNING = (
    "A logged batch over several partitions is written together here, but without a log: after a failure some of its "
    "partitions may have been written and others not"
)


class RowRouter(Protocol):
    """What execution asks of the router."""

    def begin_write(
        self, mutations: Sequence[Mutation], level: ConsistencyLevel, timeout_ms: int
    ) -> "asyncio.Future[None]": ...

    def try_read(self, query: ReadQuery, level: ConsistencyLevel) -> ReadPage | None: ...

    async def read(self, query: ReadQuery, level: ConsistencyLevel, timeout_ms: int) -> ReadPage: ...


class SchemaChanger(Protocol):
    async def change(self, wish: SchemaChange, deadline_ms: int) -> SchemaAnswer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLimits:
    write_ms: int = 2_000
    read_ms: int = 5_000
    scan_ms: int = 10_000
    """Of a read that names no partition."""
    schema_ms: int = 20_000
    statements_max: int = 4_096
    """Compiled statements kept, of QUERY and of PREPARE each."""
    batch_statements_max: int = 10_000
    batch_bytes_max: int = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorDeps:
    view: TopologyView
    router: RowRouter
    next_timestamp_us: Callable[[], int]
    schema: SchemaChanger
    virtual: VirtualTables
    describe: Callable[[DescribeStatement, Catalog, ClientState], Rows]
    clock: Clock
    rng: Rng
    own: Replica
    limits: ExecutorLimits = field(default_factory=ExecutorLimits)
    calls: CallService | None = None
    """None: this node takes none."""


Plan = SelectPlan | ModificationPlan | BatchPlan | CallPlan | None


@dataclass(slots=True, kw_only=True)
class CompiledStatement:
    """A statement with its plan, good as long as its table is what it was."""

    parsed: ParsedStatement
    plan: Plan
    schema: TableSchema | None
    """Of the stored table that the plan is for."""
    text: str
    keyspace: str | None
    """The connection's, when it was compiled."""
    point: PointSelectPlan | None = None
    """The short way, where the plan has one."""
    held_in: View | None = None
    """Where it was last seen to be good."""


class _BoundReader:
    """The router with what one request reads by."""

    __slots__ = ("_level", "_router", "_timeout_ms")

    def __init__(self, router: RowRouter, level: ConsistencyLevel, timeout_ms: int) -> None:
        self._router = router
        self._level = level
        self._timeout_ms = timeout_ms

    async def read(self, query: ReadQuery) -> ReadPage:
        return await self._router.read(query, self._level, self._timeout_ms)


class _ReaderAtOnce(_BoundReader):
    """Reads in the step of who asks, for as long as that can be; the rest needs a task."""

    __slots__ = ("_in_task",)

    def __init__(self, router: RowRouter, level: ConsistencyLevel, timeout_ms: int) -> None:
        super().__init__(router, level, timeout_ms)
        self._in_task = False

    async def read(self, query: ReadQuery) -> ReadPage:
        if not self._in_task:
            page = self._router.try_read(query, self._level)
            if page is not None:
                return page
            self._in_task = True
            await NEEDS_TASK
        return await self._router.read(query, self._level, self._timeout_ms)


StartedRequest = CqlResponse | PendingResponse | Coroutine[Any, Any, CqlResponse]
"""What becomes of a request in its first step: answered, on its way, or to be carried out as a task."""


class CqlExecutor:
    def __init__(self, parts: ExecutorDeps) -> None:
        self._parts = parts
        self._queries: LruCache[tuple[str | None, str], CompiledStatement] = LruCache(parts.limits.statements_max)
        self._prepared: LruCache[bytes, CompiledStatement] = LruCache(parts.limits.statements_max)

    # ---- what connections ask for

    def begin_query(self, session: ClientState, text: str, parameters: QueryParameters) -> StartedRequest:
        return self._begin(session, self._compiled(session, text), parameters)

    def begin_execute(self, session: ClientState, statement_id: bytes, parameters: QueryParameters) -> StartedRequest:
        return self._begin(session, self._known(statement_id), parameters)

    async def query(self, session: ClientState, text: str, parameters: QueryParameters) -> CqlResponse:
        return await self._run(session, self._compiled(session, text), parameters)

    async def prepare(self, session: ClientState, text: str) -> PreparedResult:
        compiled = self._compile(text, session.keyspace)
        found = hashlib.md5(f"{session.keyspace or ''}{text}".encode(), usedforsecurity=False).digest()
        plan = compiled.plan
        if plan is None and compiled.parsed.markers:
            raise InvalidRequest("bind markers are not allowed in this statement")
        self._prepared.put(found, compiled)
        if plan is None:
            return PreparedResult(id=found, variables=(), key_positions=(), columns=())
        if isinstance(plan, BatchPlan):
            return PreparedResult(id=found, variables=plan.variables, key_positions=(), columns=())
        if isinstance(plan, CallPlan):
            return PreparedResult(id=found, variables=plan.variables, key_positions=(), columns=plan.columns)
        columns = plan.columns if isinstance(plan, SelectPlan) else ()
        return PreparedResult(
            id=found,
            variables=plan.variables,
            key_positions=plan.key_positions,
            columns=columns,
            keyspace=plan.schema.keyspace,
            table=plan.schema.name,
        )

    async def execute(self, session: ClientState, statement_id: bytes, parameters: QueryParameters) -> CqlResponse:
        return await self._run(session, self._known(statement_id), parameters)

    async def batch(
        self, session: ClientState, kind: BatchKind, items: Sequence[BatchItem], parameters: QueryParameters
    ) -> CqlResponse:
        if kind is BatchKind.COUNTER:
            raise InvalidRequest("counters are not supported")
        if len(items) > self._parts.limits.batch_statements_max:
            raise TooLarge(f"a batch of {len(items)} statements is over {self._parts.limits.batch_statements_max}")
        moment = self._moment(parameters)
        mutations: list[Mutation] = []
        for sequence, item in enumerate(items):
            compiled = self._item(session, item)
            if not isinstance(compiled.plan, ModificationPlan):
                raise InvalidRequest(
                    "Invalid statement in batch: only UPDATE, INSERT and DELETE statements are allowed."
                )
            bound = self._bound(compiled, QueryParameters(level=parameters.level, values=item.values, names=item.names))
            known = await self._lists(compiled.plan, bound, parameters.level)
            mutations += compiled.plan.mutations(bound, replace(moment, sequence=sequence), known)
        return await self._write_batch(kind, mutations, parameters.level, self._parts.limits.write_ms)

    # ---- compiling

    def _compiled(self, session: ClientState, text: str) -> CompiledStatement:
        key = (session.keyspace, text)
        compiled = self._queries.get(key)
        if compiled is None or not self._holds(compiled):
            compiled = self._compile(text, session.keyspace)
            # What a call is given stands in its text, may be large, and is hardly given twice.
            if compiled.plan is not None and not isinstance(compiled.plan, CallPlan):
                self._queries.put(key, compiled)
        return compiled

    def _catalog(self) -> Catalog:
        return Catalog(self._parts.view.current, self._parts.virtual)

    def _holds(self, compiled: CompiledStatement) -> bool:
        view = self._parts.view.current
        if compiled.held_in is view:
            return True
        holds = self._fits(compiled)
        compiled.held_in = view if holds else None
        return holds

    def _fits(self, compiled: CompiledStatement) -> bool:
        schema = compiled.schema
        if isinstance(compiled.plan, BatchPlan):
            known = self._parts.view.current.schemas
            return all(known.get(part.schema.id) is part.schema for part in compiled.plan.parts)
        return schema is None or self._parts.view.current.schemas.get(schema.id) is schema

    def _known(self, statement_id: bytes) -> CompiledStatement:
        compiled = self._prepared.get(statement_id)
        if compiled is None:
            raise Unprepared(
                f"Prepared query with ID {statement_id.hex()} not found (either the query was not prepared on this "
                "host, or it has been evicted)",
                statement_id=statement_id,
            )
        if not self._holds(compiled):
            compiled = self._compile(compiled.text, compiled.keyspace)
            self._prepared.put(statement_id, compiled)
        return compiled

    def _item(self, session: ClientState, item: BatchItem) -> CompiledStatement:
        if isinstance(item.query, bytes):
            return self._known(item.query)
        return self._compile(item.query, session.keyspace)

    def _compile(self, text: str, keyspace: str | None) -> CompiledStatement:
        parsed = parse(text)
        statement = parsed.statement
        match statement:
            case UnsupportedStatement(what=what):
                raise InvalidRequest(f"{what}: not supported in this release")
            case SelectStatement(table=name):
                table = self._catalog().table(name, keyspace)
                plan = plan_select(statement, table, parsed.markers)
                if not isinstance(table, StoredTable):
                    return CompiledStatement(parsed=parsed, plan=plan, schema=None, text=text, keyspace=keyspace)
                return CompiledStatement(
                    parsed=parsed,
                    plan=plan,
                    schema=table.schema,
                    text=text,
                    keyspace=keyspace,
                    point=point_select(plan, table.id),
                )
            case InsertStatement() | UpdateStatement() | DeleteStatement():
                schema = self._catalog().stored(statement.table, keyspace).schema
                return CompiledStatement(
                    parsed=parsed,
                    plan=plan_modification(statement, schema, parsed.markers),
                    schema=schema,
                    text=text,
                    keyspace=keyspace,
                )
            case BatchStatement():
                catalog = self._catalog()
                batch = plan_batch(statement, lambda name: catalog.stored(name, keyspace).schema, parsed.markers)
                return CompiledStatement(parsed=parsed, plan=batch, schema=None, text=text, keyspace=keyspace)
            case CallStatement():
                names = () if self._parts.calls is None else self._parts.calls.names
                return CompiledStatement(
                    parsed=parsed,
                    plan=plan_call(statement, names, parsed.markers),
                    schema=None,
                    text=text,
                    keyspace=keyspace,
                )
            case _:
                return CompiledStatement(parsed=parsed, plan=None, schema=None, text=text, keyspace=keyspace)

    # ---- running

    def _begin(self, session: ClientState, compiled: CompiledStatement, parameters: QueryParameters) -> StartedRequest:
        """Most requests are writes without a look at what is there, or reads of what this shard has at hand: neither
        needs a task."""
        plan = compiled.plan
        if isinstance(plan, ModificationPlan) and not plan.lists_read:
            return self._begin_write(session, plan, self._bound(compiled, parameters), parameters)
        if compiled.point is not None and parameters.level in SINGLE_REPLICA_LEVELS and parameters.paging_state is None:
            point = compiled.point.point(self._bound(compiled, parameters))
            page = self._parts.router.try_read(point.query, parameters.level)
            if page is not None:
                # It came to a replica: there is nothing to tell of where else to go.
                return CqlResponse(compiled.point.rows(point, page))
        if isinstance(plan, SelectPlan) and compiled.schema is not None and plan.restrictions.has_partition:
            work = self._select(session, compiled, plan, parameters, _ReaderAtOnce)
            try:
                asked = work.send(None)
            except StopIteration as end:
                answer: CqlResponse = end.value
                return answer
            assert isinstance(asked, NeedsTask), "nothing but a read is waited for before there is a task"
            return resume_in_task(work)
        return self._run(session, compiled, parameters)

    async def _run(self, session: ClientState, compiled: CompiledStatement, parameters: QueryParameters) -> CqlResponse:
        plan = compiled.plan
        if isinstance(plan, ModificationPlan):
            return await self._write(session, compiled, plan, parameters)
        if isinstance(plan, SelectPlan):
            return await self._select(session, compiled, plan, parameters)
        if isinstance(plan, BatchPlan):
            return await self._batch_statement(compiled, plan, parameters)
        if isinstance(plan, CallPlan):
            return await self._call(compiled, plan, parameters)
        statement = compiled.parsed.statement
        match statement:
            case UseStatement(keyspace=name):
                if not self._catalog().has_keyspace(name):
                    raise NotFound(f"Keyspace '{name}' does not exist")
                session.keyspace = name
                return CqlResponse(KeyspaceSet(name))
            case DescribeStatement():
                return CqlResponse(self._parts.describe(statement, self._catalog(), session))
            case TruncateStatement(table=name):
                schema = self._catalog().stored(name, session.keyspace).schema
                await self._change(TruncateTableRequest(schema.keyspace, schema.name))
                return CqlResponse(Void())
            case _ if isinstance(statement, SCHEMA_STATEMENTS):
                wanted = plan_schema(statement, self._catalog(), session.keyspace)
                return VOID_RESPONSE if wanted is None else await self._change_schema(wanted)
            case _:
                raise InvalidRequest("this statement has no place here")

    async def _call(self, compiled: CompiledStatement, plan: CallPlan, parameters: QueryParameters) -> CqlResponse:
        """Bounded by what it says itself, not by the times of ordinary requests."""
        assert self._parts.calls is not None, "a plan names a call that is there"
        payload = plan.payload_of(self._bound(compiled, parameters))
        return CqlResponse(call_result_rows(plan, await self._parts.calls.call(plan.name, payload)))

    async def _change_schema(self, plan: SchemaPlan) -> CqlResponse:
        try:
            answer = await self._change(plan.wish)
        except AlreadyExists as error:
            # The names do not travel with the error; the statement has them.
            kept = f"Cannot add existing {plan.change.target.lower()}: {error.message}"
            raise AlreadyExists(kept, keyspace=plan.change.keyspace, table=plan.change.table) from error
        result: SchemaChangeResult | Void = plan.change if answer.changed else Void()
        warnings = (
            (f"{len(answer.unreached)} nodes that are down will learn of this later",) if answer.unreached else ()
        )
        return CqlResponse(result, warnings)

    async def _change(self, wish: SchemaChange) -> SchemaAnswer:
        return await self._parts.schema.change(wish, self._parts.limits.schema_ms)

    def _bound(self, compiled: CompiledStatement, parameters: QueryParameters) -> BoundRequest:
        assert compiled.plan is not None
        values = values_in_marker_order(parameters, compiled.parsed.markers, compiled.plan.variables)
        return BoundRequest(values, self._parts.clock.wall_us(), self._parts.rng.bytes)

    def _moment(self, parameters: QueryParameters) -> WriteTime:
        timestamp_us = parameters.timestamp_us
        if timestamp_us is None:
            timestamp_us = self._parts.next_timestamp_us()
        return WriteTime(timestamp_us, self._parts.clock.wall_us() // 1_000_000)

    async def _select(
        self,
        session: ClientState,
        compiled: CompiledStatement,
        plan: SelectPlan,
        parameters: QueryParameters,
        reader_kind: type[_BoundReader] = _BoundReader,
    ) -> CqlResponse:
        bound = self._bound(compiled, parameters)
        limits = self._parts.limits
        usual_ms = limits.read_ms if plan.restrictions.has_partition else limits.scan_ms
        reader = reader_kind(self._parts.router, parameters.level, timeout_ms(plan.timeout, bound, usual_ms))
        rows = await plan.run(bound, parameters, reader)
        if not session.tablet_routing or compiled.schema is None or not plan.key_positions:
            return CqlResponse(rows)
        keys = plan.restrictions.partition_keys(bound)
        payload = tablet_payload(self._parts.view.current, compiled.schema.id, keys, self._parts.own)
        return CqlResponse(rows, payload=payload)

    async def _write(
        self, session: ClientState, compiled: CompiledStatement, plan: ModificationPlan, parameters: QueryParameters
    ) -> CqlResponse:
        bound = self._bound(compiled, parameters)
        known = await self._lists(plan, bound, parameters.level) if plan.lists_read else None
        started = self._begin_write(session, plan, bound, parameters, known)
        if isinstance(started, CqlResponse):
            return started
        await started.done
        return started.answer

    def _begin_write(
        self,
        session: ClientState,
        plan: ModificationPlan,
        bound: BoundRequest,
        parameters: QueryParameters,
        known: KnownLists | None = None,
    ) -> CqlResponse | PendingResponse:
        mutations = [one for one in plan.mutations(bound, self._moment(parameters), known) if one.items]
        answer = VOID_RESPONSE
        if session.tablet_routing and plan.key_positions and len(mutations) == 1:
            payload = tablet_payload_of_token(
                self._parts.view.current, plan.schema.id, mutations[0].token, self._parts.own
            )
            answer = CqlResponse(VOID_RESPONSE.result, payload=payload) if payload else VOID_RESPONSE
        if not mutations:
            return answer
        wait_ms = timeout_ms(plan.timeout, bound, self._parts.limits.write_ms)
        return PendingResponse(self._parts.router.begin_write(mutations, parameters.level, wait_ms), answer)

    async def _lists(self, plan: ModificationPlan, bound: BoundRequest, level: ConsistencyLevel) -> KnownLists | None:
        if not plan.lists_read:
            return None
        reader = _BoundReader(self._parts.router, level, self._parts.limits.read_ms)
        return await read_known_lists(plan, bound, reader)

    # ---- batches

    async def _batch_statement(
        self, compiled: CompiledStatement, plan: BatchPlan, parameters: QueryParameters
    ) -> CqlResponse:
        moment = self._moment(parameters)
        bound = self._bound(compiled, parameters)
        mutations: list[Mutation] = []
        for sequence, part in enumerate(plan.parts):
            known = await self._lists(part, bound, parameters.level)
            mutations += part.mutations(bound, replace(moment, sequence=sequence), known)
        wait_ms = timeout_ms(plan.timeout, bound, self._parts.limits.write_ms)
        return await self._write_batch(plan.kind, mutations, parameters.level, wait_ms)

    async def _write_batch(
        self, kind: BatchKind, mutations: Sequence[Mutation], level: ConsistencyLevel, wait_ms: int
    ) -> CqlResponse:
        joined = merge_by_partition(mutations)
        size = sum(len(key) + len(value) for one in joined for key, value in one.items)
        if size > self._parts.limits.batch_bytes_max:
            raise TooLarge(f"Batch too large: {size} bytes are over {self._parts.limits.batch_bytes_max}")
        if joined:
            await self._parts.router.begin_write(joined, level, wait_ms)
        warned = kind is BatchKind.LOGGED and len(joined) > 1
        return CqlResponse(Void(), (UNLOGGED_WARNING,) if warned else ())


def merge_by_partition(mutations: Sequence[Mutation]) -> list[Mutation]:
    """One mutation for each partition: it is written by its replicas as one."""
    joined: dict[tuple[bytes, bytes], list[Mutation]] = {}
    for mutation in mutations:
        if mutation.items:
            key = mutation.items[0][0]
            prefix = partition_prefix_of(key)
            joined.setdefault((mutation.table.bytes, prefix), []).append(mutation)
    return [
        several[0]
        if len(several) == 1
        else Mutation(several[0].table, several[0].token, tuple(item for one in several for item in one.items))
        for several in joined.values()
    ]


def timeout_ms(source: ValueSource | None, bound: BoundRequest, usual_ms: int) -> int:
    """What USING TIMEOUT says."""
    value = None if source is None else source(bound)
    if value is None or isinstance(value, Unset):
        return usual_ms
    duration = decode_duration(value)
    if duration.months or duration.days:
        raise InvalidRequest("Timeout values cannot be expressed in days/months")
    if duration.nanoseconds % 1_000_000:
        raise InvalidRequest("Timeout values cannot have granularity finer than milliseconds")
    if duration.nanoseconds < 0:
        raise InvalidRequest("Timeout values must be non-negative")
    return duration.nanoseconds // 1_000_000
