"""System tables are declared in CQL, as DESCRIBE will show them."""

import hashlib
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ebla.cql.parse.parser import parse
from ebla.cql.parse.statements import CreateTableStatement
from ebla.cql.plan.schema_plan import table_columns
from ebla.cql.system_tables.node_info import SystemTableSources
from ebla.model.identity import TableId
from ebla.model.schema import TableOptions, TableSchema, new_schema

SystemRow = Mapping[str, Any]


def declared(text: str, comment: str = "") -> TableSchema:
    """The schema of a CREATE TABLE. The id is derived from the name, so that it is the same on every node."""
    statement = parse(text).statement
    assert isinstance(statement, CreateTableStatement)
    keyspace, name = statement.table.keyspace, statement.table.name
    assert keyspace is not None
    digest = hashlib.md5(f"{keyspace}.{name}".encode(), usedforsecurity=False).digest()
    table_id = TableId(uuid.UUID(bytes=digest, version=3))
    options = TableOptions(comment=comment, gc_grace_s=0)
    return new_schema(table_id, keyspace, name, table_columns(statement), options)


TableRows = Callable[[SystemTableSources], Iterable[SystemRow] | Awaitable[Iterable[SystemRow]]]


@dataclass(frozen=True, slots=True)
class SystemTable:
    schema: TableSchema
    rows: TableRows


def system_table(text: str, comment: str = "") -> Callable[[TableRows], SystemTable]:
    """Decorates the function that returns the rows of the table that `text` creates."""
    return lambda rows: SystemTable(declared(text, comment), rows)


def empty_table(text: str) -> SystemTable:
    """A table that exists only because clients read it."""
    return SystemTable(declared(text), lambda _sources: ())
