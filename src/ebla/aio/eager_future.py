"""An answer that is yet to come, told in the very step that gives it.

As much of a future as is needed, without the loop between: a future's callbacks run with the loop's next step, behind
the rest of the step that gave the answer. Where one answer is all that somebody waits for, that rest is a good part of
the way; where there are many, a handle for each is.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class EagerFuture(Generic[T]):
    """Given once, by `set_result` or `set_exception`, unless it was cancelled before. One callback, which must not
    fail: it would break the step of whoever gives the answer."""

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
        assert self._is_done, "it is not given yet"
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # it is done, and T may be None itself

    def set_result(self, result: T) -> None:
        assert not self._is_done, "it is given once"
        self._result = result
        self._end()

    def set_exception(self, error: Exception) -> None:
        assert not self._is_done, "it is given once"
        self._error = error
        self._end()

    def cancel(self, message: str = "") -> bool:
        """Nobody waits any more. False where it was given already."""
        if self._is_done:
            return False
        self._error = asyncio.CancelledError(message)
        self._end()
        return True

    def add_done_callback(self, callback: "Callable[[EagerFuture[T]], None]") -> None:
        if self._is_done:
            callback(self)
            return
        assert self._callback is None, "one is told"
        self._callback = callback

    def _end(self) -> None:
        self._is_done = True
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(self)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._is_done:
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _reply: None if told.done() else told.set_result(None))
            try:
                yield from told
            finally:
                self.cancel()
        return self.result()
