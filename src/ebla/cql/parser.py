"""CQL text to a statement. Pure; raises `BadSyntax` with line and column, `InvalidRequest` for a type that is none."""

from collections.abc import Callable

from ebla.cql import parse_schema, parse_writes
from ebla.cql.parse_select import select
from ebla.cql.parse_terms import simple_term
from ebla.cql.statements import Call, NotSupported, Parsed, Statement, Use
from ebla.cql.token_reader import NotThere, Reader


def _use(reader: Reader) -> Use:
    return Use(reader.name("a keyspace"))


def _call(reader: Reader) -> Call:
    keyspace = reader.name("a keyspace")
    reader.expect_sign(".")
    name = reader.name("what to call")
    reader.expect_sign("(")
    argument = simple_term(reader)
    reader.expect_sign(")")
    return Call(keyspace, name, argument)


def _roles(_reader: Reader) -> Statement:
    raise NotThere("roles and permissions")


_STATEMENTS: dict[str, Callable[[Reader], Statement]] = {
    "SELECT": select,
    "INSERT": parse_writes.insert,
    "UPDATE": parse_writes.update,
    "DELETE": parse_writes.delete,
    "BEGIN": parse_writes.batch,
    "TRUNCATE": parse_writes.truncate,
    "CREATE": parse_schema.create,
    "ALTER": parse_schema.alter,
    "DROP": parse_schema.drop,
    "USE": _use,
    "CALL": _call,
    "DESCRIBE": parse_schema.describe,
    "DESC": parse_schema.describe,
    "GRANT": _roles,
    "REVOKE": _roles,
    "LIST": _roles,
}
"""By the first word."""


def parse(text: str) -> Parsed:
    reader = Reader(text)
    word = reader.token.upper
    statement = _STATEMENTS.get(word)
    if statement is None:
        raise reader.failure()
    reader.take()
    try:
        found = statement(reader)
    except NotThere as missing:
        return Parsed(NotSupported(missing.what), ())
    reader.end()
    return Parsed(found, tuple(reader.markers))
