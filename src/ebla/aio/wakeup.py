"""Waiting for a change that other code makes, with a timeout."""

import asyncio

from ebla.aio.eager import needs_task


class Wakeup:
    """Like a condition variable: check the condition before waiting and again after waking. A wake-up says that
    something changed, not what. Nothing may be awaited between the check and `wait`, or a change in between would be
    missed."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def wait(self, timeout_s: float) -> bool:
        """Whether `wake` was called in time."""
        if timeout_s <= 0:
            return False
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        try:
            await needs_task()
            async with asyncio.timeout(timeout_s):
                await woken
        except TimeoutError:
            return False
        finally:
            if woken in self._waiting:
                self._waiting.remove(woken)
        return True
