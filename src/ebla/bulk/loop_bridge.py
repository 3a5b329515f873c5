"""Calls from gRPC's threads into the event loop, each with a timeout."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from ebla.model.errors import DeadlineExceeded, Unavailable

T = TypeVar("T")


class LoopBridge:
    """Runs coroutines and callbacks on the loop, for other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wait_s: float) -> None:
        self._loop = loop
        self._wait_s = wait_s

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise Unavailable("the bulk process is ending") from None

    def wait(self, future: Future[T]) -> T:
        try:
            return future.result(self._wait_s)
        except FutureTimeout:
            future.cancel()
            raise DeadlineExceeded(f"the bulk process did not answer within {self._wait_s:g} s") from None
        except asyncio.CancelledError:
            raise Unavailable("the bulk process is ending") from None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return self.wait(self.begin(work))

    def post(self, act: Any, *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            pass  # the process is ending, and its resources are freed with it
