"""The calls of clients and their results, in real order."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOperation:
    """One call of one client. `returned` is None if its outcome is unknown: it may have happened at any time after
    `invoked`, or never."""

    client: str
    key: str
    call: Any
    result: Any
    invoked: float
    returned: float | None

    def __str__(self) -> str:
        answer = "never answered" if self.returned is None else f"-> {self.result!r}"
        return f"{self.client} {self.key} {self.call!r} {answer} [{self.invoked:g}, {self.returned or float('inf'):g}]"


@dataclass(slots=True, kw_only=True)
class _Open:
    client: str
    key: str
    call: Any
    invoked: int


class OperationHistory:
    """Records operations as they happen. Times are event counts: simulated instants can coincide, counts cannot."""

    def __init__(self) -> None:
        self._events = 0
        self._open: dict[int, _Open] = {}
        self._done: list[ClientOperation] = []

    def invoke(self, client: str, call: Any, key: str = "") -> int:
        """Call this before the request leaves. The number identifies the operation in `complete` and `withdraw`."""
        self._events += 1
        self._open[self._events] = _Open(client=client, key=key, call=call, invoked=self._events)
        return self._events

    def complete(self, number: int, result: Any) -> None:
        self._events += 1
        begun = self._open.pop(number)
        self._done.append(
            ClientOperation(
                client=begun.client,
                key=begun.key,
                call=begun.call,
                result=result,
                invoked=begun.invoked,
                returned=self._events,
            )
        )

    def withdraw(self, number: int) -> None:
        """The operation did not happen and never will."""
        del self._open[number]

    def operations(self) -> list[ClientOperation]:
        """All operations. Those still open have an unknown outcome."""
        unknown = [
            ClientOperation(client=o.client, key=o.key, call=o.call, result=None, invoked=o.invoked, returned=None)
            for o in self._open.values()
        ]
        return sorted([*self._done, *unknown], key=lambda operation: operation.invoked)
