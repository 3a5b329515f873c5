"""What is left of the time that a call has."""

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

    def at_most_ms(self, bound_ms: int) -> int:
        """For one question of the call; never nothing, so that its end is told by who is asked."""
        return max(1, min(bound_ms, self.left_ms))
