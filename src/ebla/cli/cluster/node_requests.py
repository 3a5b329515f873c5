"""`ebla decommission`, `removenode` and `rebuild`: a node leaves, a dead one is removed, one is filled again."""

import time
import uuid
from typing import Annotated

import typer

from ebla.cli.cluster.local_cluster import require_nodes
from ebla.cli.cluster.operations import resolve_host
from ebla.cli.cluster.requests import RequestFlags, check_request, confirm, run_request
from ebla.cli.command import NodeFlags, add_command
from ebla.model.errors import InvalidRequest
from ebla.model.identity import HostId, RequestId
from ebla.topology.snapshot import NodeRequest
from ebla.topology.states import NodeRequestKind

NAMING = "Its local name, address, host id, or the first digits of that."

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""

Target = Annotated[str | None, typer.Argument(metavar="[NODE]", help=f"{NAMING} By default the only node of --data.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask, whatever data has too few replicas.")]
IgnoreDead = Annotated[
    list[str] | None,
    typer.Option("--ignore-dead", metavar="HOST", help="Another dead node, which is excluded too. May be repeated."),
]


@add_command(app, is_change=True)
def decommission(flags: RequestFlags, target: Target = None, yes: Yes = False) -> int:
    """Let a node leave the cluster: it streams its data to the others, leaves the ring, and stops."""
    request = new_request(NodeRequestKind.LEAVE, chosen_host(flags, target))
    confirm(check_request(flags, request), is_confirmed=yes)
    return run_request(flags, request, "left")


@add_command(app, is_change=True)
def removenode(
    flags: RequestFlags,
    host: Annotated[str, typer.Argument(metavar="HOST", help=NAMING)],
    ignore_dead: IgnoreDead = None,
    yes: Yes = False,
) -> int:
    """Remove a dead node for good: the others stream what it held from the remaining replicas."""
    ignored = tuple(dict.fromkeys(resolve_host(flags, one) for one in ignore_dead or ()))
    request = new_request(NodeRequestKind.REMOVE, resolve_host(flags, host), ignored=ignored)
    confirm(check_request(flags, request), is_confirmed=yes)
    return run_request(flags, request, "is removed")


@add_command(app, is_change=True)
def rebuild(
    flags: RequestFlags,
    target: Target = None,
    source_dc: Annotated[
        str | None, typer.Option("--source-dc", metavar="D", help="Stream only from nodes of this datacenter.")
    ] = None,
) -> int:
    """Fill a node that missed or lost data: it streams all its ranges from the other replicas, and keeps serving."""
    host = chosen_host(flags, target)
    return run_request(flags, new_request(NodeRequestKind.REBUILD, host, source_dc=source_dc), "is rebuilt")


def new_request(
    kind: NodeRequestKind, host: HostId, *, ignored: tuple[HostId, ...] = (), source_dc: str | None = None
) -> NodeRequest:
    """Under an id of its own. The node that stores it sets initiator and time again."""
    return NodeRequest(
        id=RequestId(uuid.uuid4()),
        kind=kind,
        host=host,
        initiator=host,
        start_ms=time.time_ns() // 1_000_000,
        ignored_nodes=ignored,
        rebuild_source=source_dc,
    )


def chosen_host(flags: NodeFlags, text: str | None) -> HostId:
    if text is not None:
        return resolve_host(flags, text)
    nodes = require_nodes(flags.data)
    if len(nodes) != 1:
        raise typer.BadParameter(f"name the NODE: {flags.data} holds {len(nodes)} nodes")
    identity = nodes[0].folder.read_identity()
    if identity is None:
        raise InvalidRequest(f"{nodes[0].name} was never started", advice="name another node, or another --data")
    return identity.host
