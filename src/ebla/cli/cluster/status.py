"""`ebla status`."""

import sys
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from ebla.cli.cluster.local_cluster import require_nodes
from ebla.cli.cluster.node_calls import fetch_cluster_view, probe_contact, run_async
from ebla.cli.cluster.status_table import status_lines
from ebla.cli.flags import DATA_DEFAULT, Data, JsonFlag, VerboseFlag
from ebla.cli.output import reporting_errors
from ebla.client.cluster_view import ClusterView, NodeStatus, build_cluster_view

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@app.command()
def status(
    data: Data = DATA_DEFAULT,
    contact: Annotated[
        str | None,
        typer.Option(
            "--contact",
            metavar="ADDRESS",
            help="Ask only this node (host, host:port or a socket path), and show its view.",
        ),
    ] = None,
    verbose: VerboseFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Show the nodes: which are up, their load, tablets and shards, and their roles in group 0.

    One line per node. U and D: up or down; N, J, L, M: normal, joining, leaving, moving (rebuilding). Lines that begin
    with an exclamation mark say what is wrong. --verbose adds processes, host ids, terms and indexes, and round trips.
    The exit status is 0 if every node is up, else 1.
    """
    with reporting_errors():
        if contact is not None:
            view = build_cluster_view([run_async(probe_contact(contact, data))])
        else:
            view = run_async(fetch_cluster_view(require_nodes(data)))
        if as_json:
            sys.stdout.write(msgspec.json.format(msgspec.json.encode(view)).decode() + "\n")
        else:
            show_view(view, Console(highlight=False), verbose=verbose)
    raise typer.Exit(0 if all(node.state is NodeStatus.UP for node in view.nodes) else 1)


def show_view(view: ClusterView, console: Console, *, verbose: bool) -> None:
    width = console.width if console.is_terminal else None
    for line in status_lines(view, width, verbose=verbose):
        console.print(line, soft_wrap=width is None)
