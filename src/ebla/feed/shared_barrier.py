"""Read barriers shared by many callers.

A read barrier costs a round of group 0, however many callers rely on it. So one runs at a time, and callers that arrive
meanwhile share the next one. They cannot share the running one: it may have fixed its index before they called, and
would not cover a write that was answered in between.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable

from ebla.aio.eager import needs_task
from ebla.model.errors import EblaError, Unavailable
from ebla.model.transaction import Revision

_Asker = tuple["asyncio.Future[Revision | EblaError]", float]
"""A future that holds the revision or the error and never raises; and the deadline of the caller."""


class SharedReadBarrier:
    """`ask` performs one barrier within a timeout in milliseconds."""

    def __init__(self, ask: Callable[[int], Awaitable[Revision]]) -> None:
        self._ask = ask
        self._next: list[_Asker] = []
        self._asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            batch = [asker for asker in self._next if not asker[0].done()]
            self._next = []
            if batch:
                outcome = await self._one(max(expires_at for _, expires_at in batch))
                for waiting, _ in batch:
                    if not waiting.done():
                        waiting.set_result(outcome)

    async def wait(self, deadline_ms: int) -> Revision:
        """A revision that covers every write answered anywhere before this call. Raises `Unavailable` if there is none
        in time."""
        waiting: asyncio.Future[Revision | EblaError] = self._loop.create_future()
        expires_at = self._loop.time() + deadline_ms / 1000
        self._next.append((waiting, expires_at))
        self._asked.set()
        await needs_task()
        try:
            async with asyncio.timeout_at(expires_at):
                outcome = await waiting
        except TimeoutError:
            raise Unavailable(f"no read barrier of group 0 within {deadline_ms} ms") from None
        if isinstance(outcome, EblaError):
            raise _refusal(outcome)
        return outcome

    async def _one(self, expires_at: float) -> Revision | EblaError:
        remaining_ms = math.ceil((expires_at - self._loop.time()) * 1000)
        if remaining_ms <= 0:
            return Unavailable("no read barrier of group 0 in time")
        try:
            return await self._ask(remaining_ms)
        except EblaError as error:
            return error


def _refusal(error: EblaError) -> Unavailable:
    """A new error for each caller. Whatever the cause, nothing happened: a barrier only reads."""
    return Unavailable(f"no read barrier of group 0: {error.message}", advice=error.advice)
