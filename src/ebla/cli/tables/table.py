"""`ebla table …`: create, list, describe and drop tables; everything else is CQL."""

from collections import Counter
from typing import Annotated

import typer

from ebla.cli.command import NodeFlags, TableFlags, add_command
from ebla.cli.flags import TableArgument, split_table_name
from ebla.cli.output import print_json
from ebla.cli.tables.table_access import CqlFlags, table_schema
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


@add_command(app, is_change=True)
def create(
    flags: CqlFlags,
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
) -> None:
    """Create a table, and its keyspace if that does not exist. Returns when every live node has the table."""
    keyspace, name = split_table_name(table)
    snapshot = flags.snapshot()
    keyspace_exists = keyspace in snapshot.keyspaces
    if keyspace_exists and (rf is not None or vnodes):
        raise InvalidRequest(f"keyspace {keyspace} exists already", advice="leave out --rf and --vnodes")
    options = f" WITH tablets = {{'min_tablet_count': {tablets}}}" if tablets else ""
    with flags.open_cql() as cql:
        if not keyspace_exists:
            cql.execute(_keyspace_statement(snapshot, keyspace, rf, vnodes=vnodes))
        cql.execute(f"CREATE TABLE {quote_name(keyspace)}.{quote_name(name)} ({columns}){options}")
    if flags.as_json:
        print_json({"table": table, "id": str(table_schema(flags.snapshot(), table).id)})
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


@add_command(app, "list", is_change=False)
def list_tables(flags: TableFlags) -> None:
    """List all tables, with the number of replicas and tablets."""
    snapshot = flags.snapshot()
    rows = [
        (
            table.full_name,
            str(table.id),
            snapshot.keyspaces[table.keyspace].replication.total,
            snapshot.tablets[table.id].tablet_count if table.id in snapshot.tablets else None,
        )
        for table in sorted(snapshot.tables.values(), key=lambda table: table.full_name)
    ]
    if rows or flags.as_json:
        flags.print_records(("table", "id", "copies", "tablets"), rows, missing="vnodes", less_important=("id",))
    else:
        typer.echo('no tables yet; as in: ebla table create shop.orders "id uuid PRIMARY KEY, total int"')


@add_command(app, is_change=False)
def describe(flags: NodeFlags, table: TableArgument) -> None:
    """Print the CQL statements that would create the table."""
    snapshot = flags.snapshot()
    schema = table_schema(snapshot, table)
    columns = [
        {"name": one.name, "type": str(one.type), "kind": str(one.kind), "descending": one.descending}
        for one in schema.columns
    ]
    flags.show(
        {"table": table, "id": str(schema.id), "version": schema.version, "columns": columns},
        f"{create_keyspace_statement(snapshot.keyspaces[schema.keyspace])}\n\n{create_table_statement(schema)}",
    )


@add_command(app, is_change=True)
def drop(
    flags: CqlFlags,
    table: TableArgument,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if there is no such table.")] = False,
) -> None:
    """Drop a table and all its rows."""
    keyspace, name = split_table_name(table)
    condition = "IF EXISTS " if if_exists else ""
    with flags.open_cql() as cql:
        cql.execute(f"DROP TABLE {condition}{quote_name(keyspace)}.{quote_name(name)}")
    flags.show({"dropped": table}, f"dropped {table}")
