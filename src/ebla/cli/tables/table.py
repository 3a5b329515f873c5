"""`ebla table …`: a first look at tables; everything else is CQL."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from ebla.cli.error_reporting import reporting_errors, reporting_outcomes
from ebla.cli.output import print_json, print_table
from ebla.cli.tables.table_access import with_table_client
from ebla.client.table_client import TableClient
from ebla.cql.create_statements import create_keyspace_statement, create_table_statement, quote_name
from ebla.model.errors import InvalidRequest, NotFound
from ebla.model.schema import TableSchema, decode_schema
from ebla.topology.snapshot import Snapshot

HELP = """
Tables: create, list, describe, drop.

  ebla table create shop.orders "id uuid PRIMARY KEY, total int" --rf 3
  ebla table list
  ebla table describe shop.orders
  ebla table drop shop.orders

A keyspace that does not exist is made with the table. For more, use cqlsh.
"""

app = typer.Typer(name="table", no_args_is_help=True, help=HELP, rich_markup_mode="rich")

Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="The folder with one folder per node.")]
DATA_DEFAULT = Path("data")
COPIES_DEFAULT = 3
NodeName = Annotated[
    str | None, typer.Option("--node", metavar="NAME", help="Ask this node; else the first that runs.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
TableArgument = Annotated[str, typer.Argument(metavar="KEYSPACE.TABLE")]


def split_name(text: str) -> tuple[str, str]:
    keyspace, dot, name = text.partition(".")
    if not (keyspace and dot and name):
        raise InvalidRequest(f"{text!r} is no table's name", advice="write it as KEYSPACE.TABLE")
    return keyspace, name


def table_schema(snapshot: Snapshot, text: str) -> TableSchema:
    keyspace, name = split_name(text)
    found = snapshot.table_named(keyspace, name)
    if found is None:
        raise NotFound(f"there is no table {text}", advice="see `ebla table list`")
    return decode_schema(found.definition)


@app.command()
def create(
    table: TableArgument,
    columns: Annotated[str, typer.Argument(help='As in CQL: "k int PRIMARY KEY, v text".')],
    rf: Annotated[
        int | None,
        typer.Option(
            "--rf",
            metavar="N",
            min=1,
            help="Copies of each row in every datacenter, if the keyspace is new; 3, or as many as there are nodes.",
        ),
    ] = None,
    vnodes: Annotated[bool, typer.Option("--vnodes", help="A new keyspace on vnodes instead of tablets.")] = False,
    tablets: Annotated[int, typer.Option("--tablets", metavar="N", min=0, help="Tablets at first; 0: as fits.")] = 0,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a table, and its keyspace where it is missing. Returns when every live node has it."""

    async def work(client: TableClient) -> TableSchema:
        keyspace, name = split_name(table)
        if keyspace not in client.snapshot.keyspaces:
            await client.run(_keyspace_statement(client.snapshot, keyspace, rf, vnodes=vnodes))
        elif rf is not None or vnodes:
            raise InvalidRequest(f"keyspace {keyspace} exists already", advice="leave out --rf and --vnodes")
        options = f" WITH tablets = {{'min_tablet_count': {tablets}}}" if tablets else ""
        await client.run(f"CREATE TABLE {quote_name(keyspace)}.{quote_name(name)} ({columns}){options}")
        return table_schema(client.snapshot, table)

    with reporting_errors(), reporting_outcomes(as_json=as_json):
        made = with_table_client(data, node, work)
        if as_json:
            print_json({"table": table, "id": str(made.id)})
        else:
            typer.echo(f"created {table}")


def _keyspace_statement(snapshot: Snapshot, keyspace: str, rf: int | None, *, vnodes: bool) -> str:
    nodes = Counter(one.datacenter for one in snapshot.members())
    factors = ", ".join(
        f"'{name}': {min(COPIES_DEFAULT, count) if rf is None else rf}" for name, count in sorted(nodes.items())
    )
    tablets = " AND tablets = {'enabled': false}" if vnodes else ""
    return (
        f"CREATE KEYSPACE IF NOT EXISTS {quote_name(keyspace)} WITH replication = "
        f"{{'class': 'NetworkTopologyStrategy', {factors}}}{tablets}"
    )


@app.command("list")
def list_tables(data: Data = DATA_DEFAULT, node: NodeName = None, as_json: JsonFlag = False) -> None:
    """All tables, with how they are kept."""

    async def work(client: TableClient) -> Snapshot:
        return client.snapshot

    with reporting_errors(), reporting_outcomes(as_json=as_json, is_change=False):
        snapshot = with_table_client(data, node, work)
        tables = sorted(snapshot.tables.values(), key=lambda one: one.full_name)
        rows = [
            (
                one.full_name,
                snapshot.keyspaces[one.keyspace].replication.total,
                snapshot.tablets[one.id].tablet_count if one.id in snapshot.tablets else None,
                str(one.id),
            )
            for one in tables
        ]
        names = ("table", "copies", "tablets", "id")
        if as_json:
            print_json([dict(zip(names, row)) for row in rows])
        elif rows:
            print_table(names, [[("vnodes" if value is None else value) for value in row] for row in rows])
        else:
            typer.echo('no tables yet; as in: ebla table create shop.orders "id uuid PRIMARY KEY, total int"')


@app.command()
def describe(table: TableArgument, data: Data = DATA_DEFAULT, node: NodeName = None, as_json: JsonFlag = False) -> None:
    """The statements that would create it."""

    async def work(client: TableClient) -> tuple[str, str, TableSchema]:
        schema = table_schema(client.snapshot, table)
        return (
            create_keyspace_statement(client.snapshot.keyspaces[schema.keyspace]),
            create_table_statement(schema),
            schema,
        )

    with reporting_errors(), reporting_outcomes(as_json=as_json, is_change=False):
        keyspace, text, schema = with_table_client(data, node, work)
        if as_json:
            columns = [
                {"name": one.name, "type": str(one.type), "kind": str(one.kind), "descending": one.descending}
                for one in schema.columns
            ]
            print_json({"table": table, "id": str(schema.id), "version": schema.version, "columns": columns})
        else:
            typer.echo(f"{keyspace}\n\n{text}")


@app.command()
def drop(
    table: TableArgument,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="No error where there is none.")] = False,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    as_json: JsonFlag = False,
) -> None:
    """Drop a table with everything in it."""

    async def work(client: TableClient) -> None:
        keyspace, name = split_name(table)
        condition = "IF EXISTS " if if_exists else ""
        await client.run(f"DROP TABLE {condition}{quote_name(keyspace)}.{quote_name(name)}")

    with reporting_errors(), reporting_outcomes(as_json=as_json):
        with_table_client(data, node, work)
        if as_json:
            print_json({"dropped": table})
        else:
            typer.echo(f"dropped {table}")
