"""Events: what happened, to whom, when by people's clock. Built by an `Observer`, written down by sinks."""

import enum
import re
from collections.abc import Callable, Mapping

import msgspec

FIELD_CHARS_MAX = 2_000
"""Longer text in a field is cut: an event is a line, and a line has an end."""

NAME_PATTERN = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")

FieldValue = str | int | float | bool | None


class Severity(enum.StrEnum):
    NOTE = "note"
    """Something happened that a reader of the story wants to know."""
    WARNING = "warning"
    """Goes on, but an operator may have to look."""
    ERROR = "error"
    """Something asked for did not happen."""


class LogEvent(msgspec.Struct, frozen=True, kw_only=True):
    wall_us: int
    severity: Severity
    name: str
    """`area.what_happened`, the same words each time: what varies is in the fields."""
    subject: str
    """Whose story it belongs to: a node, a tablet, an activity, a peer. Empty for the process itself."""
    fields: dict[str, FieldValue]

    def __post_init__(self) -> None:
        assert NAME_PATTERN.fullmatch(self.name), f"{self.name!r} is no event name: area.what_happened"


Sink = Callable[[LogEvent], None]
"""Writes one event down. May raise `OSError` or `ValueError` where its stream is gone."""


def field_values(values: Mapping[str, object]) -> dict[str, FieldValue]:
    """Values as they are written: numbers and truths stay, everything else is its text, cut at the bound."""
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: object) -> FieldValue:
    if value is None or type(value) in (bool, int, float):
        return value  # type: ignore[return-value]  # mypy does not narrow by `type(...) in`
    text = str(value)
    return text if len(text) <= FIELD_CHARS_MAX else f"{text[: FIELD_CHARS_MAX - 1]}…"
