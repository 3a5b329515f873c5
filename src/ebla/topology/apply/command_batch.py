"""Several commands as one transaction: all of them are committed, or none.

Each is worked out on the outcome of the one before. What they depend on is what the first one saw, so the conditions of
all speak of the same moment, and of two changes of a key the later one counts. The version grows with every command:
nodes see it jump, which it may.
"""

from collections.abc import Sequence

from ebla.model.transaction import Change, Condition, Transaction
from ebla.topology.apply.command import Rejection, apply_command
from ebla.topology.apply.draft import ProposedChange
from ebla.topology.commands import Command
from ebla.topology.snapshot import Snapshot


def apply_commands(snapshot: Snapshot, commands: Sequence[Command]) -> ProposedChange | Rejection:
    """The first refusal counts for all."""
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
