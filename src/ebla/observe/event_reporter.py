"""Where the wire tells people what it saw."""

import asyncio
from collections.abc import Callable, Mapping

EventReporter = Callable[[str, Mapping[str, object]], None]
"""The name of an event and what belongs to it."""

EVENTS_PER_S_MAX = 20
"""Of one name. A hostile peer can make events as fast as connections; the log must not be its way to fill a disk."""


def discard_event(_event: str, _details: Mapping[str, object]) -> None:
    """For those who only want the errors their calls raise."""


class RateLimitedReporter:
    """Passes on so many events of one name in a second. What it left out is counted in the next one of that name."""

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
