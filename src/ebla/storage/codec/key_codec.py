"""Stored keys: byte strings that sort in the order of rows. Only this module and `key_columns.py`, which does the same
for whole Arrow columns, know their layout.

    token (8, sign flipped) | partition key (2-byte length, bytes) | kind (1) | clustering components

A layer is sorted by plain bytes, so a token range, a partition, a clustering slice and a row are all key ranges. The
partition key has a length prefix instead of escapes: among equal tokens any order will do as long as all nodes agree on
it, and length-prefixed bytes encode and decode by vector operations.

Clustering components must keep the order of their type and be self-delimiting, so that a shorter prefix sorts before
every longer one. A descending component is the ascending one with every bit inverted.
"""

import enum
import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from operator import itemgetter

from ebla.model.byte_comparable import decode_comparable, encode_comparable
from ebla.model.schema import Column
from ebla.model.token import TOKEN_MAX, Token, TokenRange

KeySpan = tuple[bytes, bytes | None]
"""The keys from the first one up to, not including, the second; None: to the end."""

FEW_SPANS = 8
"""Up to so many, looking at one after the other is faster than a binary search."""
TOKEN_BYTES = 8
PREFIX_BYTES_MIN = TOKEN_BYTES + 2
"""Token and length of the partition key."""
_SIGN = 1 << 63
_INVERT = bytes(255 - number for number in range(256))


class KeyKind(enum.IntEnum):
    """What a key points to. The head sorts before every row of its partition."""

    PARTITION_HEAD = 1
    ROW = 2


_HEAD_BYTE, _ROW_BYTE = bytes((KeyKind.PARTITION_HEAD,)), bytes((KeyKind.ROW,))
_TOKEN_AND_LENGTH = struct.Struct(">QH")


def encode_token(token: int) -> bytes:
    return (token + _SIGN).to_bytes(TOKEN_BYTES)


def decode_token(key: bytes) -> Token:
    return Token(int.from_bytes(key[:TOKEN_BYTES]) - _SIGN)


def token_word(key: bytes) -> int:
    """The token as an unsigned number that sorts as keys do. A span bound may be shorter than a token: it counts as if
    zeros followed."""
    return int.from_bytes(key[:TOKEN_BYTES].ljust(TOKEN_BYTES, b"\0"))


def tablet_index(key: bytes, shift: int) -> int:
    """The number of the tablet that holds this key. `shift` is how many bits of a token are below the tablet number."""
    return int.from_bytes(key[:TOKEN_BYTES]) >> shift


def last_tablet_index(end: bytes | None, shift: int) -> int:
    """The number of the last tablet that a span with this end reaches into."""
    if end is None:
        return ((1 << 8 * TOKEN_BYTES) - 1) >> shift
    word = token_word(end)
    return (word if len(end) > TOKEN_BYTES else max(word - 1, 0)) >> shift


def tablet_start(index: int, shift: int) -> bytes:
    """The lowest key of a tablet."""
    return (index << shift).to_bytes(TOKEN_BYTES)


def partition_prefix(token: int, partition_key: bytes) -> bytes:
    """What all keys of one partition begin with. `partition_key` is the serialized key the token was computed from."""
    return _TOKEN_AND_LENGTH.pack(token + _SIGN, len(partition_key)) + partition_key


def partition_prefix_of(key: bytes) -> bytes:
    return key[: PREFIX_BYTES_MIN + int.from_bytes(key[TOKEN_BYTES:PREFIX_BYTES_MIN])]


def enclosing_partition(start: bytes) -> bytes | None:
    """The prefix of the partition inside which a span starts; None where it starts between partitions."""
    if len(start) <= PREFIX_BYTES_MIN:
        return None
    prefix = partition_prefix_of(start)
    return prefix if len(start) > len(prefix) else None


def partition_of_head(key: bytes) -> bytes:
    """The partition prefix of a head's key."""
    return key[:-1]


