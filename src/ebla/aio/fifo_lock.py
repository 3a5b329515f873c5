"""A lock for the tasks of one loop, acquired in the order of the requests.

Acquiring a free lock is one comparison. asyncio's own takes two coroutines and five calls, and every commit acquires
two locks.
"""

import asyncio
from collections import deque


class FifoLock:
    """Use `async with`. On a hot path: `if not lock.try_acquire(): await lock.acquire()`, and `release` in a
    `finally`."""

    __slots__ = ("_waiting", "is_held")

    def __init__(self) -> None:
        self.is_held = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def try_acquire(self) -> bool:
        """The lock is held as long as a task waits for it, so no task is overtaken."""
        if self.is_held:
            return False
        self.is_held = True
        return True

    async def acquire(self) -> None:
        if self.try_acquire():
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            # Granted and cancelled in the same step of the loop: pass the lock on, or it would never be released.
            if granted.done() and not granted.cancelled():
                self.release()
            raise

    def release(self) -> None:
        assert self.is_held, "only the holder releases the lock"
        while self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():
                granted.set_result(None)
                return
        self.is_held = False

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()
