"""A small table with every kind of column, and its keys, for tests of a store."""

import uuid

from ebla.model.cql_types import parse_type
from ebla.model.identity import TableId
from ebla.model.rows import Row
from ebla.model.schema import Column, ColumnKind, TableOptions, TableSchema, TombstoneGc, new_schema
from ebla.model.token import Token, token_of
from ebla.storage.codec.key_codec import encode_clustering, head_key, partition_prefix, row_key
from ebla.storage.codec.row_codec import encode_row

TABLE = TableId(uuid.UUID(int=7))
GRACE_S = 10


def small_table(mode: TombstoneGc = TombstoneGc.TIMEOUT, grace_s: int = GRACE_S) -> TableSchema:
    columns = (
        Column(name="k", type=parse_type("int"), kind=ColumnKind.PARTITION_KEY),
        Column(name="c", type=parse_type("tinyint"), kind=ColumnKind.CLUSTERING),
        Column(name="s", type=parse_type("int"), kind=ColumnKind.STATIC),
        Column(name="a", type=parse_type("int"), kind=ColumnKind.REGULAR),
        Column(name="b", type=parse_type("int"), kind=ColumnKind.REGULAR),
        Column(name="m", type=parse_type("map<int, int>"), kind=ColumnKind.REGULAR),
    )
    return new_schema(TABLE, "ks", "small", columns, TableOptions(gc_grace_s=grace_s, tombstone_gc=mode))


SMALL = small_table()
STATIC = SMALL.column("s").number
CELLS = (SMALL.column("a").number, SMALL.column("b").number)
MAP = SMALL.column("m").number


def partition_token(partition: int) -> Token:
    return token_of(partition.to_bytes(4))


def prefix_of(partition: int) -> bytes:
    return partition_prefix(partition_token(partition), partition.to_bytes(4))


def clustering_of(row: int) -> bytes:
    return encode_clustering(SMALL.clustering, [row.to_bytes(1)])


def key_of(partition: int, row: int) -> bytes:
    return row_key(prefix_of(partition), clustering_of(row))


def head_of(partition: int) -> bytes:
    return head_key(prefix_of(partition))


def value_of(row: Row, schema: TableSchema = SMALL) -> bytes:
    return encode_row(row, schema.version, schema.layouts[-1])
