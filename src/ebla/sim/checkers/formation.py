"""INV-FORM-1: nodes that list one another found one group, and never a second beside it."""

from collections.abc import Sequence


def founding_problem(histories: Sequence[str]) -> str | None:
    """`histories` are those that some node began, one entry for each beginning. Beginning the same one again, after a
    crash in the middle, is right."""
    different = sorted(set(histories))
    if len(different) <= 1:
        return None
    return f"INV-FORM-1: {len(different)} groups were founded: {', '.join(different)}"
