"""SELECT: compiled once, then run with the values of a request; returns a page of rows."""

from collections.abc import Sequence

import msgspec

from ebla.aio.long_work import ThreadLane
from ebla.cql.catalog import VirtualTable
from ebla.cql.parse.statements import SelectStatement
from ebla.cql.parse.terms import BindMarker, ColumnName
from ebla.cql.plan.binder import BoundRequest, ValueSource, table_binder
from ebla.cql.plan.filters import FilterBuilder, RowFilter
from ebla.cql.plan.restrictions import Restrictions, check_filtering, classify_relations, columns_of
from ebla.cql.plan.row_decoder import DecodedRow
from ebla.cql.plan.row_source import (
    OrderedRowPages,
    PageReader,
    StoredRowPages,
    VirtualRowPages,
    partition_prefixes_of,
    partition_spans,
    spans_of,
    virtual_rows,
)
from ebla.cql.plan.selection import AggregateColumn, NeededColumns, OutputColumn, SelectionBuilder
from ebla.model.cql_types import SCALARS
from ebla.model.errors import InvalidRequest
from ebla.model.schema import ColumnKind, TableSchema
from ebla.options import DEFAULT_LIMITS
from ebla.storage.codec.key_codec import split_key
from ebla.wire.cql.messages import UNSET, ColumnSpec, QueryParameters, Rows, Unset
from ebla.wire.row_messages import Span

CHUNK_ROWS = 5_000
"""Rows per read, if the client does not page, or the rows are aggregated."""
SORTED_ROWS_MAX = 100_000

RowPages = StoredRowPages | OrderedRowPages | VirtualRowPages

_INT, _DURATION = SCALARS["int"], SCALARS["duration"]


PAGING_STATE_FORMAT = 1
ORDERED_STATE_FORMAT = 2
"""Of pages in the order of keys. What an older release began to page continues in the order of tokens."""


