"""Converts literals to values of a column's type, in wire form. Pure."""

import datetime
import ipaddress
import math
import re
import uuid
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from ebla.cql.parse.terms import Literal, LiteralKind
from ebla.model.cql_types import CqlType, Scalar, ScalarType
from ebla.model.errors import InvalidRequest
from ebla.model.values import Duration, encode

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = datetime.date(1970, 1, 1)

_TIMESTAMP = re.compile(
    r"([+-]?\d{4,9})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?)?\s*"
    r"(Z|GMT|UTC|[+-]\d{2}:?\d{2}|[+-]\d{2})?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[+-]?\d+")
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?")
_DATE = re.compile(r"([+-]?\d{1,9})-(\d{1,2})-(\d{1,2})")
_PARTS = re.compile(r"(\d+)(y|mo|w|d|h|ms|m|s|us|µs|ns)", re.IGNORECASE)
_ISO = re.compile(r"P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_ISO_WEEKS = re.compile(r"P(\d+)W")
_ISO_LONG = re.compile(r"P(\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2}):(\d{2})")

_FLOAT_MAX = 3.4028235677973366e38
_HOUR_NS = 3_600_000_000_000
_MINUTE_NS = 60_000_000_000
_SECOND_NS = 1_000_000_000
_UNITS: dict[str, tuple[int, int, int]] = {
    "y": (12, 0, 0),
    "mo": (1, 0, 0),
    "w": (0, 7, 0),
    "d": (0, 1, 0),
    "h": (0, 0, _HOUR_NS),
    "m": (0, 0, _MINUTE_NS),
    "s": (0, 0, _SECOND_NS),
    "ms": (0, 0, 1_000_000),
    "us": (0, 0, 1_000),
    "µs": (0, 0, 1_000),
    "ns": (0, 0, 1),
}
"""Months, days and nanoseconds of each unit, the longest first."""
_UNIT_NAMES = {
    "y": "years",
    "mo": "months",
    "w": "weeks",
    "d": "days",
    "h": "hours",
    "m": "minutes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "µs": "microseconds",
    "ns": "nanoseconds",
}
_UNIT_ORDER = {unit: list(dict.fromkeys(_UNIT_NAMES.values())).index(name) for unit, name in _UNIT_NAMES.items()}


def parse_timestamp(text: str) -> int:
    """Milliseconds since 1970. Raises `ValueError`."""
    if _NUMBER.fullmatch(text):
        return int(text)
    found = _TIMESTAMP.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"Unable to coerce '{text}' to a formatted date (long)")
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    try:
        days = days_of(int(year), int(month), int(day))
        clock = datetime.time(int(hour or 0), int(minute or 0), int(second or 0))
    except ValueError as error:
        raise ValueError(f"Unable to coerce '{text}' to a formatted date (long)") from error
    milliseconds = int((fraction or "0").ljust(3, "0")[:3])
    seconds = clock.hour * 3600 + clock.minute * 60 + clock.second - _zone_seconds(zone)
    return (days * 86_400 + seconds) * 1000 + milliseconds


def _zone_seconds(zone: str | None) -> int:
    if zone is None or zone.upper() in ("Z", "GMT", "UTC"):
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if zone[0] == "-" else seconds


def parse_date(text: str) -> int:
    """Days since 1970, of a date or of a number as in the wire form. Raises `ValueError`."""
    if _NUMBER.fullmatch(text):
        return _days_of_number(text)
    found = _DATE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"Unable to coerce '{text}' to a formatted date (long)")
    try:
        return days_of(int(found[1]), int(found[2]), int(found[3]))
    except ValueError as error:
        raise ValueError(f"Unable to coerce '{text}' to a formatted date (long)") from error


def _days_of_number(text: str) -> int:
    """As a number, a date counts from the earliest date, as in the wire form."""
    number = int(text)
    if not 0 <= number < 1 << 32:
        raise ValueError(f"Unable to make unsigned int (for date) from: '{text}'")
    return number - (1 << 31)


def days_of(year: int, month: int, day: int) -> int:
    """Days of the Gregorian calendar beyond the range of Python's: every 400 years have the same number of days."""
    cycles, within = divmod(year, 400)
    inside = datetime.date(within + 400, month, day)
    return (inside - _EPOCH_DAY).days + (cycles - 1) * 146_097


