"""`ebla row …`: write, read, scan and delete rows from a shell; a first look before CQL."""

from typing import Annotated

import typer

from ebla.cli.error_reporting import reporting_errors, reporting_outcomes
from ebla.cli.output import print_json, print_rows
from ebla.cli.tables.table import DATA_DEFAULT, Data, JsonFlag, NodeName, TableArgument, table_schema
from ebla.cli.tables.table_access import with_table_client
from ebla.client.table_client import TableClient
from ebla.cql.create_statements import quote_name
from ebla.cql.parse.lexer import TokenKind
from ebla.cql.parse.term_parser import term
from ebla.cql.parse.token_stream import TokenStream, UnsupportedFeature
from ebla.model.consistency import ConsistencyLevel
from ebla.model.cql_types import Scalar, ScalarType
from ebla.model.errors import BadSyntax, InvalidRequest
from ebla.model.schema import Column, TableSchema
from ebla.wire.cql.messages import Rows

HELP = """
Rows from a shell. Values are written as COLUMN=VALUE; text needs no quotes, everything else is as in CQL.

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
    ttl: Annotated[int | None, typer.Option("--ttl", metavar="SECONDS", min=1, help="Gone after so long.")] = None,
    level: Level = LEVEL_DEFAULT,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a row; columns that are not named keep what they have."""

    async def work(client: TableClient) -> None:
        schema = table_schema(client.snapshot, table)
        given = _given(schema, values)
        names = ", ".join(quote_name(column.name) for column, _ in given)
        using = f" USING TTL {ttl}" if ttl is not None else ""
        texts = ", ".join(text for _, text in given)
        text = f"INSERT INTO {_name(schema)} ({names}) VALUES ({texts}){using}"  # noqa: S608  # the user's own words
        await client.run(text, level=_level(level))

    with reporting_errors(), reporting_outcomes(as_json=as_json):
        with_table_client(data, node, work)
        if as_json:
            print_json({"written": table, "level": level.upper()})


@app.command()
def get(
    table: TableArgument,
    values: Values,
    level: Level = LEVEL_DEFAULT,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    as_json: JsonFlag = False,
) -> None:
    """Read the rows under a key, or under the first part of one. The exit status is 1 where there is none."""

    async def work(client: TableClient) -> Rows:
        schema = table_schema(client.snapshot, table)
        text = f"SELECT * FROM {_name(schema)} WHERE {_where(schema, values)}"  # noqa: S608  # the user's own words
        found = await client.run(text, level=_level(level))
        assert isinstance(found.result, Rows)
        return found.result

    with reporting_errors(), reporting_outcomes(as_json=as_json, is_change=False):
        rows = with_table_client(data, node, work)
        print_rows(rows, as_json=as_json)
    raise typer.Exit(0 if rows.rows else 1)


@app.command()
def scan(
    table: TableArgument,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Stop after so many rows.")] = None,
    level: Level = LEVEL_DEFAULT,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    as_json: JsonFlag = False,
) -> None:
    """Read the whole table in token order, page by page."""

    async def work(client: TableClient) -> None:
        schema = table_schema(client.snapshot, table)
        most = f" LIMIT {limit}" if limit is not None else ""

        def take(found: Rows) -> bool:
            print_rows(found, as_json=as_json)
            return True

        text = f"SELECT * FROM {_name(schema)}{most}"  # noqa: S608  # names are quoted
        await client.every_row(text, take, PAGE_ROWS, _level(level))

    with reporting_errors(), reporting_outcomes(as_json=as_json, is_change=False):
        with_table_client(data, node, work)


@app.command()
def delete(
    table: TableArgument,
    values: Values,
    level: Level = LEVEL_DEFAULT,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    as_json: JsonFlag = False,
) -> None:
    """Delete a row by its key, or a partition by the partition key alone."""

    async def work(client: TableClient) -> None:
        schema = table_schema(client.snapshot, table)
        text = f"DELETE FROM {_name(schema)} WHERE {_where(schema, values)}"  # noqa: S608  # the user's own words
        await client.run(text, level=_level(level))

    with reporting_errors(), reporting_outcomes(as_json=as_json):
        with_table_client(data, node, work)
        if as_json:
            print_json({"deleted": table, "level": level.upper()})


# ---- what was written in the shell


def _name(schema: TableSchema) -> str:
    return f"{quote_name(schema.keyspace)}.{quote_name(schema.name)}"


def _where(schema: TableSchema, values: list[str]) -> str:
    return " AND ".join(f"{quote_name(column.name)} = {text}" for column, text in _given(schema, values))


def _given(schema: TableSchema, values: list[str]) -> list[tuple[Column, str]]:
    found = []
    for one in values:
        name, equals, text = one.partition("=")
        if not equals:
            raise InvalidRequest(f"{one!r} names no value", advice="write it as COLUMN=VALUE")
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
    """As it will stand in a statement, with something behind it: a comment must not hide that. In the statement itself
    the error would name a place that nobody wrote, and two values or the end of a list would pass for part of it."""
    try:
        reader = TokenStream(f"{text} )")
        term(reader)
        reader.expect_sign(")")
    except (BadSyntax, UnsupportedFeature):
        return False
    return reader.token.kind is TokenKind.END and not reader.markers


def _level(text: str) -> ConsistencyLevel:
    try:
        return ConsistencyLevel[text.upper()]
    except KeyError:
        names = ", ".join(level.name for level in ConsistencyLevel)
        raise InvalidRequest(f"{text!r} is no consistency level", advice=f"one of {names}") from None
