"""`ebla row …`: write, read, scan and delete rows from a shell."""

from typing import Annotated

import typer

from ebla.cli.cluster.node_calls import read_snapshot
from ebla.cli.flags import DATA_DEFAULT, Data, JsonFlag, NodeName, TableArgument, UserFlag
from ebla.cli.output import print_json, print_rows, reporting_outcomes
from ebla.cli.tables.table_access import open_cql, table_schema
from ebla.cql.parse.lexer import TokenKind
from ebla.cql.parse.term_parser import term
from ebla.cql.parse.token_stream import TokenStream, UnsupportedFeature, quote_name
from ebla.model.consistency import ConsistencyLevel
from ebla.model.cql_types import Scalar, ScalarType
from ebla.model.errors import BadSyntax, InvalidRequest
from ebla.model.schema import Column, TableSchema

HELP = """
Rows from a shell. Write values as COLUMN=VALUE; text needs no quotes, everything else is as in CQL.

  ebla row put shop.orders id=1 total=20
  ebla row get shop.orders id=1
  ebla row scan shop.orders --limit 10
  ebla row delete shop.orders id=1
"""

app = typer.Typer(name="row", no_args_is_help=True, help=HELP, rich_markup_mode="rich")

Values = Annotated[list[str], typer.Argument(metavar="COLUMN=VALUE…")]
Level = Annotated[str, typer.Option("--level", metavar="LEVEL", help="ONE, QUORUM, ALL, LOCAL_QUORUM, …")]
LEVEL_DEFAULT = "QUORUM"
PAGE_ROWS = 1_000
_QUOTED = (Scalar.TEXT, Scalar.ASCII, Scalar.INET, Scalar.DATE, Scalar.TIME, Scalar.TIMESTAMP)


@app.command()
def put(
    table: TableArgument,
    values: Values,
    ttl: Annotated[
        int | None, typer.Option("--ttl", metavar="SECONDS", min=1, help="The row expires after this time.")
    ] = None,
    level: Level = LEVEL_DEFAULT,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    username: UserFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a row. Columns that are not named keep their values."""
    with reporting_outcomes(as_json=as_json):
        schema = table_schema(read_snapshot(data, node), table)
        literals = _literals(schema, values)
        names = ", ".join(quote_name(column.name) for column, _ in literals)
        using = f" USING TTL {ttl}" if ttl is not None else ""
        texts = ", ".join(text for _, text in literals)
        text = f"INSERT INTO {_name(schema)} ({names}) VALUES ({texts}){using}"  # noqa: S608  # the user's own words
        consistency = _level(level)
        with open_cql(data, node, username) as cql:
            cql.execute(text, consistency)
        if as_json:
            print_json({"written": table, "level": level.upper()})


@app.command()
def get(
    table: TableArgument,
    values: Values,
    level: Level = LEVEL_DEFAULT,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    username: UserFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Read the rows of a key, or of its first columns. The exit status is 1 if there is no row."""
    with reporting_outcomes(as_json=as_json, is_change=False):
        schema = table_schema(read_snapshot(data, node), table)
        text = f"SELECT * FROM {_name(schema)} WHERE {_where(schema, values)}"  # noqa: S608  # the user's own words
        consistency = _level(level)
        with open_cql(data, node, username) as cql:
            found = cql.execute(text, consistency)
        print_rows(schema, found, as_json=as_json)
    raise typer.Exit(0 if found.rows else 1)


@app.command()
def scan(
    table: TableArgument,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Stop after this many rows.")] = None,
    level: Level = LEVEL_DEFAULT,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    username: UserFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Read the whole table in token order, page by page."""
    with reporting_outcomes(as_json=as_json, is_change=False):
        schema = table_schema(read_snapshot(data, node), table)
        suffix = f" LIMIT {limit}" if limit is not None else ""
        text = f"SELECT * FROM {_name(schema)}{suffix}"  # noqa: S608  # names are quoted
        consistency = _level(level)
        with open_cql(data, node, username) as cql:
            for page in cql.pages(text, consistency, PAGE_ROWS):
                print_rows(schema, page, as_json=as_json)


@app.command()
def delete(
    table: TableArgument,
    values: Values,
    level: Level = LEVEL_DEFAULT,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    username: UserFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Delete a row by its primary key, or a partition by its partition key."""
    with reporting_outcomes(as_json=as_json):
        schema = table_schema(read_snapshot(data, node), table)
        text = f"DELETE FROM {_name(schema)} WHERE {_where(schema, values)}"  # noqa: S608  # the user's own words
        consistency = _level(level)
        with open_cql(data, node, username) as cql:
            cql.execute(text, consistency)
        if as_json:
            print_json({"deleted": table, "level": level.upper()})


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


def _level(text: str) -> ConsistencyLevel:
    try:
        return ConsistencyLevel[text.upper()]
    except KeyError:
        names = ", ".join(level.name for level in ConsistencyLevel)
        raise InvalidRequest(f"{text!r} is no consistency level", advice=f"one of {names}") from None