def parse_time(text: str) -> int:
    """Nanoseconds of the day. Raises `ValueError`."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"Unable to coerce '{text}' to a formatted time (long)")
    hour, minute, second, fraction = found.groups()
    try:
        checked = datetime.time(int(hour), int(minute), int(second or 0))
    except ValueError as error:
        raise ValueError(f"Unable to coerce '{text}' to a formatted time (long)") from error
    seconds = checked.hour * 3600 + checked.minute * 60 + checked.second
    return seconds * _SECOND_NS + int((fraction or "0").ljust(9, "0"))


def parse_inet(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise ValueError(f"Unable to make inet address from '{text}'") from error


def parse_duration(text: str) -> Duration:
    """`1h30m`, `P1Y2M`, `P2W`. Raises `ValueError`."""
    sign = -1 if text.startswith("-") else 1
    plain = text.removeprefix("-")
    months, days, nanoseconds = _iso_duration(plain) if plain.startswith("P") else _unit_duration(plain)
    return Duration(sign * months, sign * days, sign * nanoseconds)


def _unit_duration(text: str) -> tuple[int, int, int]:
    totals = [0, 0, 0]
    end = 0
    before = ""
    for found in _PARTS.finditer(text):
        if found.start() != end:
            break
        end = found.end()
        unit = found[2].lower()
        _check_unit_order(text, before, unit)
        before = unit
        for place, weight in enumerate(_UNITS[unit]):
            totals[place] += int(found[1]) * weight
    if end != len(text) or not text:
        raise ValueError(f"Unable to convert '{text}' to a duration")
    return totals[0], totals[1], totals[2]


def _check_unit_order(text: str, before: str, unit: str) -> None:
    """Each unit once, the longest first."""
    if not before or _UNIT_ORDER[before] < _UNIT_ORDER[unit]:
        return
    if _UNIT_NAMES[before] == _UNIT_NAMES[unit]:
        raise ValueError(f"Invalid duration {text}: the {_UNIT_NAMES[unit]} are set multiple times")
    raise ValueError(f"Invalid duration {text}: the {_UNIT_NAMES[before]} should be after {_UNIT_NAMES[unit]}")


def _iso_duration(text: str) -> tuple[int, int, int]:
    if weeks := _ISO_WEEKS.fullmatch(text):
        return 0, int(weeks[1]) * 7, 0
    found = _ISO_LONG.fullmatch(text) or _ISO.fullmatch(text)
    if found is None:
        raise ValueError(f"Unable to convert '{text}' to a duration")
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups())
    return year * 12 + month, day, hour * _HOUR_NS + minute * _MINUTE_NS + second * _SECOND_NS


_CONVERSIONS: dict[tuple[LiteralKind, Scalar], Callable[[str], object]] = {
    (LiteralKind.STRING, Scalar.ASCII): str,
    (LiteralKind.STRING, Scalar.TEXT): str,
    (LiteralKind.STRING, Scalar.DATE): parse_date,
    (LiteralKind.STRING, Scalar.TIME): parse_time,
    (LiteralKind.STRING, Scalar.TIMESTAMP): parse_timestamp,
    (LiteralKind.STRING, Scalar.INET): parse_inet,
    (LiteralKind.BOOLEAN, Scalar.BOOLEAN): lambda text: text == "true",
    (LiteralKind.UUID, Scalar.UUID): uuid.UUID,
    (LiteralKind.UUID, Scalar.TIMEUUID): uuid.UUID,
    (LiteralKind.HEX, Scalar.BLOB): lambda digits: None if len(digits) % 2 else bytes.fromhex(digits),
    (LiteralKind.DURATION, Scalar.DURATION): parse_duration,
    (LiteralKind.INTEGER, Scalar.TINYINT): int,
    (LiteralKind.INTEGER, Scalar.SMALLINT): int,
    (LiteralKind.INTEGER, Scalar.INT): int,
    (LiteralKind.INTEGER, Scalar.BIGINT): int,
    (LiteralKind.INTEGER, Scalar.VARINT): int,
    (LiteralKind.INTEGER, Scalar.TIMESTAMP): int,
    (LiteralKind.INTEGER, Scalar.TIME): int,
    (LiteralKind.INTEGER, Scalar.DATE): _days_of_number,
    (LiteralKind.INTEGER, Scalar.FLOAT): float,
    (LiteralKind.INTEGER, Scalar.DOUBLE): float,
    (LiteralKind.INTEGER, Scalar.DECIMAL): Decimal,
    (LiteralKind.FLOAT, Scalar.FLOAT): float,
    (LiteralKind.FLOAT, Scalar.DOUBLE): float,
    (LiteralKind.FLOAT, Scalar.DECIMAL): lambda text: None if text.endswith(("NaN", "Infinity")) else Decimal(text),
}
"""The literals that each type accepts. None: this literal is no value of the type."""


def literal_value(kind: CqlType, literal: Literal, name: str) -> bytes:
    """The wire form of a literal. Raises `InvalidRequest` if it is not a value of the type."""
    convert = _CONVERSIONS.get((literal.kind, kind.scalar)) if isinstance(kind, ScalarType) else None
    try:
        value = None if convert is None else convert(literal.text)
    except (OverflowError, InvalidOperation):
        value = None
    except ValueError as error:  # of the functions above, in our words
        raise InvalidRequest(f"{error}") from error
    if value is not None:
        return encode(kind, rounded(kind, value))
    shown = f"0x{literal.text}" if literal.kind is LiteralKind.HEX else literal.text
    raise InvalidRequest(f'Invalid {literal.kind} constant ({shown}) for "{name}" of type {kind}')


def rounded(kind: CqlType, number: Any) -> Any:
    """A number as its type stores it: a float that is too large becomes infinite."""
    is_float = isinstance(kind, ScalarType) and kind.scalar is Scalar.FLOAT
    if is_float and math.isfinite(number) and abs(number) > _FLOAT_MAX:
        return math.copysign(math.inf, number)
    return number
