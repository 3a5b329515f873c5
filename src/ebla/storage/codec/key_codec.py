"""Stored keys: bytes whose order is the order of rows.

    token (8, sign flipped) | partition key (2-byte length, bytes) | kind (1) | clustering components

A layer is sorted by plain bytes, so a token range, a partition, a clustering slice and a row are all ranges of keys.
The partition key stands behind its length instead of being escaped: among equal tokens any order will do as long as it
is one order everywhere, and raw bytes behind a length encode and decode by vector operations.

Clustering components must keep the order of their type, and be self-delimiting so that a shorter prefix ends before
every longer one. A descending component is the ascending one with every bit inverted.
"""

import enum
import struct
from collections.abc import Sequence

from ebla.model.byte_comparable import decode_comparable, encode_comparable
from ebla.model.schema import Column
from ebla.model.token import Token

TOKEN_BYTES = 8
_SIGN = 1 << 63
_INVERT = bytes(255 - number for number in range(256))


class KeyKind(enum.IntEnum):
    """What stands under a key. The head sorts before every row of its partition."""

    PARTITION_HEAD = 1
    ROW = 2


_HEAD_BYTE, _ROW_BYTE = bytes((KeyKind.PARTITION_HEAD,)), bytes((KeyKind.ROW,))
_TOKEN_AND_LENGTH = struct.Struct(">QH")


def encode_token(token: int) -> bytes:
    return (token + _SIGN).to_bytes(TOKEN_BYTES)


def decode_token(key: bytes) -> Token:
    return Token(int.from_bytes(key[:TOKEN_BYTES]) - _SIGN)


def partition_prefix(token: int, partition_key: bytes) -> bytes:
    """What all keys of one partition begin with. `partition_key` is the serialized key the token was computed from."""
    return _TOKEN_AND_LENGTH.pack(token + _SIGN, len(partition_key)) + partition_key


def head_key(prefix: bytes) -> bytes:
    return prefix + _HEAD_BYTE


def row_key(prefix: bytes, clustering: bytes = b"") -> bytes:
    return prefix + _ROW_BYTE + clustering


def prefix_end(prefix: bytes) -> bytes:
    """The least key greater than every key that begins with `prefix`."""
    trimmed = prefix.rstrip(b"\xff")
    assert trimmed, "a prefix of nothing but 0xff has no end; tokens never give one"
    return trimmed[:-1] + bytes((trimmed[-1] + 1,))


def split_key(key: bytes) -> tuple[bytes, KeyKind, bytes]:
    """The partition prefix, the kind, and the clustering bytes."""
    end = TOKEN_BYTES + 2 + int.from_bytes(key[TOKEN_BYTES : TOKEN_BYTES + 2])
    return key[:end], KeyKind(key[end]), key[end + 1 :]


def partition_key_of(key: bytes) -> bytes:
    start = TOKEN_BYTES + 2
    return key[start : start + int.from_bytes(key[TOKEN_BYTES:start])]


def encode_clustering(columns: Sequence[Column], values: Sequence[bytes]) -> bytes:
    """The ordered bytes of the first `len(values)` clustering columns, given in wire form."""
    assert len(values) <= len(columns)
    if len(values) == 1:  # most keys
        part = encode_comparable(columns[0].type, values[0])
        return part.translate(_INVERT) if columns[0].descending else part
    parts = []
    for column, value in zip(columns, values):
        part = encode_comparable(column.type, value)
        parts.append(part.translate(_INVERT) if column.descending else part)
    return b"".join(parts)


def inverted(key: bytes) -> bytes:
    """Where descending components read as ascending ones."""
    return key.translate(_INVERT)


def decode_clustering(columns: Sequence[Column], data: bytes) -> list[bytes]:
    """The wire forms behind ordered bytes; fewer than the columns where `data` is a prefix."""
    values: list[bytes] = []
    offset = 0
    turned: bytes | None = None
    for column in columns:
        if offset == len(data):
            break
        if column.descending and turned is None:
            turned = inverted(data)
        source = turned if column.descending and turned is not None else data
        value, offset = decode_comparable(column.type, source, offset)
        values.append(value)
    assert offset == len(data), "a key holds more than its clustering columns"
    return values
