"""The table that row clients write: one cell per row, which holds its own timestamp, and every kind of deletion."""

import struct

from ebla.model.cql_types import parse_type
from ebla.model.rows import Cell as StoredCell
from ebla.model.rows import Deletion, PartitionHead, RangeDeletion, Row
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.model.token import Token, token_of
from ebla.sim.checkers.rows import Cell
from ebla.storage.codec.key_codec import (
    decode_clustering,
    encode_clustering,
    head_key,
    partition_key_of,
    partition_prefix,
    prefix_end,
    row_key,
    split_key,
)
from ebla.storage.codec.row_codec import decode_row, encode_head, encode_row, is_head
from ebla.wire.row_messages import Item, Span

PARTITIONS = 14
ROWS = 5
COLUMNS = (
    Column(name="k", type=parse_type("int"), kind=ColumnKind.PARTITION_KEY),
    Column(name="c", type=parse_type("tinyint"), kind=ColumnKind.CLUSTERING),
    Column(name="a", type=parse_type("bigint"), kind=ColumnKind.REGULAR),
)
ALL_KEYS: Span = (b"", None)
VALUE = 3
"""The kind of an item that is no deletion. The kinds below are deletions."""


def partition_token(partition: int) -> Token:
    return token_of(partition.to_bytes(4))


def prefix_of(partition: int) -> bytes:
    return partition_prefix(partition_token(partition), partition.to_bytes(4))


def keys_of(schema: TableSchema, cell: tuple[object, int, int]) -> tuple[bytes, bytes]:
    """Of the row, and of the head of its partition."""
    prefix = prefix_of(cell[1])
    return row_key(prefix, clustering_of(schema, cell[2])), head_key(prefix)


def row_span(schema: TableSchema, cell: Cell) -> Span:
    key, _ = keys_of(schema, cell)
    return key, key + b"\0"


def partition_span(partition: int) -> Span:
    prefix = prefix_of(partition)
    return prefix, prefix_end(prefix)


def item_of(
    schema: TableSchema, cell: tuple[object, int, int], timestamp_us: int, kind: int = VALUE, at_s: int | None = None
) -> Item:
    """The value `timestamp_us` of a cell, or a deletion: of a slice, a row or the cell. `at_s`: when it is deleted, if
    not at its timestamp."""
    row_at, head_at = keys_of(schema, cell)
    deletion = Deletion(timestamp_us, timestamp_us // 1_000_000 if at_s is None else at_s)
    if kind == 0:
        slice_ = RangeDeletion(clustering_of(schema, cell[2]), clustering_of(schema, cell[2] + 1), deletion)
        return head_at, encode_head(PartitionHead(None, (slice_,)), schema.version)
    if kind == 1:
        row = Row(marker=None, deletion=deletion)
    else:
        value = struct.pack(">q", timestamp_us) if kind >= VALUE else None
        stored = StoredCell(timestamp_us=timestamp_us, value=value, ttl_s=0, at_s=0 if value else deletion.at_s)
        row = Row(marker=None, deletion=None, cells={schema.column("a").number: stored})
    return row_at, encode_row(row, schema.version, schema.layouts[-1])


def cell_of(schema: TableSchema, table: str, key: bytes) -> Cell:
    clustering = decode_clustering(schema.clustering, split_key(key)[2])
    return table, int.from_bytes(partition_key_of(key)), clustering[0][0]


def timestamp_of(schema: TableSchema, item: Item) -> int:
    """The timestamp of a returned row. Raises `ValueError` if its value does not match."""
    if is_head(item[1]):
        raise ValueError("a partition head was returned, but the table has no static column")
    stored = decode_row(item[1], schema.layouts).cells[schema.column("a").number]
    if stored.value != struct.pack(">q", stored.timestamp_us):
        raise ValueError(f"the value {stored.value!r} does not match timestamp {stored.timestamp_us}")
    return stored.timestamp_us


def clustering_of(schema: TableSchema, row: int) -> bytes:
    return encode_clustering(schema.clustering, [row.to_bytes(1)])
