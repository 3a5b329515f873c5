"""Long computations beside an event loop that must stay responsive."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TURN_S = 0.01


class LoopPauses:
    """For work over many items: `pause` returns to the loop once 10 ms have passed, so that other work runs in between.
    In the simulator no time passes within a turn, so nothing changes there."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_s = self._loop.time() + TURN_S

    async def pause(self) -> None:
        if self._loop.time() >= self._ends_s:
            await asyncio.sleep(0)
            self._ends_s = self._loop.time() + TURN_S


class ThreadLane:
    """For work that cannot pause: it runs in a thread, and Python returns to the loop every few milliseconds. One at a
    time, so that such work takes at most half of the CPU."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        async with self._lock:
            return await asyncio.get_running_loop().run_in_executor(None, work)
