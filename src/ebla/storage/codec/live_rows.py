"""Whether stored values show anything at a moment, asked for every row of a page: most are plain and not decoded. Pure.

Merged rows without what their partition's head deletes, and merged heads, are what these expect.
"""

from ebla.model.rows import PartitionHead, Row, without_deleted
from ebla.model.schema import TableSchema
from ebla.storage.codec.row_codec import NO_CELL, PLAIN_HEADER, RowFlag, decode_head, decode_row

# As plain numbers: combining flags with a byte costs more than all the rest.
_PLAIN, _MARKED, _HEAD = int(RowFlag.PLAIN), int(RowFlag.MARKED), int(RowFlag.HEAD)


def is_head(value: bytes) -> bool:
    return bool(value[1] & _HEAD)


def version_of(value: bytes) -> int:
    """The version of the schema it was written by."""
    return value[2] << 8 | value[3]


def is_live_row(value: bytes, schema: TableSchema, now_s: int) -> bool:
    """A live marker, or a live cell of a column that the table still has."""
    flags = value[1]
    if flags & _PLAIN:
        if flags & _MARKED:
            return True
        if version_of(value) == schema.version:
            return len(value) > PLAIN_HEADER.size + len(NO_CELL) * len(schema.layouts[-1]) or _has_cell(value)
    row = decode_row(value, schema.layouts)
    return _has_marker(row, now_s) or has_live_cells(row, schema, now_s)


def may_be_live(value: bytes, schema: TableSchema, now_s: int) -> bool:
    """Whether it is live to a reader with some version of the schema, be it older or newer than this one."""
    if value[1] & _PLAIN:
        return True
    row = decode_row(value, schema.layouts)
    return _has_marker(row, now_s) or has_live_cells(row, None, now_s)


def has_static(value: bytes, schema: TableSchema, now_s: int) -> bool:
    """Whether a head has a live static cell."""
    return bool(schema.static) and has_live_static(decode_head(value), schema, now_s)


def has_live_static(head: PartitionHead, schema: TableSchema, now_s: int) -> bool:
    static = head.static if head.deletion is None else without_deleted(head.static, head.deletion)
    return has_live_cells(static, schema, now_s)


def has_live_cells(row: Row, schema: TableSchema | None, now_s: int) -> bool:
    """Of columns in the schema; None: of any."""
    known = None if schema is None else schema.by_number
    if any(cell.is_live(now_s) for number, cell in row.cells.items() if known is None or number in known):
        return True
    return any(
        cell.is_live(now_s)
        for number, elements in row.collections.items()
        if known is None or number in known
        for cell in elements.cells.values()
    )


def _has_cell(value: bytes) -> bool:
    """Of a plain row whose cells, if it has any, are all empty."""
    cells = value[PLAIN_HEADER.size :]
    return cells != NO_CELL * (len(cells) // len(NO_CELL))


def _has_marker(row: Row, now_s: int) -> bool:
    return row.marker is not None and row.marker.is_live(now_s)
