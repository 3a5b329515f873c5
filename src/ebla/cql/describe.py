"""DESCRIBE: lists schema elements, and the statements that would create them. Pure."""

from collections.abc import Iterable, Sequence

import msgspec

from ebla.cql.catalog import Catalog
from ebla.cql.parse.statements import DescribeStatement, DescribeTarget
from ebla.cql.parse.token_stream import quote_name
from ebla.cql.plan.table_options import as_cql, quote_text
from ebla.cql.system_tables.node_info import PARTITIONER
from ebla.cql.system_tables.schema_tables import replication_map, table_row
from ebla.model.cql_types import SCALARS
from ebla.model.errors import InvalidRequest, NotFound
from ebla.model.schema import Column, ColumnKind, TableSchema, sort_columns
from ebla.topology.snapshot import Keyspace
from ebla.wire.cql.messages import ColumnSpec, Rows

_SHOWN_OPTIONS = (
    "additional_write_policy",
    "bloom_filter_fp_chance",
    "caching",
    "compaction",
    "compression",
    "crc_check_chance",
    "max_index_interval",
    "memtable_flush_period_in_ms",
    "min_index_interval",
    "read_repair",
    "speculative_retry",
)


def create_keyspace_statement(keyspace: Keyspace) -> str:
    replication = as_cql(replication_map(keyspace))
    durable = str(keyspace.durable_writes).lower()
    tablets = f"{{'enabled': {str(keyspace.on_tablets).lower()}}}"
    if keyspace.on_tablets and keyspace.initial_tablets:
        tablets = f"{{'enabled': true, 'initial': {keyspace.initial_tablets}}}"
    return (
        f"CREATE KEYSPACE {quote_name(keyspace.name)} WITH replication = {replication} AND durable_writes = {durable} "
        f"AND tablets = {tablets};"
    )


def create_table_statement(schema: TableSchema, *, is_virtual: bool = False, with_internals: bool = False) -> str:
    """`with_internals`: also the id, and the columns that were dropped, with the statements that drop them."""
    name = f"{quote_name(schema.keyspace)}.{quote_name(schema.name)}"
    dropped = schema.dropped if with_internals else ()
    lines = ",\n    ".join(_column_lines(_with_dropped(schema, dropped)))
    options = "\n    AND ".join(_option_texts(schema, is_virtual=is_virtual, with_id=with_internals))
    text = f"CREATE TABLE {name} (\n    {lines}\n) WITH {options};"
    for column in dropped:
        text += f"\nALTER TABLE {name} DROP {quote_name(column.name)};"
        if (again := schema.by_name.get(column.name)) is not None:
            text += f"\nALTER TABLE {name} ADD {_column_line(again)};"
    return (
        f"/*\nWarning: Table {name} is a virtual table and cannot be recreated with CQL.\n{text}\n*/"
        if is_virtual
        else text
    )


def _with_dropped(schema: TableSchema, dropped: Sequence[Column]) -> TableSchema:
    """With these columns, instead of those that have their names now."""
    names = [column.name for column in dropped]
    kept = [column for column in schema.columns if column.name not in names]
    return msgspec.structs.replace(schema, columns=sort_columns((*kept, *dropped)))


def _column_line(column: Column) -> str:
    static = " static" if column.kind is ColumnKind.STATIC else ""
    return f"{quote_name(column.name)} {column.type}{static}"


def _column_lines(schema: TableSchema) -> list[str]:
    alone = len(schema.partition_key) == 1 and not schema.clustering
    lines = []
    for column in schema.columns:
        line = _column_line(column)
        if alone and column.kind is ColumnKind.PARTITION_KEY:
            line += " PRIMARY KEY"
        lines.append(line)
    if not alone:
        partition = ", ".join(quote_name(column.name) for column in schema.partition_key)
        if len(schema.partition_key) > 1:
            partition = f"({partition})"
        key = ", ".join([partition, *(quote_name(column.name) for column in schema.clustering)])
        lines.append(f"PRIMARY KEY ({key})")
    return lines


def _option_texts(schema: TableSchema, *, is_virtual: bool, with_id: bool) -> list[str]:
    texts: list[str] = []
    if with_id:
        texts.append(f"ID = {schema.id}")
    if schema.clustering:
        order = ", ".join(
            f"{quote_name(column.name)} {'DESC' if column.descending else 'ASC'}" for column in schema.clustering
        )
        texts.append(f"CLUSTERING ORDER BY ({order})")
    options = schema.options
    texts.append(f"comment = {quote_text(options.comment)}")
    if is_virtual:
        return texts
    defaults = table_row(schema)
    options_set = dict(options.others)
    all_options = {option: options_set.get(option) or _option_value(defaults[option]) for option in _SHOWN_OPTIONS}
    all_options |= {option: text for option, text in options_set.items() if option != "id"}
    all_options["default_time_to_live"] = str(options.default_ttl_s)
    all_options["gc_grace_seconds"] = str(options.gc_grace_s)
    all_options["tombstone_gc"] = as_cql(
        {"mode": str(options.tombstone_gc), "propagation_delay_in_seconds": str(options.propagation_s)}
    )
    return texts + [f"{option} = {text}" for option, text in sorted(all_options.items())]


def _option_value(value: object) -> str:
    if isinstance(value, dict):
        return as_cql(value)
    if isinstance(value, str):
        return quote_text(value)
    return str(value)


_TEXT = SCALARS["text"]
Entry = tuple[str | None, ...]
"""Keyspace, kind, name, and the CREATE statement if it is shown."""

