"""Stored items become rows of values in wire form. Pure.

A plan says which columns it needs; a row is the list of their values in that order. Plain rows of the current schema
are cut from their bytes; nothing else of them is looked at. Where a plan asks for write times or TTLs, a row comes with
its cells.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ebla.model.rows import Cell, Head, Row, without_covered
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.storage.key_codec import decode_clustering, head_key, partition_key_of, split_key
from ebla.storage.live_rows import is_head, version_of
from ebla.storage.row_codec import PLAIN_HEADER, decode_head, decode_row, is_plain
from ebla.storage.visible_rows import static_values, visible_cells
from ebla.wire.row_messages import Item

Values = list[bytes | None]
_HEADER_BYTES = PLAIN_HEADER.size
_NO_CELLS: dict[int, Cell] = {}


@dataclass(slots=True)
class Found:
    """One row: the needed columns' values, and where asked for the cells they come from, by column number."""

    values: Values
    cells: dict[int, Cell]
    prefix: bytes
    """Of its partition."""
    key: bytes
    """Of the row; of the head, for a partition that has static values and no row."""


def split_partition_key(schema: TableSchema, key: bytes) -> list[bytes]:
    if len(schema.partition_key) == 1:
        return [key]
    parts: list[bytes] = []
    offset = 0
    while offset < len(key):
        size = int.from_bytes(key[offset : offset + 2])
        parts.append(key[offset + 2 : offset + 2 + size])
        offset += size + 3
    return parts


class RowReader:
    """For one request: the needed columns of a table at a moment."""

    def __init__(self, schema: TableSchema, needed: Sequence[Column], now_s: int, *, with_cells: bool) -> None:
        self._schema = schema
        self._now_s = now_s
        self._with_cells = with_cells
        self._width = len(needed)
        self._partition = _places(needed, ColumnKind.PARTITION_KEY)
        self._clustering = _places(needed, ColumnKind.CLUSTERING)
        self._static = [(place, column.number) for place, column in enumerate(needed) if _is(column, ColumnKind.STATIC)]
        self._regular = {column.number: place for place, column in enumerate(needed) if _is(column, ColumnKind.REGULAR)}
        self._plain_places = [self._regular.get(number, -1) for number in schema.layouts[-1]]
        self._last_wanted = max((at for at, place in enumerate(self._plain_places) if place >= 0), default=-1)
        self._prefix = b""
        self._template: Values = [None] * self._width
        self._static_cells: dict[int, Cell] = _NO_CELLS
        self._held: bytes | None = None
        """The key of a head whose partition has shown no row yet."""
        self.heads: Mapping[bytes, Head] = {}
        """Of partitions whose heads are not among the items to come, or only behind their rows."""

    @property
    def holds_head(self) -> bool:
        return self._held is not None

    def bare(self, prefix: bytes) -> Found:
        """A partition of which there is nothing but its head."""
        self._enter(prefix)
        return Found(self._template.copy(), self._static_cells, prefix, head_key(prefix))

    def rows(self, items: Iterable[Item], *, bare_partitions: bool) -> Iterator[Found]:
        """`bare_partitions`: a partition with static values and no row is shown as one row of them."""
        for key, value in items:
            prefix, _, clustering = split_key(key)
            if prefix != self._prefix:
                if bare_partitions:
                    yield from self.last()
                self._enter(prefix)
            if is_head(value):
                if prefix not in self.heads:
                    self._take_statics(decode_head(value))
                    self._held = key
                continue
            self._held = None
            yield self._row(key, value, clustering)

    def last(self) -> Iterator[Found]:
        """The partition at the end of the items, where it has no row."""
        if self._held is not None:
            held, self._held = self._held, None
            yield Found(self._template.copy(), self._static_cells, self._prefix, held)

    # ---- partitions

    def _enter(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._held = None
        self._static_cells = _NO_CELLS
        template: Values = [None] * self._width
        if self._partition:
            parts = split_partition_key(self._schema, partition_key_of(prefix))
            for place, position in self._partition:
                template[place] = parts[position]
        self._template = template
        head = self.heads.get(prefix)
        if head is not None:
            self._take_statics(head)

    def _take_statics(self, head: Head) -> None:
        if not self._static:
            return
        values = static_values(self._schema, head, self._now_s)
        for place, number in self._static:
            self._template[place] = values.get(number)
        if self._with_cells:
            static = head.static if head.deletion is None else without_covered(head.static, head.deletion)
            self._static_cells = dict(static.cells)

    # ---- rows

    def _row(self, key: bytes, value: bytes, clustering: bytes) -> Found:
        values = self._template.copy()
        if self._clustering:
            parts = decode_clustering(self._schema.clustering, clustering)
            for place, position in self._clustering:
                values[place] = parts[position] if position < len(parts) else None
        cells = self._static_cells
        if is_plain(value) and version_of(value) == self._schema.version and not self._with_cells:
            self._cut_plain(value, values)
        else:
            row = decode_row(value, self._schema.layouts)
            self._fill(row, values)
            if self._with_cells:
                cells = {**cells, **row.cells}
        return Found(values, cells, self._prefix, key)

    def _cut_plain(self, value: bytes, values: Values) -> None:
        offset = _HEADER_BYTES
        for at, place in enumerate(self._plain_places):
            if at > self._last_wanted:
                return
            size = int.from_bytes(value[offset : offset + 4], signed=True)
            offset += 4
            if size >= 0:
                if place >= 0:
                    values[place] = value[offset : offset + size]
                offset += size

    def _fill(self, row: Row, values: Values) -> None:
        for number, found in visible_cells(self._schema, row, self._now_s).items():
            place = self._regular.get(number)
            if place is not None:
                values[place] = found


def _is(column: Column, kind: ColumnKind) -> bool:
    return column.kind is kind


def _places(needed: Sequence[Column], kind: ColumnKind) -> list[tuple[int, int]]:
    return [(place, column.position) for place, column in enumerate(needed) if column.kind is kind]
