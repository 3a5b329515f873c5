"""Byte-comparable encodings of values: bytes that sort as CQL sorts the values, and are self-delimiting.

The order is Cassandra's: numbers by value, texts and blobs by unsigned bytes, a timeuuid by its time, a uuid by version
first and by time within version 1, collections element by element.
"""

import struct
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import assert_never

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
from ebla.model.values import (
    decode_decimal,
    decode_varint,
    encode_decimal,
    encode_varint,
    join_elements,
    join_fields,
    split_elements,
    split_fields,
)

ComparableCodec = tuple[Callable[[bytes], bytes], Callable[[bytes, int], tuple[bytes, int]]]

_END, _MORE, _EMPTY = b"\0", b"\1", b"\2"
"""The mark before each part of a collection or tuple. An empty value has a mark of its own and no bytes, so that no two
collections are encoded alike. It is never stored: keys hold no empty values."""
_ESCAPED_ZERO, _TERMINATOR = b"\0\xff", b"\0\0"
_FLIPPED = tuple(bytes((number ^ 0x80,)) for number in range(256))
"""A first byte with its sign bit flipped."""


def encode_comparable(kind: CqlType, value: bytes) -> bytes:
    """The empty value of a number, time, uuid… has no bytes, and sorts first."""
    match kind:
        case ScalarType(scalar=scalar):
            return _SCALARS[scalar][0](value) if value or scalar not in EMPTIABLE else b""
        case ListType(element=element) | SetType(element=element):
            return _encode_items((element,), split_elements(value, 1))
        case MapType(key=key, value=inner):
            return _encode_items((key, inner), split_elements(value, 2))
        case TupleType(elements=elements):
            fields = split_fields(value)
            fields += [None] * (len(elements) - len(fields))
            pairs = zip(elements, fields, strict=True)
            return b"".join(_END if part is None else _encode_part(one, part) for one, part in pairs)
        case _ as never:
            assert_never(never)


def decode_comparable(kind: CqlType, data: bytes, offset: int) -> tuple[bytes, int]:
    """The wire form of the value at `offset`, and the offset of the next component."""
    match kind:
        case ScalarType(scalar=scalar):
            return _SCALARS[scalar][1](data, offset)
        case ListType(element=element) | SetType(element=element):
            return _decode_items((element,), data, offset)
        case MapType(key=key, value=inner):
            return _decode_items((key, inner), data, offset)
        case TupleType(elements=elements):
            fields: list[bytes | None] = []
            for one in elements:
                present, offset = data[offset : offset + 1] == _MORE, offset + 1
                part = None
                if present:
                    part, offset = decode_comparable(one, data, offset)
                fields.append(part)
            return join_fields(fields), offset
        case _ as never:
            assert_never(never)


def decoder_of(kind: CqlType) -> Callable[[bytes, int], tuple[bytes, int]]:
    """`decode_comparable` for one type, for decoding many values."""
    if isinstance(kind, ScalarType):
        return _SCALARS[kind.scalar][1]
    return partial(decode_comparable, kind)


def has_other_forms(kind: CqlType) -> bool:
    """Whether a value of the type may have other wire forms than the canonical one: it contains a set or a map."""
    return isinstance(kind, SetType | MapType) or any(map(has_other_forms, inner_types(kind)))


def canonical(kind: CqlType, value: bytes) -> bytes:
    """The canonical wire form of a value: sets and maps in the order of their elements, without duplicates (the last
    value of a key wins), at any depth. Only in this form are two equal frozen collections equal bytes. Values from
    outside are stored in this form."""
    match kind:
        case ScalarType():
            return value
        case ListType(element=element):
            parts = [canonical(element, part) for part in _not_null(split_elements(value, 1))]
            return join_elements(parts, len(parts))
        case SetType(element=element):
            parts = [canonical(element, part) for part in _not_null(split_elements(value, 1))]
            found = {encode_comparable(element, part): part for part in parts}
            return join_elements((found[order] for order in sorted(found)), len(found))
        case MapType(key=key, value=inner):
            parts = _not_null(split_elements(value, 2))
            entries: dict[bytes, tuple[bytes, bytes]] = {}
            for left, right in zip(parts[::2], parts[1::2]):
                name = canonical(key, left)
                entries[encode_comparable(key, name)] = (name, canonical(inner, right))
            return join_elements((part for order in sorted(entries) for part in entries[order]), len(entries))
        case TupleType(elements=elements):
            fields = zip(elements, split_fields(value))
            return join_fields(None if part is None else canonical(one, part) for one, part in fields)
        case _ as never:
            assert_never(never)


