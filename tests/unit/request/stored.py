"""Stored rows of a small table, in few words."""

from tests.unit.storage.random_rows import column, table

from ebla.model.rows import Cell, Deletion, PartitionHead, RangeDeletion, Row, RowMarker
from ebla.model.schema import ColumnKind
from ebla.model.token import token_of
from ebla.storage.codec.key_codec import head_key, partition_prefix, row_key
from ebla.storage.codec.row_codec import decode_row, encode_head, encode_row
from ebla.storage.layers.layer import Item

SMALL = table(
    column("p", "text", ColumnKind.PARTITION_KEY),
    column("c", "blob", ColumnKind.CLUSTERING),
    column("s", "text", ColumnKind.STATIC),
    column("v", "text"),
    column("w", "text"),
)
V = SMALL.column("v").number
S = SMALL.column("s").number


def prefix_of_key(name: str) -> bytes:
    return partition_prefix(token_of(name.encode()), name.encode())


def row_at(name: str, clustering: str) -> bytes:
    return row_key(prefix_of_key(name), clustering.encode())


def head_at(name: str) -> bytes:
    return head_key(prefix_of_key(name))


def stored(row: Row) -> bytes:
    return encode_row(row, SMALL.version, SMALL.layouts[-1])


def put(name: str, clustering: str, value: str = "x", at_us: int = 1) -> Item:
    return row_at(name, clustering), stored(
        Row(marker=RowMarker(at_us), deletion=None, cells={V: Cell(timestamp_us=at_us, value=value.encode())})
    )


def delete(name: str, clustering: str, at_us: int = 2, at_s: int = 5) -> Item:
    return row_at(name, clustering), stored(Row(marker=None, deletion=Deletion(at_us, at_s)))


def head(name: str, static: str | None = None, at_us: int = 1, deletion: Deletion | None = None) -> Item:
    cells = (
        Row()
        if static is None
        else Row(marker=None, deletion=None, cells={S: Cell(timestamp_us=at_us, value=static.encode())})
    )
    return head_at(name), encode_head(PartitionHead(deletion, (), cells), SMALL.version)


def delete_slice(name: str, start: str, end: str, at_us: int = 2) -> Item:
    ranges = (RangeDeletion(start.encode(), end.encode(), Deletion(at_us, 5)),)
    return head_at(name), encode_head(PartitionHead(None, ranges), SMALL.version)


def value_of(item: Item) -> str:
    cell = decode_row(item[1], SMALL.layouts).cells[V]
    assert cell.value is not None
    return cell.value.decode()
