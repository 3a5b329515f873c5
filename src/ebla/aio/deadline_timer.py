"""One loop timer for all deadlines of a connection.

Almost every request is answered long before its deadline, so a timer each would be armed and cancelled for nothing.
Here one timer stands at the earliest deadline that was ever noted and not yet looked at; when it fires, the owner
goes through what is under way (a bounded number) and names the earliest that is left. Noting a deadline is then one
comparison, and an answered request costs nothing at all.
"""

import asyncio
import math
from collections.abc import Callable

Expire = Callable[[float], float]
"""Given the time, end what has passed its deadline and return the earliest deadline left, or infinity."""


class DeadlineTimer:
    __slots__ = ("_expire", "_loop", "_slack_s", "_timer", "armed_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, slack_ms: int, expire: Expire) -> None:
        self._loop = loop
        self._slack_s = slack_ms / 1000
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None
        self.armed_at = math.inf

    def note(self, expires_at: float) -> None:
        if expires_at < self.armed_at:
            self._arm(expires_at)

    def close(self) -> None:
        self.armed_at = -math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, expires_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.armed_at = expires_at
        self._timer = self._loop.call_at(max(expires_at, self._loop.time() + self._slack_s), self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.armed_at = math.inf
        earliest = self._expire(self._loop.time())
        if earliest < self.armed_at:
            self._arm(earliest)
