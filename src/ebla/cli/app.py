"""The `ebla` command: the commands of a cluster on this machine are here, the others in modules of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from ebla.cli.cluster import cqlsh, fault, group0, leases, local_cluster, metrics, ring, settings, up
from ebla.cli.cluster.local_cluster import LocalNode, NewClusterSpec, find_nodes, renew_certificates
from ebla.cli.cluster.node_calls import choose_node, fetch_cluster_view, probe_contact, run_async
from ebla.cli.cluster.status_table import as_lines, as_table
from ebla.cli.flags import DATA_DEFAULT, Data, JsonFlag, PasswordFile, given_password, read_password
from ebla.cli.jobs import pipeline, transfers
from ebla.cli.output import reporting_errors
from ebla.cli.spark_jobs import export_import, spark, spark_env
from ebla.cli.tables import row, store, table
from ebla.client.cluster_view import ClusterView, NodeStatus, build_cluster_view
from ebla.cql.authentication import hash_password
from ebla.model.errors import InvalidRequest
from ebla.options import Authenticator, ClientTls
from ebla.runtime.authority_handover import new_join_token
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.runtime.tls import TlsFolder
from ebla.version import release

HELP = """
Ebla: a replicated, tablet-sharded table store with its pipeline on Spark.

[bold]A cluster on this machine[/bold]

  ebla up                     three nodes, shown live; Ctrl-C stops them
  ebla up --no-follow         the same in the background
  ebla status                 who is up, as the nodes see each other
  ebla status --json          the same for programs
  ebla down                   stop the nodes; their data is kept
  ebla group0 members         the members of the Raft group, and its leader
  ebla settings list          settings of the cluster; set, history, purge

[bold]Tables[/bold]

  ebla cqlsh                  Cassandra's shell; any driver works too: Cluster(["127.0.0.1"])
  ebla table create a.b "k int PRIMARY KEY, v text"
  ebla row put a.b k=1 v=hello
  ebla row get a.b k=1
  ebla ring; ebla tablets a.b   which node holds which range
  ebla leases                 who leads, and which nodes promised to serve it; activities: what runs under that
  ebla metrics                metrics of the shards, for Prometheus

[bold]Tables and Spark[/bold]

  ebla spark                  a PySpark shell: table("a.b") is a DataFrame
  ebla export a.b DIR         as Parquet, or --format csv; resumes if interrupted
  ebla import DIR a.b         from Parquet or CSV

[bold]Data on the move[/bold]

  ebla pipeline status        Spark moves data between nodes; jobs, cancel
  ebla compare a.b            compare its replicas; --heal repairs them
  ebla copy-tablet a.b 0 --from 127.0.0.1 --to 127.0.0.2

[bold]Where things are[/bold]

  ./data                      all data; delete it to start over
  ./data/node1/options.toml   a node's options, with comments; edit and restart
  ./data/node1/run/node.log   the node's log

[bold]Fault tolerance[/bold]

  ebla demo                   a simulated cluster under faults, step by step

