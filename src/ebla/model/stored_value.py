"""Values under keys that outlive the release that wrote them.

A stored struct is an array; a newer release appends fields. An older one that reads, changes and writes such a value
must hand the appended fields on untouched, or a rolling upgrade would lose them. So a decoded value travels with the
raw bytes of the fields this release does not know.
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
    """A value, and the fields of a newer release that came with it."""

    value: T
    unknown: tuple[bytes, ...] = ()

    def with_value(self, value: T) -> "StoredValue[T]":
        return replace(self, value=value)


def decode_stored(kind: type[T], data: bytes) -> StoredValue[T]:
    """Raises `msgspec.DecodeError` where `data` is not such a struct."""
    return StoredValue(msgspec.msgpack.decode(data, type=kind), unknown_fields(kind, data))


def unknown_fields(kind: type[msgspec.Struct], data: bytes) -> tuple[bytes, ...]:
    """What `data`, an encoded struct of this kind, has behind the fields this release knows. Nearly always nothing,
    and that the length of the array tells: only what is longer is taken apart."""
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
    """How many fields an array has, from its msgpack head."""
    if data[0] & 0xF0 == 0x90:
        return data[0] & 0x0F
    return int.from_bytes(data[1:3] if data[0] == 0xDC else data[1:5])


def _width(kind: type[msgspec.Struct]) -> int:
    config = kind.__struct_config__
    assert config.array_like, f"{kind.__name__} is stored, so it must be array-like"
    return len(kind.__struct_fields__) + (1 if config.tag is not None else 0)
