"""The schema, as drivers and cqlsh read it, with the system tables."""

from collections.abc import Iterable, Mapping
from functools import partial

from ebla.cql.catalog import VirtualTable, VirtualTables
from ebla.cql.parse.lexer import TokenKind, tokenize
from ebla.cql.system_tables.node_info import SystemTableSources
from ebla.cql.system_tables.node_tables import NODE_TABLES
from ebla.cql.system_tables.table_definition import SystemRow, SystemTable, empty_table, system_table
from ebla.cql.system_tables.topology_tables import TOPOLOGY_TABLES
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.topology.snapshot import Keyspace
from ebla.topology.states import Strategy

_EMPTY_TABLES = (
    "CREATE TABLE system_virtual_schema.keyspaces (keyspace_name text PRIMARY KEY)",
    """CREATE TABLE system_virtual_schema.tables (
        keyspace_name text, table_name text, comment text, PRIMARY KEY (keyspace_name, table_name))""",
    """CREATE TABLE system_virtual_schema.columns (
        keyspace_name text, table_name text, column_name text, clustering_order text, column_name_bytes blob, kind text,
        position int, type text, PRIMARY KEY (keyspace_name, table_name, column_name))""",
    """CREATE TABLE system_schema.types (
        keyspace_name text, type_name text, field_names frozen<list<text>>, field_types frozen<list<text>>,
        PRIMARY KEY (keyspace_name, type_name))""",
    """CREATE TABLE system_schema.functions (
        keyspace_name text, function_name text, argument_types frozen<list<text>>,
        argument_names frozen<list<text>>, body text, called_on_null_input boolean, language text,
        return_type text, PRIMARY KEY (keyspace_name, function_name, argument_types))""",
    """CREATE TABLE system_schema.aggregates (
        keyspace_name text, aggregate_name text, argument_types frozen<list<text>>, final_func text,
        initcond text, return_type text, state_func text, state_type text,
        PRIMARY KEY (keyspace_name, aggregate_name, argument_types))""",
    """CREATE TABLE system_schema.indexes (
        keyspace_name text, table_name text, index_name text, kind text, options frozen<map<text, text>>,
        PRIMARY KEY (keyspace_name, table_name, index_name))""",
    """CREATE TABLE system_schema.triggers (
        keyspace_name text, table_name text, trigger_name text, options frozen<map<text, text>>,
        PRIMARY KEY (keyspace_name, table_name, trigger_name))""",
    """CREATE TABLE system_schema.views (
        keyspace_name text, view_name text, base_table_id uuid, base_table_name text,
        bloom_filter_fp_chance double, caching frozen<map<text, text>>, comment text,
        compaction frozen<map<text, text>>, compression frozen<map<text, text>>, crc_check_chance double,
        dclocal_read_repair_chance double, default_time_to_live int, extensions frozen<map<text, blob>>,
        gc_grace_seconds int, id uuid, include_all_columns boolean, max_index_interval int,
        memtable_flush_period_in_ms int, min_index_interval int, read_repair_chance double,
        speculative_retry text, where_clause text, PRIMARY KEY (keyspace_name, view_name))""",
)
"""Of unsupported features, which clients read all the same."""

LOCAL_REPLICATION = {"class": "org.apache.cassandra.locator.LocalStrategy"}


def replication_map(keyspace: Keyspace) -> dict[str, str]:
    replication = keyspace.replication
    if replication.strategy is Strategy.SIMPLE:
        return {"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": str(replication.total)}
    factors = {name: str(factor) for name, factor in replication.factors}
    return {"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", **factors}


def _schemas(sources: SystemTableSources) -> Iterable[TableSchema]:
    yield from sources.view.current.schemas.values()
    yield from (table.schema for table in SYSTEM_TABLES)


@system_table(
    """CREATE TABLE system_schema.keyspaces (
        keyspace_name text PRIMARY KEY,
        durable_writes boolean,
        replication frozen<map<text, text>>
    )"""
)
def keyspaces(sources: SystemTableSources) -> Iterable[SystemRow]:
    for keyspace in sources.view.current.snapshot.keyspaces.values():
        yield {
            "keyspace_name": keyspace.name,
            "durable_writes": keyspace.durable_writes,
            "replication": replication_map(keyspace),
        }
    for name in dict.fromkeys(table.schema.keyspace for table in SYSTEM_TABLES):
        yield {"keyspace_name": name, "durable_writes": True, "replication": LOCAL_REPLICATION}


@system_table(
    """CREATE TABLE system_schema.scylla_keyspaces (
        keyspace_name text PRIMARY KEY,
        initial_tablets int,
        storage_options frozen<map<text, text>>,
        storage_type text
    )"""
)
def scylla_keyspaces(sources: SystemTableSources) -> Iterable[SystemRow]:
    for keyspace in sources.view.current.snapshot.keyspaces.values():
        if keyspace.on_tablets:
            yield {"keyspace_name": keyspace.name, "initial_tablets": keyspace.initial_tablets}


