"""Several commands as one transaction: all of them are committed, or none.

Each command applies to the result of the previous one. All conditions are those of the snapshot that the first command
saw, and of two changes to one key the later one wins. The version grows with every command, so nodes see it jump.
"""

from collections.abc import Sequence

from ebla.model.transaction import Change, Condition, Transaction
from ebla.topology.apply.command import Rejection, apply_command
from ebla.topology.apply.draft import ProposedChange
from ebla.topology.commands import Command
from ebla.topology.snapshot import Snapshot


def apply_commands(snapshot: Snapshot, commands: Sequence[Command]) -> ProposedChange | Rejection:
    """The first rejection rejects the batch."""
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
