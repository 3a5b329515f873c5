"""Whether stored values are live at a given time. Every row of a page is checked: most are plain and are not decoded.

The functions expect merged rows without what their partition's head deletes, and merged heads. Pure.
"""

from ebla.model.rows import PartitionHead, Row, without_deleted
from ebla.model.schema import TableSchema
from ebla.storage.codec.row_codec import decode_head, decode_row, has_cells, is_marked, is_plain, schema_version


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
    return bool(schema.static) and has_live_static(decode_head(value), schema, now_s)


def has_live_static(head: PartitionHead, schema: TableSchema, now_s: int) -> bool:
    static = head.static if head.deletion is None else without_deleted(head.static, head.deletion)
    return has_live_cells(static, schema, now_s)


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
