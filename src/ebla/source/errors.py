"""Words for what a user got wrong: names that are not there, with those that may have been meant."""

from collections.abc import Iterable

from ebla.cql.results import BoundValue
from ebla.model.errors import EblaError, NotFound
from ebla.source.contact import Contact
from ebla.source.cql_client import Statement
from ebla.source.options import Access, nearest

_TABLES = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?"
_KEYSPACES = "SELECT keyspace_name FROM system_schema.keyspaces"
_TIMEOUT_S = 10.0


def missing_table(contact: Contact, access: Access, error: NotFound) -> NotFound:
    """The same error with advice; as it is where nobody can be asked for names."""
    try:
        tables = _names(contact, _TABLES, (access.keyspace.encode(),))
        if tables:
            words = f"keyspace {access.keyspace!r} has no table {access.table!r}"
            return NotFound(words, advice=nearest(access.table, tables))
        keyspaces = _names(contact, _KEYSPACES, ())
    except EblaError:
        return error
    if access.keyspace in keyspaces:
        return NotFound(f"keyspace {access.keyspace!r} has no tables", advice="create one by CQL first")
    return NotFound(f"there is no keyspace {access.keyspace!r}", advice=nearest(access.keyspace, keyspaces))


def missing_column(table: str, name: str, known: Iterable[str]) -> NotFound:
    return NotFound(f"table {table} has no column {name!r}", advice=nearest(name, tuple(known)))


def _names(contact: Contact, text: str, values: tuple[BoundValue, ...]) -> tuple[str, ...]:
    found = contact.query(Statement(text, values), _TIMEOUT_S, repeatable=True)
    return tuple(sorted((row[0] or b"").decode() for row in found.rows))
