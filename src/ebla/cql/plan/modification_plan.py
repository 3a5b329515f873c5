"""INSERT, UPDATE, DELETE and BATCH: compiled once, then turn the values of a request into mutations. Pure."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from ebla.cql.parse.statements import (
    Assignment,
    AssignmentKind,
    BatchStatement,
    ColumnRelation,
    DeleteStatement,
    InsertStatement,
    Modification,
    Operator,
    Relation,
    TableName,
    UpdateStatement,
    UsingClause,
)
from ebla.cql.parse.terms import BindMarker, Term
from ebla.cql.plan import row_changes
from ebla.cql.plan.binder import Binder, BoundRequest, TermReceiver, ValueSource, table_binder
from ebla.cql.plan.key_spans import row_spans
from ebla.cql.plan.restrictions import (
    CONTAINS_OPERATORS,
    KeyValueSource,
    Restrictions,
    check_clustering_key,
    check_filtering,
    check_partition_key,
    classify_relations,
    columns_of,
    row_key_sources,
)
from ebla.cql.plan.row_changes import CellTimes, ListElements, RowBuilder, RowChange
from ebla.model.cql_types import SCALARS, CqlType, ListType, MapType, SetType, is_multi_cell
from ebla.model.errors import InvalidRequest
from ebla.model.rows import EMPTY_HEAD, PartitionHead, RangeDeletion, Row
from ebla.model.rows import RowMarker as RowMarker
from ebla.model.schema import TTL_S_MAX, Column, ColumnKind, TableSchema
from ebla.model.token import composite_key, token_of
from ebla.options import DEFAULT_LIMITS
from ebla.request.router_types import Mutation
from ebla.request.timestamps import WriteTimestamps
from ebla.storage.codec.key_codec import encode_clustering, head_key, partition_prefix, row_key
from ebla.storage.codec.row_codec import encode_head, encode_plain, encode_row
from ebla.wire.cql.frames import BatchKind
from ebla.wire.cql.messages import ColumnSpec, Unset
from ebla.wire.row_messages import Item

_KEYS = (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING)
TIMESTAMP_MIN = -(1 << 63)
"""Not a valid write time: it means "no timestamp"."""

KnownLists = dict[bytes, ListElements]
"""Live elements of lists, by the key of their row; for static lists, by the key of the partition head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTime:
    """The time of a write, unless the statement sets its own."""

    timestamp_us: int
    now_s: int
    timestamps: WriteTimestamps
    """Of the shard: which timestamps a statement may set."""
    sequence: int = 0
    """Index of the statement in its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModificationPlan:
    schema: TableSchema
    variables: tuple[ColumnSpec, ...]
    key_positions: tuple[int, ...]
    restrictions: Restrictions
    row_changes: tuple[RowChange, ...]
    static_changes: tuple[RowChange, ...]
    marks_row: bool
    """INSERT writes a row marker."""
    deletes_rows: bool
    timestamp: ValueSource | None = None
    ttl: ValueSource | None = None
    timeout: ValueSource | None = None
    lists_read: tuple[Column, ...] = ()
    """Lists whose elements the statement names by index or value. They must be read before the write."""
    plain: "PlainInsert | None" = None

    def mutations(
        self, request: BoundRequest, write_time: WriteTime, known: KnownLists | None = None
    ) -> list[Mutation]:
        if self.plain is not None and self.uses_default_times and write_time.timestamp_us != TIMESTAMP_MIN:
            mutation = self.plain.mutation(request, write_time.timestamp_us)
            if mutation is not None:
                return [mutation]
        times = self._times(request, write_time)
        if self.plain is not None and times.ttl_s == 0:
            mutation = self.plain.mutation(request, times.timestamp_us)
            if mutation is not None:
                return [mutation]
        return [self._mutation(key, request, times, known or {}) for key in self.restrictions.partition_keys(request)]

    @property
    def uses_default_times(self) -> bool:
        """Whether neither the statement nor the table sets timestamp or TTL."""
        return self.timestamp is None and self.ttl is None and self.schema.options.default_ttl_s == 0

    def _mutation(self, key: bytes, request: BoundRequest, times: CellTimes, known: KnownLists) -> Mutation:
        token = token_of(key)
        prefix = partition_prefix(token, key)
        items = [*self._head_items(prefix, request, times, known), *self._row_items(prefix, request, times, known)]
        return Mutation(self.schema.id, token, tuple(items))

    # ---- the parts of a mutation

    def _head_items(self, prefix: bytes, request: BoundRequest, times: CellTimes, known: KnownLists) -> Iterable[Item]:
        head = EMPTY_HEAD
        if self.static_changes:
            row_builder = self._built_row(self.static_changes, request, times, known.get(head_key(prefix), {}))
            head = PartitionHead(
                static=Row(marker=None, deletion=None, cells=row_builder.cells, collections=row_builder.collections)
            )
        if self.deletes_rows and not self._names_rows:
            head = self._range_head(prefix, request, times)
        if head != EMPTY_HEAD:
            yield head_key(prefix), encode_head(head, self.schema.version)

    @property
    def _names_rows(self) -> bool:
        """Whether the statement names full primary keys."""
        return self.restrictions.clustering_width == len(self.schema.clustering) and not self.restrictions.ends

    def _range_head(self, prefix: bytes, request: BoundRequest, times: CellTimes) -> PartitionHead:
        if not self.restrictions.clustering and not self.restrictions.ends and self.schema.clustering:
            return PartitionHead(times.deletion())
        ends = [end.bound(request) for end in self.restrictions.ends]
        ranges: list[RangeDeletion] = []
        first = row_key(prefix)
        last = prefix + bytes((first[-1] + 1,))
        for values in self.restrictions.clustering_values(request):
            for start, end in row_spans(self.schema.clustering, prefix, check_clustering_key(values), ends):
                stop = None if end is None or end == last else end[len(first) :]
                ranges.append(RangeDeletion(start[len(first) :], stop, times.deletion()))
        return PartitionHead(ranges=tuple(sorted(ranges, key=lambda one: one.sort_key)))

    def _row_items(self, prefix: bytes, request: BoundRequest, times: CellTimes, known: KnownLists) -> Iterable[Item]:
        if not (self.row_changes or self.marks_row or (self.deletes_rows and self._names_rows)):
            return
        schema = self.schema
        keys = [
            row_key(prefix, encode_clustering(schema.clustering, check_clustering_key(values)))
            for values in self.restrictions.clustering_values(request)
        ]
        if self.lists_read:
            yield from ((key, row) for key in keys if (row := self._row(request, times, known.get(key, {}))))
        elif row := self._row(request, times, {}):
            yield from ((key, row) for key in keys)

    def _row(self, request: BoundRequest, times: CellTimes, known: ListElements) -> bytes:
        """The encoded row; empty if there is nothing to write."""
        row_builder = self._built_row(self.row_changes, request, times, known)
        marker = RowMarker(times.timestamp_us, times.ttl_s, times.expires_s) if self.marks_row else None
        deletion = times.deletion() if self.deletes_rows else None
        row = Row(marker=marker, deletion=deletion, cells=row_builder.cells, collections=row_builder.collections)
        return b"" if row == Row() else encode_row(row, self.schema.version, self.schema.layouts[-1])

    def _built_row(
        self, changes: Sequence[RowChange], request: BoundRequest, times: CellTimes, known: ListElements
    ) -> RowBuilder:
        row_builder = RowBuilder(times=times, known_lists=known)
        for row_builder.turn, change in enumerate(changes):
            change(row_builder, request)
        return row_builder

    # ---- times

    def _times(self, request: BoundRequest, write_time: WriteTime) -> CellTimes:
        timestamp_us = write_time.timestamp_us
        if self.timestamp is not None:
            bound_value = self.timestamp(request)
            if bound_value is None:
                raise InvalidRequest("Invalid null value of timestamp")
            if not isinstance(bound_value, Unset):
                timestamp_us = int.from_bytes(bound_value, signed=True)
                write_time.timestamps.check(timestamp_us, request.now_us)
        if timestamp_us == TIMESTAMP_MIN:
            if timestamp_us == write_time.timestamp_us and write_time.timestamps.is_clock_wrong:
                raise write_time.timestamps.clock_error()
            raise InvalidRequest(f"Out of bound timestamp, must be in [{TIMESTAMP_MIN + 1}, {(1 << 63) - 1}]")
        return CellTimes(
            timestamp_us=timestamp_us, ttl_s=self._ttl_s(request), now_s=write_time.now_s, sequence=write_time.sequence
        )

    def _ttl_s(self, request: BoundRequest) -> int:
        default_s = self.schema.options.default_ttl_s
        bound_value = self.ttl(request) if self.ttl is not None else None
        if self.ttl is None or bound_value is None or isinstance(bound_value, Unset):
            return 0 if bound_value is None and self.ttl is not None else default_s
        seconds = int.from_bytes(bound_value, signed=True)
        if seconds < 0:
            raise InvalidRequest(f"A TTL must be greater or equal to 0, but was {seconds}")
        if seconds > TTL_S_MAX:
            raise InvalidRequest(f"ttl is too large. requested ({seconds}) maximum ({TTL_S_MAX})")
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainInsert:
    """The fast path of most writes: one row, no nulls, no TTL. The stored row is built from the request's bytes."""

    schema: TableSchema
    partition: tuple[KeyValueSource, ...]
    clustering: tuple[KeyValueSource, ...]
    sources: tuple[ValueSource | None, ...]
    """In the order of the columns in the stored row."""
    marked: bool

    def mutation(self, request: BoundRequest, timestamp_us: int) -> Mutation | None:
        """None if the row is not plain after all."""
        schema = self.schema
        cells: list[bytes | None] = []
        is_empty = not self.marked
        for source in self.sources:
            value = None if source is None else source(request)
            if value is None and source is not None:
                return None
            if value is None or isinstance(value, Unset):
                cells.append(None)
            else:
                is_empty = False
                cells.append(value)
        if is_empty:
            return None
        key = check_partition_key(composite_key([part(request) for part in self.partition]))
        token = token_of(key)
        clustering = b""
        if self.clustering:
            values = check_clustering_key([part(request) for part in self.clustering])
            clustering = encode_clustering(schema.clustering, values)
        stored_key = row_key(partition_prefix(token, key), clustering)
        return Mutation(
            schema.id, token, ((stored_key, encode_plain(schema.version, timestamp_us, cells, marked=self.marked)),)
        )


