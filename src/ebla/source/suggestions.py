"""Looks up names a user gave, and errors for missing ones that suggest what may have been meant."""

from collections.abc import Iterable

from ebla.model.errors import EblaError, NotFound
from ebla.model.schema import Column, TableSchema
from ebla.source.contact_points import CqlClient
from ebla.source.cql_client import BoundStatement
from ebla.source.options import TableAccess, suggest_name
from ebla.wire.cql.messages import BoundValue
from ebla.wire.table_calls import DESCRIBE_TABLE, DescribeTableAnswer, DescribeTableRequest

_TABLES = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?"
_KEYSPACES = "SELECT keyspace_name FROM system_schema.keyspaces"
_TIMEOUT_S = 10.0


def describe_table(client: CqlClient, access: TableAccess) -> DescribeTableAnswer:
    """Raises `NotFound` with a suggestion."""
    try:
        return client.call(DESCRIBE_TABLE, DescribeTableRequest(access.keyspace, access.table), access.timeout_s)
    except NotFound as error:
        raise missing_table(client, access, error) from None


def missing_table(client: CqlClient, access: TableAccess, error: NotFound) -> NotFound:
    """The same error with a suggestion; unchanged where the names cannot be read."""
    try:
        tables = _names(client, _TABLES, (access.keyspace.encode(),))
        if tables:
            message = f"keyspace {access.keyspace!r} has no table {access.table!r}"
            return NotFound(message, advice=suggest_name(access.table, tables))
        keyspaces = _names(client, _KEYSPACES, ())
    except EblaError:
        return error
    if access.keyspace in keyspaces:
        return NotFound(f"keyspace {access.keyspace!r} has no tables", advice="create one by CQL first")
    return NotFound(f"there is no keyspace {access.keyspace!r}", advice=suggest_name(access.keyspace, keyspaces))


def missing_column(table: str, name: str, known: Iterable[str]) -> NotFound:
    return NotFound(f"table {table} has no column {name!r}", advice=suggest_name(name, tuple(known)))


def find_column(schema: TableSchema, name: str, known: Iterable[str] | None = None) -> Column:
    """The column of this name or, since Spark's names are not case-sensitive, the only one that differs by case alone.
    Raises `NotFound` with a suggestion from the known names."""
    column = schema.by_name.get(name)
    if column is not None:
        return column
    alike = [column for column in schema.columns if column.name.lower() == name.lower()]
    if len(alike) != 1:
        raise missing_column(schema.full_name, name, schema.by_name if known is None else known)
    return alike[0]


def _names(client: CqlClient, text: str, values: tuple[BoundValue, ...]) -> tuple[str, ...]:
    found = client.query(BoundStatement(text, values), _TIMEOUT_S, is_idempotent=True)
    return tuple(sorted((row[0] or b"").decode() for row in found.rows))
