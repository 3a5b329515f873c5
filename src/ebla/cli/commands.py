"""The commands of `ebla`: what the help says of each, and where it is.

A command is imported when it is called. Together they import most of the product, which takes many times as long as a
short command needs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import typer.core
import typer.main


@dataclass(frozen=True, slots=True)
class LazyCommand:
    help: str
    """The first paragraph of its own help."""
    load: Callable[[], typer.Typer]
    """The application that has it: a named one is the command, an unnamed one has it among others."""


class QuickOption(typer.core.TyperOption):
    """An option that is not given has nothing to convert. Typer builds a converter for it all the same, and the library
    for that takes as long to load as a short command runs."""

    def process_value(self, ctx: Any, value: Any) -> Any:
        is_absent = value is None and not self.multiple and not self.required
        if not is_absent and not isinstance(value, Path):
            return super().process_value(ctx, value)
        return value if self.callback is None else self.callback(ctx, self, value)


class LazyGroup(typer.core.TyperGroup):
    """A group whose `commands` have only names and help, until one is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update({name: typer.core.TyperCommand(name, help=one.help) for name, one in COMMANDS.items()})

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)
        return _with_quick_options(params)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Names that are not known raise before anything is imported."""
        name, found, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, found, rest
        command = load_command(name)
        for one in (command, *getattr(command, "commands", {}).values()):
            _with_quick_options(one.get_params(ctx))
        return name, command, rest


def _with_quick_options(params: list[Any]) -> list[Any]:
    for param in params:
        if type(param) is typer.core.TyperOption:
            param.__class__ = QuickOption  # Typer creates them itself, and has no parameter for their class
    return params


def load_command(name: str) -> Any:
    """The command itself, or a group of commands."""
    app = COMMANDS[name].load()
    group = typer.main.get_group(app)
    return group if app.info.name == name else group.commands[name]


def _metrics() -> typer.Typer:
    from ebla.cli.cluster.metrics import app  # only if it is called

    return app


def _up_down() -> typer.Typer:
    from ebla.cli.cluster.up_down import app  # only if it is called

    return app


def _cqlsh() -> typer.Typer:
    from ebla.cli.cluster.cqlsh import app  # only if it is called

    return app


def _status() -> typer.Typer:
    from ebla.cli.cluster.status import app  # only if it is called

    return app


def _node() -> typer.Typer:
    from ebla.cli.cluster.node import app  # only if it is called

    return app


def _credentials() -> typer.Typer:
    from ebla.cli.cluster.credentials import app  # only if it is called

    return app


def _group0() -> typer.Typer:
    from ebla.cli.cluster.group0 import app  # only if it is called

    return app


def _settings() -> typer.Typer:
    from ebla.cli.cluster.settings import app  # only if it is called

    return app


def _fault() -> typer.Typer:
    from ebla.cli.cluster.fault import app  # only if it is called

    return app


def _store() -> typer.Typer:
    from ebla.cli.tables.store import app  # only if it is called

    return app


def _table() -> typer.Typer:
    from ebla.cli.tables.table import app  # only if it is called

    return app


def _row() -> typer.Typer:
    from ebla.cli.tables.row import app  # only if it is called

    return app


def _pipeline() -> typer.Typer:
    from ebla.cli.jobs.pipeline import app  # only if it is called

    return app


def _transfers() -> typer.Typer:
    from ebla.cli.jobs.transfers import app  # only if it is called

    return app


def _export_import() -> typer.Typer:
    from ebla.cli.spark_jobs.export_import import app  # only if it is called

    return app


def _spark() -> typer.Typer:
    from ebla.cli.spark_jobs.spark import app  # only if it is called

    return app


def _spark_env() -> typer.Typer:
    from ebla.cli.spark_jobs.spark_env import app  # only if it is called

    return app


def _ring() -> typer.Typer:
    from ebla.cli.cluster.ring import app  # only if it is called

    return app


def _leases() -> typer.Typer:
    from ebla.cli.cluster.leases import app  # only if it is called

    return app


def _operations() -> typer.Typer:
    from ebla.cli.cluster.operations import app  # only if it is called

    return app


def _failover() -> typer.Typer:
    from ebla.cli.cluster.failover import app  # only if it is called

    return app


def _cleanup() -> typer.Typer:
    from ebla.cli.cluster.cleanup import app  # only if it is called

    return app


def _topology() -> typer.Typer:
    from ebla.cli.cluster.topology import app  # only if it is called

    return app


def _add_node() -> typer.Typer:
    from ebla.cli.cluster.add_node import app  # only if it is called

    return app


def _node_requests() -> typer.Typer:
    from ebla.cli.cluster.node_requests import app  # only if it is called

    return app


def _cdc() -> typer.Typer:
    from ebla.cli.cluster.cdc import app  # only if it is called

    return app


def _reset_node() -> typer.Typer:
    from ebla.cli.cluster.reset_node import app  # only if it is called

    return app


COMMANDS: Mapping[str, LazyCommand] = {
    "metrics": LazyCommand(
        "Print the metrics of the shards: requests by outcome, latencies, retries, repairs, layers, versions.", _metrics
    ),
    "up": LazyCommand("Start a cluster on this machine, or those of its nodes that do not run.", _up_down),
    "down": LazyCommand("Stop the nodes of a folder. Their data is kept.", _up_down),
    "cqlsh": LazyCommand("Start cqlsh with a node of this machine. It is installed at the first use.", _cqlsh),
    "status": LazyCommand(
        "Show the nodes: which are up, their load, tablets and shards, and their roles in group 0.", _status
    ),
    "node": LazyCommand("Run one node in the foreground, as a service would.", _node),
    "token": LazyCommand(
        "Create a join token. With it, a node on another machine receives the cluster's certificate authority.",
        _credentials,
    ),
    "renew": LazyCommand(
        "Renew the certificates of the nodes of this machine. Running nodes use them for new connections at once.",
        _credentials,
    ),
    "hash-password": LazyCommand(
        "Print the hash of a password, for `superuser_password_hash` in the options of the nodes.", _credentials
    ),
    "demo": LazyCommand(
        "Run a simulated cluster under faults and narrate it. The same seed gives the same run.", _node
    ),
    "group0": LazyCommand("Group 0: the small replicated store (Raft) that holds the cluster's state.", _group0),
    "settings": LazyCommand(
        "Settings of the cluster. Every node has them; any node changes them, even without a quorum.", _settings
    ),
    "fault": LazyCommand(
        "Fault points, for tests: a node started with `fault_points = true` stops, fails or dies at a named point.",
        _fault,
    ),
    "store": LazyCommand(
        "Inspect the files of a stopped node, of one of its shards, or of a checkpoint. Nothing is changed.", _store
    ),
    "table": LazyCommand("Tables: create, list, describe, drop.", _table),
    "row": LazyCommand(
        "Rows from a shell. Write values as COLUMN=VALUE; text needs no quotes, everything else is as in CQL.", _row
    ),
    "pipeline": LazyCommand(
        "The pipeline: Spark, started by the leader, moves data between nodes. Its work is organised in jobs.",
        _pipeline,
    ),
    "copy-tablet": LazyCommand(
        "Copy the files of one replica of tablets to another of their replicas, while both serve.", _transfers
    ),
    "compare": LazyCommand(
        "Compare all replicas of a table by hashes of token ranges, and list the ranges that differ.", _transfers
    ),
    "export": LazyCommand(
        "Write all rows of a table to a folder of Parquet or CSV files, by Spark jobs.", _export_import
    ),
    "import": LazyCommand(
        "Write the rows of a folder of Parquet or CSV files into a table, by Spark jobs.", _export_import
    ),
    "spark": LazyCommand("Open a PySpark shell with the tables of a cluster.", _spark),
    "spark-env": LazyCommand(
        "Pack the packages of Spark tasks into an archive: pyarrow, pandas, numpy, msgspec, Ebla, and their "
        "dependencies.",
        _spark_env,
    ),
    "ring": LazyCommand("List the nodes of the ring; for a table, list the token ranges of each node.", _ring),
    "tablets": LazyCommand("List the tablets of a table: ranges, replicas, and transitions in progress.", _ring),
    "leases": LazyCommand(
        "Show who leads and the lease of each node. Exit status 1 if no leader holds a majority of leases.", _leases
    ),
    "activities": LazyCommand("Show what runs or waits under leases, on every node.", _leases),
    "operations": LazyCommand(
        "Show changes of members: the unfinished one, quarantined ones, and how the latest ended.", _operations
    ),
    "failover": LazyCommand(
        "Exclude dead nodes: nothing waits for them, and they serve no rows until they are recovered.",
        _failover,
    ),
    "recover": LazyCommand("Include an excluded node again: it serves rows, and may vote.", _failover),
    "topology": LazyCommand(
        "The topology: nodes, the operation that runs and what it waits for, the queue, and how the latest requests "
        "ended.",
        _topology,
    ),
    "add-node": LazyCommand(
        "Add nodes to the cluster on this machine, and wait until they are in the ring.", _add_node
    ),
    "decommission": LazyCommand(
        "Let a node leave the cluster: it streams its data to the others, leaves the ring, and stops.", _node_requests
    ),
    "removenode": LazyCommand(
        "Remove a dead node for good: the others stream what it held from the remaining replicas.", _node_requests
    ),
    "rebuild": LazyCommand(
        "Fill a node that missed or lost data: it streams all its ranges from the other replicas, and keeps serving.",
        _node_requests,
    ),
    "cdc": LazyCommand("Change data capture: its streams.", _cdc),
    "cleanup": LazyCommand(
        "Drop rows of token ranges that a node no longer holds. Compactions do it too, at some later time.", _cleanup
    ),
    "reset-node": LazyCommand(
        "Empty the folder of a node that was never in the ring or has left it, and draw a new host id.", _reset_node
    ),
}
"""In the order of the help."""
