"""The output columns of a scan: which table columns they need, their Arrow types, and the write times of cells.

A plain row has one timestamp for all its cells, which its chunk includes. The cells of other rows are recorded when
such a row is converted to a plain row, and looked up by key.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.cql_types import is_multi_cell
from ebla.model.errors import InvalidRequest
from ebla.model.rows import Cell, Row
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.model.selection import ColumnSelector, SelectorKind
from ebla.storage.columns.arrow_types import arrow_type
from ebla.storage.columns.key_columns import token_words

_KINDS: Mapping[SelectorKind, pa.DataType] = {
    SelectorKind.WRITETIME: pa.int64(),
    SelectorKind.TTL: pa.int32(),
    SelectorKind.TOKEN: pa.int64(),
}
_TIMES = (SelectorKind.WRITETIME, SelectorKind.TTL)
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True, slots=True)
class ScanColumn:
    """A selected column, resolved against the schema."""

    label: str
    kind: SelectorKind
    column: Column | None
    """None for a token."""

    @property
    def arrow_type(self) -> pa.DataType:
        if self.kind is not SelectorKind.VALUE:
            return _KINDS[self.kind]
        assert self.column is not None
        return arrow_type(self.column.type)

    @property
    def is_static(self) -> bool:
        return self.column is not None and self.column.kind is ColumnKind.STATIC

    @property
    def is_time(self) -> bool:
        return self.kind in _TIMES

    @property
    def number(self) -> int:
        assert self.column is not None
        return self.column.number


def select_values(names: Iterable[str]) -> tuple[ColumnSelector, ...]:
    """Selectors of these columns' values."""
    return tuple(ColumnSelector(name) for name in names)


def resolve_selectors(schema: TableSchema, selectors: Sequence[ColumnSelector]) -> tuple[ScanColumn, ...]:
    """Raises `InvalidRequest` for a selector that is not possible."""
    if not selectors:
        raise InvalidRequest("a scan selects at least one column")
    labels = [one.label for one in selectors]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise InvalidRequest(f"two columns of the result would be called {twice!r}")
    return tuple(_resolve(schema, one) for one in selectors)


def _resolve(schema: TableSchema, selector: ColumnSelector) -> ScanColumn:
    if selector.kind is SelectorKind.TOKEN:
        return ScanColumn(selector.label or "token", selector.kind, None)
    column = schema.column(selector.name)
    found = ScanColumn(selector.label, selector.kind, column)
    if found.is_time:
        if column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
            raise InvalidRequest(f"Cannot use selection function {selector.kind} on PRIMARY KEY part {column.name}")
        if is_multi_cell(column.type):
            raise InvalidRequest(
                f"Cannot use selection function {selector.kind} on non-frozen collection {column.name}"
            )
    return found


def arrow_schema_of(columns: Sequence[ScanColumn]) -> pa.Schema:
    return pa.schema([pa.field(one.label, one.arrow_type) for one in columns])


def row_column_numbers(columns: Sequence[ScanColumn]) -> tuple[int, ...]:
    """The numbers of the needed columns that rows have, each once."""
    needed = (one.number for one in columns if one.column is not None and not one.is_static)
    return tuple(dict.fromkeys(needed))


def token_column(keys: pa.Array) -> pa.Array:
    return pa.array((token_words(keys) ^ _SIGN).view(np.int64))


def cell_time(kind: SelectorKind, cell: Cell | None, now_s: int) -> int | None:
    if cell is None or not cell.is_live(now_s):
        return None
    if kind is SelectorKind.WRITETIME:
        return cell.timestamp_us
    return cell.at_s - now_s if cell.ttl_s else None


@dataclass(slots=True)
class CellTimeIndex:
    """The cells of a chunk's rows that were not plain, or whose columns do not show every cell, by row key."""

    now_s: int
    _cells: dict[bytes, Mapping[int, Cell]] = field(default_factory=dict)

    def note(self, key: bytes, row: Row) -> None:
        """The first note of a key counts: a row that became plain has lost its timestamps."""
        self._cells.setdefault(key, row.cells)

    def clear(self) -> None:
        self._cells.clear()

    def times(self, output: ScanColumn, rows: tuple[pa.Array, pa.Array], values: pa.Array) -> pa.Array:
        """The times of one column's cells; `rows` are the keys and timestamps of the plain rows."""
        keys, timestamps = rows
        plain = pa.nulls(len(keys), output.arrow_type)
        if output.kind is SelectorKind.WRITETIME:
            plain = pc.if_else(values.is_valid(), timestamps, plain)
        if not self._cells:
            return plain
        recorded = [cell_time(output.kind, cells.get(output.number), self.now_s) for cells in self._cells.values()]
        positions = pc.index_in(keys, pa.array(list(self._cells), pa.binary()))
        return pc.if_else(positions.is_valid(), pa.array(recorded, output.arrow_type).take(positions), plain)
