"""Words for what a user got wrong: names that are not there, with those that may have been meant."""

from collections.abc import Iterable

from ebla.model.errors import EblaError, NotFound
from ebla.source.contact_points import CqlClient
from ebla.source.cql_client import BoundStatement
from ebla.source.options import TableAccess, suggest_name
from ebla.wire.cql.messages import BoundValue

_TABLES = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?"
_KEYSPACES = "SELECT keyspace_name FROM system_schema.keyspaces"
_TIMEOUT_S = 10.0


def missing_table(contact: CqlClient, access: TableAccess, error: NotFound) -> NotFound:
    """The same error with advice; as it is where nobody can be asked for names."""
    try:
        tables = _names(contact, _TABLES, (access.keyspace.encode(),))
        if tables:
            words = f"keyspace {access.keyspace!r} has no table {access.table!r}"
            return NotFound(words, advice=suggest_name(access.table, tables))
        keyspaces = _names(contact, _KEYSPACES, ())
    except EblaError:
        return error
    if access.keyspace in keyspaces:
        return NotFound(f"keyspace {access.keyspace!r} has no tables", advice="create one by CQL first")
    return NotFound(f"there is no keyspace {access.keyspace!r}", advice=suggest_name(access.keyspace, keyspaces))


def missing_column(table: str, name: str, known: Iterable[str]) -> NotFound:
    return NotFound(f"table {table} has no column {name!r}", advice=suggest_name(name, tuple(known)))


def _names(contact: CqlClient, text: str, values: tuple[BoundValue, ...]) -> tuple[str, ...]:
    found = contact.query(BoundStatement(text, values), _TIMEOUT_S, is_idempotent=True)
    return tuple(sorted((row[0] or b"").decode() for row in found.rows))
