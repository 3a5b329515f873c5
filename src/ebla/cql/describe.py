"""DESCRIBE: lists schema elements, and the statements that would create them. Pure."""

from collections.abc import Callable, Iterable, Iterator

from ebla.cql.catalog import Catalog
from ebla.cql.parse.statements import DescribeStatement, DescribeTarget
from ebla.cql.parse.token_stream import quote_name
from ebla.cql.plan.schema_plan import as_cql
from ebla.cql.system_tables.node_info import PARTITIONER
from ebla.cql.system_tables.schema_tables import replication_map, table_row
from ebla.model.cql_types import SCALARS
from ebla.model.errors import InvalidRequest, NotFound
from ebla.model.schema import ColumnKind, TableSchema
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


def create_table_statement(schema: TableSchema, *, is_virtual: bool = False, with_id: bool = False) -> str:
    name = f"{quote_name(schema.keyspace)}.{quote_name(schema.name)}"
    lines = ",\n    ".join(_column_lines(schema))
    options = "\n    AND ".join(_option_texts(schema, is_virtual=is_virtual, with_id=with_id))
    text = f"CREATE TABLE {name} (\n    {lines}\n) WITH {options};"
    return (
        f"/*\nWarning: Table {name} is a virtual table and cannot be recreated with CQL.\n{text}\n*/"
        if is_virtual
        else text
    )


def _column_lines(schema: TableSchema) -> list[str]:
    alone = len(schema.partition_key) == 1 and not schema.clustering
    lines = []
    for column in schema.columns:
        line = f"{quote_name(column.name)} {column.type}"
        if column.kind is ColumnKind.STATIC:
            line += " static"
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
    texts.append(f"comment = {_text(options.comment)}")
    if is_virtual:
        return texts
    defaults = table_row(schema)
    options_set = dict(options.others)
    all_options = {option: options_set.get(option) or _option_value(defaults[option]) for option in _SHOWN_OPTIONS}
    all_options |= {option: text for option, text in options_set.items() if option != "id"}
    all_options["default_time_to_live"] = str(options.default_ttl_s)
    all_options["gc_grace_seconds"] = str(options.gc_grace_s)
    all_options["tombstone_gc"] = f"{{'mode': '{options.tombstone_gc}'}}"
    return texts + [f"{option} = {text}" for option, text in sorted(all_options.items())]


def _option_value(value: object) -> str:
    if isinstance(value, dict):
        return as_cql(value)
    if isinstance(value, str):
        return _text(value)
    return str(value)


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_TEXT = SCALARS["text"]
Entry = tuple[str | None, ...]
"""Keyspace, kind, name, and the CREATE statement if it is shown."""

_NOUNS = {
    DescribeTarget.TYPE: "User defined type",
    DescribeTarget.FUNCTION: "User defined function",
    DescribeTarget.AGGREGATE: "User defined aggregate",
    DescribeTarget.INDEX: "Table for existing index",
    DescribeTarget.VIEW: "Materialized view",
}


class SchemaDescriber:
    def __init__(self, cluster_name: str) -> None:
        self._cluster_name = cluster_name

    def __call__(self, statement: DescribeStatement, catalog: Catalog, current_keyspace: str | None) -> Rows:
        work = _WORK.get(statement.target)
        if statement.target is DescribeTarget.CLUSTER:
            names = ("cluster", "partitioner", "snitch")
            values = (self._cluster_name, PARTITIONER, "org.apache.cassandra.locator.SimpleSnitch")
            return _rows("cluster", names, [values])
        if work is None:
            named = f"'{statement.name}' not found in keyspace '{statement.keyspace or current_keyspace}'"
            raise NotFound(f"{_NOUNS[statement.target]} {named}")
        shows_text, entries = work
        names = ("keyspace_name", "type", "name", *(("create_statement",) if shows_text else ()))
        found = list(entries(_SchemaReader(statement, catalog, current_keyspace)))
        return _rows("describe", names, [entry[: len(names)] for entry in found])


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

    def tables(self, keyspace: str) -> list[TableSchema]:
        stored = [one for one in self.catalog.view.schemas.values() if one.keyspace == keyspace]
        virtual = [one.schema for (name, _), one in self.catalog.virtual.items() if name == keyspace]
        return sorted([*stored, *virtual], key=lambda one: one.name)

    def table_entry(self, schema: TableSchema) -> Entry:
        is_virtual = (schema.keyspace, schema.name) in self.catalog.virtual
        text = create_table_statement(schema, is_virtual=is_virtual, with_id=self.statement.with_internals)
        return quote_name(schema.keyspace), "table", quote_name(schema.name), text

    def keyspace_entry(self, name: str) -> Entry:
        keyspace = self.catalog.view.snapshot.keyspaces.get(name)
        if keyspace is None:
            text = f"/*\nWarning: Keyspace {name} is a virtual keyspace and cannot be recreated with CQL.\n*/"
            return quote_name(name), "keyspace", quote_name(name), text
        return quote_name(name), "keyspace", quote_name(name), create_keyspace_statement(keyspace)

    def keyspace_named(self) -> str:
        name = self.statement.keyspace or self.current_keyspace
        if name is None:
            raise InvalidRequest("No keyspace specified and no current keyspace")
        if name not in self.keyspaces:
            raise NotFound(f"'{name}' not found in keyspaces")
        return name


