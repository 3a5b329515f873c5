"""The one door through which the topology changes: a command and a snapshot in, a transaction or a refusal out."""

from dataclasses import dataclass
from typing import assert_never

from ebla.topology.apply_cluster import apply_cluster
from ebla.topology.apply_nodes import apply_node
from ebla.topology.apply_requests import apply_request
from ebla.topology.apply_resize import apply_resize
from ebla.topology.apply_schema import apply_schema
from ebla.topology.apply_tablets import apply_tablets
from ebla.topology.commands import (
    ClusterCommand,
    Command,
    NodeCommand,
    RequestCommand,
    ResizeCommand,
    SchemaCommand,
    TabletCommand,
)
from ebla.topology.draft import Applied, Draft, Refusal
from ebla.topology.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was done. `reason` is for people."""

    reason: str


def apply(snapshot: Snapshot, command: Command) -> Applied | Refused:
    draft = Draft(snapshot)
    try:
        _work_out(draft, command)
    except Refusal as refusal:
        return Refused(str(refusal))
    return draft.finish()


def _work_out(draft: Draft, command: Command) -> None:
    if isinstance(command, RequestCommand):
        apply_request(draft, command)
    elif isinstance(command, NodeCommand):
        apply_node(draft, command)
    elif isinstance(command, TabletCommand):
        apply_tablets(draft, command)
    elif isinstance(command, ResizeCommand):
        apply_resize(draft, command)
    elif isinstance(command, ClusterCommand):
        apply_cluster(draft, command)
    elif isinstance(command, SchemaCommand):
        apply_schema(draft, command)
    else:
        assert_never(command)