class PagingState(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    format: int
    position: bytes
    """The router's position, or the row number in a virtual table."""
    left: int | None
    """Rows left of LIMIT; None: no limit."""
    prefix: bytes = b""
    """The partition in which the next page may continue: its static values belong to those rows, too."""
    partition_rows: int = 0
    """Rows of that partition already returned, if they are counted here."""
    partitions_read: int = 0
    """Of a statement that names several: those before the position, in the order of their keys."""


def encode_paging_state(state: PagingState) -> bytes:
    return msgspec.msgpack.encode(state)


def decode_paging_state(data: bytes) -> PagingState:
    try:
        state = msgspec.msgpack.decode(data, type=PagingState)
    except msgspec.DecodeError as error:
        raise InvalidRequest("Invalid value for the paging state") from error
    if state.format not in (PAGING_STATE_FORMAT, ORDERED_STATE_FORMAT):
        raise InvalidRequest(f"Invalid value for the paging state: format {state.format} is not known here")
    return state


class SelectPlan(msgspec.Struct, frozen=True, kw_only=True):
    schema: TableSchema
    virtual: VirtualTable | None
    variables: tuple[ColumnSpec, ...]
    key_positions: tuple[int, ...]
    restrictions: Restrictions
    needs: NeededColumns
    outputs: tuple[OutputColumn, ...]
    aggregates: tuple[AggregateColumn, ...]
    filters: tuple[RowFilter, ...]
    limit: ValueSource | None
    partition_limit: ValueSource | None
    is_reversed: bool
    distinct: bool
    sorts: bool
    """Rows of several partitions must be sorted."""
    timeout: ValueSource | None
    columns: tuple[ColumnSpec, ...]
    """The columns of the rows: always the same object, so that their encoding can be cached."""

    @property
    def is_aggregate(self) -> bool:
        return bool(self.aggregates)

    # ---- running

    async def run(
        self, request: BoundRequest, parameters: QueryParameters, reader: PageReader, lane: ThreadLane | None = None
    ) -> Rows:
        """`lane`: for a request with many values."""
        state = None if parameters.paging_state is None else decode_paging_state(parameters.paging_state)
        left = self._limit(self.limit, "LIMIT", request) if state is None else state.left
        run = _SelectRun(self, request) if lane is None else await lane.run(lambda: _SelectRun(self, request))
        source: RowPages
        if self.virtual is not None:
            found = await virtual_rows(self.virtual, self.needs.columns, is_reversed=self.is_reversed)
            # Filtered before it is paged, so that no page is empty.
            rows = [one for one in found if run.passes(one)]
            source = VirtualRowPages(rows, b"" if state is None else state.position)
            run.start_partitions()
        elif lane is None:
            source = self._stored_rows(request, reader, state)
        else:
            source = await lane.run(lambda: self._stored_rows(request, reader, state))
        if self.is_aggregate or self.sorts:
            return await run.aggregate_or_sort(source, left)
        return await run.page(source, parameters.page_size, left, state)

    def _stored_rows(
        self, request: BoundRequest, reader: PageReader, state: PagingState | None
    ) -> StoredRowPages | OrderedRowPages:
        schema, restrictions = self.schema, self.restrictions
        has_static = bool(schema.static)
        prefixes = partition_prefixes_of(schema, restrictions, request) if self.is_reversed and has_static else ()

        def pages_of(spans: tuple[Span, ...], position: bytes, prefix: bytes) -> StoredRowPages:
            return StoredRowPages(
                schema=schema,
                needed=self.needs.columns,
                with_cells=self.needs.with_cells,
                spans=spans,
                now_s=request.now_us // 1_000_000,
                reader=reader,
                is_reversed=self.is_reversed,
                partition_rows_max=self._partition_rows(request),
                bare_partitions=has_static and not restrictions.clustering and not restrictions.ends,
                position=position,
                prefix=prefix,
                heads_of=tuple(prefixes),
            )

        position, prefix = (b"", b"") if state is None else (state.position, state.prefix)
        heads = has_static and not self.is_reversed
        if not self._is_ordered(state):
            return pages_of(tuple(spans_of(schema, restrictions, request, heads=heads)), position, prefix)
        return OrderedRowPages(
            spans=partition_spans(schema, restrictions, request, heads=heads),
            pages_of=pages_of,
            partitions_read=0 if state is None else max(0, state.partitions_read),
            position=position,
            prefix=prefix,
        )

    def _is_ordered(self, state: PagingState | None) -> bool:
        """Whether the statement names several partitions, and their rows are not sorted afterwards."""
        is_several = any(not group.is_single for group in self.restrictions.partition)
        return is_several and not self.sorts and (state is None or state.format == ORDERED_STATE_FORMAT)

    def _partition_rows(self, request: BoundRequest) -> int:
        """The row limit per partition that replicas apply. 0: none, since rows are filtered afterwards."""
        if self.filters:
            return 0
        if self.distinct:
            return 1
        return self._limit(self.partition_limit, "PER PARTITION LIMIT", request) or 0

    def partition_rows_shown(self, request: BoundRequest) -> int | None:
        """The row limit per partition that is applied here."""
        if not self.filters and self.virtual is None:
            return None
        return 1 if self.distinct else self._limit(self.partition_limit, "PER PARTITION LIMIT", request)

    def _limit(self, source: ValueSource | None, name: str, request: BoundRequest) -> int | None:
        value = UNSET if source is None else source(request)
        if isinstance(value, Unset):
            return None
        if value is None:
            raise InvalidRequest(f"Invalid null value of {name}")
        number = int.from_bytes(value, signed=True)
        if number <= 0:
            raise InvalidRequest(f"{name} must be strictly positive")
        return number

    # ---- answers

    def answer(self, rows: Sequence[DecodedRow], request: BoundRequest) -> list[list[bytes | None]]:
        indexes = [output.index for output in self.outputs]
        if indexes == list(range(len(self.needs.columns))):
            return [found.values for found in rows]
        if all(index is not None for index in indexes):
            return [[found.values[index] for index in indexes if index is not None] for found in rows]
        return [[output.value(found, request) for output in self.outputs] for found in rows]


class RowAggregation:
    """Aggregates all rows to one. Columns beside aggregates have the values of the first row."""

    def __init__(self, plan: SelectPlan) -> None:
        self._plan = plan
        self._accumulators = [one.accumulator() for one in plan.aggregates]
        self._first: DecodedRow | None = None

    def add(self, found: DecodedRow, request: BoundRequest) -> None:
        if self._first is None:
            self._first = found
        for aggregate, accumulator in zip(self._plan.aggregates, self._accumulators):
            accumulator.add(aggregate.value(found, request))

    def row(self, request: BoundRequest) -> list[bytes | None]:
        first = self._first
        values = [None] * len(self._plan.needs.columns) if first is None else first.values
        results = [accumulator.result() for accumulator in self._accumulators]
        cells = {} if first is None else first.cells
        found = DecodedRow(values=[*values, *results], cells=cells, prefix=b"", key=b"")
        return [
            output.value(found, request) if output.is_aggregate or first is not None else None
            for output in self._plan.outputs
        ]


class _SelectRun:
    """One execution of a plan."""

    def __init__(self, plan: SelectPlan, request: BoundRequest) -> None:
        self._plan = plan
        self._request = request
        self._tests = [one(request) for one in plan.filters]
        self._partition_max = plan.partition_rows_shown(request)
        self._has_tests = bool(self._tests) or self._partition_max is not None
        self._prefix = b""
        self._partition_rows_passed = 0

    def start_partitions(self) -> None:
        self._prefix, self._partition_rows_passed = b"", 0

    def passes(self, found: DecodedRow) -> bool:
        if not all(test(found.values) for test in self._tests):
            return False
        if self._partition_max is None:
            return True
        if found.prefix != self._prefix:
            self._prefix, self._partition_rows_passed = found.prefix, 0
        self._partition_rows_passed += 1
        return self._partition_rows_passed <= self._partition_max

    async def page(
        self,
        source: RowPages,
        page_size: int | None,
        left: int | None,
        state: PagingState | None,
    ) -> Rows:
        plan = self._plan
        if state is not None:
            self._prefix, self._partition_rows_passed = state.prefix, state.partition_rows
        rows: list[DecodedRow] = []
        while not source.ended:
            rows_wanted = _smaller(page_size, left)
            if rows_wanted is not None and len(rows) >= rows_wanted:
                break
            missing = CHUNK_ROWS if rows_wanted is None else rows_wanted - len(rows)
            found = await source.page(missing)
            rows += [one for one in found if self.passes(one)] if self._has_tests else found
        if left is not None:
            rows = rows[:left]
            left -= len(rows)
        answer = plan.answer(rows, self._request)
        if source.ended or left == 0:
            return Rows(plan.columns, answer)
        partitions_read = source.partitions_read if isinstance(source, OrderedRowPages) else None
        state_after = PagingState(
            format=PAGING_STATE_FORMAT if partitions_read is None else ORDERED_STATE_FORMAT,
            position=source.position,
            left=left,
            prefix=source.prefix,
            partition_rows=self._partition_rows_passed,
            partitions_read=partitions_read or 0,
        )
        return Rows(plan.columns, answer, encode_paging_state(state_after))

    async def aggregate_or_sort(self, source: RowPages, left: int | None) -> Rows:
        """For aggregates and sorted rows: reads all rows before there is a result."""
        plan = self._plan
        aggregation = RowAggregation(plan) if plan.is_aggregate else None
        rows: list[DecodedRow] = []
        while not source.ended:
            for found in await source.page(CHUNK_ROWS):
                if not self.passes(found):
                    continue
                if aggregation is not None:
                    aggregation.add(found, self._request)
                else:
                    rows.append(found)
            if len(rows) > SORTED_ROWS_MAX:
                raise InvalidRequest(
                    f"ORDER BY over several partitions would have to sort more than {SORTED_ROWS_MAX} rows",
                    advice="read the partitions one by one, or sort at the client",
                )
        if aggregation is not None:
            return Rows(plan.columns, [aggregation.row(self._request)][:left])
        rows.sort(key=lambda found: split_key(found.key)[2], reverse=plan.is_reversed)
        return Rows(plan.columns, plan.answer(rows[:left], self._request))


def _smaller(one: int | None, other: int | None) -> int | None:
    numbers = [number for number in (one, other) if number is not None]
    return min(numbers, default=None)


# ---- compiling


def plan_select(
    statement: SelectStatement,
    table: TableSchema | VirtualTable,
    markers: tuple[BindMarker, ...],
    elements_max: int = DEFAULT_LIMITS.cql_elements_max,
) -> SelectPlan:
    """Raises `InvalidRequest`."""
    schema, virtual = (table.schema, table) if isinstance(table, VirtualTable) else (table, None)
    binder = table_binder(schema, markers, elements_max)
    needs = NeededColumns()
    selection = SelectionBuilder(schema, binder, needs)
    outputs = selection.outputs(statement.selectors)
    _check_partition_limit(statement, is_aggregate=bool(selection.aggregates))
    restrictions = classify_relations(schema, statement.where, binder)
    builder = FilterBuilder(schema, binder, needs.index)
    if virtual is None and not statement.allow_filtering:
        check_filtering(schema, restrictions)
    # Virtual tables have few rows, so every relation is a filter.
    filtered = restrictions.filters if virtual is None else statement.where
    filters = tuple(builder.filter(relation) for relation in filtered)
    if statement.distinct:
        check_distinct(schema, statement, restrictions)
    is_reversed = reads_reversed(schema, statement, restrictions)
    reads_several_partitions = any(not group.is_single for group in restrictions.partition)
    limit = binder.optional(statement.limit, "[limit]", _INT)
    partition_limit = binder.optional(statement.per_partition_limit, "[per_partition_limit]", _INT)
    timeout = binder.optional(statement.using.timeout, "[timeout]", _DURATION)
    return SelectPlan(
        schema=schema,
        virtual=virtual,
        variables=binder.variables(),
        key_positions=restrictions.key_positions,
        restrictions=restrictions,
        needs=needs,
        outputs=outputs,
        aggregates=tuple(selection.aggregates),
        filters=filters,
        limit=limit,
        partition_limit=partition_limit,
        is_reversed=is_reversed,
        distinct=statement.distinct,
        sorts=bool(statement.order_by) and reads_several_partitions,
        timeout=timeout,
        columns=tuple(output.spec for output in outputs),
    )


def _check_partition_limit(statement: SelectStatement, *, is_aggregate: bool) -> None:
    if statement.per_partition_limit is None:
        return
    if statement.distinct:
        raise InvalidRequest("PER PARTITION LIMIT is not allowed with SELECT DISTINCT queries")
    if is_aggregate:
        raise InvalidRequest("PER PARTITION LIMIT is not allowed with aggregate queries")


# ---- ORDER BY and DISTINCT


def reads_reversed(schema: TableSchema, statement: SelectStatement, restrictions: Restrictions) -> bool:
    """Whether rows are read in reverse. Raises `InvalidRequest` for an order that the clustering key does not allow."""
    if not statement.order_by:
        return False
    if not restrictions.has_partition:
        raise InvalidRequest("ORDER BY is only supported when the partition key is restricted by an EQ or an IN.")
    fixed = _fixed_columns(schema, restrictions)
    expected = 0
    directions: list[bool] = []
    for ordering in statement.order_by:
        column = schema.by_name.get(ordering.column)
        if column is None:
            raise InvalidRequest(f"Undefined column name {ordering.column} in table {schema.full_name}")
        if column.kind is not ColumnKind.CLUSTERING:
            raise InvalidRequest(
                "Order by is currently only supported on the clustered columns of the PRIMARY KEY, got "
                f"{ordering.column}"
            )
        while expected < column.position and expected in fixed:
            expected += 1
        if column.position != expected:
            raise InvalidRequest(
                "Order by currently only supports the ordering of columns following their declared order in the "
                "PRIMARY KEY"
            )
        expected += 1
        directions.append(ordering.descending != column.descending)
    if len(set(directions)) > 1:
        raise InvalidRequest("Unsupported order by relation")
    return directions[0]


def _fixed_columns(schema: TableSchema, restrictions: Restrictions) -> frozenset[int]:
    """Clustering columns that are restricted to one value."""
    fixed: list[int] = []
    at = 0
    for group in restrictions.clustering:
        if group.is_single:
            fixed += range(at, at + group.width)
        at += group.width
    assert at <= len(schema.clustering)
    return frozenset(fixed)


def check_distinct(schema: TableSchema, statement: SelectStatement, restrictions: Restrictions) -> None:
    filtered = [schema.by_name[name].kind for relation in restrictions.filters for name in columns_of(relation)]
    within = any(kind not in (ColumnKind.PARTITION_KEY, ColumnKind.STATIC) for kind in filtered)
    if restrictions.clustering or restrictions.ends or within:
        raise InvalidRequest(
            "SELECT DISTINCT with WHERE clause only supports restriction by partition key and/or static columns."
        )
    names: list[str] = []
    for selector in statement.selectors:
        if not isinstance(selector.item, ColumnName):
            continue
        column = schema.by_name[selector.item.name]
        if column.kind not in (ColumnKind.PARTITION_KEY, ColumnKind.STATIC):
            raise InvalidRequest(
                "SELECT DISTINCT queries must only request partition key columns and/or static columns "
                f"(not {column.name})"
            )
        names.append(column.name)
    if not statement.selectors:
        raise InvalidRequest("SELECT DISTINCT queries must only request partition key columns and/or static columns")
    missing = [column.name for column in schema.partition_key if column.name not in names]
    if missing and not restrictions.has_partition:
        raise InvalidRequest(
            f"SELECT DISTINCT queries must request all the partition key columns (missing {missing[0]})"
        )