# ---- compiling


def plan_modification(
    statement: Modification,
    schema: TableSchema,
    markers: tuple[BindMarker, ...],
    elements_max: int = DEFAULT_LIMITS.cql_elements_max,
    *,
    part_of_batch: bool = False,
) -> ModificationPlan:
    """Raises `InvalidRequest`. A statement of a batch may use only some of the `markers`."""
    builder = _PlanBuilder(
        schema=schema,
        binder=table_binder(schema, markers, elements_max),
        part_of_batch=part_of_batch,
    )
    match statement:
        case InsertStatement():
            return builder.insert(statement)
        case UpdateStatement():
            return builder.update(statement)
        case DeleteStatement():
            return builder.delete(statement)


@dataclass(slots=True, kw_only=True)
class _PlanBuilder:
    schema: TableSchema
    binder: Binder
    part_of_batch: bool
    row: list[RowChange] = field(default_factory=list)
    static: list[RowChange] = field(default_factory=list)
    lists: dict[int, Column] = field(default_factory=dict)
    plain_sources: dict[int, ValueSource] | None = field(default_factory=dict)
    """By column number; None once something rules out a plain row."""

    def insert(self, statement: InsertStatement) -> ModificationPlan:
        if len(statement.columns) != len(statement.values):
            raise InvalidRequest("Unmatched column names/values")
        if len(set(statement.columns)) != len(statement.columns):
            raise InvalidRequest("The column names contains duplicates")
        relations: list[Relation] = []
        for name, value in zip(statement.columns, statement.values):
            column = self._column(name)
            if column.kind in _KEYS:
                relations.append(ColumnRelation(column=name, operator=Operator.EQUAL, value=value))
            else:
                self._assign(column, value)
        self._check_inserted_key(statement.columns)
        restrictions = classify_relations(self.schema, relations, self.binder)
        self._check_key(restrictions)
        has_row = restrictions.clustering_width == len(self.schema.clustering)
        return self._plan(restrictions, statement.using, marks_row=has_row)

    def update(self, statement: UpdateStatement) -> ModificationPlan:
        for assignment in statement.assignments:
            self._change(assignment)
        restrictions = self._where(
            statement.where, "UPDATE", "Slice restrictions are not supported on the clustering columns in UPDATE"
        )
        self._check_key(restrictions)
        self._check_statics(restrictions, "UPDATE")
        return self._plan(restrictions, statement.using)

    def delete(self, statement: DeleteStatement) -> ModificationPlan:
        for deleted in statement.columns:
            column = self._value_column(
                deleted.column, "Invalid identifier {name} for deletion (should not be a PRIMARY KEY part)"
            )
            if deleted.key is None:
                self._add(column, row_changes.delete_column(column))
            else:
                self._add(column, row_changes.delete_element(column, self._key_source(column, deleted.key)))
        self.plain_sources = None
        no_slices = "Range deletions are not supported for specific columns" if statement.columns else ""
        restrictions = self._where(statement.where, "DELETE", no_slices)
        if statement.columns:
            self._check_key(restrictions)
            self._check_statics(restrictions, "DELETE")
        else:
            self._check_partition(restrictions)
        return self._plan(restrictions, statement.using, deletes_rows=not statement.columns)

    # ---- columns

    def _column(self, name: str) -> Column:
        column = self.schema.by_name.get(name)
        if column is None:
            raise InvalidRequest(f"Undefined column name {name} in table {self.schema.full_name}")
        return column

    def _value_column(self, name: str, if_key: str) -> Column:
        column = self._column(name)
        if column.kind in _KEYS:
            raise InvalidRequest(if_key.format(name=name))
        return column

    def _add(self, column: Column, change: RowChange) -> None:
        (self.static if column.kind is ColumnKind.STATIC else self.row).append(change)

    def _assign(self, column: Column, value: Term) -> None:
        source = self.binder.source(value, TermReceiver(column.name, column.type))
        self._add(column, row_changes.assign(column, source))
        if column.kind is ColumnKind.STATIC or is_multi_cell(column.type):
            self.plain_sources = None
        if self.plain_sources is not None:
            self.plain_sources[column.number] = source

    def _change(self, assignment: Assignment) -> None:
        column = self._value_column(assignment.column, "PRIMARY KEY part {name} found in SET part")
        if assignment.kind is AssignmentKind.COLUMN:
            self._assign(column, assignment.value)
            return
        self.plain_sources = None
        if assignment.key is None:
            self._change_collection(column, assignment)
            return
        source = self.binder.source(assignment.value, TermReceiver(f"value({column.name})", _element_type(column)))
        self._add(column, row_changes.assign_element(column, self._key_source(column, assignment.key), source))

    def _change_collection(self, column: Column, assignment: Assignment) -> None:
        kind, value = column.type, assignment.value
        if not is_multi_cell(kind):
            sign = "-" if assignment.kind is AssignmentKind.REMOVE else "+"
            frozen = "frozen collection" if isinstance(kind, ListType | SetType | MapType) else "non counter"
            name = column.name
            raise InvalidRequest(f"Invalid operation ({name} = {name} {sign} …) for {frozen} column {name}")
        if assignment.kind is AssignmentKind.PREPEND and not isinstance(kind, ListType):
            raise InvalidRequest(f"Invalid operation: {column.name} is a {kind}; only lists are prepended to")
        if assignment.kind is AssignmentKind.REMOVE:
            if isinstance(kind, ListType):
                self.lists[column.number] = column
            if isinstance(kind, MapType):
                kind = SetType(kind.key)
        source = self.binder.source(value, TermReceiver(column.name, kind))
        self._add(column, _COLLECTION_CHANGES[assignment.kind](column, source))

    def _key_source(self, column: Column, key: Term) -> ValueSource:
        kind = column.type
        if not is_multi_cell(kind):
            raise InvalidRequest(f"Invalid deletion operation for non collection column {column.name}")
        match kind:
            case ListType():
                self.lists[column.number] = column
                return self.binder.source(key, TermReceiver(f"idx({column.name})", SCALARS["int"]))
            case SetType(element=element):
                return self.binder.source(key, TermReceiver(f"value({column.name})", element))
            case MapType(key=key_type):
                return self.binder.source(key, TermReceiver(f"key({column.name})", key_type))
            case _:
                raise AssertionError(kind)

    # ---- keys

    def _where(self, relations: Sequence[Relation], word: str, no_slices: str) -> Restrictions:
        """`no_slices`: why the statement takes no slice of rows; empty if it does."""
        found = classify_relations(self.schema, relations, self.binder)
        if found.tokens:
            raise InvalidRequest("The token function cannot be used in WHERE clauses for UPDATE and DELETE statements")
        if any(one.operator in CONTAINS_OPERATORS for one in relations):
            raise InvalidRequest(f"Cannot use {word} with CONTAINS")
        if found.ends and no_slices:
            raise InvalidRequest(no_slices)
        if found.filters:
            self._raise_for_filters(found)
        return found

    def _raise_for_filters(self, found: Restrictions) -> None:
        names = [name for relation in found.filters for name in columns_of(relation)]
        columns = [self.schema.by_name[name] for name in names]
        others = [column.name for column in columns if column.kind not in _KEYS]
        if others:
            raise InvalidRequest(f"Invalid where clause contains non PRIMARY KEY columns: {', '.join(others)}")
        if not found.has_partition:
            sliced = [column for column in columns if column.kind is ColumnKind.PARTITION_KEY]
            missing = [one.name for one in self.schema.partition_key if one.name not in names]
            if missing or not sliced:
                raise InvalidRequest(f"Some partition key parts are missing: {', '.join(missing)}")
            raise InvalidRequest(
                "Only EQ and IN relation are supported on the partition key (unless you use the token() function)"
            )
        check_filtering(self.schema, found)

    def _check_partition(self, found: Restrictions) -> None:
        if not found.has_partition:
            restricted = {name for relation in found.filters for name in columns_of(relation)}
            missing = [column.name for column in self.schema.partition_key if column.name not in restricted]
            raise InvalidRequest(f"Some partition key parts are missing: {', '.join(missing)}")

    def _check_key(self, found: Restrictions) -> None:
        """Requires the full primary key, or the partition key if only static columns change."""
        self._check_partition(found)
        missing = self.schema.clustering[found.clustering_width :]
        if missing and (self.row or not self.static or found.clustering_width):
            raise InvalidRequest(f"Some clustering keys are missing: {', '.join(column.name for column in missing)}")

    def _check_inserted_key(self, names: Collection[str]) -> None:
        """A clustering column without one that comes before it would be a filter, and its value would be dropped."""
        missing = [column.name for column in self.schema.clustering if column.name not in names]
        if len(missing) < len(self.schema.clustering) and missing:
            raise InvalidRequest(f"Some clustering keys are missing: {', '.join(missing)}")

    def _check_statics(self, found: Restrictions, word: str) -> None:
        if self.static and not self.row and found.clustering:
            raise InvalidRequest(
                f"Invalid restrictions on clustering columns since the {word} statement modifies only static columns"
            )

    # ---- the plan

    def _plan(
        self, restrictions: Restrictions, using: UsingClause, *, marks_row: bool = False, deletes_rows: bool = False
    ) -> ModificationPlan:
        timestamp = self.binder.optional(using.timestamp, "[timestamp]", SCALARS["bigint"])
        ttl = self.binder.optional(using.ttl, "[ttl]", SCALARS["int"])
        timeout = self.binder.optional(using.timeout, "[timeout]", SCALARS["duration"])
        return ModificationPlan(
            schema=self.schema,
            variables=self.binder.variables(all_known=not self.part_of_batch),
            key_positions=restrictions.key_positions,
            restrictions=restrictions,
            row_changes=tuple(self.row),
            static_changes=tuple(self.static),
            marks_row=marks_row,
            deletes_rows=deletes_rows,
            timestamp=timestamp,
            ttl=ttl,
            timeout=timeout,
            lists_read=tuple(self.lists.values()),
            plain=self._plain_insert(restrictions, marks_row),
        )

    def _plain_insert(self, restrictions: Restrictions, marks_row: bool) -> PlainInsert | None:
        keys = row_key_sources(self.schema, restrictions)
        if self.plain_sources is None or keys is None:
            return None
        return PlainInsert(
            schema=self.schema,
            partition=keys.partition,
            clustering=keys.clustering,
            sources=tuple(self.plain_sources.get(number) for number in self.schema.layouts[-1]),
            marked=marks_row,
        )


