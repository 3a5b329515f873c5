"""Stored structs that are forward compatible.

A stored struct is an array; a newer release appends fields. An older release that reads, changes and writes such a
value must keep the appended fields, or a rolling upgrade would lose them. So a decoded value is kept together with the
raw bytes of the fields that this release does not know.
"""

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)
U = TypeVar("U", bound=msgspec.Struct)

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_split = msgspec.msgpack.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class StoredValue(Generic[T]):
    """A value, and the unknown fields that a newer release appended."""

    value: T
    unknown: tuple[bytes, ...] = ()

    def with_value(self, value: T) -> "StoredValue[T]":
        return replace(self, value=value)


def decode_stored(kind: type[T], data: bytes) -> StoredValue[T]:
    """Raises `msgspec.DecodeError` where `data` is not such a struct."""
    return StoredValue(msgspec.msgpack.decode(data, type=kind), unknown_fields(kind, data))


def unknown_fields(kind: type[msgspec.Struct], data: bytes) -> tuple[bytes, ...]:
    """The fields of an encoded struct after those that this release knows. Nearly always none, which the length of the
    array shows; only a longer array is decoded further."""
    known = _width(kind)
    if _length(data) <= known:
        return ()
    return tuple(bytes(field) for field in _split.decode(data)[known:])


def encode_stored(stored: StoredValue[T]) -> bytes:
    if not stored.unknown:
        return _encoder.encode(stored.value)
    fields = _split.decode(_encoder.encode(stored.value))
    return _encoder.encode([*fields, *(msgspec.Raw(field) for field in stored.unknown)])


def _length(data: bytes) -> int:
    """The number of fields of an array, from its msgpack header."""
    if data[0] & 0xF0 == 0x90:
        return data[0] & 0x0F
    return int.from_bytes(data[1:3] if data[0] == 0xDC else data[1:5])


def _width(kind: type[msgspec.Struct]) -> int:
    config = kind.__struct_config__
    assert config.array_like, f"{kind.__name__} is stored, so it must be array-like"
    return len(kind.__struct_fields__) + (1 if config.tag is not None else 0)
