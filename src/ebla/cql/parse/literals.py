"""Converts literals to values of a column's type, in wire form. Pure."""

import datetime
import ipaddress
import math
import re
import uuid
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from ebla.cql.parse.terms import (
    BlobLiteral,
    BooleanLiteral,
    DurationLiteral,
    Literal,
    NumberLiteral,
    StringLiteral,
    UuidLiteral,
)
from ebla.model.cql_types import CqlType, Scalar, ScalarType
from ebla.model.errors import InvalidRequest
from ebla.model.values import Duration, encode

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = datetime.date(1970, 1, 1)

_TIMESTAMP = re.compile(
    r"([+-]?\d{4,9})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?)?\s*"
    r"(Z|GMT|UTC|[+-]\d{2}:?\d{2}|[+-]\d{2})?"
)
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

_INTEGERS = frozenset({Scalar.TINYINT, Scalar.SMALLINT, Scalar.INT, Scalar.BIGINT, Scalar.VARINT})
_TEXTS = frozenset({Scalar.ASCII, Scalar.TEXT})


def parse_timestamp(text: str) -> int:
    """Milliseconds since 1970. Raises `ValueError`."""
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    found = _TIMESTAMP.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"Unable to coerce '{text}' to a formatted date (long)")
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    try:
        days = days_of(int(year), int(month), int(day))
        clock = datetime.time(int(hour or 0), int(minute or 0), int(second or 0))
    except ValueError as error:
        raise ValueError(f"Unable to coerce '{text}' to a formatted date (long): {error}") from error
    milliseconds = int((fraction or "0").ljust(3, "0")[:3])
    seconds = clock.hour * 3600 + clock.minute * 60 + clock.second - _zone_seconds(zone)
    return (days * 86_400 + seconds) * 1000 + milliseconds


def _zone_seconds(zone: str | None) -> int:
    if zone is None or zone in ("Z", "GMT", "UTC"):
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if zone[0] == "-" else seconds


def parse_date(text: str) -> int:
    """Days since 1970. Raises `ValueError`."""
    found = _DATE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"Unable to coerce '{text}' to a formatted date (long)")
    try:
        return days_of(int(found[1]), int(found[2]), int(found[3]))
    except ValueError as error:
        raise ValueError(f"Unable to coerce '{text}' to a formatted date (long): {error}") from error


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
        raise ValueError(f"Unable to coerce '{text}' to a formatted time (long): {error}") from error
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
    for found in _PARTS.finditer(text):
        if found.start() != end:
            break
        end = found.end()
        for place, weight in enumerate(_UNITS[found[2].lower()]):
            totals[place] += int(found[1]) * weight
    if end != len(text) or not text:
        raise ValueError(f"Unable to convert '{text}' to a duration")
    return totals[0], totals[1], totals[2]


def _iso_duration(text: str) -> tuple[int, int, int]:
    if weeks := _ISO_WEEKS.fullmatch(text):
        return 0, int(weeks[1]) * 7, 0
    found = _ISO_LONG.fullmatch(text) or _ISO.fullmatch(text)
    if found is None:
        raise ValueError(f"Unable to convert '{text}' to a duration")
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups())
    return year * 12 + month, day, hour * _HOUR_NS + minute * _MINUTE_NS + second * _SECOND_NS


def literal_value(kind: CqlType, literal: Literal, name: str) -> bytes:
    """The wire form of a literal. Raises `InvalidRequest` if it is not a value of the type."""
    if not isinstance(kind, ScalarType):
        raise _misfit(literal, kind, name)
    try:
        match literal:
            case StringLiteral(value=text):
                return _string_value(kind, text, literal, name)
            case NumberLiteral():
                return _number_value(kind, literal, name)
            case BooleanLiteral(value=value) if kind.scalar is Scalar.BOOLEAN:
                return encode(kind, value)
            case UuidLiteral(text=text) if kind.scalar in (Scalar.UUID, Scalar.TIMEUUID):
                return encode(kind, uuid.UUID(text))
            case BlobLiteral(digits=digits) if kind.scalar is Scalar.BLOB and len(digits) % 2 == 0:
                return bytes.fromhex(digits)
            case DurationLiteral(text=text) if kind.scalar is Scalar.DURATION:
                return encode(kind, parse_duration(text))
            case _:
                raise _misfit(literal, kind, name)
    except (ValueError, OverflowError, InvalidOperation) as error:
        raise InvalidRequest(f"{error}") from error


_FROM_STRING: dict[Scalar, Callable[[str], object]] = {
    Scalar.ASCII: str,
    Scalar.TEXT: str,
    Scalar.DATE: parse_date,
    Scalar.TIME: parse_time,
    Scalar.TIMESTAMP: parse_timestamp,
    Scalar.INET: parse_inet,
}


def _string_value(kind: ScalarType, text: str, literal: Literal, name: str) -> bytes:
    read = _FROM_STRING.get(kind.scalar)
    if read is None:
        raise _misfit(literal, kind, name)
    return encode(kind, read(text))


def _number_value(kind: ScalarType, literal: NumberLiteral, name: str) -> bytes:
    scalar = kind.scalar
    if scalar in (Scalar.FLOAT, Scalar.DOUBLE):
        return encode(kind, rounded(kind, float(literal.text)))
    if scalar is Scalar.DECIMAL and literal.text not in ("NaN", "Infinity", "-Infinity"):
        return encode(kind, Decimal(literal.text))
    if literal.is_integer and (scalar in _INTEGERS or scalar in (Scalar.TIMESTAMP, Scalar.TIME)):
        return encode(kind, int(literal.text))
    if literal.is_integer and scalar is Scalar.DATE:
        # As a number, a date counts from the earliest date, as in the wire form.
        return encode(kind, int(literal.text) - (1 << 31))
    raise _misfit(literal, kind, name)


def rounded(kind: ScalarType, number: Any) -> Any:
    """A number as its type stores it: a float that is too large becomes infinite."""
    if kind.scalar is Scalar.FLOAT and math.isfinite(number) and abs(number) > _FLOAT_MAX:
        return math.copysign(math.inf, number)
    return number


def _misfit(literal: Literal, kind: CqlType, name: str) -> InvalidRequest:
    word, text_shown = _describe_literal(literal)
    return InvalidRequest(f'Invalid {word} constant ({text_shown}) for "{name}" of type {kind}')


def _describe_literal(literal: Literal) -> tuple[str, str]:
    match literal:
        case StringLiteral(value=text):
            return "STRING", text
        case NumberLiteral(text=text, is_integer=is_integer):
            return ("INTEGER" if is_integer else "FLOAT"), text
        case BooleanLiteral(value=value):
            return "BOOLEAN", str(value).lower()
        case UuidLiteral(text=text):
            return "UUID", text
        case BlobLiteral(digits=digits):
            return "HEX", f"0x{digits}"
        case DurationLiteral(text=text):
            return "DURATION", text
