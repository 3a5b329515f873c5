"""Elements of lists that a write names by index or value: they are read before it, since only the row knows them."""

from ebla.cql.bind import Bound
from ebla.cql.plan_writes import KnownLists, WritePlan
from ebla.cql.select_rows import Reader, spans_of
from ebla.model.errors import InvalidRequest
from ebla.model.rows import Row, without_covered
from ebla.request.parts import ReadQuery
from ebla.storage.live_rows import is_head
from ebla.storage.row_codec import decode_head, decode_row

ROWS_MAX = 2


async def known_lists(plan: WritePlan, request: Bound, reader: Reader) -> KnownLists:
    schema = plan.schema
    now_s = request.now_us // 1_000_000
    spans = spans_of(schema, plan.restrictions, request, heads=bool(schema.static))
    if not spans:
        return {}
    page = await reader.read(ReadQuery(schema.id, tuple(spans), ROWS_MAX, now_s))
    known: KnownLists = {}
    for _, value in page.items:
        if is_head(value):
            head = decode_head(value)
            row = head.static if head.deletion is None else without_covered(head.static, head.deletion)
        else:
            row = decode_row(value, schema.layouts)
        for column in plan.lists_read:
            elements = _elements(row, column.number, now_s)
            if elements and column.number in known:
                raise InvalidRequest(f"elements of the list {column.name} can be named in one row only")
            if elements:
                known[column.number] = elements
    return known


def _elements(row: Row, number: int, now_s: int) -> list[tuple[bytes, bytes]]:
    found = row.collections.get(number)
    if found is None:
        return []
    live = ((path, cell.value) for path, cell in sorted(found.cells.items()) if cell.is_live(now_s))
    return [(path, value) for path, value in live if value is not None]
