"""Reading a table, in the driver: the plan. What tasks do with it is in `split_reader.py`, which only tasks import."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from ebla.model.errors import InvalidRequest
from ebla.model.schema import TableSchema
from ebla.model.selection import ColumnSelector, SelectorKind
from ebla.source.code_shipping import ReduceValue, ship
from ebla.source.contact_points import CqlClient
from ebla.source.options import ReadOptions
from ebla.source.read.planner import KeyRestrictions, ReadSpec, encode_split, plan_splits
from ebla.source.read.pushdown import push_filters
from ebla.source.spark_types import METADATA_TYPES, read_mismatch, spark_schema
from ebla.source.suggestions import describe_table, find_column, missing_column
from ebla.storage.scan.scan_columns import resolve_selectors
from ebla.wire.table_calls import OPEN_READ, OpenReadRequest, ReadId

if TYPE_CHECKING:
    import pyarrow as pa


def infer_schema(options: ReadOptions) -> StructType:
    """The schema Spark shows where the user gives none."""
    with CqlClient(options.access.contact) as client:
        schema = describe_table(client, options.access).schema
    return spark_schema(schema, requested_columns(schema, options))


def requested_columns(schema: TableSchema, options: ReadOptions) -> tuple[ColumnSelector, ...]:
    """What is read where the user gives no schema: the columns of the option or all, then tokens, write times and TTLs.
    Raises `InvalidRequest` for what does not exist, such as the write time of a key."""
    names = options.columns or tuple(column.name for column in schema.columns)
    selectors = [ColumnSelector(_known(schema, name)) for name in names]
    selectors += _metadata_selectors(schema, options)
    resolve_selectors(schema, selectors)
    return tuple(selectors)


def columns_for_schema(schema: TableSchema, options: ReadOptions, shown: StructType) -> tuple[ColumnSelector, ...]:
    """The columns of a schema, in its order. Raises `NotFound` or, where types do not fit, `InvalidRequest`."""
    metadata = {one.label: one for one in _metadata_selectors(schema, options)}
    selectors, mismatches = [], []
    for field in shown:
        special = metadata.get(field.name)
        if special is not None:
            selectors.append(special)
            fits = type(field.dataType) is type(METADATA_TYPES[special.kind])
            reason = None if fits else f"it is a {METADATA_TYPES[special.kind].simpleString()}"
        else:
            column = find_column(schema, field.name, (*schema.by_name, *metadata))
            selectors.append(ColumnSelector(column.name, alias="" if column.name == field.name else field.name))
            reason = read_mismatch(column.type, field.dataType)
        if reason is not None:
            mismatches.append(f"{field.name}: {reason}")
    if mismatches:
        raise InvalidRequest(f"the schema given for {schema.full_name} does not fit ({'; '.join(mismatches)})")
    resolve_selectors(schema, selectors)
    return tuple(selectors)


def _metadata_selectors(schema: TableSchema, options: ReadOptions) -> list[ColumnSelector]:
    tokens = [ColumnSelector("", SelectorKind.TOKEN, options.token)] if options.token else []
    write_times = (
        ColumnSelector(_known(schema, name), SelectorKind.WRITETIME, f"{name}_writetime") for name in options.writetimes
    )
    ttls = (ColumnSelector(_known(schema, name), SelectorKind.TTL, f"{name}_ttl") for name in options.ttls)
    return [*tokens, *write_times, *ttls]


def _known(schema: TableSchema, name: str) -> str:
    if name not in schema.by_name:
        raise missing_column(schema.full_name, name, schema.by_name)
    return name


class TableReader(DataSourceReader):
    """In the driver. Tasks get a `SplitReader` instead: they need neither options nor contact points."""

    def __init__(self, options: ReadOptions, shown: StructType) -> None:
        self._options = options
        self._shown = shown
        with CqlClient(options.access.contact) as client:
            self._schema = describe_table(client, options.access).schema
        self._columns = columns_for_schema(self._schema, options, shown)
        self._base = _base_conditions(self._schema, options.where)
        self._pushed = push_filters(self._schema, self._columns, (), self._base)

    def partitions(self) -> Sequence[InputPartition]:
        access, pushed = self._options.access, self._pushed
        spec = ReadSpec(
            columns=self._columns,
            conditions=pushed.conditions,
            ranges=pushed.ranges,
            partitions=pushed.partitions,
            split_bytes=self._options.split_bytes,
            uses_local_files=access.uses_local_files,
        )
        if spec.is_empty:
            return []
        request = OpenReadRequest(
            read=ReadId(uuid.uuid4()),
            table=self._schema.id,
            level=access.level,
            ranges=pushed.ranges or (),
            life_ms=self._options.life_ms,
        )
        with CqlClient(access.contact) as client:
            plan = client.call(OPEN_READ, request, access.timeout_s)
        return [InputPartition(encode_split(split)) for split in plan_splits(plan, spec)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        # Imports Arrow, which takes longer than a plan.
        from ebla.source.read.split_reader import SplitReader

        return SplitReader(self._shown.json()).read(partition)

    def __reduce__(self) -> ReduceValue:
        return ship("ebla.source.read.split_reader", "SplitReader", self._shown.json())


def _base_conditions(schema: TableSchema, where: str) -> KeyRestrictions:
    if not where:
        return KeyRestrictions()
    # Imports the CQL parser, which only reads with conditions need.
    from ebla.source.read.where_option import parse_where

    return parse_where(schema, where)


class PushdownReader(TableReader):
    """Used where both the user and Spark's settings ask for it: Spark refuses a reader with this method while its
    setting is off.

    Spark 4.3 keeps one plan for each `load()`, the last one made, and uses it for all scans of that frame. A frame that
    is filtered twice in a query, or used again in another query, gets rows by the wrong filter, and a reader cannot
    notice. So filters are pushed down only where the user opts in. `where` has no such trap: it belongs to the
    `load()`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        self._pushed = push_filters(self._schema, self._columns, filters, self._base)
        return self._pushed.left
