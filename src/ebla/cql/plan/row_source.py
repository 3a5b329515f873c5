"""The rows of a SELECT: pages of a stored table, or the rows of a virtual table."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ebla.aio.long_work import LoopPauses
from ebla.cql.catalog import VirtualTable
from ebla.cql.plan.binder import BoundRequest
from ebla.cql.plan.key_spans import coalesce, row_spans, token_span
from ebla.cql.plan.modification_plan import KnownLists, ModificationPlan
from ebla.cql.plan.restrictions import Restrictions
from ebla.cql.plan.row_changes import ListElements
from ebla.cql.plan.row_decoder import DecodedRow, RowDecoder, split_partition_key
from ebla.model.byte_comparable import encode_comparable
from ebla.model.rows import PartitionHead, Row, without_deleted
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, composite_key, token_of
from ebla.model.values import encode
from ebla.request.router_types import ReadPage, ReadQuery
from ebla.storage.codec.key_codec import (
    encode_clustering,
    head_key,
    partition_prefix,
    partition_prefix_of,
    prefix_end,
    row_key,
)
from ebla.storage.codec.row_codec import decode_head, decode_row, is_head
from ebla.wire.row_messages import Span

HEADS_MAX = 1000


PageReader = Callable[[ReadQuery], Awaitable[ReadPage]]
"""The router, with the consistency level and timeout of one request."""


def spans_of(schema: TableSchema, restrictions: Restrictions, request: BoundRequest, *, heads: bool) -> list[Span]:
    """The key spans that a statement reads. With `heads`, they include the heads of partitions not read as a whole."""
    if not restrictions.has_partition:
        tokens = (int(TOKEN_MIN), int(TOKEN_MAX)) if not restrictions.tokens else restrictions.token_range(request)
        return [] if tokens is None else token_span(*tokens)
    return coalesce(span for spans in partition_spans(schema, restrictions, request, heads=heads) for span in spans)


def partition_spans(
    schema: TableSchema, restrictions: Restrictions, request: BoundRequest, *, heads: bool
) -> list[list[Span]]:
    """The key spans in each partition that a statement names, in the order of the partition keys."""
    prefixes = partition_prefixes_of(schema, restrictions, request)
    if not restrictions.clustering and not restrictions.ends and schema.clustering:
        return [[(prefix if heads else row_key(prefix), prefix_end(prefix))] for prefix in prefixes]
    ends = [end.bound(request) for end in restrictions.ends]
    rows = restrictions.clustering_values(request)
    found: list[list[Span]] = []
    for prefix in prefixes:
        spans = [span for values in rows for span in row_spans(schema.clustering, prefix, values, ends)]
        found.append([*spans, _head_span(prefix)] if heads and spans else spans)
    return found


def head_spans(schema: TableSchema, restrictions: Restrictions, request: BoundRequest) -> list[Span]:
    return coalesce(_head_span(prefix) for prefix in partition_prefixes_of(schema, restrictions, request))


def partition_prefixes_of(schema: TableSchema, restrictions: Restrictions, request: BoundRequest) -> list[bytes]:
    """In the order of the partition keys' values."""
    keys = restrictions.partition_keys(request)
    if len(keys) > 1:
        keys.sort(key=partial(_key_order, schema))
    return [partition_prefix(token_of(key), key) for key in keys]


def _key_order(schema: TableSchema, key: bytes) -> tuple[bytes, ...]:
    parts = split_partition_key(schema, key)
    return tuple(encode_comparable(column.type, part) for column, part in zip(schema.partition_key, parts))


def _head_span(prefix: bytes) -> Span:
    head = head_key(prefix)
    return head, head + b"\0"


@dataclass(slots=True, kw_only=True)
class StoredRowPages:
    """A read of a stored table, page by page. `position` is the start of the next page, after the whole current page,
    so a page must be used completely."""

    schema: TableSchema
    needed: Sequence[Column]
    with_cells: bool
    spans: tuple[Span, ...]
    now_s: int
    reader: PageReader
    is_reversed: bool
    partition_rows_max: int
    bare_partitions: bool
    """A partition with static values and no row yields a row."""
    position: bytes
    prefix: bytes
    """The prefix of the partition in which the read continues."""
    heads_of: tuple[bytes, ...]
    """Partitions of a reversed read, whose heads must be read first because they sort after the rows."""
    ended: bool = field(init=False)
    _rows: RowDecoder = field(init=False)
    _heads: dict[bytes, PartitionHead] = field(init=False, default_factory=dict)
    _partitions_with_rows: set[bytes] = field(init=False)
    """Partitions of a reversed read that had a row."""

    def __post_init__(self) -> None:
        self.ended = not self.spans
        self._partitions_with_rows = {self.prefix}
        self._rows = RowDecoder(self.schema, self.needed, self.now_s, with_cells=self.with_cells)

    async def page(self, rows_max: int) -> list[DecodedRow]:
        """The next rows; `ended` is set with the last ones. A page never ends between a partition's head and its rows:
        the next page would not know whether the partition has only a head."""
        if not self._heads and self.schema.static:
            await self._read_heads()
        found = await self._part(rows_max)
        while self._rows.holds_head and not self.ended:
            found += await self._part(1)
        return found

    async def _part(self, rows_max: int) -> list[DecodedRow]:
        query = ReadQuery(
            table=self.schema.id,
            spans=self.spans,
            rows_max=max(1, rows_max),
            now_s=self.now_s,
            is_reversed=self.is_reversed,
            partition_rows_max=self.partition_rows_max,
            position=self.position,
        )
        answer = await self.reader(query)
        found = list(self._rows.rows(answer.items, bare_partitions=self.bare_partitions))
        if found:
            self.prefix = found[-1].prefix
        if self.is_reversed:
            self._partitions_with_rows.update(one.prefix for one in found)
        self.position = answer.position
        if not answer.position:
            self.ended = True
            if self.bare_partitions:
                found += self._rows.last()
                found += self._bare_heads()
        return found

    async def _read_heads(self) -> None:
        prefixes = list(self.heads_of) or ([self.prefix] if self.prefix else [])
        if not prefixes:
            return
        spans = tuple(coalesce(_head_span(prefix) for prefix in prefixes))
        query = ReadQuery(table=self.schema.id, spans=spans, rows_max=HEADS_MAX, now_s=self.now_s)
        answer = await self.reader(query)
        for key, value in answer.items:
            if is_head(value):
                self._heads[key[:-1]] = decode_head(value)
        self._rows.heads = self._heads

    def _bare_heads(self) -> Iterator[DecodedRow]:
        """Partitions of a reversed read that had no row on this page or an earlier one."""
        if not self.is_reversed:
            return
        for prefix in self.heads_of:
            if prefix in self._heads and prefix not in self._partitions_with_rows:
                yield self._rows.bare(prefix)


