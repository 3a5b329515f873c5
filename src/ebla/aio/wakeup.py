"""Waiting for somebody else's change, with a bound."""

import asyncio


class Wakeup:
    """Who waits looks at what it waits for first, and again when woken: a wake says that something changed, not what.
    Between the look and the wait nothing may be awaited, or a change in between would be missed."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def wait(self, timeout_s: float) -> bool:
        """Whether it was woken by then."""
        if timeout_s <= 0:
            return False
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        try:
            async with asyncio.timeout(timeout_s):
                await woken
        except TimeoutError:
            return False
        finally:
            if woken in self._waiting:
                self._waiting.remove(woken)
        return True
