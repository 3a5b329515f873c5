"""Stored rows in readable form, and the check that they are well-formed."""

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from ebla.model.errors import Corruption
from ebla.model.rows import Cell, Deletion, PartitionHead, Row
from ebla.model.token import Token, token_of
from ebla.storage.codec.key_codec import KeyKind, decode_token, partition_key_of, split_key
from ebla.storage.codec.row_codec import (
    decode_head,
    decode_row,
    is_plain,
    plain_cells,
    plain_timestamp_us,
    schema_version,
)
from ebla.storage.inspection.value_text import SchemaNames
from ebla.storage.layers.layer import Item
from ebla.storage.layers.layer_facts import LayerFacts, head_facts, plain_facts, row_facts


class CellDump(msgspec.Struct, frozen=True, kw_only=True):
    column: str
    """Its name; `#` and its number where the schema is unknown or no longer has it, and `#` and its position among the
    row's cells where a plain row's schema is unknown."""
    timestamp_us: int
    value: str | None
    """None for a tombstone."""
    path: str | None = None
    """The path of one cell of a collection."""
    ttl_s: int = 0
    at_s: int = 0
    static: bool = False


class DeletionDump(msgspec.Struct, frozen=True):
    what: str
    timestamp_us: int
    at_s: int


class RowDump(msgspec.Struct, frozen=True, kw_only=True):
    """`layer` is the folder it is in."""

    layer: str
    token: Token
    partition_key: str
    kind: str
    clustering: str
    plain: bool
    schema_version: int
    marker_us: int | None
    deletions: tuple[DeletionDump, ...]
    cells: tuple[CellDump, ...]


def dump_row(layer: str, naming: SchemaNames, item: Item) -> RowDump:
    """Raises `Corruption` where the bytes are not a row."""
    key, value = item
    _, kind, clustering = _split(key)
    head = decode_head(value) if kind is KeyKind.PARTITION_HEAD else None
    row = _row_of(value) if head is None else head.static
    plain = is_plain(value)
    cells = _plain_cells(naming, value) if plain else _row_cells(naming, row, static=head is not None)
    return RowDump(
        layer=layer,
        token=decode_token(key),
        partition_key=naming.partition_key(partition_key_of(key)),
        kind=kind.name.lower().replace("_", " "),
        clustering=naming.clustering(clustering),
        plain=plain,
        schema_version=schema_version(value),
        marker_us=None if row.marker is None else row.marker.timestamp_us,
        deletions=(*(() if head is None else _head_deletions(head)), *_row_deletions(naming, row)),
        cells=tuple(cells),
    )


def check_stored_row(item: Item) -> LayerFacts:
    """Reads all of one stored row and returns its facts. Raises `Corruption` where it is malformed."""
    key, value = item
    _, kind, _ = _split(key)
    if token_of(partition_key_of(key)) != decode_token(key):
        raise Corruption(f"key {key.hex()} does not begin with the token of its partition key")
    try:
        if kind is KeyKind.PARTITION_HEAD:
            return head_facts(decode_head(value))
        row = _row_of(value)
        if not is_plain(value):
            return row_facts(row)
        for _ in plain_cells(value):
            pass
        return plain_facts(value)
    except (msgspec.DecodeError, AssertionError, IndexError, ValueError) as failure:
        raise Corruption(f"the value of key {key.hex()} is not a row ({failure})") from failure


def _head_deletions(head: PartitionHead) -> Iterator[DeletionDump]:
    if head.deletion is not None:
        yield _deletion("partition", head.deletion)
    for one in head.ranges:
        end = "the end" if one.end is None else f"0x{one.end.hex()}"
        yield _deletion(f"rows from 0x{one.start.hex()} up to {end}", one.deletion)


def _row_deletions(naming: SchemaNames, row: Row) -> Iterator[DeletionDump]:
    if row.deletion is not None:
        yield _deletion("row", row.deletion)
    for number, elements in sorted(row.collections.items()):
        if elements.deletion is not None:
            yield _deletion(f"collection {naming.column(number)}", elements.deletion)


def _plain_cells(naming: SchemaNames, value: bytes) -> Iterator[CellDump]:
    numbers = naming.columns_of(schema_version(value))
    for place, data in plain_cells(value):
        known, number = (SchemaNames(None), place) if place >= len(numbers) else (naming, numbers[place])
        yield CellDump(
            column=known.column(number), timestamp_us=plain_timestamp_us(value), value=known.value(number, data)
        )


def _row_cells(naming: SchemaNames, row: Row, *, static: bool) -> Iterator[CellDump]:
    for number, cell in sorted(row.cells.items()):
        yield _cell(naming.column(number), cell, partial(naming.value, number), static=static)
    for number, elements in sorted(row.collections.items()):
        for path, cell in sorted(elements.cells.items()):
            shown = _cell(naming.column(number), cell, partial(naming.element, number), static=static)
            yield msgspec.structs.replace(shown, path=naming.path(number, path))


def _split(key: bytes) -> tuple[bytes, KeyKind, bytes]:
    try:
        return split_key(key)
    except (IndexError, ValueError) as failure:
        raise Corruption(f"{key.hex()} is not a key ({failure})") from failure


def _row_of(value: bytes) -> Row:
    """Reads a plain row as if its schema version had no columns: that checks its format and finds its marker."""
    return decode_row(value, [()] * schema_version(value))


def _cell(name: str, cell: Cell, text: Callable[[bytes], str], *, static: bool) -> CellDump:
    return CellDump(
        column=name,
        timestamp_us=cell.timestamp_us,
        value=None if cell.value is None else text(cell.value),
        ttl_s=cell.ttl_s,
        at_s=cell.at_s,
        static=static,
    )


def _deletion(what: str, deletion: Deletion) -> DeletionDump:
    return DeletionDump(what, deletion.timestamp_us, deletion.at_s)
