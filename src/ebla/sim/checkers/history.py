"""The calls of clients and their results, in real order."""

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOperation:
    """One call of one client. `returned` is None if its outcome is unknown: it may have happened at any time after
    `invoked`, or never."""

    client: str
    key: str
    call: Any
    result: Any = None
    invoked: float
    returned: float | None = None

    def __str__(self) -> str:
        answer = "never answered" if self.returned is None else f"-> {self.result!r}"
        return f"{self.client} {self.key} {self.call!r} {answer} [{self.invoked:g}, {self.returned or float('inf'):g}]"


class OperationHistory:
    """Records operations as they happen. Times are event counts: simulated instants can coincide, counts cannot."""

    def __init__(self) -> None:
        self._events = 0
        self._operations: dict[int, ClientOperation] = {}

    def invoke(self, client: str, call: Any, key: str = "") -> int:
        """Call this before the request leaves. The number identifies the operation in `complete` and `withdraw`."""
        self._events += 1
        self._operations[self._events] = ClientOperation(client=client, key=key, call=call, invoked=self._events)
        return self._events

    def complete(self, number: int, result: Any) -> None:
        self._events += 1
        self._operations[number] = replace(self._operations[number], result=result, returned=self._events)

    def withdraw(self, number: int) -> None:
        """The operation did not happen and never will."""
        del self._operations[number]

    def operations(self) -> list[ClientOperation]:
        """All operations, in the order of their calls. Those still open have an unknown outcome."""
        return list(self._operations.values())
