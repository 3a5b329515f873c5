"""The object that a process logs and counts with. Made at the root and passed down; there is no global."""

from collections.abc import Sequence

from ebla.observe.events import LogEvent, Severity, Sink, field_values
from ebla.observe.metrics import Metrics
from ebla.observe.story import Stories, Story
from ebla.ports.clock import Clock


class Observer:
    """Sends events to the sinks and keeps the latest of each subject; also owns the metrics.

    Only for use on the loop: nothing here locks.
    """

    def __init__(self, clock: Clock, sinks: Sequence[Sink] = ()) -> None:
        self._clock = clock
        self._sinks = tuple(sinks)
        self._stories = Stories()
        self.metrics = Metrics()
        self._lost = self.metrics.counter("events_lost_total", "Events that a sink could not write.").series()
        self._counted = self.metrics.counter("events_total", "Events logged.", labels=("severity",))

    def emit(self, name: str, subject: str = "", /, *, severity: Severity = Severity.NOTE, **fields: object) -> None:
        event = LogEvent(
            wall_us=self._clock.wall_us(), severity=severity, name=name, subject=subject, fields=field_values(fields)
        )
        self._counted.series(severity.value).add()
        if subject:
            self._stories.record(event)
        for sink in self._sinks:
            # A log that cannot be written (a full disk, a closed pipe) must not fail the work it describes.
            try:
                sink(event)
            except (OSError, ValueError):
                self._lost.add()

    def story_of(self, subject: str) -> Story:
        return self._stories.of(subject)
