"""Executes the statements of clients: compiled once, then run against the router or this node's own state."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from ebla.aio.eager import needs_task, run_eagerly
from ebla.aio.long_work import LoopPauses, ThreadLane
from ebla.cql.catalog import VirtualTables
from ebla.cql.describe import describe
from ebla.cql.parse.statements import DescribeStatement, SchemaStatement, TruncateStatement, UseStatement
from ebla.cql.parse.write_parser import BATCH_STATEMENTS_MAX
from ebla.cql.plan.binder import BoundRequest, ValueSource, values_in_marker_order
from ebla.cql.plan.call_plan import CallPlan, CallService
from ebla.cql.plan.modification_plan import TIMESTAMP_MIN, BatchPlan, KnownLists, ModificationPlan, WriteTime
from ebla.cql.plan.point_select import PointSelectPlan
from ebla.cql.plan.row_source import PageReader, read_known_lists
from ebla.cql.plan.schema_plan import SchemaPlan, plan_schema
from ebla.cql.plan.select_plan import SelectPlan
from ebla.cql.statement_cache import QUERY_BYTES_MAX, CompiledStatement, StatementCache
from ebla.feed.topology_view import TopologyView, View
from ebla.model.consistency import ConsistencyLevel
from ebla.model.cql_types import SCALARS, ListType, TupleType
from ebla.model.error_codes import as_read_error
from ebla.model.errors import AlreadyExists, EblaError, InvalidRequest, NotFound, TooLarge
from ebla.model.identity import Replica, TableId
from ebla.model.token import token_of
from ebla.model.values import decode_duration, encode
from ebla.options import NodeLimits
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.request.router_types import Mutation, ReadPage, ReadQuery
from ebla.request.timestamps import WriteTimestamps
from ebla.storage.codec.key_codec import decode_token, partition_prefix_of
from ebla.wire.cql.frames import BatchKind
from ebla.wire.cql.messages import (
    BatchItem,
    BoundValue,
    CqlResponse,
    KeyspaceSet,
    PreparedResult,
    QueryParameters,
    Rows,
    SchemaChangeResult,
    Unset,
    Void,
)
from ebla.wire.schema_messages import SchemaAnswer, SchemaChange, TruncateTableRequest

VOID_RESPONSE = CqlResponse(Void())
UNLOGGED_WARNING = (
    "A logged batch over several partitions is written together here, but without a log: after a failure some of its "
    "partitions may have been written and others not"
)
LARGE_VALUES_BYTES = 16 << 10
"""Values of this size may have so many elements that taking them apart takes long."""
BATCH_BYTES_WARN = 128 << 10
TABLET_PAYLOAD_KEY = "tablets-routing-v1"
_REPLICA_TYPE = TupleType((SCALARS["uuid"], SCALARS["int"]))
_TABLET_TYPE = TupleType((SCALARS["bigint"], SCALARS["bigint"], ListType(_REPLICA_TYPE, True)))


@dataclass(slots=True, kw_only=True)
class ClientState:
    """One connection, as the executor sees it."""

    peer: str
    keyspace: str | None = None
    user: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    """From STARTUP: driver name and version, negotiated extensions."""
    tablet_routing: bool = False
    """The driver learns the replicas of a tablet from the response's payload."""


class PendingResponse(msgspec.Struct, frozen=True):
    """A write in flight. It needs no task: the response is known, and holds once the future is done."""

    done: "asyncio.Future[None]"
    response: CqlResponse


StartedRequest = CqlResponse | PendingResponse | Coroutine[Any, Any, CqlResponse]
"""A request after its first step: answered, a write in flight, or a coroutine that needs a task for its rest."""


class RowRouter(Protocol):
    """What the executor needs of the router."""

    def write(
        self, mutations: Sequence[Mutation], level: ConsistencyLevel, timeout_ms: int
    ) -> "asyncio.Future[None]": ...

    def read(self, query: ReadQuery, level: ConsistencyLevel, timeout_ms: int) -> Coroutine[Any, Any, ReadPage]:
        """Runs to its end without waiting if this shard alone can answer."""
        ...


