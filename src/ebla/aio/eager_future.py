"""A future whose callback runs in the same step as `set_result`.

The callbacks of an asyncio future run in the loop's next step, after the rest of the step that set the result. For a
lone request that rest is a good part of its latency; for many requests, a loop handle each is a good part of the cost.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class EagerFuture(Generic[T]):
    """Set once, by `set_result` or `set_exception`, unless it was cancelled before. It has one callback, which must not
    raise: that would break the step that sets the result."""

    __slots__ = ("_callback", "_error", "_is_done", "_result")

    def __init__(self) -> None:
        self._callback: Callable[[EagerFuture[T]], None] | None = None
        self._is_done = False
        self._result: T | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return isinstance(self._error, asyncio.CancelledError)

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> T:
        assert self._is_done, "the result is not set yet"
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # it is done, and T may be None itself

    def set_result(self, result: T) -> None:
        assert not self._is_done, "the result is set once"
        self._result = result
        self._end()

    def set_exception(self, error: Exception) -> None:
        assert not self._is_done, "the result is set once"
        self._error = error
        self._end()

    def cancel(self, message: str = "") -> bool:
        """The caller no longer waits. False if the result was set already."""
        if self._is_done:
            return False
        self._error = asyncio.CancelledError(message)
        self._end()
        return True

    def add_done_callback(self, callback: "Callable[[EagerFuture[T]], None]") -> None:
        if self._is_done:
            callback(self)
            return
        assert self._callback is None, "there is one callback"
        self._callback = callback

    def _end(self) -> None:
        self._is_done = True
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(self)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._is_done:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _reply: None if woken.done() else woken.set_result(None))
            try:
                yield from woken
            finally:
                self.cancel()
        return self.result()