@dataclass(slots=True, kw_only=True)
class OrderedRowPages:
    """The rows of several partitions in the order of their keys, page by page.

    Replicas return rows in the order of tokens. So each read takes as many partitions as are expected to fit into a
    page as a whole, whose rows are then put in order. If they do not fit, it takes fewer, in the end one."""

    spans: Sequence[Sequence[Span]]
    """Of each partition, in the order of the keys."""
    pages_of: Callable[[tuple[Span, ...], bytes, bytes], StoredRowPages]
    """A read of these spans, from a position within a partition on; the last argument is its prefix."""
    partitions_read: int = 0
    position: bytes = b""
    """Within the partition after those; empty: at its start."""
    prefix: bytes = b""
    _together: int = 0
    """The partitions of the next read; 0: as many as it wants rows."""

    @property
    def ended(self) -> bool:
        return self.partitions_read >= len(self.spans)

    async def page(self, rows_max: int) -> list[DecodedRow]:
        while True:
            count = 1 if self.position else self._together or rows_max
            group = self.spans[self.partitions_read : self.partitions_read + count]
            spans = tuple(coalesce(span for one in group for span in one))
            pages = self.pages_of(spans, self.position, self.prefix)
            # One row more shows whether these were all.
            found = [] if pages.ended else await pages.page(rows_max if len(group) == 1 else rows_max + 1)
            if len(group) == 1 or (pages.ended and len(found) <= rows_max):
                break
            self._together = max(1, len({one.prefix for one in found}) // 2)
        if pages.ended:
            self.partitions_read += len(group)
            self.position = self.prefix = b""
            self._together = 2 * count
        else:
            self.position, self.prefix = pages.position, pages.prefix
        return sorted(found, key=partial(_row_order, self._places(group)))

    def _places(self, group: Sequence[Sequence[Span]]) -> dict[bytes, int]:
        return {partition_prefix_of(spans[0][0]): place for place, spans in enumerate(group) if spans}


def _row_order(places: Mapping[bytes, int], row: DecodedRow) -> int:
    return places[row.prefix]


@dataclass(slots=True)
class VirtualRowPages:
    """The rows of a virtual table, page by page. `position` is the number of the next row."""

    rows: Sequence[DecodedRow]
    position: bytes
    prefix: bytes = b""

    @property
    def ended(self) -> bool:
        return int.from_bytes(self.position) >= len(self.rows)

    async def page(self, rows_max: int) -> Sequence[DecodedRow]:
        start = int.from_bytes(self.position)
        found = self.rows[start : start + rows_max]
        self.position = (start + len(found)).to_bytes(8)
        if found:
            self.prefix = found[-1].prefix
        return found


async def virtual_rows(table: VirtualTable, needed: Sequence[Column], *, is_reversed: bool) -> list[DecodedRow]:
    """All rows of a virtual table, in the order in which a stored table would have them."""
    schema = table.schema
    found: list[DecodedRow] = []
    pauses = LoopPauses()
    for row in await table.rows():
        await pauses.pause()
        values = {
            column.name: None if row.get(column.name) is None else encode(column.type, row[column.name])
            for column in schema.columns
        }
        key = composite_key([values[column.name] or b"" for column in schema.partition_key])
        prefix = partition_prefix(token_of(key), key)
        clustering = [values[column.name] for column in schema.clustering]
        set_values = [value for value in clustering if value is not None]
        stored_key = row_key(prefix, encode_clustering(schema.clustering, set_values))
        in_order = [values[column.name] for column in needed]
        found.append(DecodedRow(values=in_order, cells={}, prefix=prefix, key=stored_key))
    return sorted(found, key=lambda one: one.key, reverse=is_reversed)


CHUNK_ROWS = 1_000


async def read_known_lists(plan: ModificationPlan, request: BoundRequest, reader: PageReader) -> KnownLists:
    """The lists whose elements a write names by index or value: they must be read before the write."""
    schema = plan.schema
    now_s = request.now_us // 1_000_000
    known: KnownLists = {}
    spans = _spans(plan, request)
    position = b""
    while spans:
        page = await reader(
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
        return tuple(head_spans(plan.schema, plan.restrictions, request))
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