@dataclass(slots=True, kw_only=True)
class CqlExecutor:
    view: TopologyView
    router: RowRouter
    timestamps: WriteTimestamps
    change_schema: Callable[[SchemaChange, int], Awaitable[SchemaAnswer]]
    """The last argument is the timeout in milliseconds."""
    virtual: VirtualTables
    cluster_name: str
    clock: Clock
    rng: Rng
    own: Replica
    limits: NodeLimits
    """The scan timeout is for reads that name no partition."""
    calls: CallService | None = None
    """None: this node supports no CALL."""
    _statements: StatementCache = field(init=False)
    _lane: ThreadLane = field(init=False, default_factory=ThreadLane)

    def __post_init__(self) -> None:
        call_names = () if self.calls is None else self.calls.names
        self._statements = StatementCache(self.view, self.virtual, call_names, self.limits)

    # ---- requests of connections

    def begin_query(self, client: ClientState, text: str, parameters: QueryParameters) -> StartedRequest:
        if len(text) > QUERY_BYTES_MAX:
            return run_eagerly(self._run_large_text(client, text, parameters))
        return self._begin(client, self._statements.query(text, client.keyspace), parameters)

    def begin_execute(self, client: ClientState, statement_id: bytes, parameters: QueryParameters) -> StartedRequest:
        return self._begin(client, self._statements.prepared(statement_id), parameters)

    def prepare(self, client: ClientState, text: str) -> PreparedResult:
        statement_id, compiled = self._statements.prepare(text, client.keyspace)
        plan = compiled.plan
        columns = plan.columns if isinstance(plan, SelectPlan | CallPlan) else ()
        if not isinstance(plan, SelectPlan | ModificationPlan):
            variables = () if plan is None else plan.variables
            return PreparedResult(id=statement_id, variables=variables, key_positions=(), columns=columns)
        return PreparedResult(
            id=statement_id,
            variables=plan.variables,
            key_positions=plan.key_positions,
            columns=columns,
            keyspace=plan.schema.keyspace,
            table=plan.schema.name,
        )

    def begin_batch(
        self, client: ClientState, kind: BatchKind, items: Sequence[BatchItem], parameters: QueryParameters
    ) -> StartedRequest:
        return run_eagerly(self._batch_message(client, kind, items, parameters))

    # ---- running

    def _begin(self, client: ClientState, compiled: CompiledStatement, parameters: QueryParameters) -> StartedRequest:
        """Most requests need no task: they are writes that read nothing first, or reads of rows that this shard has."""
        plan = compiled.plan
        if _takes_long(compiled, parameters.values):
            return run_eagerly(self._run(client, compiled, parameters))
        if isinstance(plan, ModificationPlan) and not plan.lists_read:
            return self._begin_write(client, plan, self._bind(compiled, parameters), parameters)
        if compiled.point is not None and parameters.paging_state is None:
            return run_eagerly(self._select_point(client, compiled, compiled.point, parameters))
        return run_eagerly(self._run(client, compiled, parameters))

    async def _run_large_text(self, client: ClientState, text: str, parameters: QueryParameters) -> CqlResponse:
        compiled = await self._compile_aside(client, text)
        return await self._run(client, compiled, parameters)

    async def _compile_aside(self, client: ClientState, text: str, tokens_max: int | None = None) -> CompiledStatement:
        """In a thread: a text of many tokens takes tens of milliseconds. None is kept."""
        await needs_task()
        return await self._lane.run(lambda: self._statements.compile(text, client.keyspace, tokens_max))

    async def _run(self, client: ClientState, compiled: CompiledStatement, parameters: QueryParameters) -> CqlResponse:
        plan = compiled.plan
        if isinstance(plan, ModificationPlan):
            return await self._write(client, compiled, plan, parameters)
        if isinstance(plan, SelectPlan):
            return await self._select(client, compiled, plan, parameters)
        if isinstance(plan, BatchPlan):
            return await self._batch_statement(compiled, plan, parameters)
        await needs_task()
        if isinstance(plan, CallPlan):
            return await self._call(compiled, plan, parameters)
        statement = compiled.parsed.statement
        catalog = self._statements.catalog
        match statement:
            case UseStatement(keyspace=name):
                if not catalog.has_keyspace(name):
                    raise NotFound(f"Keyspace '{name}' does not exist")
                client.keyspace = name
                return CqlResponse(KeyspaceSet(name))
            case DescribeStatement():
                return CqlResponse(describe(statement, catalog, client.keyspace, self.cluster_name))
            case TruncateStatement(table=name):
                schema = catalog.stored(name, client.keyspace)
                await self._change_schema(TruncateTableRequest(schema.keyspace, schema.name))
                return VOID_RESPONSE
            case _ if isinstance(statement, SchemaStatement):
                change = plan_schema(statement, catalog, client.keyspace)
                return VOID_RESPONSE if change is None else await self._run_schema_plan(change)
            case _:
                raise InvalidRequest("this statement cannot be executed here")

    async def _call(self, compiled: CompiledStatement, plan: CallPlan, parameters: QueryParameters) -> CqlResponse:
        """The call itself names its timeout; the limits of ordinary requests do not apply."""
        assert self.calls is not None, "a CALL was planned on a node that supports none"
        payload = plan.payload_of(self._bind(compiled, parameters))
        answer = await self.calls.call(plan.name, payload)
        return CqlResponse(Rows(plan.columns, ((answer,),)))

    async def _run_schema_plan(self, plan: SchemaPlan) -> CqlResponse:
        try:
            answer = await self._change_schema(plan.request)
        except AlreadyExists as error:
            # The error arrives without names; the statement has them.
            message = f"Cannot add existing {plan.change.target.lower()}: {error.message}"
            raise AlreadyExists(message, keyspace=plan.change.keyspace, table=plan.change.table) from error
        result: SchemaChangeResult | Void = plan.change if answer.changed else Void()
        warnings = (
            (f"{len(answer.unreached)} nodes that are down will learn of this later",) if answer.unreached else ()
        )
        return CqlResponse(result, warnings)

    async def _change_schema(self, change: SchemaChange) -> SchemaAnswer:
        return await self.change_schema(change, self.limits.schema_timeout_ms)

    def _bind(self, compiled: CompiledStatement, parameters: QueryParameters) -> BoundRequest:
        assert compiled.plan is not None
        values = values_in_marker_order(parameters, compiled.parsed.markers, compiled.plan.variables)
        return BoundRequest(values, self.clock.wall_us(), self.rng.bytes)

    def _write_time(self, parameters: QueryParameters) -> WriteTime:
        """Raises `InvalidRequest` for a client's timestamp that is too far ahead."""
        timestamp_us, timestamps, now_us = parameters.timestamp_us, self.timestamps, self.clock.wall_us()
        if timestamp_us is not None:
            timestamps.check(timestamp_us, now_us)
        elif timestamps.is_clock_wrong:
            timestamp_us = TIMESTAMP_MIN  # refused, unless the statement has its own
        else:
            timestamp_us = timestamps.next_us()
        return WriteTime(timestamp_us=timestamp_us, now_s=now_us // 1_000_000, timestamps=timestamps)

    async def _select(
        self, client: ClientState, compiled: CompiledStatement, plan: SelectPlan, parameters: QueryParameters
    ) -> CqlResponse:
        if compiled.schema is None:
            await needs_task()  # a virtual table may ask the control process for its rows
        request = self._bind(compiled, parameters)
        default_ms = self.limits.read_timeout_ms if plan.restrictions.has_partition else self.limits.scan_timeout_ms
        reader = self._page_reader(parameters.level, timeout_ms(plan.timeout, request, default_ms))
        lane = self._lane if _takes_long(compiled, request.values) else None
        if lane is not None:
            await needs_task()
        try:
            rows = await plan.run(request, parameters, reader, lane)
        except EblaError as error:  # of a virtual table: the router's are those of reads already
            raise as_read_error(error) from error
        if not client.tablet_routing or compiled.schema is None or not plan.key_positions:
            return CqlResponse(rows)
        keys = plan.restrictions.partition_keys(request)
        if len(keys) != 1:
            return CqlResponse(rows)
        payload = tablet_payload(self.view.current, compiled.schema.id, token_of(keys[0]), self.own)
        return CqlResponse(rows, payload=payload)

    def _page_reader(self, level: ConsistencyLevel, wait_ms: int) -> PageReader:
        return lambda query: self.router.read(query, level, wait_ms)

    async def _select_point(
        self, client: ClientState, compiled: CompiledStatement, plan: PointSelectPlan, parameters: QueryParameters
    ) -> CqlResponse:
        request = self._bind(compiled, parameters)
        point = plan.point(request)
        wait_ms = timeout_ms(plan.plan.timeout, request, self.limits.read_timeout_ms)
        rows = plan.rows(point, await self.router.read(point.query, parameters.level, wait_ms))
        if not client.tablet_routing or not plan.plan.key_positions:
            return CqlResponse(rows)
        token = decode_token(point.query.spans[0][0])
        return CqlResponse(rows, payload=tablet_payload(self.view.current, plan.schema.id, token, self.own))

    # ---- writes

    def _begin_write(
        self,
        client: ClientState,
        plan: ModificationPlan,
        request: BoundRequest,
        parameters: QueryParameters,
        mutations: Sequence[Mutation] | None = None,
    ) -> CqlResponse | PendingResponse:
        if mutations is None:
            mutations = plan.mutations(request, self._write_time(parameters))
        mutations = [one for one in mutations if one.items]
        response = VOID_RESPONSE
        if client.tablet_routing and plan.key_positions and len(mutations) == 1:
            payload = tablet_payload(self.view.current, plan.schema.id, mutations[0].token, self.own)
            response = CqlResponse(VOID_RESPONSE.result, payload=payload) if payload else VOID_RESPONSE
        if not mutations:
            return response
        wait_ms = timeout_ms(plan.timeout, request, self.limits.write_timeout_ms)
        return PendingResponse(self.router.write(mutations, parameters.level, wait_ms), response)

    async def _write(
        self, client: ClientState, compiled: CompiledStatement, plan: ModificationPlan, parameters: QueryParameters
    ) -> CqlResponse:
        """A write that first reads the lists whose elements it names, or that has many elements."""
        request = self._bind(compiled, parameters)
        takes_long = _takes_long(compiled, request.values)
        write_time = self._write_time(parameters)
        mutations = await self._mutations(plan, request, write_time, parameters.level, takes_long=takes_long)
        started = self._begin_write(client, plan, request, parameters, mutations)
        if isinstance(started, CqlResponse):
            return started
        await started.done
        return started.response

    async def _mutations(
        self,
        plan: ModificationPlan,
        request: BoundRequest,
        write_time: WriteTime,
        level: ConsistencyLevel,
        *,
        takes_long: bool,
    ) -> list[Mutation]:
        known: KnownLists | None = None
        if plan.lists_read:
            known = await read_known_lists(plan, request, self._page_reader(level, self.limits.read_timeout_ms))
        if not takes_long:
            return plan.mutations(request, write_time, known)
        await needs_task()
        return await self._lane.run(lambda: plan.mutations(request, write_time, known))

    # ---- batches

    async def _batch_message(
        self, client: ClientState, kind: BatchKind, items: Sequence[BatchItem], parameters: QueryParameters
    ) -> CqlResponse:
        if kind is BatchKind.COUNTER:
            raise InvalidRequest("counters are not supported")
        if len(items) > BATCH_STATEMENTS_MAX:
            raise TooLarge(f"a batch of {len(items)} statements is over {BATCH_STATEMENTS_MAX}")
        write_time = self._write_time(parameters)
        mutations: list[Mutation] = []
        pauses, tokens_left = LoopPauses(), self.limits.cql_tokens_max
        for sequence, item in enumerate(items):
            await pauses.pause()
            compiled = await self._batch_item(client, item, max(0, tokens_left))
            if isinstance(item.query, str):
                tokens_left -= compiled.parsed.tokens
            if not isinstance(compiled.plan, ModificationPlan):
                raise InvalidRequest(
                    "Invalid statement in batch: only UPDATE, INSERT and DELETE statements are allowed."
                )
            values = QueryParameters(level=parameters.level, values=item.values, names=item.names)
            request = self._bind(compiled, values)
            item_time = replace(write_time, sequence=sequence)
            takes_long = _takes_long(compiled, request.values)
            plan, level = compiled.plan, parameters.level
            mutations += await self._mutations(plan, request, item_time, level, takes_long=takes_long)
        return await self._write_batch(kind, mutations, parameters.level, self.limits.write_timeout_ms)

    async def _batch_item(self, client: ClientState, item: BatchItem, tokens_max: int) -> CompiledStatement:
        if isinstance(item.query, bytes):
            return self._statements.prepared(item.query)
        if len(item.query) > QUERY_BYTES_MAX:
            return await self._compile_aside(client, item.query, tokens_max)
        return self._statements.compile(item.query, client.keyspace, tokens_max)

    async def _batch_statement(
        self, compiled: CompiledStatement, plan: BatchPlan, parameters: QueryParameters
    ) -> CqlResponse:
        write_time = self._write_time(parameters)
        request = self._bind(compiled, parameters)
        mutations: list[Mutation] = []
        pauses, is_large = LoopPauses(), _is_large(request.values)
        for sequence, part in enumerate(plan.parts):
            await pauses.pause()
            part_time = replace(write_time, sequence=sequence)
            mutations += await self._mutations(part, request, part_time, parameters.level, takes_long=is_large)
        wait_ms = timeout_ms(plan.timeout, request, self.limits.write_timeout_ms)
        return await self._write_batch(plan.kind, mutations, parameters.level, wait_ms)

    async def _write_batch(
        self, kind: BatchKind, mutations: Sequence[Mutation], level: ConsistencyLevel, wait_ms: int
    ) -> CqlResponse:
        merged = merge_by_partition(mutations)
        size = sum(len(key) + len(value) for one in merged for key, value in one.items)
        if size > self.limits.cql_batch_bytes_max:
            most = self.limits.cql_batch_bytes_max
            raise TooLarge(
                f"Batch too large: {size} bytes are over limits.cql_batch_bytes_max ({most})",
                advice="write fewer rows in one batch",
            )
        if merged:
            await self.router.write(merged, level, wait_ms)
        warnings = [UNLOGGED_WARNING] if kind is BatchKind.LOGGED and len(merged) > 1 else []
        if size > BATCH_BYTES_WARN:
            warnings.append(
                f"A batch of {size} bytes for {len(merged)} partitions is above the warning threshold of "
                f"{BATCH_BYTES_WARN}; limits.cql_batch_bytes_max is {self.limits.cql_batch_bytes_max}"
            )
        return CqlResponse(Void(), tuple(warnings))


def _takes_long(compiled: CompiledStatement, values: Sequence[BoundValue]) -> bool:
    return compiled.has_many_elements or (compiled.binds_collections and _is_large(values))


def _is_large(values: Sequence[BoundValue]) -> bool:
    return sum(len(value) for value in values if isinstance(value, bytes)) > LARGE_VALUES_BYTES


def merge_by_partition(mutations: Sequence[Mutation]) -> list[Mutation]:
    """One mutation per partition: replicas apply it atomically."""
    by_partition: dict[tuple[bytes, bytes], list[Mutation]] = {}
    for mutation in mutations:
        if mutation.items:
            prefix = partition_prefix_of(mutation.items[0][0])
            by_partition.setdefault((mutation.table.bytes, prefix), []).append(mutation)
    return [
        several[0]
        if len(several) == 1
        else Mutation(several[0].table, several[0].token, tuple(item for one in several for item in one.items))
        for several in by_partition.values()
    ]


def timeout_ms(source: ValueSource | None, request: BoundRequest, default_ms: int) -> int:
    """The value of USING TIMEOUT. The router caps it."""
    if source is None or isinstance(value := source(request), Unset):
        return default_ms
    if value is None:
        raise InvalidRequest("Timeout value cannot be null")
    duration = decode_duration(value)
    if duration.months or duration.days:
        raise InvalidRequest("Timeout values cannot be expressed in days/months")
    if duration.nanoseconds % 1_000_000:
        raise InvalidRequest("Timeout values cannot have granularity finer than milliseconds")
    if duration.nanoseconds < 0:
        raise InvalidRequest("Timeout values must be non-negative")
    return duration.nanoseconds // 1_000_000


def tablet_payload(view: View, table: TableId, token: int, own: Replica) -> Mapping[str, bytes]:
    """Tells the driver the replicas of a tablet. Empty if this shard is one of them, or the table has no tablets."""
    tablets = view.snapshot.tablets.get(table)
    if tablets is None:
        return {}
    replicas = view.sets.of(table).reading(token)
    if own in replicas:
        return {}
    number = tablets.number_of(token)
    pairs = [(replica.host, replica.shard) for replica in replicas]
    return {TABLET_PAYLOAD_KEY: encode(_TABLET_TYPE, (tablets.after_token(number), tablets.last_token(number), pairs))}
