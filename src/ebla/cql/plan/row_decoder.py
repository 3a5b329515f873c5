"""Decodes stored items to rows of values in wire form. Pure.

A plan names the columns it needs; a row is the list of their values in that order. The values of plain rows of the
current schema are sliced from the stored bytes. If a plan needs write times or TTLs, rows have their cells, too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from ebla.model.byte_comparable import decoder_of
from ebla.model.rows import Cell, PartitionHead, Row, without_deleted
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.model.token import split_composite_key
from ebla.storage.codec.key_codec import head_key, inverted, partition_key_of, split_key
from ebla.storage.codec.live_rows import static_values, visible_cells
from ebla.storage.codec.row_codec import decode_head, decode_row, is_head, plain_header_prefixes, take_plain_cells
from ebla.wire.row_messages import Item

RowValues = list[bytes | None]
ComponentDecoder = Callable[[bytes, int], tuple[bytes, int]]

_NO_CELLS: dict[int, Cell] = {}


class DecodedRow(msgspec.Struct, gc=False, kw_only=True):
    """The values of the needed columns, and if required their cells by column number. A msgspec struct because a page
    has thousands of rows."""

    values: RowValues
    cells: dict[int, Cell]
    prefix: bytes
    """The prefix of its partition."""
    key: bytes
    """The key of the row; that of the partition head, for a partition with static values and no row."""


def split_partition_key(schema: TableSchema, key: bytes) -> list[bytes]:
    return [key] if len(schema.partition_key) == 1 else split_composite_key(key)


class RowDecoder:
    """Decodes the needed columns of a table for one request, at one point in time."""

    def __init__(self, schema: TableSchema, needed: Sequence[Column], now_s: int, *, with_cells: bool) -> None:
        self._schema = schema
        self._now_s = now_s
        self._with_cells = with_cells
        self._width = len(needed)
        self._partition = key_indexes(needed, ColumnKind.PARTITION_KEY)
        self._clustering = _clustering(schema, needed)
        self._descends = any(descending for _, descending, _ in self._clustering)
        self._static = [
            (index, column.number) for index, column in enumerate(needed) if column.kind is ColumnKind.STATIC
        ]
        self._regular = {
            column.number: index for index, column in enumerate(needed) if column.kind is ColumnKind.REGULAR
        }
        self._plain_indexes = cell_indexes(schema, self._regular)
        self._plain_beginnings = plain_header_prefixes(schema.version)
        """Of plain rows of the current schema."""
        self._prefix = b""
        self._template: RowValues = [None] * self._width
        self._static_cells: dict[int, Cell] = _NO_CELLS
        self._bare_head: bytes | None = None
        """The key of a partition head, as long as its partition had no row."""
        self.heads: Mapping[bytes, PartitionHead] = {}
        """Heads of partitions whose heads are not among the items, or come after the rows."""

    @property
    def holds_head(self) -> bool:
        return self._bare_head is not None

    def bare(self, prefix: bytes) -> DecodedRow:
        """The row of a partition that has only a head."""
        self._start_partition(prefix)
        return DecodedRow(values=self._template.copy(), cells=self._static_cells, prefix=prefix, key=head_key(prefix))

    def rows(self, items: Iterable[Item], *, bare_partitions: bool) -> Iterator[DecodedRow]:
        """`bare_partitions`: a partition with static values and no row yields one row."""
        prefix, plain = self._prefix, self._plain_beginnings
        for key, value in items:
            if not prefix or not key.startswith(prefix):
                if bare_partitions:
                    yield from self.last()
                prefix = split_key(key)[0]
                self._start_partition(prefix)
            is_plain = value.startswith(plain)
            if not is_plain and is_head(value):
                if prefix not in self.heads:
                    self._read_statics(decode_head(value))
                    self._bare_head = key
                continue
            self._bare_head = None
            yield self._row(key, value, is_plain=is_plain)

    def last(self) -> Iterator[DecodedRow]:
        """The last partition of the items, if it has no row."""
        if self._bare_head is not None:
            held, self._bare_head = self._bare_head, None
            yield DecodedRow(values=self._template.copy(), cells=self._static_cells, prefix=self._prefix, key=held)

    # ---- partitions

    def _start_partition(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._bare_head = None
        self._static_cells = _NO_CELLS
        template: RowValues = [None] * self._width
        if self._partition:
            parts = split_partition_key(self._schema, partition_key_of(prefix))
            for index, position in self._partition:
                template[index] = parts[position]
        self._template = template
        head = self.heads.get(prefix)
        if head is not None:
            self._read_statics(head)

    def _read_statics(self, head: PartitionHead) -> None:
        if not self._static:
            return
        values = static_values(self._schema, head, self._now_s)
        for index, number in self._static:
            self._template[index] = values.get(number)
        if self._with_cells:
            static = head.static if head.deletion is None else without_deleted(head.static, head.deletion)
            self._static_cells = dict(static.cells)

    # ---- rows

    def _row(self, key: bytes, value: bytes, *, is_plain: bool) -> DecodedRow:
        values = self._template.copy()
        if self._clustering:
            self._read_clustering(key, values)
        cells = self._static_cells
        if is_plain and not self._with_cells:
            take_plain_cells(value, self._plain_indexes, values)
        else:
            row = decode_row(value, self._schema.layouts)
            self._fill(row, values)
            if self._with_cells:
                cells = {**cells, **row.cells}
        return DecodedRow(values=values, cells=cells, prefix=self._prefix, key=key)

    def _read_clustering(self, key: bytes, values: RowValues) -> None:
        offset, size = len(self._prefix) + 1, len(key)
        flipped = inverted(key) if self._descends else key
        for decode, descending, index in self._clustering:
            if offset == size:
                return
            value, offset = decode(flipped if descending else key, offset)
            if index >= 0:
                values[index] = value

    def _fill(self, row: Row, values: RowValues) -> None:
        for number, found in visible_cells(self._schema, row, self._now_s).items():
            index = self._regular.get(number)
            if index is not None:
                values[index] = found


def cell_indexes(schema: TableSchema, index_of: Mapping[int, int]) -> list[int]:
    """The index of each cell of a plain row, by its column number, up to the last one needed; -1: not needed."""
    indexes = [index_of.get(number, -1) for number in schema.layouts[-1]]
    while indexes and indexes[-1] < 0:
        indexes.pop()
    return indexes


def _clustering(schema: TableSchema, needed: Sequence[Column]) -> list[tuple[ComponentDecoder, bool, int]]:
    """How each component of a key is read, whether it descends, and its place among the needed columns (-1: none);
    none behind the last that is needed."""
    index_of = {position: index for index, position in key_indexes(needed, ColumnKind.CLUSTERING)}
    return [
        (decoder_of(column.type), column.descending, index_of.get(position, -1))
        for position, column in enumerate(schema.clustering[: max(index_of, default=-1) + 1])
    ]


def key_indexes(needed: Sequence[Column], kind: ColumnKind) -> list[tuple[int, int]]:
    """Pairs of index in the row and position in the key."""
    return [(index, column.position) for index, column in enumerate(needed) if column.kind is kind]
