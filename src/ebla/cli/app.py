"""The `ebla` command: its help and its version. The commands are in modules of their own, see `commands.py`."""

import sys
from typing import Annotated

import typer

from ebla.cli.commands import LazyGroup
from ebla.version import release

HELP = """
Ebla: a replicated, tablet-sharded table store with its pipeline on Spark.

[bold]A cluster on this machine[/bold]

  ebla up                     three nodes, shown live; Ctrl-C stops them
  ebla up --no-follow         the same in the background
  ebla status                 one line per node; --verbose, --json
  ebla down                   stop the nodes; their data is kept
  ebla add-node               one more node, while the cluster serves
  ebla topology               nodes and requests, and what they wait for; wait, abort
  ebla reset-node FOLDER      empty the folder of a node that did not join
  ebla cleanup node1          drop what a node no longer holds from its files, at once
  ebla group0 members         the members of the Raft group, and its leader
  ebla settings list          settings of the cluster; set, history, purge

[bold]Tables[/bold]

  ebla cqlsh                  Cassandra's shell; any driver works too: Cluster(["127.0.0.1"])
  ebla table create a.b "k int PRIMARY KEY, v text"
  ebla row put a.b k=1 v=hello
  ebla row get a.b k=1
  ebla ring; ebla tablets a.b   which node holds which range
  ebla leases                 who leads, and which nodes promised to serve it; activities: what runs under that
  ebla operations             changes of members: unfinished, quarantined, ended
  ebla failover node3         exclude a dead node; --dry-run, --status; ebla recover node3
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
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=HELP,
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        sys.stdout.write(f"ebla {release()}\n")
        raise typer.Exit


def main() -> None:
    app()
