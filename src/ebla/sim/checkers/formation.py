"""INV-FORM-1: nodes that list one another create exactly one cluster."""

import asyncio


class ClusterFoundings:
    """Which node created which history. Creating the same one again after a crash is correct."""

    def __init__(self) -> None:
        self._founders: dict[str, str] = {}
        self.first = asyncio.Event()

    @property
    def founder(self) -> str:
        """The creator of the first history. Only valid after `first` is set."""
        return next(iter(self._founders.values()))

    def begun(self, history: str, founder: str) -> None:
        self._founders.setdefault(history, founder)
        self.first.set()

    def violation(self) -> str | None:
        if len(self._founders) <= 1:
            return None
        each = ", ".join(f"{history} by {founder}" for history, founder in self._founders.items())
        return f"INV-FORM-1: {len(self._founders)} clusters were created: {each}"
