"""The columns of an answer: which columns of the table they need, what they look like in Arrow, and the times of cells.

A plain row has one time for all its cells, which its chunk carries. What the cells of other rows say of their times is
noted when such a row becomes the plain row that shows the same, and looked up by its key.
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
    """An asked column, with what the schema says of it."""

    label: str
    kind: SelectorKind
    column: Column | None
    """None: a token."""

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
    """Nothing but the values of these columns."""
    return tuple(ColumnSelector(name) for name in names)


def resolve_selectors(schema: TableSchema, asked: Sequence[ColumnSelector]) -> tuple[ScanColumn, ...]:
    """Raises `InvalidRequest` where one is asked for that there cannot be."""
    if not asked:
        raise InvalidRequest("a scan asks for at least one column")
    labels = [one.label for one in asked]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise InvalidRequest(f"two columns of the answer would be called {twice!r}")
    return tuple(_answer_column(schema, one) for one in asked)


def _answer_column(schema: TableSchema, asked: ColumnSelector) -> ScanColumn:
    if asked.kind is SelectorKind.TOKEN:
        return ScanColumn(asked.label or "token", asked.kind, None)
    column = schema.column(asked.name)
    found = ScanColumn(asked.label, asked.kind, column)
    if found.is_time:
        if column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
            raise InvalidRequest(f"Cannot use selection function {asked.kind} on PRIMARY KEY part {column.name}")
        if is_multi_cell(column.type):
            raise InvalidRequest(f"Cannot use selection function {asked.kind} on non-frozen collection {column.name}")
    return found


def arrow_schema_of(columns: Sequence[ScanColumn]) -> pa.Schema:
    return pa.schema([pa.field(one.label, one.arrow_type) for one in columns])


def row_column_numbers(columns: Sequence[ScanColumn]) -> tuple[int, ...]:
    """Of the columns that rows have of those needed, each once."""
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
    """Cells of the rows of a chunk that were not plain, by the key of their row."""

    now_s: int
    _keys: list[bytes] = field(default_factory=list)
    _cells: list[Mapping[int, Cell]] = field(default_factory=list)

    def note(self, key: bytes, row: Row) -> None:
        self._keys.append(key)
        self._cells.append(row.cells)

    def clear(self) -> None:
        self._keys.clear()
        self._cells.clear()

    def times(self, asked: ScanColumn, rows: tuple[pa.Array, pa.Array], values: pa.Array) -> pa.Array:
        """Of the cells of one column; `rows` are the keys and the times of the plain rows they are shown as."""
        keys, timestamps = rows
        plain = pa.nulls(len(keys), asked.arrow_type)
        if asked.kind is SelectorKind.WRITETIME:
            plain = pc.if_else(values.is_valid(), timestamps, plain)
        if not self._keys:
            return plain
        told = [cell_time(asked.kind, cells.get(asked.number), self.now_s) for cells in self._cells]
        places = pc.index_in(keys, pa.array(self._keys, pa.binary()))
        return pc.if_else(places.is_valid(), pa.array(told, asked.arrow_type).take(places), plain)
