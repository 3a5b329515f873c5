"""Merges stored values of one key, and sorted streams of layers. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from operator import itemgetter

from ebla.model.rows import EMPTY_HEAD, EMPTY_ROW, NEVER_US, PartitionHead, merge_heads, merge_rows, without_deleted
from ebla.model.schema import TableSchema
from ebla.storage.codec.key_codec import split_key
from ebla.storage.codec.row_codec import (
    decode_head,
    decode_row,
    encode_head,
    encode_row,
    hiding_plain,
    is_head,
    is_plain,
    newer_plain,
    plain_timestamp_us,
)
from ebla.storage.layers.layer import Item
from ebla.storage.layers.layer_facts import ALWAYS_US, LayerFacts, stored_facts


def merge_values(one: bytes, other: bytes, schema: TableSchema) -> bytes:
    """Merges two stored values of one key: two rows, or two heads."""
    newer = newer_plain(one, other)
    if newer is not None:
        return newer
    if one == other:
        return one
    if is_head(one):
        return encode_head(merge_heads(decode_head(one), decode_head(other)), schema.version)
    hiding = hiding_plain(one, other, schema.layouts)
    if hiding is not None:
        return hiding
    row = merge_rows(decode_row(one, schema.layouts), decode_row(other, schema.layouts))
    return encode_row(row, schema.version, schema.layouts[-1])


def merge_all(values: Sequence[bytes], schema: TableSchema) -> bytes:
    merged = values[0]
    for value in values[1:]:
        merged = merge_values(merged, value, schema)
    return merged


def merge_streams(
    streams: Sequence[Iterable[Item]], schema: TableSchema, *, is_reversed: bool = False
) -> Iterator[Item]:
    """Every key once, with its merged value, in the order of the streams."""
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
    """Rows without what heads delete. `first_head` belongs to the partition in which the stream starts, after its
    head."""
    prefix: bytes | None = None
    head = first_head
    for key, value in items:
        if is_head(value):
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
        if is_plain(value):
            timestamp_us = plain_timestamp_us(value)
            plain += 1
            if timestamp_us < least_us:
                least_us = timestamp_us
            if timestamp_us > greatest_us:
                greatest_us = timestamp_us
            continue
        found = stored_facts(value, schema.layouts)
        others = found if others is None else others.widened(found)
    facts = LayerFacts(least_us=least_us, greatest_us=greatest_us, rows=plain)
    return facts if others is None else facts.widened(others)
