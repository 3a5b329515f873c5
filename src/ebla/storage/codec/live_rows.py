"""What users see of stored rows at a given time: whether a value is live, and its live cells. Pure.

Every row of a page is checked: most are plain and are not decoded. The functions expect merged rows without what their
partition's head deletes, and merged heads.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ebla.model.byte_comparable import encode_comparable
from ebla.model.cql_types import CqlType, ListType, MapType, SetType
from ebla.model.rows import Cell, CollectionCells, Deletion, PartitionHead, Row, RowMarker, without_deleted
from ebla.model.schema import TableSchema
from ebla.model.values import join_elements
from ebla.storage.codec.row_codec import (
    decode_head,
    decode_row,
    encode_row,
    has_cells,
    is_marked,
    is_plain,
    schema_version,
)
from ebla.storage.layers.layer import Item


def is_live_row(value: bytes, schema: TableSchema, now_s: int) -> bool:
    """Whether it has a live marker, or a live cell of a column that the table still has."""
    if is_plain(value):
        if is_marked(value):
            return True
        if schema_version(value) == schema.version:
            return has_cells(value, len(schema.layouts[-1]))
    row = decode_row(value, schema.layouts)
    return _has_marker(row, now_s) or has_live_cells(row, schema, now_s)


def may_be_live(value: bytes, schema: TableSchema, now_s: int) -> bool:
    """Whether it is live to a reader with any version of the schema, older or newer than this one."""
    if is_plain(value):
        return True
    row = decode_row(value, schema.layouts)
    return _has_marker(row, now_s) or has_live_cells(row, None, now_s)


def has_static(value: bytes, schema: TableSchema, now_s: int) -> bool:
    """Whether a head has a live static cell."""
    return bool(schema.static) and has_live_cells(live_static(decode_head(value)), schema, now_s)


def has_live_cells(row: Row, schema: TableSchema | None, now_s: int) -> bool:
    """Considers the columns of the schema; None: all."""
    known = None if schema is None else schema.by_number
    if any(cell.is_live(now_s) for number, cell in row.cells.items() if known is None or number in known):
        return True
    return any(
        cell.is_live(now_s)
        for number, elements in row.collections.items()
        if known is None or number in known
        for cell in elements.cells.values()
    )


def _has_marker(row: Row, now_s: int) -> bool:
    return row.marker is not None and row.marker.is_live(now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleTransform:
    """The `RowTransform` of user scans. A row that is not plain becomes the plain row with the same live values, so
    everything after this is columns. A head with static cells becomes an empty row with the head's key: what users see
    of a partition without rows."""

    schema: TableSchema
    now_s: int
    shows_static: bool
    note: Callable[[bytes, Row], None] | None = None
    """Called with the key and the cells of each row that is converted: the plain row has no timestamps."""

    def head(self, item: Item) -> bytes | None:
        if not self.shows_static or not static_values(self.schema, decode_head(item[1]), self.now_s):
            return None
        return encode_row(Row(marker=RowMarker(0)), self.schema.version, self.schema.layouts[-1])

    def row(self, item: Item, covering: Deletion | None) -> bytes | None:
        row = decode_row(item[1], self.schema.layouts)
        if covering is not None:
            row = without_deleted(row, covering)
        if self.note is not None:
            self.note(item[0], row)
        return visible_value(self.schema, row, self.now_s)


def visible_value(schema: TableSchema, row: Row, now_s: int) -> bytes | None:
    """The stored form of a plain row with the same live values; None where nothing is visible."""
    values = visible_cells(schema, row, now_s)
    if not values and (row.marker is None or not row.marker.is_live(now_s)):
        return None
    cells = {
        number: Cell(timestamp_us=0, value=value) for number, value in values.items() if number in schema.layouts[-1]
    }
    return encode_row(Row(marker=RowMarker(0), deletion=None, cells=cells), schema.version, schema.layouts[-1])


def static_values(schema: TableSchema, head: PartitionHead, now_s: int) -> dict[int, bytes]:
    return visible_cells(schema, live_static(head), now_s)


def live_static(head: PartitionHead) -> Row:
    """The static part without what the partition's own deletion covers."""
    return head.static if head.deletion is None else without_deleted(head.static, head.deletion)


def visible_cells(schema: TableSchema, row: Row, now_s: int) -> dict[int, bytes]:
    """Live values in wire form by column number, collections assembled; dropped columns are left out."""
    values: dict[int, bytes] = {}
    for number, cell in row.cells.items():
        if number in schema.by_number and cell.value is not None and cell.is_live(now_s):
            values[number] = cell.value
    for number, elements in row.collections.items():
        column = schema.by_number.get(number)
        if column is not None and (value := collection_value(column.type, elements, now_s)) is not None:
            values[number] = value
    return values


def collection_value(kind: CqlType, elements: CollectionCells, now_s: int) -> bytes | None:
    """The wire form of a multi-cell collection; None where no element is live: CQL treats an empty collection as
    null."""
    live = {path: cell.value for path, cell in elements.cells.items() if cell.is_live(now_s)}
    if not live:
        return None
    match kind:
        case ListType():
            return join_elements((live[path] for path in sorted(live)), len(live))
        case SetType(element=element):
            elements_in_order = sorted(live, key=lambda path: encode_comparable(element, path))
            return join_elements(elements_in_order, len(live))
        case MapType(key=key):
            paths = sorted(live, key=lambda path: encode_comparable(key, path))
            return join_elements((part for path in paths for part in (path, live[path])), len(live))
        case _:
            raise AssertionError(f"a {kind} has one cell")
