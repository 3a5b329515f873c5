"""Reports events of links and servers, with a rate limit."""

import asyncio
from collections.abc import Callable, Mapping

EventReporter = Callable[[str, Mapping[str, object]], None]
"""Called with the name of an event and its details."""

EVENTS_PER_S_MAX = 20
"""Of one name. A hostile peer can cause events as fast as connections; it must not fill the disk with the log."""


def discard_event(_event: str, _details: Mapping[str, object]) -> None:
    """For callers that need only the errors their calls raise."""


class RateLimitedReporter:
    """Passes on a bounded number of events of one name per second. The next one counts those left out."""

    def __init__(self, report: EventReporter) -> None:
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._windows: dict[str, tuple[float, int]] = {}

    def __call__(self, event: str, details: Mapping[str, object]) -> None:
        now = self._loop.time()
        began, count = self._windows.get(event, (now, 0))
        left_out = 0
        if now - began >= 1.0:
            left_out = max(0, count - EVENTS_PER_S_MAX)
            began, count = now, 0
        self._windows[event] = (began, count + 1)
        if count < EVENTS_PER_S_MAX:
            self._report(event, {**details, "left_out": left_out} if left_out else details)