_LISTS = (
    DescribeTarget.KEYSPACES,
    DescribeTarget.TABLES,
    DescribeTarget.TYPES,
    DescribeTarget.FUNCTIONS,
    DescribeTarget.AGGREGATES,
)
"""They show names, all others also statements."""
_UNSUPPORTED = {
    DescribeTarget.TYPE: "User defined type",
    DescribeTarget.FUNCTION: "User defined function",
    DescribeTarget.AGGREGATE: "User defined aggregate",
    DescribeTarget.INDEX: "Table for existing index",
    DescribeTarget.VIEW: "Materialized view",
}


def describe(statement: DescribeStatement, catalog: Catalog, current_keyspace: str | None, cluster_name: str) -> Rows:
    if statement.target is DescribeTarget.CLUSTER:
        values = (cluster_name, PARTITIONER, "org.apache.cassandra.locator.SimpleSnitch")
        return _rows("cluster", ("cluster", "partitioner", "snitch"), [values])
    names = ("keyspace_name", "type", "name", *(() if statement.target in _LISTS else ("create_statement",)))
    return _rows("describe", names, _SchemaReader(statement, catalog, current_keyspace).entries())


def _rows(table: str, names: tuple[str, ...], entries: Iterable[Entry]) -> Rows:
    columns = tuple(ColumnSpec(keyspace="system", table=table, name=name, type=_TEXT) for name in names)
    return Rows(columns, [[None if text is None else text.encode() for text in entry] for entry in entries])


class _SchemaReader:
    def __init__(self, statement: DescribeStatement, catalog: Catalog, current_keyspace: str | None) -> None:
        self.statement = statement
        self.catalog = catalog
        self.current_keyspace = current_keyspace

    @property
    def keyspaces(self) -> list[str]:
        mine = set(self.catalog.view.snapshot.keyspaces)
        return sorted({*mine, *(keyspace for keyspace, _ in self.catalog.virtual)})

    def tables(self, *keyspaces: str) -> list[TableSchema]:
        known = [*self.catalog.view.schemas.values(), *(one.schema for one in self.catalog.virtual.values())]
        found = [one for one in known if one.keyspace in keyspaces]
        return sorted(found, key=lambda one: (one.keyspace, one.name))

    def entries(self) -> list[Entry]:
        statement = self.statement
        match statement.target:
            case DescribeTarget.KEYSPACES:
                return [(quote_name(name), "keyspace", quote_name(name)) for name in self.keyspaces]
            case DescribeTarget.TABLES:
                names = self.keyspaces if self.current_keyspace is None else [self.current_keyspace]
                return [(quote_name(one.keyspace), "table", quote_name(one.name)) for one in self.tables(*names)]
            case DescribeTarget.TYPES | DescribeTarget.FUNCTIONS | DescribeTarget.AGGREGATES:
                return []
            case DescribeTarget.KEYSPACE:
                return self.keyspace_entries(self.keyspace_named())
            case DescribeTarget.ONLY_KEYSPACE:
                return [self.keyspace_entry(self.keyspace_named())]
            case DescribeTarget.SCHEMA:
                return self.keyspace_entries(*sorted(self.catalog.view.snapshot.keyspaces))
            case DescribeTarget.FULL_SCHEMA:
                return self.keyspace_entries(*self.keyspaces)
            case DescribeTarget.TABLE:
                found = self.named_table()
                if found is None:
                    raise NotFound(f"Table '{statement.name}' not found in keyspace '{self.keyspace_named()}'")
                return [found]
            case DescribeTarget.ANY:
                return self.anything()
            case _:
                named = f"'{statement.name}' not found in keyspace '{statement.keyspace or self.current_keyspace}'"
                raise NotFound(f"{_UNSUPPORTED[statement.target]} {named}")

    def anything(self) -> list[Entry]:
        """A bare name: a keyspace takes precedence over a table, as in Cassandra."""
        name = self.statement.name
        if self.statement.keyspace is None and name in self.keyspaces:
            return self.keyspace_entries(name)
        found = self.named_table()
        if found is None:
            where = f" in keyspace '{self.current_keyspace}'" if self.current_keyspace else " in keyspaces"
            raise NotFound(f"'{name}' not found{where}")
        return [found]

    def named_table(self) -> Entry | None:
        keyspace = self.statement.keyspace or self.current_keyspace
        tables = () if keyspace is None else self.tables(keyspace)
        return next((self.table_entry(one) for one in tables if one.name == self.statement.name), None)

    def keyspace_entries(self, *names: str) -> list[Entry]:
        """With their tables."""
        return [
            entry
            for name in names
            for entry in (self.keyspace_entry(name), *(self.table_entry(one) for one in self.tables(name)))
        ]

    def table_entry(self, schema: TableSchema) -> Entry:
        is_virtual = (schema.keyspace, schema.name) in self.catalog.virtual
        text = create_table_statement(schema, is_virtual=is_virtual, with_internals=self.statement.with_internals)
        return quote_name(schema.keyspace), "table", quote_name(schema.name), text

    def keyspace_entry(self, name: str) -> Entry:
        keyspace = self.catalog.view.snapshot.keyspaces.get(name)
        text = f"/*\nWarning: Keyspace {name} is a virtual keyspace and cannot be recreated with CQL.\n*/"
        if keyspace is not None:
            text = create_keyspace_statement(keyspace)
        return quote_name(name), "keyspace", quote_name(name), text

    def keyspace_named(self) -> str:
        name = self.statement.keyspace or self.current_keyspace
        if name is None:
            raise InvalidRequest("No keyspace specified and no current keyspace")
        if name not in self.keyspaces:
            raise NotFound(f"'{name}' not found in keyspaces")
        return name