def _not_null(parts: list[bytes | None]) -> list[bytes]:
    found = [part for part in parts if part is not None]
    assert len(found) == len(parts), "collections hold no nulls"
    return found


def _encode_items(kinds: tuple[CqlType, ...], parts: list[bytes | None]) -> bytes:
    """Each part after a mark byte, an end mark last: a collection sorts before every longer one that it is a prefix
    of."""
    out = []
    for number, part in enumerate(parts):
        assert part is not None, "collections hold no nulls"
        out.append(_encode_part(kinds[number % len(kinds)], part))
    return b"".join(out) + _END


def _encode_part(kind: CqlType, part: bytes) -> bytes:
    encoded = encode_comparable(kind, part)
    return _MORE + encoded if encoded else _EMPTY


def _decode_items(kinds: tuple[CqlType, ...], data: bytes, offset: int) -> tuple[bytes, int]:
    parts: list[bytes] = []
    while data[offset : offset + 1] == _MORE:
        part, offset = decode_comparable(kinds[len(parts) % len(kinds)], data, offset + 1)
        parts.append(part)
    return join_elements(parts, len(parts) // len(kinds)), offset + 1


def _encode_bytes(value: bytes) -> bytes:
    return value.replace(b"\0", _ESCAPED_ZERO) + _TERMINATOR


def _decode_bytes(data: bytes, offset: int) -> tuple[bytes, int]:
    end = offset
    while True:
        end = data.index(b"\0", end)
        if data[end + 1] == 0:
            return data[offset:end].replace(_ESCAPED_ZERO, b"\0"), end + 2
        end += 2


def _unsigned(size: int) -> ComparableCodec:
    return (lambda value: value), (lambda data, offset: (data[offset : offset + size], offset + size))


def _signed(size: int) -> ComparableCodec:
    def flip(value: bytes) -> bytes:
        return _FLIPPED[value[0]] + value[1:]

    return flip, lambda data, offset: (_FLIPPED[data[offset]] + data[offset + 1 : offset + size], offset + size)


def _floating(size: int) -> ComparableCodec:
    """Sign-magnitude to unsigned order: a positive number gets its sign bit set, a negative one is inverted. All NaNs
    are one value in CQL, and the greatest; -0.0 sorts before 0.0."""
    form = ">f" if size == 4 else ">d"
    nan = struct.pack(form, float("nan"))

    def forward(value: bytes) -> bytes:
        (number,) = struct.unpack(form, value)
        if number != number:
            value = nan
        if value[0] & 0x80:
            return bytes(byte ^ 0xFF for byte in value)
        return bytes((value[0] | 0x80,)) + value[1:]

    def back(data: bytes, offset: int) -> tuple[bytes, int]:
        value = data[offset : offset + size]
        if value[0] & 0x80:
            return bytes((value[0] & 0x7F,)) + value[1:], offset + size
        return bytes(byte ^ 0xFF for byte in value), offset + size

    return forward, back


def _encode_varint(value: bytes) -> bytes:
    """Sign and length first: a longer positive number is greater, a longer negative one less."""
    number = decode_varint(value)
    magnitude = abs(number).to_bytes((abs(number).bit_length() + 7) // 8)
    if number >= 0:
        return b"\1" + len(magnitude).to_bytes(4) + magnitude
    return b"\0" + _invert(len(magnitude).to_bytes(4) + magnitude)


def _decode_varint(data: bytes, offset: int) -> tuple[bytes, int]:
    positive = data[offset] == 1
    head = data[offset + 1 : offset + 5]
    size = int.from_bytes(head if positive else _invert(head))
    body = data[offset + 5 : offset + 5 + size]
    number = int.from_bytes(body) if positive else -int.from_bytes(_invert(body))
    return encode_varint(number), offset + 5 + size


def _encode_decimal(value: bytes) -> bytes:
    """Sign, exponent of the first digit, digits. Numerically equal decimals (1.0 and 1.00) are one key, as in CQL, and
    decode without trailing zeros."""
    number = decode_decimal(value)
    if number == 0:
        return b"\1"
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    significant = bytes(digit + 1 for digit in digits).lstrip(b"\1").rstrip(b"\1")
    leading = len(bytes(digit + 1 for digit in digits).lstrip(b"\1")) + exponent
    magnitude = (leading + (1 << 39)).to_bytes(5) + significant + b"\0"
    return b"\0" + _invert(magnitude) if sign else b"\2" + magnitude


def _decode_decimal(data: bytes, offset: int) -> tuple[bytes, int]:
    mark = data[offset]
    if mark == 1:
        return encode_decimal(Decimal(0)), offset + 1
    body = data[offset + 1 :] if mark == 2 else _invert(data[offset + 1 :])
    end = body.index(b"\0", 5)
    digits = tuple(byte - 1 for byte in body[5:end])
    exponent = int.from_bytes(body[:5]) - (1 << 39) - len(digits)
    return encode_decimal(Decimal((int(mark == 0), digits, exponent))), offset + end + 2


def _invert(value: bytes) -> bytes:
    return bytes(byte ^ 0xFF for byte in value)


def _encode_time_first(value: bytes) -> bytes:
    """A version 1 uuid with its time fields most significant first; the version is in the first four bits."""
    return value[6:8] + value[4:6] + value[:4] + value[8:]


def _decode_time_first(value: bytes) -> bytes:
    return value[4:8] + value[2:4] + value[:2] + value[8:]


def _flip_each(value: bytes) -> bytes:
    return bytes(byte ^ 0x80 for byte in value)


def _encode_timeuuid(value: bytes) -> bytes:
    """By time, then by the rest as signed bytes: Cassandra's historical order."""
    reordered = _encode_time_first(value)
    return reordered[:8] + _flip_each(reordered[8:])


def _decode_timeuuid(data: bytes, offset: int) -> tuple[bytes, int]:
    value = data[offset : offset + 16]
    return _decode_time_first(value[:8] + _flip_each(value[8:])), offset + 16


def _encode_uuid(value: bytes) -> bytes:
    version = value[6] >> 4
    return bytes((version,)) + (_encode_time_first(value) if version == 1 else value)


def _decode_uuid(data: bytes, offset: int) -> tuple[bytes, int]:
    value = data[offset + 1 : offset + 17]
    return (_decode_time_first(value) if data[offset] == 1 else value), offset + 17


_BYTES: ComparableCodec = (_encode_bytes, _decode_bytes)

_SCALARS: dict[Scalar, ComparableCodec] = {
    Scalar.ASCII: _BYTES,
    Scalar.BIGINT: _signed(FIXED_BYTES[Scalar.BIGINT]),
    Scalar.BLOB: _BYTES,
    Scalar.BOOLEAN: _unsigned(FIXED_BYTES[Scalar.BOOLEAN]),
    Scalar.DATE: _unsigned(FIXED_BYTES[Scalar.DATE]),
    Scalar.DECIMAL: (_encode_decimal, _decode_decimal),
    Scalar.DOUBLE: _floating(FIXED_BYTES[Scalar.DOUBLE]),
    Scalar.FLOAT: _floating(FIXED_BYTES[Scalar.FLOAT]),
    Scalar.INET: _BYTES,
    Scalar.INT: _signed(FIXED_BYTES[Scalar.INT]),
    Scalar.SMALLINT: _signed(FIXED_BYTES[Scalar.SMALLINT]),
    Scalar.TEXT: _BYTES,
    Scalar.TIME: _signed(FIXED_BYTES[Scalar.TIME]),
    Scalar.TIMESTAMP: _signed(FIXED_BYTES[Scalar.TIMESTAMP]),
    Scalar.TIMEUUID: (_encode_timeuuid, _decode_timeuuid),
    Scalar.TINYINT: _signed(FIXED_BYTES[Scalar.TINYINT]),
    Scalar.UUID: (_encode_uuid, _decode_uuid),
    Scalar.VARINT: (_encode_varint, _decode_varint),
}
"""Durations are missing: they have no order, and the schema refuses them in keys."""
