"""CQL values: Python to wire form and back, and validation of bytes.

The wire form of native protocol v4 is also the stored form, so most values are never decoded.
"""

import ipaddress
import itertools
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple, assert_never

from ebla.model.cql_types import (
    EMPTIABLE,
    FIXED_BYTES,
    CqlType,
    ListType,
    MapType,
    Scalar,
    ScalarType,
    SetType,
    TupleType,
    inner_types,
)
from ebla.model.errors import InvalidRequest

DATE_EPOCH = 1 << 31
NANOSECONDS_PER_DAY = 86_400_000_000_000
DECIMAL_BYTES_MAX = 1_785
"""4,298 digits: Python refuses to convert more than 4,300, because of the time it takes."""


class Duration(NamedTuple):
    """Three counts that cannot be converted: months have no fixed number of days, days no fixed number of hours."""

    months: int
    days: int
    nanoseconds: int


def encode_varint(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1 if value >= 0 else (value + 1).bit_length() // 8 + 1, signed=True)


def decode_varint(data: bytes) -> int:
    return int.from_bytes(data, signed=True)


def encode_vint(value: int) -> bytes:
    """A signed integer of variable length: zigzag; the number of leading ones is the number of bytes that follow."""
    number = (value << 1) ^ (value >> 63)
    size = max(1, min(9, (number.bit_length() + 6) // 7))
    if size == 9:
        return b"\xff" + number.to_bytes(8)
    raw = bytearray(number.to_bytes(size))
    raw[0] |= (0xFF << (9 - size)) & 0xFF
    return bytes(raw)


def decode_vint(data: bytes, offset: int) -> tuple[int, int]:
    """The integer at `offset`, and where the next one starts."""
    first = data[offset]
    extra = 8 - (~first & 0xFF).bit_length()
    end = offset + 1 + extra
    if end > len(data):
        raise ValueError("the bytes end inside a number")
    number = int.from_bytes(bytes([first & (0xFF >> extra)]) + data[offset + 1 : end])
    return (number >> 1) ^ -(number & 1), end


def encode_duration(value: Duration) -> bytes:
    return encode_vint(value.months) + encode_vint(value.days) + encode_vint(value.nanoseconds)


def decode_duration(data: bytes) -> Duration:
    months, offset = decode_vint(data, 0)
    days, offset = decode_vint(data, offset)
    nanoseconds, offset = decode_vint(data, offset)
    if offset != len(data):
        raise ValueError(f"{len(data) - offset} bytes too many")
    return Duration(months, days, nanoseconds)


def encode_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is not a number")
    unscaled = int("".join(map(str, digits)) or "0")
    return struct.pack(">i", -exponent) + encode_varint(-unscaled if sign else unscaled)


def decode_decimal(data: bytes) -> Decimal:
    (scale,) = struct.unpack_from(">i", data)
    unscaled = decode_varint(data[4:])
    return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))


Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


def _packed(form: str) -> tuple[Encode, Decode]:
    packing = struct.Struct(form)
    return packing.pack, lambda data: packing.unpack(data)[0]


_CODECS: dict[Scalar, tuple[Encode, Decode]] = {
    Scalar.ASCII: (lambda value: value.encode("ascii"), lambda data: data.decode("ascii")),
    Scalar.BIGINT: _packed(">q"),
    Scalar.BLOB: (bytes, bytes),
    Scalar.BOOLEAN: (lambda value: b"\1" if value else b"\0", lambda data: data != b"\0"),
    Scalar.DATE: (lambda value: struct.pack(">I", value + DATE_EPOCH), lambda data: int.from_bytes(data) - DATE_EPOCH),
    Scalar.DECIMAL: (encode_decimal, decode_decimal),
    Scalar.DOUBLE: _packed(">d"),
    Scalar.DURATION: (encode_duration, decode_duration),
    Scalar.FLOAT: _packed(">f"),
    Scalar.INET: (lambda value: ipaddress.ip_address(value).packed, ipaddress.ip_address),
    Scalar.INT: _packed(">i"),
    Scalar.SMALLINT: _packed(">h"),
    Scalar.TEXT: (lambda value: value.encode(), lambda data: data.decode()),
    Scalar.TIME: _packed(">q"),
    Scalar.TIMESTAMP: _packed(">q"),
    Scalar.TIMEUUID: (lambda value: value.bytes, lambda data: uuid.UUID(bytes=data)),
    Scalar.TINYINT: _packed(">b"),
    Scalar.UUID: (lambda value: value.bytes, lambda data: uuid.UUID(bytes=data)),
    Scalar.VARINT: (encode_varint, decode_varint),
}
"""Dates are days since 1970, times nanoseconds of the day, timestamps milliseconds since 1970: plain integers here."""


def encode(kind: CqlType, value: Any) -> bytes:
    """The wire form of a Python value. Raises `InvalidRequest` where the value does not fit the type."""
    try:
        return _encode(kind, value)
    except _Unfit as error:
        raise InvalidRequest(f"{_shown(value)} is not a value of type {kind} ({error})") from error
    except (ValueError, TypeError, AttributeError, struct.error, OverflowError) as error:
        raise InvalidRequest(f"{_shown(value)} is not a value of type {kind} ({expectation(kind)})") from error


def expectation(kind: CqlType) -> str:
    """What values of a type are, for error messages."""
    if isinstance(kind, ScalarType):
        return _EXPECTATIONS.get(kind.scalar) or f"a {kind} has {FIXED_BYTES[kind.scalar]} bytes"
    return f"its elements must be those of a {kind}"


_EXPECTATIONS = {
    Scalar.ASCII: "ascii text has no character above 127",
    Scalar.BLOB: "a blob is a sequence of bytes",
    Scalar.BOOLEAN: "a boolean is true or false",
    Scalar.DATE: "a date is an unsigned number of days, 0 to 4294967295, of which 2147483648 is 1970-01-01",
    Scalar.DECIMAL: "a decimal is a finite number whose scale has 32 bits",
    Scalar.DURATION: "a duration has months, days and nanoseconds",
    Scalar.INET: "an inet is an IPv4 or IPv6 address",
    Scalar.TEXT: "text is a string that UTF-8 can encode",
    Scalar.TIMEUUID: "a timeuuid is a version 1 uuid",
    Scalar.UUID: "a uuid has 16 bytes",
    Scalar.VARINT: "a varint is a whole number",
}
"""Of scalars for which the number of bytes does not say enough."""


class _Unfit(ValueError):
    """The value does not fit; the reason is in our words, not in those of a library."""


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 1_000:  # writing more digits takes long, or is refused
        return "a number of that size"
    return (str(value) if isinstance(value, Decimal) else repr(value))[:200]


def decode(kind: CqlType, data: bytes) -> Any:
    """The Python value of valid bytes (see `validation_error`); None for the empty value of a type that has one."""
    match kind:
        case ScalarType(scalar=scalar):
            return None if not data and scalar in EMPTIABLE else _CODECS[scalar][1](data)
        case ListType(element=element) | SetType(element=element):
            return [decode_or_none(element, part) for part in split_elements(data, 1)]
        case MapType(key=key, value=value):
            parts = split_elements(data, 2)
            pairs = zip(parts[::2], parts[1::2], strict=True)
            return [(decode_or_none(key, left), decode_or_none(value, right)) for left, right in pairs]
        case TupleType(elements=elements):
            fields = split_fields(data)
            fields += [None] * (len(elements) - len(fields))
            return tuple(decode_or_none(one, part) for one, part in zip(elements, fields, strict=True))
        case _ as never:
            assert_never(never)


def decode_or_none(kind: CqlType, data: bytes | None) -> Any:
    return None if data is None else decode(kind, data)


def holds_empty(kind: CqlType, data: bytes) -> bool:
    """Whether valid bytes are the empty value of a type that has one, or contain such a value."""
    match kind:
        case ScalarType(scalar=scalar):
            return not data and scalar in EMPTIABLE
        case _ if _EMPTY_PART not in data:
            return False
        case TupleType(elements=elements):
            parts = zip(elements, split_fields(data))
        case _:
            inner = inner_types(kind)
            parts = zip(itertools.cycle(inner), split_elements(data, len(inner)))
    return any(part is not None and holds_empty(one, part) for one, part in parts)


_EMPTY_PART = b"\0\0\0\0"
"""The length of a part without bytes."""


def validation_error(kind: CqlType, data: bytes) -> str | None:
    """Why these bytes are not a value of the type; None where they are."""
    if isinstance(kind, ScalarType):
        return _refuse_scalar(kind.scalar, data)
    try:
        return _refuse_parts(kind, data)
    except ValueError as error:
        return f"not a {kind}: {error}"


def split_elements(data: bytes, per_item: int) -> list[bytes | None]:
    """The parts of a list, set (1 per item) or map (2 per item). Raises `ValueError` where they do not fit."""
    if len(data) < 4:
        raise ValueError("not enough bytes: the count is missing")
    count = int.from_bytes(data[:4], signed=True)
    if count < 0:
        raise ValueError("the count is negative")
    parts = split_fields(data[4:])
    if len(parts) < count * per_item:
        raise ValueError(f"not enough bytes for its {count} items: it holds {len(parts) / per_item:g}")
    if len(parts) > count * per_item:
        raise ValueError(f"it says {count} items and holds {len(parts) / per_item:g}")
    return parts


def split_fields(data: bytes) -> list[bytes | None]:
    """Length-prefixed parts; a negative length is a null."""
    parts: list[bytes | None] = []
    offset = 0
    while offset < len(data):
        size = int.from_bytes(data[offset : offset + 4], signed=True)
        start = offset + 4
        offset = start + max(size, 0)
        if start > len(data) or offset > len(data):
            raise ValueError("not enough bytes: they end inside an element")
        parts.append(data[start:offset] if size >= 0 else None)
    return parts


def join_elements(parts: Iterable[bytes | None], count: int) -> bytes:
    return struct.pack(">i", count) + join_fields(parts)


def join_fields(parts: Iterable[bytes | None]) -> bytes:
    return b"".join(b"\xff\xff\xff\xff" if part is None else struct.pack(">i", len(part)) + part for part in parts)


def _encode(kind: CqlType, value: Any) -> bytes:
    match kind:
        case ScalarType(scalar=scalar):
            return _encode_scalar(scalar, value)
        case ListType(element=element):
            parts = [_encode(element, one) for one in value]
            return join_elements(parts, len(parts))
        case SetType(element=element):
            parts = list(dict.fromkeys(_encode(element, one) for one in value))
            return join_elements(parts, len(parts))
        case MapType(key=key, value=inner):
            pairs = value.items() if isinstance(value, Mapping) else value
            encoded = {_encode(key, left): _encode(inner, right) for left, right in pairs}
            return join_elements((part for pair in encoded.items() for part in pair), len(encoded))
        case TupleType(elements=elements):
            if len(value) > len(elements):
                raise _Unfit(f"{len(value)} values for {len(elements)} elements")
            return join_fields(None if one is None else _encode(part, one) for part, one in zip(elements, value))
        case _ as never:
            assert_never(never)


def _encode_scalar(scalar: Scalar, value: Any) -> bytes:
    data = _CODECS[scalar][0](value)
    if (reason := _refuse_scalar(scalar, data)) is not None:
        raise _Unfit(reason)
    return data


def _refuse_scalar(scalar: Scalar, data: bytes) -> str | None:
    if not data and scalar in EMPTIABLE:
        return None
    wanted = FIXED_BYTES.get(scalar)
    if wanted is not None and len(data) != wanted:
        return f"a {scalar} has {wanted} bytes, not {len(data)}"
    check = _CHECKS.get(scalar)
    if check is None:
        return None
    try:
        return check(data)
    except ValueError as error:
        return f"not a {scalar}: {error}"


def _refuse_parts(kind: CqlType, data: bytes) -> str | None:
    match kind:
        case ListType(element=element) | SetType(element=element):
            inner = [(element, part) for part in split_elements(data, 1)]
        case MapType(key=key, value=value):
            parts = split_elements(data, 2)
            inner = [((key, value)[number % 2], part) for number, part in enumerate(parts)]
        case TupleType(elements=elements):
            fields = split_fields(data)
            if len(fields) > len(elements):
                return f"a {kind} has {len(elements)} elements, not {len(fields)}"
            inner = list(zip(elements, fields))
        case _:
            raise AssertionError(kind)
    nulls_allowed = isinstance(kind, TupleType)
    for one, part in inner:
        if part is None and not nulls_allowed:
            return f"a {kind} holds no nulls"
        if part is not None and (reason := validation_error(one, part)) is not None:
            return reason
    return None


def _check_text(data: bytes) -> str | None:
    try:
        data.decode()
    except UnicodeDecodeError:
        return "not valid UTF-8"
    return None


def _check_decimal(data: bytes) -> str | None:
    if len(data) <= 4:
        return "a decimal has a scale and at least one byte"
    return None if len(data) <= 4 + DECIMAL_BYTES_MAX else f"a decimal has at most {DECIMAL_BYTES_MAX} bytes of digits"


def _check_duration(data: bytes) -> str | None:
    try:
        value = decode_duration(data)
    except IndexError:
        return "a duration has three numbers"
    if abs(value.months) >= 1 << 31 or abs(value.days) >= 1 << 31:
        return "months and days of a duration have 32 bits"
    if min(value) < 0 < max(value):
        return "the parts of a duration have one sign"
    return None


def _check_time(data: bytes) -> str | None:
    return None if 0 <= int.from_bytes(data, signed=True) < NANOSECONDS_PER_DAY else "a time lies within one day"


def _check_timeuuid(data: bytes) -> str | None:
    return None if data[6] >> 4 == 1 else f"a timeuuid is a version 1 uuid, not version {data[6] >> 4}"


_CHECKS: dict[Scalar, Callable[[bytes], str | None]] = {
    Scalar.ASCII: lambda data: None if data.isascii() else "not ascii: a byte is above 127",
    Scalar.DECIMAL: _check_decimal,
    Scalar.DURATION: _check_duration,
    Scalar.INET: lambda data: None if len(data) in (4, 16) else f"an inet has 4 or 16 bytes, not {len(data)}",
    Scalar.TEXT: _check_text,
    Scalar.TIME: _check_time,
    Scalar.TIMEUUID: _check_timeuuid,
}
