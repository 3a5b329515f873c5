"""The only way to change the topology: commands and a snapshot in, a transaction or a rejection out."""

from collections.abc import Sequence
from dataclasses import dataclass

from ebla.model.transaction import Change, Condition, Transaction
from ebla.topology.apply.cluster import CLUSTER_COMMANDS
from ebla.topology.apply.draft import CommandHandlers, CommandRejected, ProposedChange, TopologyDraft
from ebla.topology.apply.nodes import NODE_COMMANDS, create_cluster
from ebla.topology.apply.requests import REQUEST_COMMANDS
from ebla.topology.apply.resize import RESIZE_COMMANDS
from ebla.topology.apply.schema import SCHEMA_COMMANDS
from ebla.topology.apply.tablets import TABLET_COMMANDS
from ebla.topology.commands import Command, CreateCluster
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import UpgradeState

UNTIL_UPGRADE_TOO: CommandHandlers = {CreateCluster: create_cluster, **CLUSTER_COMMANDS, **SCHEMA_COMMANDS}
AFTER_UPGRADE: CommandHandlers = {**REQUEST_COMMANDS, **NODE_COMMANDS, **TABLET_COMMANDS, **RESIZE_COMMANDS}


@dataclass(frozen=True, slots=True)
class Rejection:
    """Nothing was done. `reason` is for people."""

    reason: str


def apply_command(snapshot: Snapshot, command: Command) -> ProposedChange | Rejection:
    draft = TopologyDraft(snapshot)
    try:
        work = UNTIL_UPGRADE_TOO.get(type(command))
        if work is None:
            upgraded = snapshot.state.upgrade is UpgradeState.DONE
            draft.require(upgraded, "the topology is not in group 0 yet: upgrade first")
            work = AFTER_UPGRADE[type(command)]
        work(draft, command)
    except CommandRejected as refusal:
        return Rejection(str(refusal))
    return draft.finish()


def apply_commands(snapshot: Snapshot, commands: Sequence[Command]) -> ProposedChange | Rejection:
    """Several commands as one transaction. The first rejection rejects all of them.

    Each command applies to the result of the previous one. All conditions are those of the snapshot that the first
    command saw, and of two changes to one key the later one wins. The version grows with every command, so nodes see
    it jump.
    """
    assert commands
    conditions: dict[str, Condition] = {}
    changes: dict[str, Change] = {}
    now = snapshot
    for command in commands:
        applied = apply_command(now, command)
        if isinstance(applied, Rejection):
            return applied
        conditions.update({each.key: each for each in applied.transaction.conditions})
        changes.update({each.key: each for each in applied.transaction.changes})
        now = applied.snapshot
    ordered = Transaction(
        tuple(conditions[key] for key in sorted(conditions)), tuple(changes[key] for key in sorted(changes))
    )
    return ProposedChange(now, ordered)
