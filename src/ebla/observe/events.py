"""Structured log events. `EventLog` builds them, a sink writes them."""

import contextlib
import enum
import re
from collections.abc import Callable, Container, Mapping

import msgspec

from ebla.ports.clock import Clock

FIELD_CHARS_MAX = 2_000
"""Longer text in a field is cut: an event is one line."""

NAME_PATTERN = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")

FieldValue = str | int | float | bool | None


class Severity(enum.StrEnum):
    NOTE = "note"
    """Worth knowing for a reader of the log."""
    WARNING = "warning"
    """The process continues, but an operator may have to act."""


class LogEvent(msgspec.Struct, frozen=True, kw_only=True):
    wall_us: int
    severity: Severity
    name: str
    """`area.what_happened`, the same each time: what varies is in the fields."""
    subject: str
    """The process that reports it."""
    fields: dict[str, FieldValue]

    def __post_init__(self) -> None:
        assert NAME_PATTERN.fullmatch(self.name), f"{self.name!r} is not an event name: area.what_happened"


Sink = Callable[[LogEvent], None]
"""Writes one event. May raise `OSError` or `ValueError` if its stream is gone."""


class EventLog:
    """An `EventReporter` that writes to a sink."""

    def __init__(self, clock: Clock, process: str, sink: Sink, warnings: Container[str]) -> None:
        self._clock = clock
        self._process = process
        self._sink = sink
        self._warnings = warnings
        """Names of events that have this severity."""

    def __call__(self, name: str, details: Mapping[str, object]) -> None:
        event = LogEvent(
            wall_us=self._clock.wall_us(),
            severity=Severity.WARNING if name in self._warnings else Severity.NOTE,
            name=name,
            subject=self._process,
            fields={field: _plain(value) for field, value in details.items()},
        )
        # A log that cannot be written (a full disk, a closed pipe) must not fail the work it describes.
        with contextlib.suppress(OSError, ValueError):
            self._sink(event)


def _plain(value: object) -> FieldValue:
    """Numbers and booleans unchanged, everything else as text, cut at the bound."""
    if value is None or type(value) in (bool, int, float):
        return value  # type: ignore[return-value]  # mypy does not narrow by `type(...) in`
    text = str(value)
    return text if len(text) <= FIELD_CHARS_MAX else f"{text[: FIELD_CHARS_MAX - 1]}…"
