"""A lock for the tasks of one loop, in the order they ask.

Free, it is taken by a comparison. asyncio's own takes two coroutines and five calls, and two of them stand on the way
of every commit.
"""

import asyncio
from collections import deque


class Turn:
    """`async with`, or where it counts: `if not turn.try_take(): await turn.take()`, and `leave` in a `finally`."""

    __slots__ = ("_waiting", "is_taken")

    def __init__(self) -> None:
        self.is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def try_take(self) -> bool:
        """While anybody waits it is taken, so nobody is overtaken."""
        if self.is_taken:
            return False
        self.is_taken = True
        return True

    async def take(self) -> None:
        if self.try_take():
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            # Given the turn and cancelled in the same step of the loop: the next one must have it, or nobody ever will.
            if place.done() and not place.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        assert self.is_taken, "only whoever has the turn leaves it"
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.is_taken = False

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        self.leave()
