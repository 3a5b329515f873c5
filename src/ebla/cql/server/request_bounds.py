"""What the connections of a shard share: memory for requests, and turns of the loop."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from ebla.ports.clock import Clock

T = TypeVar("T")
TURN_MS = 10
"""CPU time that the requests of one connection may use before others get a turn of the loop."""
LARGE_FRAME_BYTES = 64 << 10
"""A larger frame is read only after its memory was reserved."""


class RequestMemory:
    """Bytes of the requests in flight on all connections of a shard, and of large frames that are being received.

    A frame reserves its whole length before its body is read: if each took what it needs as its bytes arrive, many
    could begin and none could end. One that does not fit waits, in the order of arrival."""

    __slots__ = ("_waiting", "bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self._waiting: dict[Callable[[], None], int] = {}

    def reserve(self, size: int, on_reserved: Callable[[], None]) -> bool:
        """False: it is not reserved now; `on_reserved` is called when it is, unless `forget` is called before."""
        if self._waiting or self.bytes + size > self.bytes_max:
            self._waiting[on_reserved] = size
            return False
        self.bytes += size
        return True

    def forget(self, on_reserved: Callable[[], None]) -> None:
        if self._waiting.pop(on_reserved, None) is not None:
            self._admit_soon()

    def release(self, size: int) -> None:
        self.bytes -= size
        if self._waiting:
            self._admit_soon()

    def _admit_soon(self) -> None:
        """Not now: who releases may still be in the middle of a request."""
        asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        while self._waiting:
            on_reserved, size = next(iter(self._waiting.items()))
            # With nothing in flight any frame fits: `cql_request_bytes_max` is below the bound.
            if self.bytes and self.bytes + size > self.bytes_max:
                return
            del self._waiting[on_reserved]
            self.bytes += size
            on_reserved()


class TurnBudget:
    """The CPU time that the requests of one connection have used in a row."""

    __slots__ = ("_loop", "_on_renewed", "_used_ms", "is_spent", "now_ms")

    def __init__(self, clock: Clock, on_renewed: Callable[[], None]) -> None:
        self.now_ms = clock.boot_ms
        self.is_spent = False
        """Nothing of this connection runs before others had a turn."""
        self._loop = asyncio.get_running_loop()
        self._on_renewed = on_renewed
        self._used_ms = 0

    def spend(self, began_ms: int) -> int:
        """Returns the time."""
        now_ms = self.now_ms()
        self._used_ms += now_ms - began_ms
        if self._used_ms >= TURN_MS and not self.is_spent:
            self.is_spent = True
            self._loop.call_soon(self._renew)
        return now_ms

    def _renew(self) -> None:
        self._used_ms, self.is_spent = 0, False
        # Requests that were begun go first: their steps are in the loop's queue already.
        self._loop.call_soon(self._on_renewed)


class MeteredWork(Coroutine[Any, Any, T]):
    """A coroutine whose steps are charged to a connection, and postponed while its budget is spent."""

    __slots__ = ("_budget", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], budget: TurnBudget) -> None:
        self._work = work
        self._budget = budget

    def send(self, value: Any) -> Any:
        budget = self._budget
        if budget.is_spent:
            return None  # the task comes again in the next turn of the loop
        began_ms = budget.now_ms()
        try:
            return self._work.send(value)
        finally:
            budget.spend(began_ms)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def __iter__(self) -> "MeteredWork[T]":
        return self

    def __next__(self) -> Any:
        return self.send(None)
