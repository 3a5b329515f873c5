"""CREATE statements for existing keyspaces and tables. Pure."""

import re

from ebla.cql.parse.token_stream import RESERVED_WORDS
from ebla.cql.plan.schema_plan import as_cql
from ebla.cql.system_tables.schema_tables import replication_map, table_row
from ebla.model.schema import ColumnKind, TableSchema
from ebla.topology.snapshot import Keyspace

_PLAIN = re.compile(r"[a-z][a-z0-9_]*")
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


def quote_name(name: str) -> str:
    """A name, quoted if CQL requires it."""
    if _PLAIN.fullmatch(name) and name.upper() not in RESERVED_WORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


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
