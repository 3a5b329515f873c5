"""What a compaction keeps, row by row: the compactor, which works on columns, must come to the same."""

from collections.abc import Iterable, Iterator

from ebla.model.rows import EMPTY_HEAD, EMPTY_ROW, without_deleted
from ebla.model.schema import TableSchema
from ebla.storage.codec.key_codec import KeyKind, decode_token, split_key
from ebla.storage.codec.row_codec import decode_head, decode_row, encode_head, encode_row, is_plain
from ebla.storage.compaction.tombstone_gc import TombstoneCollector
from ebla.storage.layers.layer import Item


def collected(items: Iterable[Item], schema: TableSchema, collector: TombstoneCollector) -> Iterator[Item]:
    """Merged items of whole partitions, in order, without what heads cover and what the collector drops.

    Rows first lose what the original head covers: a range deletion that is dropped takes what it deleted with it.
    """
    prefix = b""
    head = EMPTY_HEAD
    for key, value in items:
        if head is EMPTY_HEAD and is_plain(value):
            yield key, value
            continue
        found_prefix, kind, clustering = split_key(key)
        token = decode_token(key)
        if kind is KeyKind.PARTITION_HEAD:
            prefix, head = found_prefix, decode_head(value)
            kept = collector.head(token, head)
            if kept != EMPTY_HEAD:
                yield key, value if kept == head else encode_head(kept, schema.version)
            continue
        if found_prefix != prefix:
            head = EMPTY_HEAD
        row = decode_row(value, schema.layouts)
        covering = head.deletion_of(clustering)
        left = collector.row(token, row if covering is None else without_deleted(row, covering))
        if left != EMPTY_ROW:
            yield key, value if left == row else encode_row(left, schema.version, schema.layouts[-1])
