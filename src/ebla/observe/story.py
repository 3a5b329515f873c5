"""The story of a subject: its latest events, in order, kept in memory.

An error that includes the story of its subject explains itself without the log.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass

from ebla.observe.events import LogEvent
from ebla.observe.sinks import event_text, timestamp

STORY_EVENTS_MAX = 64
STORIES_MAX = 1_024


@dataclass(frozen=True, slots=True)
class Story:
    subject: str
    events: tuple[LogEvent, ...]
    """The latest ones, oldest first."""
    dropped_events: int
    """How many earlier ones were dropped."""

    def __str__(self) -> str:
        lines = [f"the story of {self.subject}:"]
        if self.dropped_events:
            lines.append(f"  … {self.dropped_events} earlier events")
        lines += [f"  {timestamp(event.wall_us)} {event_text(event)}" for event in self.events]
        return "\n".join(lines)

    def attach(self, error: BaseException) -> None:
        """As a note, which a traceback prints below the error."""
        if self.events:
            error.add_note(str(self))


class Stories:
    """The stories of many subjects; beyond the bound the least recently updated one is dropped."""

    def __init__(self, *, events_max: int = STORY_EVENTS_MAX, stories_max: int = STORIES_MAX) -> None:
        assert events_max > 0
        assert stories_max > 0
        self._events_max = events_max
        self._stories_max = stories_max
        self._events: OrderedDict[str, deque[LogEvent]] = OrderedDict()
        self._forgotten: dict[str, int] = {}

    def record(self, event: LogEvent) -> None:
        events = self._events.get(event.subject)
        if events is None:
            events = self._begin(event.subject)
        self._events.move_to_end(event.subject)
        if len(events) == self._events_max:
            self._forgotten[event.subject] += 1
        events.append(event)

    def of(self, subject: str) -> Story:
        """Empty for an unknown subject."""
        return Story(subject, tuple(self._events.get(subject, ())), self._forgotten.get(subject, 0))

    def subjects(self) -> tuple[str, ...]:
        """Least recently updated first."""
        return tuple(self._events)

    def _begin(self, subject: str) -> deque[LogEvent]:
        if len(self._events) == self._stories_max:
            silent, _ = self._events.popitem(last=False)
            del self._forgotten[silent]
        events: deque[LogEvent] = deque(maxlen=self._events_max)
        self._events[subject] = events
        self._forgotten[subject] = 0
        return events
