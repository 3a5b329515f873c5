"""The rows of a SELECT: pages of a stored table, or the rows of a virtual table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ebla.cql.catalog import VirtualTable
from ebla.cql.plan.binder import BoundRequest
from ebla.cql.plan.key_spans import coalesce, row_spans, token_span
from ebla.cql.plan.modification_plan import KnownLists, ModificationPlan
from ebla.cql.plan.restrictions import Restrictions
from ebla.cql.plan.row_changes import ListElements
from ebla.cql.plan.row_decoder import DecodedRow, RowDecoder
from ebla.model.rows import PartitionHead, Row, without_deleted
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, composite_key, token_of
from ebla.model.values import encode
from ebla.request.router_types import ReadPage, ReadQuery
from ebla.storage.codec.key_codec import (
    encode_clustering,
    head_key,
    partition_prefix,
    prefix_end,
    row_key,
)
from ebla.storage.codec.row_codec import decode_head, decode_row, is_head
from ebla.wire.row_messages import Span

HEADS_MAX = 1000


class PageReader(Protocol):
    """The router, with the consistency level and timeout of one request."""

    async def read(self, query: ReadQuery) -> ReadPage: ...


def spans_of(schema: TableSchema, restrictions: Restrictions, request: BoundRequest, *, heads: bool) -> list[Span]:
    """The key spans that a statement reads. With `heads`, they include the heads of partitions not read as a whole."""
    if not restrictions.has_partition:
        tokens = (int(TOKEN_MIN), int(TOKEN_MAX)) if not restrictions.tokens else restrictions.token_range(request)
        return [] if tokens is None else token_span(*tokens)
    spans: list[Span] = []
    for prefix in partition_prefixes_of(restrictions, request):
        if not restrictions.clustering and not restrictions.ends and schema.clustering:
            spans.append((prefix if heads else row_key(prefix), prefix_end(prefix)))
            continue
        ends = [end.bound(request) for end in restrictions.ends]
        for values in restrictions.clustering_values(request):
            spans += row_spans(schema.clustering, prefix, values, ends)
        if heads and spans:
            spans.append(_head_span(prefix))
    return coalesce(spans)


def head_spans(restrictions: Restrictions, request: BoundRequest) -> list[Span]:
    return coalesce(_head_span(prefix) for prefix in partition_prefixes_of(restrictions, request))


def partition_prefixes_of(restrictions: Restrictions, request: BoundRequest) -> list[bytes]:
    return [partition_prefix(token_of(key), key) for key in restrictions.partition_keys(request)]


def _head_span(prefix: bytes) -> Span:
    head = head_key(prefix)
    return head, head + b"\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """A read of a stored table."""

    schema: TableSchema
    needed: Sequence[Column]
    with_cells: bool
    spans: tuple[Span, ...]
    now_s: int
    is_reversed: bool = False
    partition_rows_max: int = 0
    bare_partitions: bool = False
    """A partition with static values and no row yields a row."""
    position: bytes = b""
    prefix: bytes = b""
    """The prefix of the partition in which the read continues."""
    heads_of: tuple[bytes, ...] = ()
    """Partitions of a reversed read, whose heads must be read first because they sort after the rows."""


@dataclass(slots=True, kw_only=True)
class StoredRowPages:
    """Rows page by page. `position` is the start of the next page, after the whole current page, so a page must be used
    completely."""

    reading: TableRead
    reader: PageReader
    position: bytes = b""
    prefix: bytes = b""
    ended: bool = False
    _rows: RowDecoder = field(init=False)
    _heads: dict[bytes, PartitionHead] = field(init=False, default_factory=dict)
    _partitions_with_rows: set[bytes] = field(init=False, default_factory=set)
    """Partitions of a reversed read that had a row."""

    def __post_init__(self) -> None:
        reading = self.reading
        self.position, self.prefix = reading.position, reading.prefix
        self._partitions_with_rows.add(reading.prefix)
        self._rows = RowDecoder(reading.schema, reading.needed, reading.now_s, with_cells=reading.with_cells)

    async def page(self, rows_max: int) -> list[DecodedRow]:
        """The next rows; `ended` is set with the last ones. A page never ends between a partition's head and its rows:
        the next page would not know whether the partition has only a head."""
        if not self._heads and self.reading.schema.static:
            await self._read_heads()
        found = await self._part(rows_max)
        while self._rows.holds_head and not self.ended:
            found += await self._part(1)
        return found

    async def _part(self, rows_max: int) -> list[DecodedRow]:
        reading = self.reading
        query = ReadQuery(
            table=reading.schema.id,
            spans=reading.spans,
            rows_max=max(1, rows_max),
            now_s=reading.now_s,
            is_reversed=reading.is_reversed,
            partition_rows_max=reading.partition_rows_max,
            position=self.position,
        )
        answer = await self.reader.read(query)
        found = list(self._rows.rows(answer.items, bare_partitions=reading.bare_partitions))
        if found:
            self.prefix = found[-1].prefix
        if reading.is_reversed:
            self._partitions_with_rows.update(one.prefix for one in found)
        self.position = answer.position
        if not answer.position:
            self.ended = True
            if reading.bare_partitions:
                found += self._rows.last()
                found += self._bare_heads()
        return found

    async def _read_heads(self) -> None:
        prefixes = list(self.reading.heads_of) or ([self.prefix] if self.prefix else [])
        if not prefixes:
            return
        spans = tuple(coalesce(_head_span(prefix) for prefix in prefixes))
        query = ReadQuery(table=self.reading.schema.id, spans=spans, rows_max=HEADS_MAX, now_s=self.reading.now_s)
        answer = await self.reader.read(query)
        for key, value in answer.items:
            if is_head(value):
                self._heads[key[:-1]] = decode_head(value)
        self._rows.heads = self._heads

    def _bare_heads(self) -> Iterator[DecodedRow]:
        """Partitions of a reversed read that had no row on this page or an earlier one."""
        if not self.reading.is_reversed:
            return
        for prefix in self.reading.heads_of:
            if prefix in self._heads and prefix not in self._partitions_with_rows:
                yield self._rows.bare(prefix)


async def virtual_rows(table: VirtualTable, needed: Sequence[Column]) -> list[DecodedRow]:
    """All rows of a virtual table, in the order in which a stored table would have them."""
    schema = table.schema
    by_key: list[tuple[bytes, DecodedRow]] = []
    for row in await table.rows():
        values = {
            column.name: None if row.get(column.name) is None else encode(column.type, row[column.name])
            for column in schema.columns
        }
        key = composite_key([values[column.name] or b"" for column in schema.partition_key])
        prefix = partition_prefix(token_of(key), key)
        clustering = [values[column.name] for column in schema.clustering]
        set_values = [value for value in clustering if value is not None]
        stored_key = row_key(prefix, encode_clustering(schema.clustering, set_values))
        found = DecodedRow(values=[values[column.name] for column in needed], cells={}, prefix=prefix, key=stored_key)
        by_key.append((stored_key, found))
    by_key.sort(key=lambda one: one[0])
    return [found for _, found in by_key]


CHUNK_ROWS = 1_000


async def read_known_lists(plan: ModificationPlan, request: BoundRequest, reader: PageReader) -> KnownLists:
    """The lists whose elements a write names by index or value: they must be read before the write."""
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
    """The spans of the written rows, or of their partition heads, that contain the lists."""
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
