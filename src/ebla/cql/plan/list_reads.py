"""Elements of lists that a write names by index or value: they are read before it, since only the row knows them."""

from ebla.cql.plan.binder import BoundRequest
from ebla.cql.plan.modification_plan import KnownLists, ModificationPlan
from ebla.cql.plan.row_changes import ListElements
from ebla.cql.plan.row_source import PageReader, head_spans, spans_of
from ebla.model.rows import Row, without_deleted
from ebla.model.schema import ColumnKind
from ebla.request.router_types import ReadQuery
from ebla.storage.codec.row_codec import decode_head, decode_row, is_head
from ebla.wire.row_messages import Span

CHUNK_ROWS = 1_000


async def read_known_lists(plan: ModificationPlan, request: BoundRequest, reader: PageReader) -> KnownLists:
    schema = plan.schema
    now_s = request.now_us // 1_000_000
    known: KnownLists = {}
    spans = _spans(plan, request)
    position = b""
    while spans:
        page = await reader.read(
            ReadQuery(table=schema.id, spans=spans, rows_max=CHUNK_ROWS, now_s=now_s, position=position)
        )
        for key, value in page.items:
            known[key] = _lists(plan, _row(plan, value), now_s)
        position = page.position
        if not position:
            break
    return known


def _spans(plan: ModificationPlan, request: BoundRequest) -> tuple[Span, ...]:
    """The rows that are written, or the heads of their partitions: what the lists are part of."""
    statics = [column.kind is ColumnKind.STATIC for column in plan.lists_read]
    if all(statics):
        return tuple(head_spans(plan.restrictions, request))
    return tuple(spans_of(plan.schema, plan.restrictions, request, heads=any(statics)))


def _row(plan: ModificationPlan, value: bytes) -> Row:
    if not is_head(value):
        return decode_row(value, plan.schema.layouts)
    head = decode_head(value)
    return head.static if head.deletion is None else without_deleted(head.static, head.deletion)


def _lists(plan: ModificationPlan, row: Row, now_s: int) -> ListElements:
    found: ListElements = {}
    for column in plan.lists_read:
        elements = row.collections.get(column.number)
        if elements is not None:
            live = ((path, cell.value) for path, cell in sorted(elements.cells.items()) if cell.is_live(now_s))
            found[column.number] = [(path, value) for path, value in live if value is not None]
    return found
