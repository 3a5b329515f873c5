"""All system tables of a node, by name."""

from ebla.cql.catalog import VirtualTable, VirtualTables
from ebla.cql.system_tables.node_info import SystemTableSources
from ebla.cql.system_tables.node_tables import node_tables
from ebla.cql.system_tables.schema_tables import schema_tables
from ebla.cql.system_tables.topology_tables import topology_tables


def system_tables(facts: SystemTableSources) -> VirtualTables:
    found: dict[tuple[str, str], VirtualTable] = {}
    tables = [*node_tables(facts), *topology_tables(facts), *schema_tables(facts, lambda: found)]
    for table in tables:
        found[table.schema.keyspace, table.schema.name] = table
    return found
