"""`ebla cleanup`: drop from a node's files what it does not hold."""

from typing import Annotated

import typer

from ebla.cli.cluster.local_cluster import LocalNode, require_nodes
from ebla.cli.cluster.node_calls import call_socket, local_transport, run_async
from ebla.cli.command import NodeFlags, add_command
from ebla.model.errors import InvalidRequest
from ebla.wire.verbs import CLEANUP, CleanupAnswer, CleanupRequest

CLEANUP_MS = 6 * 3_600_000
"""Of one shard."""
MB = 1_000_000

app = typer.Typer()
"""Unnamed, so that its command is added to the parent."""


@add_command(app, is_change=True)
def cleanup(
    flags: NodeFlags,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[NODE]",
            help="A node of this machine: its name, address, host id, or the first digits of that. By default the only "
            "node of --data.",
        ),
    ] = None,
) -> None:
    """Drop rows of token ranges that a node no longer holds. Compactions do it too, at some later time."""
    chosen = choose_local_node(require_nodes(flags.data), target or flags.node)
    answers = run_async(_clean_up(chosen))
    before_bytes = sum(one.before_bytes for one in answers)
    after_bytes = sum(one.after_bytes for one in answers)
    flags.show(
        {"node": chosen.name, "before_bytes": before_bytes, "after_bytes": after_bytes},
        f"{chosen.name}: {before_bytes // MB} MB before, {after_bytes // MB} MB after",
    )


def choose_local_node(nodes: list[LocalNode], text: str | None) -> LocalNode:
    if text is None:
        if len(nodes) == 1:
            return nodes[0]
        raise typer.BadParameter(f"name the NODE: {', '.join(node.name for node in nodes)}")
    found = [node for node in nodes if text in (node.name, node.options.address, str(node.options.control_address))]
    found = found or [node for node in nodes if _host_id(node).startswith(text.lower())]
    if len(found) == 1:
        return found[0]
    what = "names several nodes" if found else "is no node of this machine"
    known = ", ".join(f"{node.name} ({node.options.control_address})" for node in nodes)
    raise InvalidRequest(f"{text!r} {what}", advice=f"its nodes are {known}; run the command on the node's own machine")


def _host_id(node: LocalNode) -> str:
    identity = node.folder.read_identity()
    return "" if identity is None else str(identity.host)


async def _clean_up(node: LocalNode) -> list[CleanupAnswer]:
    """One shard after the other: each compaction takes a core."""
    async with local_transport() as transport:
        return [
            await call_socket(
                transport, node, node.folder.shard_socket(number), CLEANUP, CleanupRequest(), deadline_ms=CLEANUP_MS
            )
            for number in range(node.options.shards)
        ]
