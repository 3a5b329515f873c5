"""One loop timer for many deadlines.

Almost every request is answered long before its deadline, so a timer per request would be armed and cancelled for
nothing. Here one timer is set to the earliest deadline noted since it last fired. When it fires, the owner checks its
requests in flight (a bounded number) and returns the earliest deadline that is left. Noting a deadline then costs one
comparison, and an answered request costs nothing.
"""

import asyncio
import math
from collections.abc import Callable

Expire = Callable[[float], float]
"""Called with the time: ends what has passed its deadline and returns the earliest deadline left, or infinity."""


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