@system_table(
    """CREATE TABLE system_schema.tables (
        keyspace_name text,
        table_name text,
        additional_write_policy text,
        bloom_filter_fp_chance double,
        caching frozen<map<text, text>>,
        cdc boolean,
        comment text,
        compaction frozen<map<text, text>>,
        compression frozen<map<text, text>>,
        crc_check_chance double,
        dclocal_read_repair_chance double,
        default_time_to_live int,
        extensions frozen<map<text, blob>>,
        flags frozen<set<text>>,
        gc_grace_seconds int,
        id uuid,
        max_index_interval int,
        memtable text,
        memtable_flush_period_in_ms int,
        min_index_interval int,
        read_repair text,
        read_repair_chance double,
        speculative_retry text,
        PRIMARY KEY (keyspace_name, table_name)
    )"""
)
def tables(sources: SystemTableSources) -> Iterable[SystemRow]:
    return map(table_row, _schemas(sources))


@system_table(
    """CREATE TABLE system_schema.scylla_tables (
        keyspace_name text,
        table_name text,
        cdc frozen<map<text, text>>,
        per_partition_rate_limit frozen<map<text, text>>,
        partitioner text,
        version timeuuid,
        PRIMARY KEY (keyspace_name, table_name)
    )"""
)
def scylla_tables(sources: SystemTableSources) -> Iterable[SystemRow]:
    for schema in _schemas(sources):
        yield {"keyspace_name": schema.keyspace, "table_name": schema.name}


@system_table(
    """CREATE TABLE system_schema.columns (
        keyspace_name text,
        table_name text,
        column_name text,
        clustering_order text,
        column_name_bytes blob,
        kind text,
        position int,
        type text,
        PRIMARY KEY (keyspace_name, table_name, column_name)
    )"""
)
def columns(sources: SystemTableSources) -> Iterable[SystemRow]:
    return (column_row(schema, column) for schema in _schemas(sources) for column in schema.columns)


@system_table(
    """CREATE TABLE system_schema.dropped_columns (
        keyspace_name text,
        table_name text,
        column_name text,
        dropped_time timestamp,
        kind text,
        type text,
        PRIMARY KEY (keyspace_name, table_name, column_name)
    )"""
)
def dropped_columns(sources: SystemTableSources) -> Iterable[SystemRow]:
    """Without the time: columns are distinguished by number, so it is not recorded."""
    for schema in _schemas(sources):
        for column in schema.dropped:
            yield {
                "keyspace_name": schema.keyspace,
                "table_name": schema.name,
                "column_name": column.name,
                "kind": str(column.kind),
                "type": str(column.type),
            }


def table_row(schema: TableSchema) -> SystemRow:
    options = schema.options
    options_set = dict(options.others)
    return {
        "keyspace_name": schema.keyspace,
        "table_name": schema.name,
        "id": schema.id,
        "comment": options.comment,
        "default_time_to_live": options.default_ttl_s,
        "gc_grace_seconds": options.gc_grace_s,
        "flags": ["compound"],
        "bloom_filter_fp_chance": _number(options_set, "bloom_filter_fp_chance", 0.01),
        "crc_check_chance": _number(options_set, "crc_check_chance", 1.0),
        "dclocal_read_repair_chance": 0.0,
        "read_repair_chance": 0.0,
        "max_index_interval": int(_number(options_set, "max_index_interval", 2048)),
        "min_index_interval": int(_number(options_set, "min_index_interval", 128)),
        "memtable_flush_period_in_ms": int(_number(options_set, "memtable_flush_period_in_ms", 0)),
        "speculative_retry": _text(options_set, "speculative_retry", "99.0PERCENTILE"),
        "additional_write_policy": _text(options_set, "additional_write_policy", "99p"),
        "read_repair": _text(options_set, "read_repair", "BLOCKING"),
        "memtable": _text(options_set, "memtable", ""),
        "caching": _map(options_set, "caching", {"keys": "ALL", "rows_per_partition": "ALL"}),
        "compaction": _map(options_set, "compaction", {"class": "SizeTieredCompactionStrategy"}),
        "compression": _map(options_set, "compression", {}),
        "extensions": {},
        "cdc": None,
    }


def column_row(schema: TableSchema, column: Column) -> SystemRow:
    is_key = column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING)
    order = ("desc" if column.descending else "asc") if column.kind is ColumnKind.CLUSTERING else "none"
    return {
        "keyspace_name": schema.keyspace,
        "table_name": schema.name,
        "column_name": column.name,
        "clustering_order": order,
        "column_name_bytes": column.name.encode(),
        "kind": str(column.kind),
        "position": column.position if is_key else -1,
        "type": str(column.type),
    }


# ---- options as written in CQL


def _number(options_set: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(_text(options_set, name, str(default)))
    except ValueError:
        return default


def _text(options_set: Mapping[str, str], name: str, default: str) -> str:
    text = options_set.get(name)
    return default if text is None else tokenize(text)[0].text


def _map(options_set: Mapping[str, str], name: str, default: dict[str, str]) -> dict[str, str]:
    text = options_set.get(name)
    if text is None or not text.startswith("{"):
        return default
    strings = [token.text for token in tokenize(text) if token.kind is TokenKind.STRING]
    return dict(zip(strings[::2], strings[1::2], strict=True))


SYSTEM_TABLES: tuple[SystemTable, ...] = (
    *NODE_TABLES,
    *TOPOLOGY_TABLES,
    keyspaces,
    scylla_keyspaces,
    tables,
    scylla_tables,
    columns,
    dropped_columns,
    *map(empty_table, _EMPTY_TABLES),
)


def system_tables(sources: SystemTableSources) -> VirtualTables:
    return {
        (table.schema.keyspace, table.schema.name): VirtualTable(table.schema, partial(table.rows, sources))
        for table in SYSTEM_TABLES
    }