def _keyspaces(reader: _SchemaReader) -> Iterator[Entry]:
    return ((quote_name(name), "keyspace", quote_name(name)) for name in reader.keyspaces)


def _tables(reader: _SchemaReader) -> Iterator[Entry]:
    names = [reader.current_keyspace] if reader.current_keyspace is not None else reader.keyspaces
    return ((quote_name(name), "table", quote_name(one.name)) for name in names for one in reader.tables(name))


def _none(_reader: _SchemaReader) -> Iterator[Entry]:
    return iter(())


def _keyspace(reader: _SchemaReader) -> Iterator[Entry]:
    name = reader.keyspace_named()
    yield reader.keyspace_entry(name)
    for schema in reader.tables(name):
        yield reader.table_entry(schema)


def _only_keyspace(reader: _SchemaReader) -> Iterator[Entry]:
    yield reader.keyspace_entry(reader.keyspace_named())


def _schema(reader: _SchemaReader) -> Iterator[Entry]:
    for name in sorted(reader.catalog.view.snapshot.keyspaces):
        yield reader.keyspace_entry(name)
        for schema in reader.tables(name):
            yield reader.table_entry(schema)


def _full_schema(reader: _SchemaReader) -> Iterator[Entry]:
    for name in reader.keyspaces:
        yield reader.keyspace_entry(name)
        for schema in reader.tables(name):
            yield reader.table_entry(schema)


def _table(reader: _SchemaReader) -> Iterator[Entry]:
    found = _find_table(reader)
    if found is None:
        keyspace = reader.keyspace_named()
        raise NotFound(f"Table '{reader.statement.name}' not found in keyspace '{keyspace}'")
    yield reader.table_entry(found)


def _find_table(reader: _SchemaReader) -> TableSchema | None:
    keyspace = reader.statement.keyspace or reader.current_keyspace
    if keyspace is None:
        return None
    return next((one for one in reader.tables(keyspace) if one.name == reader.statement.name), None)


def _anything(reader: _SchemaReader) -> Iterator[Entry]:
    """A bare name: a keyspace takes precedence over a table, as in Cassandra."""
    name = reader.statement.name
    if reader.statement.keyspace is None and name in reader.keyspaces:
        yield reader.keyspace_entry(name)
        for schema in reader.tables(name):
            yield reader.table_entry(schema)
        return
    found = _find_table(reader)
    if found is None:
        where = f" in keyspace '{reader.current_keyspace}'" if reader.current_keyspace else " in keyspaces"
        raise NotFound(f"'{name}' not found{where}")
    yield reader.table_entry(found)


_WORK: dict[DescribeTarget, tuple[bool, Callable[[_SchemaReader], Iterator[Entry]]]] = {
    DescribeTarget.KEYSPACES: (False, _keyspaces),
    DescribeTarget.TABLES: (False, _tables),
    DescribeTarget.TYPES: (False, _none),
    DescribeTarget.FUNCTIONS: (False, _none),
    DescribeTarget.AGGREGATES: (False, _none),
    DescribeTarget.KEYSPACE: (True, _keyspace),
    DescribeTarget.ONLY_KEYSPACE: (True, _only_keyspace),
    DescribeTarget.SCHEMA: (True, _schema),
    DescribeTarget.FULL_SCHEMA: (True, _full_schema),
    DescribeTarget.TABLE: (True, _table),
    DescribeTarget.ANY: (True, _anything),
}
"""By target: whether statements are shown, and how the entries are found."""
