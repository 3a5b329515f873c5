"""Reading a table: the plan, made in the driver. What tasks do with it stands in `share_reader.py`, and is loaded by
them alone."""

import importlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from ebla.model.asked_rows import AskedColumn, AskedKind
from ebla.model.errors import InvalidRequest, NotFound
from ebla.model.schema import TableSchema
from ebla.source.contact import Contact
from ebla.source.errors import missing_column, missing_table
from ebla.source.options import Access, ReadOptions
from ebla.source.plan_read import Wanted, encode_share, plan_shares
from ebla.source.pushdown import Start, push
from ebla.source.shipped import Reduced, ship
from ebla.source.type_mapping import OF_ASKED, refuse_reading, spark_schema
from ebla.storage.asked_columns import answer_columns
from ebla.wire.table_access import DESCRIBE_TABLE, OPEN_READ, DescribeTableRequest, OpenReadRequest, ReadId

if TYPE_CHECKING:
    import pyarrow as pa


def describe(contact: Contact, access: Access) -> TableSchema:
    """Raises `NotFound` with names that are there."""
    try:
        request = DescribeTableRequest(access.keyspace, access.table)
        return contact.call(DESCRIBE_TABLE, request, access.timeout_s).schema
    except NotFound as error:
        raise missing_table(contact, access, error) from None


def shown_schema(options: ReadOptions) -> StructType:
    """What Spark shows of a table where the user gives no schema."""
    with Contact(options.access.contact) as contact:
        schema = describe(contact, options.access)
    return spark_schema(schema, asked_columns(schema, options))


def asked_columns(schema: TableSchema, options: ReadOptions) -> tuple[AskedColumn, ...]:
    """What is read where the user gives no schema: columns of the option or all, then what was asked for besides.
    Raises `InvalidRequest` where there is no such thing, as the write time of a key."""
    names = options.columns or tuple(column.name for column in schema.columns)
    found = [AskedColumn(_known(schema, name)) for name in names]
    found += _besides(schema, options)
    answer_columns(schema, found)
    return tuple(found)


def asked_by_schema(schema: TableSchema, options: ReadOptions, shown: StructType) -> tuple[AskedColumn, ...]:
    """The columns of a schema, in its order. Raises `NotFound` or, where types do not fit, `InvalidRequest`."""
    besides = {one.label: one for one in _besides(schema, options)}
    found, wrong = [], []
    for field in shown:
        special = besides.get(field.name)
        if special is not None:
            found.append(special)
            fits = type(field.dataType) is type(OF_ASKED[special.kind])
            reason = None if fits else f"it is a {OF_ASKED[special.kind].simpleString()}"
        else:
            name = _matching(schema, field.name, (*schema.by_name, *besides))
            found.append(AskedColumn(name, shown_as="" if name == field.name else field.name))
            reason = refuse_reading(schema.column(name).type, field.dataType)
        if reason is not None:
            wrong.append(f"{field.name}: {reason}")
    if wrong:
        raise InvalidRequest(f"the schema given for {schema.full_name} does not fit ({'; '.join(wrong)})")
    answer_columns(schema, found)
    return tuple(found)


def _besides(schema: TableSchema, options: ReadOptions) -> list[AskedColumn]:
    found = [AskedColumn("", AskedKind.TOKEN, options.token)] if options.token else []
    written = (
        AskedColumn(_known(schema, name), AskedKind.WRITETIME, f"{name}_writetime") for name in options.writetimes
    )
    living = (AskedColumn(_known(schema, name), AskedKind.TTL, f"{name}_ttl") for name in options.ttls)
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
        with Contact(options.access.contact) as contact:
            self._schema = describe(contact, options.access)
        self._asked = asked_by_schema(self._schema, options, shown)
        self._start = _start_of(self._schema, options.where)
        self._pushed = push(self._schema, self._asked, (), self._start)

    def partitions(self) -> Sequence[InputPartition]:
        access, pushed = self._options.access, self._pushed
        wanted = Wanted(
            self._asked,
            pushed.conditions,
            pushed.ranges,
            pushed.partitions,
            self._options.split_bytes,
            access.uses_short_cut,
        )
        if wanted.is_nothing:
            return []
        request = OpenReadRequest(
            ReadId(uuid.uuid4()), self._schema.id, access.level, pushed.ranges or (), self._options.life_ms
        )
        with Contact(access.contact) as contact:
            plan = contact.call(OPEN_READ, request, access.timeout_s)
        return [InputPartition(encode_share(share)) for share in plan_shares(plan, wanted)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        reader: Any = importlib.import_module("ebla.source.share_reader").ShareReader(self._shown.json())
        found: Iterator[pa.RecordBatch] = reader.read(partition)
        return found

    def __reduce__(self) -> Reduced:
        return ship("ebla.source.share_reader", "ShareReader", self._shown.json())


def _start_of(schema: TableSchema, where: str) -> Start:
    """The parser of CQL is loaded for those who give conditions."""
    if not where:
        return Start()
    found: Start = importlib.import_module("ebla.source.given_where").parse_where(schema, where)
    return found


class PushingReader(TableReader):
    """Where the user asks for it, and Spark too: a reader with this method is refused by one whose setting is off.

    Spark 4.3 keeps one plan for each `load()`, the last that was made, and runs all scans of it by that: a frame that
    is filtered twice in a query, or used again in another one, gets rows by the wrong filter. Nothing here can tell.
    So filters are taken only by the user's word; `where` has no such trap, since it belongs to the `load()`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        self._pushed = push(self._schema, self._asked, filters, self._start)
        return self._pushed.left