Help for a command: ebla COMMAND --help
"""

app = typer.Typer(
    name="ebla",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=HELP,
)
app.add_typer(group0.app)
app.add_typer(settings.app)
app.add_typer(fault.app)
app.add_typer(store.app)
app.add_typer(table.app)
app.add_typer(row.app)
app.add_typer(pipeline.app)
app.add_typer(transfers.app)
app.add_typer(export_import.app)
app.add_typer(spark.app)
app.add_typer(spark_env.app)
app.add_typer(ring.app)
app.command("metrics")(metrics.metrics)
app.add_typer(leases.app)

CQL_PORT = 9042
"""The default port of drivers."""


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        sys.stdout.write(f"ebla {release()}\n")
        raise typer.Exit


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
    """Start a cluster on this machine.

    The first start creates the folder, an options file and an identity for each node, and the cluster's certificates.
    Later starts keep all of them. Flags that describe a new cluster are for the first start only.
    """
    console = Console()
    with reporting_errors():
        shape = NewClusterSpec(
            nodes=nodes, shards=shards, base_address=base_address, cluster_name=cluster_name, overrides=overrides or ()
        )
        found = local_cluster.find_or_create_nodes(data, shape)
        with local_cluster.lock_data_folder(data):
            local_cluster.check_nodes(found)
            local_cluster.assign_identities(found)
            console.print(f"starting {len(found)} nodes in {escape(str(data))} …", highlight=False)
            started = up.bring_up(found, _printer(console))
        _print_addresses(console, found, data)
        if follow:
            _follow_and_stop(started, console)


def _follow_and_stop(started: up.StartedCluster, console: Console) -> None:
    try:
        up.follow(started, console)
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
        ran = up.take_down(up.StartedCluster(_nodes_of(data)), "ebla down", _printer(console))
        names = ", ".join(node.name for node in ran)
        console.print(f"stopped {names}" if ran else f"nothing runs in {escape(str(data))}", highlight=False)


@app.command("cqlsh", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def cqlsh_command(
    context: typer.Context,
    data: Data = DATA_DEFAULT,
    environment: Annotated[
        Path | None,
        typer.Option("--environment", metavar="DIR", help="Where cqlsh is installed; by default in the user's cache."),
    ] = None,
    password_file: PasswordFile = None,
) -> None:
    """Start cqlsh with a node of this machine. It is installed at the first use.

    All other arguments are passed to cqlsh: ebla cqlsh -u admin -e "SELECT * FROM system.local"
    The password of a user comes from a prompt, from EBLA_PASSWORD or from a file.
    """
    with reporting_errors():
        login = cqlsh.login_arguments(context.args, given_password(password_file))
        running = choose_node(data, None)
        print_line = Console(stderr=True, highlight=False, markup=False).print
        python = cqlsh.ensure_installed(environment or cqlsh.default_environment(), cqlsh.run_step, print_line)
        cqlsh.exec_cqlsh(python, running, [*context.args, *login])


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
    as_json: JsonFlag = False,
) -> None:
    """Show the nodes: which are up, since when, round trip times, processes.

    The exit status is 0 if every node is up, else 1.
    """
    console = Console()
    with reporting_errors():
        if contact is not None:
            view = build_cluster_view([run_async(probe_contact(contact, data))])
        else:
            view = run_async(fetch_cluster_view(_nodes_of(data)))
        _show(view, console, as_json=as_json)
    raise typer.Exit(0 if all(node.state is NodeStatus.UP for node in view.nodes) else 1)


@app.command()
def node(
    options: Annotated[Path, typer.Option("--options", metavar="FILE", help="The node's options file (TOML).")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option that overrides the file.")
    ] = None,
    join: Annotated[
        str | None,
        typer.Option(
            "--join", metavar="TOKEN", help="For the first start: a join token of the cluster (see `ebla token`)."
        ),
    ] = None,
) -> None:
    """Run one node in the foreground, as a service would.

    SIGTERM or Ctrl-C stops it; SIGHUP reloads its certificates.
    """
    flags = [flag for override in overrides or () for flag in ("--set", override)]
    flags += [] if join is None else ["--join", join]
    # Becomes `python -m ebla.node`, so that a supervisor watches and signals the node itself.
    arguments = [sys.executable, "-m", "ebla.node", "control", "--options", str(options), *flags]
    os.execv(sys.executable, arguments)  # noqa: S606  # the arguments are our own


@app.command()
def token(
    data: Data = DATA_DEFAULT,
    minutes: Annotated[
        int, typer.Option("--minutes", metavar="N", min=1, max=10_080, help="How long it is valid.")
    ] = 60,
) -> None:
    """Create a join token. With it, a node on another machine receives the cluster's certificate authority.

    Anyone who has the token can join a node until it expires. On the new machine: ebla node --options FILE --join TOKEN
    """
    with reporting_errors():
        member = next((each for each in _nodes_of(data) if each.folder.read_identity() is not None), None)
        if member is None:
            raise InvalidRequest(f"no node in {data} was ever started", advice="start them first (`ebla up`)")
        authority = TlsFolder(member.folder.tls).authority()
        made = new_join_token(authority, minutes * 60, SystemClock(), SystemRng())
        sys.stdout.write(f"{made}\n")


@app.command()
def renew(data: Data = DATA_DEFAULT) -> None:
    """Renew the certificates of the nodes of this machine. Running nodes use them for new connections at once."""
    with reporting_errors():
        for each in renew_certificates(_nodes_of(data), SystemClock()):
            state = "not running" if each.signalled_pid is None else f"signalled process {each.signalled_pid}"
            sys.stdout.write(f"{each.name}  renewed  {state}\n")


@app.command("hash-password")
def hash_password_command(password_file: PasswordFile = None) -> None:
    """Print the hash of a password, for `superuser_password_hash` in the options of the nodes.

    The password comes from a prompt, from EBLA_PASSWORD or from a file.
    """
    with reporting_errors():
        sys.stdout.write(f"{hash_password(read_password(password_file, confirm=True), SystemRng())}\n")


@app.command()
def demo(
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Each seed is a different run.")] = 7,
) -> None:
    """Run a simulated cluster under faults and narrate it. The same seed gives the same run."""
    arguments = ["-m", "ebla.sim", "--scenario", "register", "--seed", str(seed), "--narrate"]
    raise typer.Exit(subprocess.run([sys.executable, *arguments], check=False).returncode)  # noqa: S603  # our own


def main() -> None:
    app()


def _nodes_of(data: Path) -> list[LocalNode]:
    nodes = find_nodes(data)
    if not nodes:
        raise InvalidRequest(
            f"there are no nodes in {data}", advice="start some with `ebla up`, or name another --data"
        )
    return nodes


def _print_addresses(console: Console, nodes: list[LocalNode], data: Path) -> None:
    for each in nodes:
        shards = ", ".join(str(each.options.shard_address(number)) for number in range(each.options.shards))
        line = f"  {each.name}  control {each.options.control_address}  shards {shards}  log {each.folder.log}"
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


def _show(view: ClusterView, console: Console, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(view)).decode() + "\n")
    elif console.is_terminal:
        console.print(as_table(view))
    else:
        for line in as_lines(view):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
