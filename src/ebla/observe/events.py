"""Structured log events. An `Observer` builds them, sinks write them."""

import enum
import re
from collections.abc import Callable, Mapping

import msgspec

FIELD_CHARS_MAX = 2_000
"""Longer text in a field is cut: an event is one line."""

NAME_PATTERN = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")

FieldValue = str | int | float | bool | None


class Severity(enum.StrEnum):
    NOTE = "note"
    """Worth knowing for a reader of the log."""
    WARNING = "warning"
    """The process continues, but an operator may have to act."""
    ERROR = "error"
    """A requested operation failed."""


class LogEvent(msgspec.Struct, frozen=True, kw_only=True):
    wall_us: int
    severity: Severity
    name: str
    """`area.what_happened`, the same each time: what varies is in the fields."""
    subject: str
    """What it is about: a node, a tablet, a job, a peer. Empty for the process itself."""
    fields: dict[str, FieldValue]

    def __post_init__(self) -> None:
        assert NAME_PATTERN.fullmatch(self.name), f"{self.name!r} is not an event name: area.what_happened"


Sink = Callable[[LogEvent], None]
"""Writes one event. May raise `OSError` or `ValueError` if its stream is gone."""


def field_values(values: Mapping[str, object]) -> dict[str, FieldValue]:
    """Values as they are written: numbers and booleans unchanged, everything else as text, cut at the bound."""
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: object) -> FieldValue:
    if value is None or type(value) in (bool, int, float):
        return value  # type: ignore[return-value]  # mypy does not narrow by `type(...) in`
    text = str(value)
    return text if len(text) <= FIELD_CHARS_MAX else f"{text[: FIELD_CHARS_MAX - 1]}…"
