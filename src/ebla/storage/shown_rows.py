"""Stored rows as people and programs read them, without the table's schema: columns have numbers here, not names."""

from collections.abc import Iterator

import msgspec

from ebla.model.errors import Corruption
from ebla.model.rows import Cell, Deletion, Head, Row
from ebla.model.token import Token, token_of
from ebla.storage.key_codec import KeyKind, decode_token, partition_key_of, split_key
from ebla.storage.layer import Item
from ebla.storage.layer_facts import LayerFacts, head_facts, plain_facts, row_facts
from ebla.storage.row_codec import HEADER, PLAIN_HEADER, decode_head, decode_row, is_plain

_LENGTH_BYTES = 4


class ShownCell(msgspec.Struct, frozen=True):
    column: int
    """A column's number; in a plain row its place among the regular columns of the row's schema version."""
    timestamp_us: int
    value: str | None
    """Text where the bytes are text, else hex behind 0x; None for a tombstone."""
    path: str | None = None
    """Of one cell of a collection."""
    ttl_s: int = 0
    at_s: int = 0
    static: bool = False


class ShownDeletion(msgspec.Struct, frozen=True):
    what: str
    timestamp_us: int
    at_s: int


class ShownRow(msgspec.Struct, frozen=True):
    """`layer` is the folder it stands in."""

    layer: str
    token: Token
    partition_key: str
    kind: KeyKind
    clustering: str
    plain: bool
    schema_version: int
    marker_us: int | None
    deletions: tuple[ShownDeletion, ...]
    cells: tuple[ShownCell, ...]


def show_row(layer: str, item: Item) -> ShownRow:
    """Raises `Corruption` where the bytes are no row."""
    key, value = item
    _, kind, clustering = _split(key)
    marker_us, deletions, cells = _content(kind, value)
    return ShownRow(
        layer,
        decode_token(key),
        shown_bytes(partition_key_of(key)),
        kind,
        shown_bytes(clustering) if clustering else "",
        is_plain(value),
        HEADER.unpack_from(value)[2],
        marker_us,
        tuple(deletions),
        tuple(cells),
    )


def check_item(item: Item) -> LayerFacts:
    """The facts of one stored row, having read all of it. Raises `Corruption` where it is not what we write."""
    key, value = item
    _, kind, _ = _split(key)
    if token_of(partition_key_of(key)) != decode_token(key):
        raise Corruption(f"key {key.hex()} does not begin with the token of its partition key")
    try:
        if kind is KeyKind.PARTITION_HEAD:
            return head_facts(decode_head(value))
        if is_plain(value):
            _plain_marker_us(value)
            for _ in _plain_cells(value):
                pass
            return plain_facts(value)
        return row_facts(decode_row(value, ()))
    except (msgspec.DecodeError, AssertionError, IndexError, ValueError) as failure:
        raise Corruption(f"the value of key {key.hex()} is no row ({failure})") from failure


def shown_bytes(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.isprintable() and text else f"0x{data.hex()}"


def _split(key: bytes) -> tuple[bytes, KeyKind, bytes]:
    try:
        return split_key(key)
    except (IndexError, ValueError) as failure:
        raise Corruption(f"{key.hex()} is no key ({failure})") from failure


def _content(kind: KeyKind, value: bytes) -> tuple[int | None, list[ShownDeletion], list[ShownCell]]:
    if kind is KeyKind.PARTITION_HEAD:
        return _head_content(decode_head(value))
    if is_plain(value):
        return _plain_marker_us(value), [], list(_plain_cells(value))
    row = decode_row(value, ())
    return _marker_us(row), list(_row_deletions(row)), list(_row_cells(row, static=False))


def _head_content(head: Head) -> tuple[int | None, list[ShownDeletion], list[ShownCell]]:
    deletions = [] if head.deletion is None else [_deletion("partition", head.deletion)]
    for one in head.ranges:
        end = "the end" if one.end is None else f"0x{one.end.hex()}"
        deletions.append(_deletion(f"rows from 0x{one.start.hex()} up to {end}", one.deletion))
    deletions.extend(_row_deletions(head.static))
    return _marker_us(head.static), deletions, list(_row_cells(head.static, static=True))


def _plain_marker_us(value: bytes) -> int | None:
    """Of a plain row read as if its schema version had no columns; that checks its format too."""
    return _marker_us(decode_row(value, [()] * HEADER.unpack_from(value)[2]))


def _plain_cells(value: bytes) -> Iterator[ShownCell]:
    timestamp_us = PLAIN_HEADER.unpack_from(value)[3]
    offset = PLAIN_HEADER.size
    place = 0
    while offset < len(value):
        length = int.from_bytes(value[offset : offset + _LENGTH_BYTES], signed=True)
        offset += _LENGTH_BYTES
        if length >= 0:
            if offset + length > len(value):
                raise Corruption(f"a cell of {length} bytes stands in a row that ends after {len(value) - offset}")
            yield ShownCell(place, timestamp_us, shown_bytes(value[offset : offset + length]))
            offset += length
        place += 1


def _row_cells(row: Row, *, static: bool) -> Iterator[ShownCell]:
    for number, cell in sorted(row.cells.items()):
        yield _cell(number, cell, None, static=static)
    for number, elements in sorted(row.collections.items()):
        for path, cell in sorted(elements.cells.items()):
            yield _cell(number, cell, shown_bytes(path), static=static)


def _row_deletions(row: Row) -> Iterator[ShownDeletion]:
    if row.deletion is not None:
        yield _deletion("row", row.deletion)
    for number, elements in sorted(row.collections.items()):
        if elements.deletion is not None:
            yield _deletion(f"collection {number}", elements.deletion)


def _cell(number: int, cell: Cell, path: str | None, *, static: bool) -> ShownCell:
    value = None if cell.value is None else shown_bytes(cell.value)
    return ShownCell(number, cell.timestamp_us, value, path, cell.ttl_s, cell.at_s, static)


def _deletion(what: str, deletion: Deletion) -> ShownDeletion:
    return ShownDeletion(what, deletion.timestamp_us, deletion.at_s)


def _marker_us(row: Row) -> int | None:
    return None if row.marker is None else row.marker.timestamp_us
