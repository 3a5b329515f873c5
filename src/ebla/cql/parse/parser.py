"""Parses CQL text to a statement. Pure; raises `BadSyntax` with line and column, `InvalidRequest` for unknown types."""

from collections.abc import Callable

from ebla.cql.parse import schema_parser, write_parser
from ebla.cql.parse.select_parser import select
from ebla.cql.parse.statements import CallStatement, ParsedStatement, Statement, UnsupportedStatement, UseStatement
from ebla.cql.parse.term_parser import simple_term
from ebla.cql.parse.token_stream import TokenStream, UnsupportedFeature
from ebla.options import DEFAULT_LIMITS


def _use(reader: TokenStream) -> UseStatement:
    return UseStatement(reader.name("a keyspace"))


def _call(reader: TokenStream) -> CallStatement:
    keyspace = reader.name("a keyspace")
    reader.expect_sign(".")
    name = reader.name("what to call")
    reader.expect_sign("(")
    argument = simple_term(reader)
    reader.expect_sign(")")
    return CallStatement(keyspace, name, argument)


def _roles(_reader: TokenStream) -> Statement:
    raise UnsupportedFeature("roles and permissions")


_STATEMENTS: dict[str, Callable[[TokenStream], Statement]] = {
    "SELECT": select,
    "INSERT": write_parser.insert,
    "UPDATE": write_parser.update,
    "DELETE": write_parser.delete,
    "BEGIN": write_parser.batch,
    "TRUNCATE": write_parser.truncate,
    "CREATE": schema_parser.create,
    "ALTER": schema_parser.alter,
    "DROP": schema_parser.drop,
    "USE": _use,
    "CALL": _call,
    "DESCRIBE": schema_parser.describe,
    "DESC": schema_parser.describe,
    "GRANT": _roles,
    "REVOKE": _roles,
    "LIST": _roles,
}
"""By the first word."""


def parse(text: str, tokens_max: int = DEFAULT_LIMITS.cql_tokens_max) -> ParsedStatement:
    reader = TokenStream(text, tokens_max)
    word = reader.token.upper
    statement = _STATEMENTS.get(word)
    if statement is None:
        raise reader.failure()
    reader.take()
    try:
        found = statement(reader)
    except UnsupportedFeature as missing:
        found = UnsupportedStatement(missing.what)
    else:
        reader.end()
    return ParsedStatement(
        statement=found, markers=tuple(reader.markers), tokens=len(reader), token_characters=reader.characters
    )
