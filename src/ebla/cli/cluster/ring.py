"""`ebla ring` and `ebla tablets`: which node holds which token ranges."""

from typing import Annotated

import typer

from ebla.cli.command import TableFlags, add_command
from ebla.cli.flags import TableArgument
from ebla.cli.tables.table_access import table_schema
from ebla.model.errors import InvalidRequest
from ebla.topology.routing.replica_sets import ReplicaSets
from ebla.topology.snapshot import Snapshot
from ebla.topology.tablet_map import ReplicaSet

TABLETS_SHOWN_MAX = 64


app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@add_command(app, is_change=False)
def ring(
    flags: TableFlags,
    table: Annotated[
        str | None, typer.Argument(metavar="[KEYSPACE.TABLE]", help="Show the ranges of this table.")
    ] = None,
) -> None:
    """List the nodes of the ring; for a table, list the token ranges of each node."""
    snapshot = flags.snapshot()
    names, rows = _nodes(snapshot) if table is None else _ranges(snapshot, table)
    flags.print_records(names, rows, less_important=("host", "release", "tokens", "shards"))


@add_command(app, is_change=False)
def tablets(
    flags: TableFlags,
    table: TableArgument,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Show all, also if there are more than {TABLETS_SHOWN_MAX}.")
    ] = False,
) -> None:
    """List the tablets of a table: ranges, replicas, and transitions in progress."""
    names, rows = ("tablet", "from", "to", "replicas", "stage"), _tablets(flags.snapshot(), table)
    if flags.as_json:
        flags.print_records(names, rows)
        return
    rows_shown = rows if everything else rows[:TABLETS_SHOWN_MAX]
    cells = [[*fields, " ".join(replicas), stage] for *fields, replicas, stage in rows_shown]
    flags.print_records(names, cells, less_important=("from", "to"))
    if len(rows_shown) < len(rows):
        typer.echo(f"{len(rows) - len(rows_shown)} more; --all shows them")


Rows = list[list[object]]


def _nodes(snapshot: Snapshot) -> tuple[tuple[str, ...], Rows]:
    names = ("address", "host", "state", "datacenter", "rack", "shards", "tokens", "tablets", "release")
    return names, [
        [
            one.address,
            str(one.host),
            str(one.state),
            one.datacenter,
            one.rack,
            one.shard_count,
            len(one.tokens),
            sum(len(list(found.tablets_on(one.host))) for found in snapshot.tablets.values()),
            one.release_version,
        ]
        for one in snapshot.members()
    ]


def _ranges(snapshot: Snapshot, table: str) -> tuple[tuple[str, ...], Rows]:
    schema = table_schema(snapshot, table)
    replicas = ReplicaSets(snapshot).of(schema.id)
    rows: Rows = []
    for one in snapshot.members():
        for token_range in replicas.ranges_of(one.host):
            rows.append([int(token_range.start), int(token_range.end), str(one.host), one.address])
    rows.sort(key=lambda row: (int(str(row[1])), str(row[3])))
    return ("after", "up_to", "host", "address"), rows


def _tablets(snapshot: Snapshot, table: str) -> list[tuple[int, int, int, list[str], str | None]]:
    schema = table_schema(snapshot, table)
    found = snapshot.tablets.get(schema.id)
    if found is None:
        raise InvalidRequest(f"{table} is on vnodes and has no tablets", advice=f"see `ebla ring {table}`")
    rows = []
    for number in range(found.tablet_count):
        transition = found.transition(number)
        stage = None
        if transition is not None:
            stage = f"{transition.stage} to {' '.join(_places(snapshot, transition.new_replicas))}"
        places = _places(snapshot, found.replicas(number))
        rows.append((number, int(found.after_token(number)), int(found.last_token(number)), places, stage))
    return rows


def _places(snapshot: Snapshot, replicas: ReplicaSet) -> list[str]:
    return [f"{snapshot.node(replica.host).address}/{replica.shard}" for replica in replicas]
