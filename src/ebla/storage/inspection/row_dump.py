"""Stored rows in readable form, and the check that they are well-formed."""

from collections.abc import Iterator

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
    shown = _Shown(naming)
    return RowDump(
        layer=layer,
        token=decode_token(key),
        partition_key=naming.partition_key(partition_key_of(key)),
        kind=kind.name.lower().replace("_", " "),
        clustering=naming.clustering(clustering),
        plain=is_plain(value),
        schema_version=schema_version(value),
        marker_us=_marker_us(kind, value),
        deletions=tuple(shown.deletions(kind, value)),
        cells=tuple(shown.cells(kind, value)),
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


class _Shown:
    """The parts of a value, with the names of its table."""

    def __init__(self, naming: SchemaNames) -> None:
        self._naming = naming

    def deletions(self, kind: KeyKind, value: bytes) -> Iterator[DeletionDump]:
        if kind is KeyKind.PARTITION_HEAD:
            head = decode_head(value)
            yield from self._head_deletions(head)
            yield from self._row_deletions(head.static)
        elif not is_plain(value):
            yield from self._row_deletions(_row_of(value))

    def cells(self, kind: KeyKind, value: bytes) -> Iterator[CellDump]:
        if kind is KeyKind.PARTITION_HEAD:
            yield from self._row_cells(decode_head(value).static, static=True)
        elif is_plain(value):
            yield from self._plain_cells(value)
        else:
            yield from self._row_cells(_row_of(value), static=False)

    def _head_deletions(self, head: PartitionHead) -> Iterator[DeletionDump]:
        if head.deletion is not None:
            yield _deletion("partition", head.deletion)
        for one in head.ranges:
            end = "the end" if one.end is None else f"0x{one.end.hex()}"
            yield _deletion(f"rows from 0x{one.start.hex()} up to {end}", one.deletion)

    def _row_deletions(self, row: Row) -> Iterator[DeletionDump]:
        if row.deletion is not None:
            yield _deletion("row", row.deletion)
        for number, elements in sorted(row.collections.items()):
            if elements.deletion is not None:
                yield _deletion(f"collection {self._naming.column(number)}", elements.deletion)

    def _plain_cells(self, value: bytes) -> Iterator[CellDump]:
        timestamp_us = plain_timestamp_us(value)
        numbers = self._naming.columns_of(schema_version(value))
        for place, data in plain_cells(value):
            if numbers is None or place >= len(numbers):
                yield CellDump(
                    column=f"#{place}", timestamp_us=timestamp_us, value=SchemaNames(None).value(place, data)
                )
            else:
                number = numbers[place]
                yield CellDump(
                    column=self._naming.column(number),
                    timestamp_us=timestamp_us,
                    value=self._naming.value(number, data),
                )

    def _row_cells(self, row: Row, *, static: bool) -> Iterator[CellDump]:
        naming = self._naming
        for number, cell in sorted(row.cells.items()):
            value = None if cell.value is None else naming.value(number, cell.value)
            yield _cell(naming.column(number), cell, value, static=static)
        for number, elements in sorted(row.collections.items()):
            for path, cell in sorted(elements.cells.items()):
                value = None if cell.value is None else naming.element(number, cell.value)
                shown = _cell(naming.column(number), cell, value, static=static)
                yield msgspec.structs.replace(shown, path=naming.path(number, path))


def _split(key: bytes) -> tuple[bytes, KeyKind, bytes]:
    try:
        return split_key(key)
    except (IndexError, ValueError) as failure:
        raise Corruption(f"{key.hex()} is not a key ({failure})") from failure


def _row_of(value: bytes) -> Row:
    """Reads a plain row as if its schema version had no columns: that checks its format and finds its marker."""
    return decode_row(value, [()] * schema_version(value))


def _marker_us(kind: KeyKind, value: bytes) -> int | None:
    row = decode_head(value).static if kind is KeyKind.PARTITION_HEAD else _row_of(value)
    return None if row.marker is None else row.marker.timestamp_us


def _cell(name: str, cell: Cell, value: str | None, *, static: bool) -> CellDump:
    return CellDump(
        column=name,
        timestamp_us=cell.timestamp_us,
        value=value,
        path=None,
        ttl_s=cell.ttl_s,
        at_s=cell.at_s,
        static=static,
    )


def _deletion(what: str, deletion: Deletion) -> DeletionDump:
    return DeletionDump(what, deletion.timestamp_us, deletion.at_s)
