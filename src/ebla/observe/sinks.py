"""Sinks for events: JSON lines for machines, aligned lines for people."""

import datetime
import json
from typing import TextIO

import msgspec

from ebla.observe.events import FieldValue, LogEvent, Severity

NAME_COLUMNS = 28
SUBJECT_COLUMNS = 16

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_COLOURS = {Severity.NOTE: "", Severity.WARNING: "\x1b[33m"}
_FAINT, _PLAIN = "\x1b[2m", "\x1b[0m"


class JsonLines:
    """One JSON object a line: `time`, `severity`, `event`, `subject`, and the fields by name; a field with one of these
    four names gets a `_` appended."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: LogEvent) -> None:
        line: dict[str, FieldValue] = {
            "time": timestamp(event.wall_us),
            "severity": event.severity.value,
            "event": event.name,
            "subject": event.subject,
        }
        line |= {f"{name}_" if name in line else name: value for name, value in event.fields.items()}
        self._stream.write(msgspec.json.encode(line).decode() + "\n")
        self._stream.flush()


class TextLines:
    """One aligned line per event, in colour on a terminal, with the date in a long-lived log."""

    def __init__(self, stream: TextIO, *, colour: bool, dated: bool = False) -> None:
        self._stream = stream
        self._colour = colour
        self._time_from = 0 if dated else 11

    def __call__(self, event: LogEvent) -> None:
        time = timestamp(event.wall_us)[self._time_from : -1]
        line = (
            f"{event.name:<{NAME_COLUMNS}} {one_line(event.subject):<{SUBJECT_COLUMNS}} {_field_text(event)}".rstrip()
        )
        if self._colour:
            line = f"{_FAINT}{time}{_PLAIN} {_COLOURS[event.severity]}{line}{_PLAIN}"
        else:
            mark = {Severity.NOTE: " ", Severity.WARNING: "!"}[event.severity]
            line = f"{time} {mark} {line}"
        self._stream.write(line + "\n")
        self._stream.flush()


def _field_text(event: LogEvent) -> str:
    return " ".join(f"{name}={_value_text(value)}" for name, value in event.fields.items())


def timestamp(wall_us: int) -> str:
    """ISO 8601 in UTC, with microseconds."""
    return f"{(_EPOCH + datetime.timedelta(microseconds=wall_us)).isoformat(timespec='microseconds')[:-6]}Z"


def one_line(text: str) -> str:
    """Without line breaks and control characters, so that text from a peer cannot forge a line or control a
    terminal."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)


def _value_text(value: FieldValue) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    shown = one_line(value)
    return f'"{shown}"' if " " in shown or not shown else shown
