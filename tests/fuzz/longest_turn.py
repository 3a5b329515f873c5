"""Measures the CPU time of the longest turn of an event loop."""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

TURN_CPU_S = 0.1
"""What one request may use in one turn."""
MARGIN = 2
"""CPU time does not count waiting for the processor. But where another process shares the core or its caches, the same
work takes up to twice as much of it, and a check must never depend on the machine."""


class LongestTurn:
    cpu_s = 0.0

    @property
    def is_short(self) -> bool:
        return self.cpu_s <= TURN_CPU_S * MARGIN


@contextmanager
def longest_turn() -> Iterator[LongestTurn]:
    """Garbage of before does not count: after thousands of tests, one full collection takes longer than any turn."""
    found = LongestTurn()
    run = asyncio.Handle._run

    def timed(self: asyncio.Handle) -> None:
        began_s = time.thread_time()
        run(self)
        found.cpu_s = max(found.cpu_s, time.thread_time() - began_s)

    gc.freeze()
    asyncio.Handle._run = timed  # type: ignore[method-assign]  # the loop has no other place to measure at
    try:
        yield found
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]  # as above
        gc.unfreeze()
