"""`ebla row …`: write, read, scan and delete rows from a shell."""

import uuid
from dataclasses import dataclass
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any

import typer
from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from ebla.cli.command import add_command
from ebla.cli.flags import TableArgument
from ebla.cli.output import cell_texts, print_json, print_table
from ebla.cli.tables.table_access import CqlFlags, table_schema
from ebla.cql.parse.lexer import TokenKind
from ebla.cql.parse.term_parser import term
from ebla.cql.parse.token_stream import TokenStream, UnsupportedFeature, quote_name
from ebla.model.consistency import ConsistencyLevel
from ebla.model.cql_types import CqlType, MapType, Scalar, ScalarType
from ebla.model.errors import BadSyntax, InvalidRequest
from ebla.model.schema import Column, TableSchema
from ebla.model.values import Duration, decode
from ebla.source.cql_client import CqlRows

HELP = """
Rows from a shell. Write values as COLUMN=VALUE; text needs no quotes, everything else is as in CQL.

  ebla row put shop.orders id=1 total=20
  ebla row get shop.orders id=1
  ebla row scan shop.orders --limit 10
  ebla row delete shop.orders id=1
"""

app = typer.Typer(name="row", no_args_is_help=True, help=HELP, rich_markup_mode="rich")

Values = Annotated[list[str], typer.Argument(metavar="COLUMN=VALUE…")]
PAGE_ROWS = 1_000
_QUOTED = (Scalar.TEXT, Scalar.ASCII, Scalar.INET, Scalar.DATE, Scalar.TIME, Scalar.TIMESTAMP)


@dataclass(frozen=True, kw_only=True)
class RowFlags(CqlFlags):
    level: Annotated[str, typer.Option("--level", metavar="LEVEL", help="ONE, QUORUM, ALL, LOCAL_QUORUM, …")] = "QUORUM"

    @property
    def consistency(self) -> ConsistencyLevel:
        try:
            return ConsistencyLevel[self.level.upper()]
        except KeyError:
            names = ", ".join(level.name for level in ConsistencyLevel)
            raise InvalidRequest(f"{self.level!r} is no consistency level", advice=f"one of {names}") from None

    def execute_at_level(self, text: str) -> CqlRows:
        level = self.consistency
        with self.open_cql() as cql:
            return cql.execute(text, level)


@add_command(app, is_change=True)
def put(
    flags: RowFlags,
    table: TableArgument,
    values: Values,
    ttl: Annotated[
        int | None, typer.Option("--ttl", metavar="SECONDS", min=1, help="The row expires after this time.")
    ] = None,
) -> None:
    """Write a row. Columns that are not named keep their values."""
    schema = table_schema(flags.snapshot(), table)
    literals = _literals(schema, values)
    names = ", ".join(quote_name(column.name) for column, _ in literals)
    using = f" USING TTL {ttl}" if ttl is not None else ""
    texts = ", ".join(text for _, text in literals)
    flags.execute_at_level(f"INSERT INTO {_name(schema)} ({names}) VALUES ({texts}){using}")  # noqa: S608  # the user's own words
    _confirm(flags, "written", table)


@add_command(app, is_change=False)
def get(flags: RowFlags, table: TableArgument, values: Values) -> int:
    """Read the rows of a key, or of its first columns. The exit status is 1 if there is no row."""
    schema = table_schema(flags.snapshot(), table)
    found = flags.execute_at_level(f"SELECT * FROM {_name(schema)} WHERE {_where(schema, values)}")  # noqa: S608  # the user's own words
    print_rows(schema, found, as_json=flags.as_json)
    return 0 if found.rows else 1


@add_command(app, is_change=False)
def scan(
    flags: RowFlags,
    table: TableArgument,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Stop after this many rows.")] = None,
) -> None:
    """Read the whole table in token order, page by page."""
    schema = table_schema(flags.snapshot(), table)
    suffix = f" LIMIT {limit}" if limit is not None else ""
    text = f"SELECT * FROM {_name(schema)}{suffix}"  # noqa: S608  # names are quoted
    level = flags.consistency
    with flags.open_cql() as cql:
        for page in cql.pages(text, level, PAGE_ROWS):
            print_rows(schema, page, as_json=flags.as_json)


@add_command(app, is_change=True)
def delete(flags: RowFlags, table: TableArgument, values: Values) -> None:
    """Delete a row by its primary key, or a partition by its partition key."""
    schema = table_schema(flags.snapshot(), table)
    flags.execute_at_level(f"DELETE FROM {_name(schema)} WHERE {_where(schema, values)}")  # noqa: S608  # the user's own words
    _confirm(flags, "deleted", table)


def _confirm(flags: RowFlags, done: str, table: str) -> None:
    """For programs; a person sees no error."""
    if flags.as_json:
        print_json({done: table, "level": flags.level.upper()})


# ---- arguments as CQL


def _name(schema: TableSchema) -> str:
    return f"{quote_name(schema.keyspace)}.{quote_name(schema.name)}"


def _where(schema: TableSchema, values: list[str]) -> str:
    return " AND ".join(f"{quote_name(column.name)} = {text}" for column, text in _literals(schema, values))


def _literals(schema: TableSchema, values: list[str]) -> list[tuple[Column, str]]:
    found = []
    for argument in values:
        name, equals, text = argument.partition("=")
        if not equals:
            raise InvalidRequest(f"{argument!r} names no value", advice="write it as COLUMN=VALUE")
        column = schema.column(name)
        found.append((column, _literal(column, text)))
    return found


def _literal(column: Column, text: str) -> str:
    if isinstance(column.type, ScalarType) and column.type.scalar in _QUOTED and text.lower() != "null":
        return "'" + text.replace("'", "''") + "'"
    if not _is_one_value(text):
        raise InvalidRequest(f"{text!r} is no value of column {column.name!r} of type {column.type}")
    return text


def _is_one_value(text: str) -> bool:
    """Checks the text as it will be in a statement, with something behind it, so that a comment cannot hide the rest.
    Left to the statement, an error would name a position that the user never wrote, and two values or a closing bracket
    would be taken as part of the statement."""
    try:
        tokens = TokenStream(f"{text} )")
        term(tokens)
        tokens.expect_sign(")")
    except (BadSyntax, UnsupportedFeature):
        return False
    return tokens.token.kind is TokenKind.END and not tokens.markers


def plain(kind: CqlType, data: bytes) -> Any:
    """A value as JSON can hold it and people can read it."""
    value = decode(kind, data)
    return _plain(dict(value) if isinstance(kind, MapType) else value)


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return f"0x{value.hex()}"
        case uuid.UUID() | Decimal() | IPv4Address() | IPv6Address():
            return str(value)
        case Duration():
            return f"{value.months}mo{value.days}d{value.nanoseconds}ns"
        case dict():
            return {str(_plain(key)): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case _:
            return value


def print_rows(schema: TableSchema, page: CqlRows, *, as_json: bool) -> None:
    """One JSON object a line, or a table. Values may have any length: nothing is truncated or left out, and long ones
    wrap in a terminal."""
    kinds = [schema.by_name[name].type for name in page.columns]
    rows = [[None if data is None else plain(kind, data) for kind, data in zip(kinds, row)] for row in page.rows]
    console = Console()
    if as_json:
        for row in rows:
            print_json(dict(zip(page.columns, row)))
    elif rows and console.is_terminal:
        table = rich_table.Table(*(rich_table.Column(name, overflow="fold") for name in page.columns))
        for texts in cell_texts(rows, "null"):
            table.add_row(*(Text(value) for value in texts))
        console.print(table)
    elif rows:
        print_table(page.columns, rows, "null")
