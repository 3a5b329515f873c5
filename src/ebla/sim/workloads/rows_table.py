"""The table that row clients write: one cell per row, which holds its own timestamp, and every kind of deletion."""

import struct

from ebla.model.cql_types import parse_type
from ebla.model.rows import Cell as StoredCell
from ebla.model.rows import Deletion, PartitionHead, RangeDeletion, Row
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.model.token import token_of
from ebla.sim.checkers.rows import AttemptedWrite, Cell
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
DELETION_KINDS = 3


def prefix_of(partition: int) -> bytes:
    key = partition.to_bytes(4)
    return partition_prefix(token_of(key), key)


def row_span(schema: TableSchema, cell: Cell) -> Span:
    key = row_key(prefix_of(cell[1]), _clustering(schema, cell[2]))
    return key, key + b"\0"


def partition_span(partition: int) -> Span:
    prefix = prefix_of(partition)
    return prefix, prefix_end(prefix)


def item_of(schema: TableSchema, cell: Cell, tried: AttemptedWrite, kind: int) -> Item:
    """A value, or a deletion of the given kind."""
    prefix, clustering = prefix_of(cell[1]), _clustering(schema, cell[2])
    column, layout = schema.column("a").number, schema.layouts[-1]
    at_s = tried.timestamp_us // 1_000_000
    deletion = Deletion(tried.timestamp_us, at_s)
    if tried.deletes and kind == 0:
        slice_ = RangeDeletion(clustering, _clustering(schema, cell[2] + 1), deletion)
        return head_key(prefix), encode_head(PartitionHead(None, (slice_,)), schema.version)
    if tried.deletes and kind == 1:
        return row_key(prefix, clustering), encode_row(Row(marker=None, deletion=deletion), schema.version, layout)
    value = None if tried.deletes else struct.pack(">q", tried.timestamp_us)
    stored = StoredCell(timestamp_us=tried.timestamp_us, value=value, ttl_s=0, at_s=0 if value else at_s)
    return row_key(prefix, clustering), encode_row(
        Row(marker=None, deletion=None, cells={column: stored}), schema.version, layout
    )


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


def _clustering(schema: TableSchema, row: int) -> bytes:
    return encode_clustering(schema.clustering, [row.to_bytes(1)])
