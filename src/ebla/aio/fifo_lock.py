"""A lock for the tasks of one loop, in the order they ask.

Free, it is taken by a comparison. asyncio's own takes two coroutines and five calls, and two of them stand on the way
of every commit.
"""

import asyncio
from collections import deque


class FifoLock:
    """`async with`, or where it counts: `if not turn.try_take(): await turn.take()`, and `release` in a `finally`."""

    __slots__ = ("_waiting", "is_held")

    def __init__(self) -> None:
        self.is_held = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def try_acquire(self) -> bool:
        """While anybody waits it is taken, so nobody is overtaken."""
        if self.is_held:
            return False
        self.is_held = True
        return True

    async def acquire(self) -> None:
        if self.try_acquire():
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            # Given the turn and cancelled in the same step of the loop: the next one must have it, or nobody ever will.
            if place.done() and not place.cancelled():
                self.release()
            raise

    def release(self) -> None:
        assert self.is_held, "only whoever has the turn leaves it"
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.is_held = False

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()
