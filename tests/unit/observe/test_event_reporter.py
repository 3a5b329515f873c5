"""A flood of events is logged in a few lines and counted."""

import asyncio
from collections.abc import Mapping

from ebla.observe.event_reporter import EVENTS_PER_S_MAX, RateLimitedReporter


async def test_a_flood_is_cut_and_counted() -> None:
    reported: list[tuple[str, Mapping[str, object]]] = []
    loop = asyncio.get_running_loop()
    now = 100.0
    loop.time = lambda: now  # type: ignore[method-assign]  # a clock of the test's own
    calm = RateLimitedReporter(lambda event, details: reported.append((event, details)))
    for number in range(1000):
        calm("wire.flood", {"number": number})
    calm("wire.other", {})
    now += 1.0
    calm("wire.flood", {"number": 1000})
    calm("wire.flood", {"number": 1001})
    floods = [details for event, details in reported if event == "wire.flood"]
    assert [details["number"] for details in floods] == [*range(EVENTS_PER_S_MAX), 1000, 1001]
    assert floods[-2]["left_out"] == 1000 - EVENTS_PER_S_MAX
    assert "left_out" not in floods[-1]
    assert ("wire.other", {}) in reported
