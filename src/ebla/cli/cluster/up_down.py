"""`ebla up` and `ebla down`: a cluster on this machine."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ebla.cli.cluster import local_cluster, up
from ebla.cli.cluster.local_cluster import LocalNode, NewClusterSpec, find_nodes, has_left, left_text, require_nodes
from ebla.cli.cluster.node_calls import run_async
from ebla.cli.flags import DATA_DEFAULT, Data
from ebla.cli.output import reporting_errors
from ebla.model.errors import Refused
from ebla.options import Authenticator, ClientTls

CQL_PORT = 9042
"""The default port of drivers."""

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@app.command("up")
def up_command(
    nodes: Annotated[
        int | None, typer.Option("--nodes", metavar="N", help="Number of nodes; by default 3 for a new cluster.")
    ] = None,
    shards: Annotated[
        int, typer.Option("--shards", metavar="M", help="Shard processes of each new node.")
    ] = local_cluster.SHARDS_DEFAULT,
    data: Data = DATA_DEFAULT,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Show the cluster until Ctrl-C.")] = True,
    base_address: Annotated[
        str,
        typer.Option(
            "--base-address", metavar="ADDRESS", help="Address of the first node; the others get the next ones."
        ),
    ] = "127.0.0.1",
    cluster_name: Annotated[str, typer.Option("--cluster-name", metavar="NAME")] = "ebla",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set an option of each new node, as in limits.stop_ms=3000."),
    ] = None,
) -> None:
    """Start a cluster on this machine, or those of its nodes that do not run.

    The first start creates the folder, an options file and an identity for each node, and the cluster's certificates.
    Later starts keep all of them. Flags that describe a new cluster are for the first start only.
    """
    console = Console()
    with reporting_errors():
        shape = NewClusterSpec(
            nodes=nodes, shards=shards, base_address=base_address, cluster_name=cluster_name, overrides=overrides or ()
        )
        found = _without_left(local_cluster.find_or_create_nodes(data, shape), console)
        with local_cluster.lock_data_folder(data):
            if up.is_up(found):
                raise Refused(
                    f"a node already runs in {found[0].folder.path}, and so do all others: the cluster is up",
                    advice="look at it (`ebla status`), or stop it first (`ebla down`)",
                )
            local_cluster.check_nodes(found)
            local_cluster.assign_identities(found)
            console.print(f"starting {len(found)} nodes in {escape(str(data))} …", highlight=False)
            started = up.bring_up(found, _printer(console))
        _print_addresses(console, found, data)
        if follow:
            _follow_and_stop(started, data, console)


def _without_left(nodes: list[LocalNode], console: Console) -> list[LocalNode]:
    print_line = _printer(console)
    staying = [node for node in nodes if not run_async(has_left(node))]
    for node in nodes:
        if node not in staying:
            print_line(f"{node.name} {left_text(node)}")
    if not staying:
        raise Refused("every node of this folder has left its cluster", advice="reset one: ebla reset-node FOLDER")
    return staying


def _follow_and_stop(started: up.StartedCluster, data: Path, console: Console) -> None:
    known = [node.name for node in started.nodes]
    left = [node.name for node in find_nodes(data) if node.name not in known]
    try:
        up.follow(started, console, lambda: [node for node in find_nodes(data) if node.name not in left])
        console.print("stopping …")
    finally:  # also if the terminal was closed, so that printing fails
        up.take_down(started, "ebla up was stopped", _printer(console))
    console.print("all nodes are stopped; their data is kept")


def _printer(console: Console) -> up.PrintLine:
    """Ignores a closed terminal, which must not interrupt a stop."""

    def print_line(text: str) -> None:
        try:
            console.print(text, soft_wrap=True, markup=False, highlight=False)
        except OSError:
            pass

    return print_line


@app.command()
def down(data: Data = DATA_DEFAULT) -> None:
    """Stop the nodes of a folder. Their data is kept."""
    console = Console()
    with reporting_errors():
        ran = up.take_down(up.StartedCluster(require_nodes(data)), "ebla down", _printer(console))
        names = ", ".join(node.name for node in ran)
        console.print(f"stopped {names}" if ran else f"nothing runs in {escape(str(data))}", highlight=False)


def _print_addresses(console: Console, nodes: list[LocalNode], data: Path) -> None:
    here = Path.cwd()
    for each in nodes:
        shards = ", ".join(str(each.options.shard_address(number)) for number in range(each.options.shards))
        log = each.folder.log
        log = log.relative_to(here) if log.is_relative_to(here) else log
        line = f"  {each.name}  control {each.options.control_address}  shards {shards}  log {log}"
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    flag = "" if data == DATA_DEFAULT else f" --data {data}"
    first = nodes[0].options
    tls = ", ssl_context=…" if first.client_tls is ClientTls.ON else ""
    user = ", auth_provider=…" if first.authenticator is Authenticator.PASSWORD else ""
    port = "" if first.ports.cql == CQL_PORT else f", port={first.ports.cql}"
    for line in (
        f"shell:   ebla cqlsh{flag}    or any cqlsh: cqlsh {first.address} {first.ports.cql}",
        f'python:  Cluster(["{first.address}"]{port}{user}{tls})    with scylla-driver or cassandra-driver',
        f"look:    ebla status{flag}    stop: ebla down{flag}",
    ):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
