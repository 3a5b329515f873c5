"""Stored values of one key become one, and sorted streams of layers become one stream. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from operator import itemgetter

from ebla.model.rows import EMPTY_HEAD, EMPTY_ROW, NEVER_US, PartitionHead, merge_heads, merge_rows, without_deleted
from ebla.model.schema import TableSchema
from ebla.model.token import TOKEN_MAX, TokenRange
from ebla.storage.codec.key_codec import encode_token, split_key
from ebla.storage.codec.row_codec import (
    NO_CELL,
    PLAIN_HEADER,
    RowFlag,
    decode_head,
    decode_row,
    encode_head,
    encode_row,
)
from ebla.storage.layers.layer import Item
from ebla.storage.layers.layer_facts import ALWAYS_US, LayerFacts, head_facts, row_facts

KeySpan = tuple[bytes, bytes | None]
"""From a key up to and without another; None: to the end."""

# As plain numbers: combining flags with a byte costs more than the rest of a merge of plain rows.
_PLAIN, _MARKED, _HEAD = int(RowFlag.PLAIN), int(RowFlag.MARKED), int(RowFlag.HEAD)


def merge_values(one: bytes, other: bytes, schema: TableSchema) -> bytes:
    """The value that has seen both, of rows or of heads."""
    # Most merges are of plain rows of one version and one shape, the newer of which has every cell. Timestamps of one
    # sign are in the order of their bytes, which costs half of decoding them.
    if one[:4] == other[:4] and one[1] & _PLAIN and one[4] ^ other[4] < 128:
        at, other_at = one[4:12], other[4:12]
        if at != other_at:
            newer = one if at > other_at else other
            if NO_CELL not in newer:
                return newer
    if one == other:
        return one
    if one[1] & _HEAD:
        return encode_head(merge_heads(decode_head(one), decode_head(other)), schema.version)
    whole = _newer_whole(one, other, schema)
    if whole is not None:
        return whole
    row = merge_rows(decode_row(one, schema.layouts), decode_row(other, schema.layouts))
    return encode_row(row, schema.version, schema.layouts[-1])


def merge_all(values: Sequence[bytes], schema: TableSchema) -> bytes:
    merged = values[0]
    for value in values[1:]:
        merged = merge_values(merged, value, schema)
    return merged


def _newer_whole(one: bytes, other: bytes, schema: TableSchema) -> bytes | None:
    """One of two plain rows where it is newer and nothing of the other shows beside it."""
    if not one[1] & other[1] & _PLAIN or one[2:4] != other[2:4]:
        return None
    age = PLAIN_HEADER.unpack_from(one)[3] - PLAIN_HEADER.unpack_from(other)[3]
    if age == 0:
        return None
    newer, older = (one, other) if age > 0 else (other, one)
    if older[1] & _MARKED and not newer[1] & _MARKED:
        return None
    # Four such bytes may also be part of a value: then it is looked at more closely, with the same result.
    if NO_CELL in newer and _shows_through(newer, older, len(schema.layouts[int.from_bytes(one[2:4]) - 1])):
        return None
    return newer


def _shows_through(newer: bytes, older: bytes, columns: int) -> bool:
    """Whether the older of two plain rows of one version has a cell where the newer has none."""
    at = behind = PLAIN_HEADER.size
    for _ in range(columns):
        size, older_size = newer[at : at + 4], older[behind : behind + 4]
        at += 4
        behind += 4
        if size != NO_CELL:
            at += int.from_bytes(size)
        elif older_size != NO_CELL:
            return True
        if older_size != NO_CELL:
            behind += int.from_bytes(older_size)
    return False


def merge_streams(
    streams: Sequence[Iterable[Item]], schema: TableSchema, *, is_reversed: bool = False
) -> Iterator[Item]:
    """Every key once, with its merged value, in order; the streams are in the same order."""
    if len(streams) == 1:
        yield from streams[0]
        return
    last_key: bytes | None = None
    last_value = b""
    for key, value in merge(*streams, key=itemgetter(0), reverse=is_reversed):
        if key == last_key:
            last_value = merge_values(last_value, value, schema)
            continue
        if last_key is not None:
            yield last_key, last_value
        last_key, last_value = key, value
    if last_key is not None:
        yield last_key, last_value


def without_deleted_cells(value: bytes, head: PartitionHead, clustering: bytes, schema: TableSchema) -> bytes | None:
    """A row's value without what its partition's head deletes; None where nothing is left."""
    deletion = head.deletion_of(clustering)
    if deletion is None:
        return value
    row = decode_row(value, schema.layouts)
    left = without_deleted(row, deletion)
    if left == EMPTY_ROW:
        return None
    return value if left == row else encode_row(left, schema.version, schema.layouts[-1])


def without_deleted_rows(
    items: Iterable[Item], schema: TableSchema, first_head: PartitionHead = EMPTY_HEAD
) -> Iterator[Item]:
    """Rows without what heads delete. `first_head` is of the partition in which the stream begins, behind its head."""
    prefix: bytes | None = None
    head = first_head
    for key, value in items:
        if value[1] & _HEAD:
            prefix, head = split_key(key)[0], decode_head(value)
            yield key, value
            continue
        if prefix is None or head is not EMPTY_HEAD:
            found, _, clustering = split_key(key)
            if prefix is not None and found != prefix:
                head = EMPTY_HEAD
            prefix = found
            left = without_deleted_cells(value, head, clustering, schema)
            if left is not None:
                yield key, left
            continue
        yield key, value


def facts_of(values: Iterable[bytes], schema: TableSchema) -> LayerFacts:
    """The facts of these values together."""
    least_us, greatest_us, plain = ALWAYS_US, NEVER_US, 0
    others: LayerFacts | None = None
    for value in values:
        if value[1] & _PLAIN:
            timestamp_us = PLAIN_HEADER.unpack_from(value)[3]
            plain += 1
            if timestamp_us < least_us:
                least_us = timestamp_us
            if timestamp_us > greatest_us:
                greatest_us = timestamp_us
            continue
        found = _other_facts(value, schema)
        others = found if others is None else others.widened(found)
    facts = LayerFacts(least_us=least_us, greatest_us=greatest_us, rows=plain)
    return facts if others is None else facts.widened(others)


def _other_facts(value: bytes, schema: TableSchema) -> LayerFacts:
    if value[1] & _HEAD:
        return head_facts(decode_head(value))
    return row_facts(decode_row(value, schema.layouts))


def key_spans(token_range: TokenRange) -> tuple[KeySpan, ...]:
    """The keys whose tokens are in the range, lowest first."""
    spans = []
    for part in token_range.unwrapped():
        end = None if part.end == TOKEN_MAX else encode_token(part.end + 1)
        spans.append((encode_token(part.start + 1), end))
    return tuple(spans)


def in_spans(key: bytes, spans: Sequence[KeySpan]) -> bool:
    for start, end in spans:  # noqa: SIM110 # `any` costs three times as much, and every item of a write asks
        if start <= key and (end is None or key < end):
            return True
    return False


def clip_span(span: KeySpan, within: Sequence[KeySpan]) -> list[KeySpan]:
    """The parts of a span that are in the others, in order."""
    start, end = span
    parts: list[KeySpan] = []
    for low, high in within:
        first = max(start, low)
        last = high if end is None else end if high is None else min(end, high)
        if last is None or first < last:
            parts.append((first, last))
    return parts
