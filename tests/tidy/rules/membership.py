"""Who proposes membership entries.

A membership entry without the keys that belong to it leaves members without rows, or rows without members. Runs of
operations change both, and can be repaired (`group0/operations.py`).
"""

import ast
from collections.abc import Iterable, Mapping

from tests.tidy.source import Source

NAMES = ("ChangeMembers", "change_members")

PLACES: Mapping[str, str] = {
    "src/ebla/group0/commands.py": "defines the command",
    "src/ebla/group0/store.py": "applies it",
    "src/ebla/control/group0/state_machine.py": "applies it",
    "src/ebla/control/group0/client.py": "proposes it for the runner",
    "src/ebla/control/operations/runner.py": "the run of an operation",
}
"""With their part in it."""


def membership_entries(sources: Iterable[Source], places: Mapping[str, str] = PLACES) -> list[str]:
    """Run an operation (`control/operations/operation_service.py`)."""
    complaints, found = [], set()
    for source in sources:
        if not source.is_product:
            continue
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Attribute | ast.Name):
                continue
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name in NAMES:
                found.add(source.path)
                if source.path not in places:
                    complaints.append(source.complaint(node.lineno, f"{name} changes members without their keys"))
    return complaints + [f"{path} names it no more: take it from the table" for path in places if path not in found]


RULES = (membership_entries,)
"""Run on every Python file; they check those of the product."""
