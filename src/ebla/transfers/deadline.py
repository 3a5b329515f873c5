"""The time that a call has left."""

import asyncio


class Deadline:
    __slots__ = ("_expires_at", "_loop")

    def __init__(self, within_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._expires_at = self._loop.time() + within_ms / 1000

    @property
    def left_ms(self) -> int:
        return max(0, int((self._expires_at - self._loop.time()) * 1000))

    @property
    def is_over(self) -> bool:
        return self._loop.time() >= self._expires_at

    def at_most_ms(self, limit_ms: int) -> int:
        """The timeout of one call on the way: at least 1 ms, so that the callee reports the timeout."""
        return max(1, min(limit_ms, self.left_ms))