_COLLECTION_CHANGES = {
    AssignmentKind.APPEND: row_changes.append,
    AssignmentKind.PREPEND: row_changes.prepend,
    AssignmentKind.REMOVE: row_changes.remove_elements,
}


def _element_type(column: Column) -> CqlType:
    match column.type:
        case ListType(element=element, frozen=False):
            return element
        case MapType(value=value, frozen=False):
            return value
        case _:
            raise InvalidRequest(f"Invalid element assignment for {column.name} of type {column.type}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    kind: BatchKind
    parts: tuple[ModificationPlan, ...]
    variables: tuple[ColumnSpec, ...]
    timeout: ValueSource | None


def plan_batch(
    statement: BatchStatement,
    schema_of: Callable[[TableName], TableSchema],
    markers: tuple[BindMarker, ...],
    elements_max: int = DEFAULT_LIMITS.cql_elements_max,
) -> BatchPlan:
    """Raises `InvalidRequest`."""
    using = statement.using
    parts: list[ModificationPlan] = []
    variables: list[ColumnSpec] = []
    outer = Binder(keyspace="", table="", markers=markers)
    outer.optional(using.timestamp, "[timestamp]", SCALARS["bigint"])
    timeout = outer.optional(using.timeout, "[timeout]", SCALARS["duration"])
    own = outer.variables(all_known=False)
    for one in statement.statements:
        schema = schema_of(one.table)
        plan = plan_modification(
            _with_batch_timestamp(one, statement), schema, markers, elements_max, part_of_batch=True
        )
        parts.append(plan)
        # The batch's own timestamp is a variable of every part, but counts once: it is the first marker of the text.
        shared = 1 if isinstance(using.timestamp, BindMarker) else 0
        variables += plan.variables[shared:]
    if own and parts:
        own = tuple(
            msgspec.structs.replace(spec, keyspace=parts[0].schema.keyspace, table=parts[0].schema.name) for spec in own
        )
    found = (*own, *variables)
    if len(found) != len(markers):
        raise InvalidRequest("some bind markers have no known type")
    return BatchPlan(kind=statement.kind, parts=tuple(parts), variables=found, timeout=timeout)


def _with_batch_timestamp(one: Modification, batch: BatchStatement) -> Modification:
    if batch.using.timestamp is None:
        return one
    if one.using.timestamp is not None:
        raise InvalidRequest("Timestamp must be set either on BATCH or individual statements")
    return replace(one, using=replace(one.using, timestamp=batch.using.timestamp))
