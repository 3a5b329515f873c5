"""Reading a table: the plan, made in the driver. What tasks do with it stands in `share_reader.py`, and is loaded by
them alone."""

import importlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from ebla.model.errors import InvalidRequest, NotFound
from ebla.model.schema import TableSchema
from ebla.model.selection import ColumnSelector, SelectorKind
from ebla.source.code_shipping import ReduceValue, ship
from ebla.source.contact_points import CqlClient
from ebla.source.options import ReadOptions, TableAccess
from ebla.source.read.planner import ReadSpec, encode_split, plan_splits
from ebla.source.read.pushdown import BaseConditions, push_filters
from ebla.source.spark_types import METADATA_TYPES, read_mismatch, spark_schema
from ebla.source.suggestions import missing_column, missing_table
from ebla.storage.scan.scan_columns import resolve_selectors
from ebla.wire.table_calls import DESCRIBE_TABLE, OPEN_READ, DescribeTableRequest, OpenReadRequest, ReadId

if TYPE_CHECKING:
    import pyarrow as pa


def describe(contact: CqlClient, access: TableAccess) -> TableSchema:
    """Raises `NotFound` with names that are there."""
    try:
        request = DescribeTableRequest(access.keyspace, access.table)
        return contact.call(DESCRIBE_TABLE, request, access.timeout_s).schema
    except NotFound as error:
        raise missing_table(contact, access, error) from None


def infer_schema(options: ReadOptions) -> StructType:
    """What Spark shows of a table where the user gives no schema."""
    with CqlClient(options.access.contact) as contact:
        schema = describe(contact, options.access)
    return spark_schema(schema, requested_columns(schema, options))


def requested_columns(schema: TableSchema, options: ReadOptions) -> tuple[ColumnSelector, ...]:
    """What is read where the user gives no schema: columns of the option or all, then what was asked for besides.
    Raises `InvalidRequest` where there is no such thing, as the write time of a key."""
    names = options.columns or tuple(column.name for column in schema.columns)
    found = [ColumnSelector(_known(schema, name)) for name in names]
    found += _besides(schema, options)
    resolve_selectors(schema, found)
    return tuple(found)


def columns_for_schema(schema: TableSchema, options: ReadOptions, shown: StructType) -> tuple[ColumnSelector, ...]:
    """The columns of a schema, in its order. Raises `NotFound` or, where types do not fit, `InvalidRequest`."""
    besides = {one.label: one for one in _besides(schema, options)}
    found, wrong = [], []
    for field in shown:
        special = besides.get(field.name)
        if special is not None:
            found.append(special)
            fits = type(field.dataType) is type(METADATA_TYPES[special.kind])
            reason = None if fits else f"it is a {METADATA_TYPES[special.kind].simpleString()}"
        else:
            name = _matching(schema, field.name, (*schema.by_name, *besides))
            found.append(ColumnSelector(name, alias="" if name == field.name else field.name))
            reason = read_mismatch(schema.column(name).type, field.dataType)
        if reason is not None:
            wrong.append(f"{field.name}: {reason}")
    if wrong:
        raise InvalidRequest(f"the schema given for {schema.full_name} does not fit ({'; '.join(wrong)})")
    resolve_selectors(schema, found)
    return tuple(found)


def _besides(schema: TableSchema, options: ReadOptions) -> list[ColumnSelector]:
    found = [ColumnSelector("", SelectorKind.TOKEN, options.token)] if options.token else []
    written = (
        ColumnSelector(_known(schema, name), SelectorKind.WRITETIME, f"{name}_writetime") for name in options.writetimes
    )
    living = (ColumnSelector(_known(schema, name), SelectorKind.TTL, f"{name}_ttl") for name in options.ttls)
    return [*found, *written, *living]


def _known(schema: TableSchema, name: str) -> str:
    if name not in schema.by_name:
        raise missing_column(schema.full_name, name, schema.by_name)
    return name


def _matching(schema: TableSchema, name: str, known: Iterable[str]) -> str:
    """As it is, or, since Spark's names have no case, the one that differs by that alone."""
    if name in schema.by_name:
        return name
    alike = [other for other in schema.by_name if other.lower() == name.lower()]
    if len(alike) != 1:
        raise missing_column(schema.full_name, name, known)
    return alike[0]


class TableReader(DataSourceReader):
    """In the driver. To tasks it goes as a `ShareReader`: they need neither options nor contacts."""

    def __init__(self, options: ReadOptions, shown: StructType) -> None:
        self._options = options
        self._shown = shown
        with CqlClient(options.access.contact) as contact:
            self._schema = describe(contact, options.access)
        self._asked = columns_for_schema(self._schema, options, shown)
        self._start = _start_of(self._schema, options.where)
        self._pushed = push_filters(self._schema, self._asked, (), self._start)

    def partitions(self) -> Sequence[InputPartition]:
        access, pushed = self._options.access, self._pushed
        wanted = ReadSpec(
            columns=self._asked,
            conditions=pushed.conditions,
            ranges=pushed.ranges,
            partitions=pushed.partitions,
            split_bytes=self._options.split_bytes,
            uses_local_files=access.uses_local_files,
        )
        if wanted.is_empty:
            return []
        request = OpenReadRequest(
            read=ReadId(uuid.uuid4()),
            table=self._schema.id,
            level=access.level,
            ranges=pushed.ranges or (),
            life_ms=self._options.life_ms,
        )
        with CqlClient(access.contact) as contact:
            plan = contact.call(OPEN_READ, request, access.timeout_s)
        return [InputPartition(encode_split(share)) for share in plan_splits(plan, wanted)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        reader: Any = importlib.import_module("ebla.source.read.split_reader").ShareReader(self._shown.json())
        found: Iterator[pa.RecordBatch] = reader.read(partition)
        return found

    def __reduce__(self) -> ReduceValue:
        return ship("ebla.source.read.split_reader", "ShareReader", self._shown.json())


def _start_of(schema: TableSchema, where: str) -> BaseConditions:
    """The parser of CQL is loaded for those who give conditions."""
    if not where:
        return BaseConditions()
    found: BaseConditions = importlib.import_module("ebla.source.read.where_option").parse_where(schema, where)
    return found


class PushdownReader(TableReader):
    """Where the user asks for it, and Spark too: a reader with this method is refused by one whose setting is off.

    Spark 4.3 keeps one plan for each `load()`, the last that was made, and runs all scans of it by that: a frame that
    is filtered twice in a query, or used again in another one, gets rows by the wrong filter. Nothing here can tell.
    So filters are taken only by the user's word; `where` has no such trap, since it belongs to the `load()`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        self._pushed = push_filters(self._schema, self._asked, filters, self._start)
        return self._pushed.left
