"""Threads of gRPC know the loop of their process by calls with a bound alone."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from ebla.model.errors import DeadlineExceeded, Unavailable

T = TypeVar("T")


class LoopBridge:
    """Calls of the loop from other threads, with a bound."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wait_s: float) -> None:
        self._loop = loop
        self._wait_s = wait_s

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise Unavailable("the bulk process is ending") from None

    def wait(self, begun: Future[T]) -> T:
        try:
            return begun.result(self._wait_s)
        except FutureTimeout:
            begun.cancel()
            raise DeadlineExceeded(f"the bulk process did not answer within {self._wait_s:g} s") from None
        except asyncio.CancelledError:
            raise Unavailable("the bulk process is ending") from None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return self.wait(self.begin(work))

    def tell(self, act: Any, *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            pass  # the process is ending, and what was to be let go goes with it