def head_key(prefix: bytes) -> bytes:
    return prefix + _HEAD_BYTE


def row_key(prefix: bytes, clustering: bytes = b"") -> bytes:
    return prefix + _ROW_BYTE + clustering


def prefix_end(prefix: bytes) -> bytes:
    """The least key greater than every key that begins with `prefix`."""
    trimmed = prefix.rstrip(b"\xff")
    assert trimmed, "a prefix of nothing but 0xff has no end; no token encodes to one"
    return trimmed[:-1] + bytes((trimmed[-1] + 1,))


def is_single_key(span: KeySpan) -> bool:
    """Whether the span holds one possible key: its end is its start with a zero byte appended."""
    start, end = span
    return end is not None and len(end) == len(start) + 1 and not end[-1] and end.startswith(start)


def same_token(one: bytes, other: bytes) -> bool:
    return one[:TOKEN_BYTES] == other[:TOKEN_BYTES]


def split_key(key: bytes) -> tuple[bytes, KeyKind, bytes]:
    """The partition prefix, the kind, and the clustering bytes."""
    end = PREFIX_BYTES_MIN + int.from_bytes(key[TOKEN_BYTES:PREFIX_BYTES_MIN])
    return key[:end], KeyKind(key[end]), key[end + 1 :]


def clustering_of(key: bytes, prefix: bytes) -> bytes:
    """The clustering bytes of a row's key whose partition prefix is known."""
    return key[len(prefix) + 1 :]


def partition_key_of(key: bytes) -> bytes:
    return partition_prefix_of(key)[PREFIX_BYTES_MIN:]


def encode_clustering(columns: Sequence[Column], values: Sequence[bytes]) -> bytes:
    """The comparable bytes of the first `len(values)` clustering columns, given in wire form."""
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
    """Every bit inverted: descending components read as ascending ones."""
    return key.translate(_INVERT)


def decode_clustering(columns: Sequence[Column], data: bytes) -> list[bytes]:
    """The wire forms of comparable bytes; fewer than the columns where `data` is a prefix."""
    values: list[bytes] = []
    offset = 0
    flipped: bytes | None = None
    for column in columns:
        if offset == len(data):
            break
        if column.descending and flipped is None:
            flipped = inverted(data)
        source = flipped if column.descending and flipped is not None else data
        value, offset = decode_comparable(column.type, source, offset)
        values.append(value)
    assert offset == len(data), "a key holds more than its clustering columns"
    return values


# -- key spans ---------------------------------------------------------------------------------------------------------


def key_spans(token_range: TokenRange) -> tuple[KeySpan, ...]:
    """The keys whose tokens are in the range, lowest first."""
    spans = []
    for part in token_range.unwrapped():
        end = None if part.end == TOKEN_MAX else encode_token(part.end + 1)
        spans.append((encode_token(part.start + 1), end))
    return tuple(spans)


def in_spans(key: bytes, spans: Sequence[KeySpan]) -> bool:
    """They ascend and do not overlap."""
    if len(spans) > FEW_SPANS:
        spans = spans[max(bisect_right(spans, key, key=itemgetter(0)) - 1, 0) :][:1]
    for start, end in spans:  # noqa: SIM110 # `any` takes three times as long, and every item of a write is checked
        if start <= key and (end is None or key < end):
            return True
    return False


def clip_span(span: KeySpan, within: Sequence[KeySpan]) -> list[KeySpan]:
    """The parts of a span that are in the others, which ascend and do not overlap, in order."""
    start, end = span
    parts: list[KeySpan] = []
    first_inside = max(bisect_right(within, start, key=itemgetter(0)) - 1, 0) if len(within) > FEW_SPANS else 0
    for low, high in islice(within, first_inside, None):
        if end is not None and low >= end:
            break
        first = max(start, low)
        last = high if end is None else end if high is None else min(end, high)
        if last is None or first < last:
            parts.append((first, last))
    return parts
