"""`ebla table …`: create, list, describe and drop tables; everything else is CQL."""

from collections import Counter
from typing import Annotated

import typer

from ebla.cli.cluster.node_calls import read_snapshot
from ebla.cli.flags import DATA_DEFAULT, Data, JsonFlag, NodeName, TableArgument, UserFlag, split_table_name
from ebla.cli.output import print_json, print_table, reporting_outcomes
from ebla.cli.tables.table_access import open_cql, table_schema
from ebla.cql.describe import create_keyspace_statement, create_table_statement
from ebla.cql.parse.token_stream import quote_name
from ebla.model.errors import InvalidRequest
from ebla.topology.snapshot import Snapshot

HELP = """
Tables: create, list, describe, drop.

  ebla table create shop.orders "id uuid PRIMARY KEY, total int" --rf 3
  ebla table list
  ebla table describe shop.orders
  ebla table drop shop.orders

A keyspace that does not exist is created with the table. For more, use cqlsh.
"""

app = typer.Typer(name="table", no_args_is_help=True, help=HELP, rich_markup_mode="rich")

COPIES_DEFAULT = 3


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
            help="Replicas per datacenter, if the keyspace is new; by default 3, or one per node if there are fewer.",
        ),
    ] = None,
    vnodes: Annotated[bool, typer.Option("--vnodes", help="A new keyspace uses vnodes instead of tablets.")] = False,
    tablets: Annotated[
        int, typer.Option("--tablets", metavar="N", min=0, help="Initial number of tablets; 0: let the server choose.")
    ] = 0,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    username: UserFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a table, and its keyspace if that does not exist. Returns when every live node has the table."""
    with reporting_outcomes(as_json=as_json):
        keyspace, name = split_table_name(table)
        snapshot = read_snapshot(data, node)
        keyspace_exists = keyspace in snapshot.keyspaces
        if keyspace_exists and (rf is not None or vnodes):
            raise InvalidRequest(f"keyspace {keyspace} exists already", advice="leave out --rf and --vnodes")
        options = f" WITH tablets = {{'min_tablet_count': {tablets}}}" if tablets else ""
        with open_cql(data, node, username) as cql:
            if not keyspace_exists:
                cql.execute(_keyspace_statement(snapshot, keyspace, rf, vnodes=vnodes))
            cql.execute(f"CREATE TABLE {quote_name(keyspace)}.{quote_name(name)} ({columns}){options}")
        if as_json:
            print_json({"table": table, "id": str(table_schema(read_snapshot(data, node), table).id)})
        else:
            typer.echo(f"created {table}")


def _keyspace_statement(snapshot: Snapshot, keyspace: str, rf: int | None, *, vnodes: bool) -> str:
    nodes = Counter(node.datacenter for node in snapshot.members())
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
    """List all tables, with the number of replicas and tablets."""
    with reporting_outcomes(as_json=as_json, is_change=False):
        snapshot = read_snapshot(data, node)
        rows = [
            (
                table.full_name,
                snapshot.keyspaces[table.keyspace].replication.total,
                snapshot.tablets[table.id].tablet_count if table.id in snapshot.tablets else None,
                str(table.id),
            )
            for table in sorted(snapshot.tables.values(), key=lambda table: table.full_name)
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
    """Print the CQL statements that would create the table."""
    with reporting_outcomes(as_json=as_json, is_change=False):
        snapshot = read_snapshot(data, node)
        schema = table_schema(snapshot, table)
        if as_json:
            columns = [
                {"name": one.name, "type": str(one.type), "kind": str(one.kind), "descending": one.descending}
                for one in schema.columns
            ]
            print_json({"table": table, "id": str(schema.id), "version": schema.version, "columns": columns})
        else:
            keyspace = create_keyspace_statement(snapshot.keyspaces[schema.keyspace])
            typer.echo(f"{keyspace}\n\n{create_table_statement(schema)}")


@app.command()
def drop(
    table: TableArgument,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if there is no such table.")] = False,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    username: UserFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Drop a table and all its rows."""
    with reporting_outcomes(as_json=as_json):
        keyspace, name = split_table_name(table)
        condition = "IF EXISTS " if if_exists else ""
        with open_cql(data, node, username) as cql:
            cql.execute(f"DROP TABLE {condition}{quote_name(keyspace)}.{quote_name(name)}")
        if as_json:
            print_json({"dropped": table})
        else:
            typer.echo(f"dropped {table}")
