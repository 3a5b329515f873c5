"""The only way to change the topology: a command and a snapshot in, a transaction or a rejection out."""

from dataclasses import dataclass
from typing import assert_never

from ebla.topology.apply.cluster import apply_cluster
from ebla.topology.apply.draft import CommandRejected, ProposedChange, TopologyDraft
from ebla.topology.apply.nodes import apply_node
from ebla.topology.apply.requests import apply_request
from ebla.topology.apply.resize import apply_resize
from ebla.topology.apply.schema import apply_schema
from ebla.topology.apply.tablets import apply_tablets
from ebla.topology.commands import (
    ClusterCommand,
    Command,
    NodeCommand,
    RequestCommand,
    ResizeCommand,
    SchemaCommand,
    TabletCommand,
)
from ebla.topology.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Rejection:
    """Nothing was done. `reason` is for people."""

    reason: str


def apply_command(snapshot: Snapshot, command: Command) -> ProposedChange | Rejection:
    draft = TopologyDraft(snapshot)
    try:
        _work_out(draft, command)
    except CommandRejected as refusal:
        return Rejection(str(refusal))
    return draft.finish()


def _work_out(draft: TopologyDraft, command: Command) -> None:
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
