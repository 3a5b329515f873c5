"""INV-FORM-1: nodes that list one another found one cluster, and never a second beside it."""

import asyncio


class ClusterFoundings:
    """Who began which history. Beginning the same one again, after a crash in the middle, is right."""

    def __init__(self) -> None:
        self._founders: dict[str, str] = {}
        self.first = asyncio.Event()

    @property
    def founder(self) -> str:
        """Of the first history; only after `first` is set."""
        return next(iter(self._founders.values()))

    def begun(self, history: str, founder: str) -> None:
        self._founders.setdefault(history, founder)
        self.first.set()

    def violation(self) -> str | None:
        if len(self._founders) <= 1:
            return None
        each = ", ".join(f"{history} by {founder}" for history, founder in self._founders.items())
        return f"INV-FORM-1: {len(self._founders)} clusters were created: {each}"
