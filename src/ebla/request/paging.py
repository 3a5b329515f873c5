"""Pages of rows, and positions from which the next page continues. Pure.

A position is a key and the number of rows its partition may still give. It names no replica and no version of the
topology, so it stays valid across migrations, restarts and routers. INV-ROWS-9: pages show each row once, in the order
of the read.

    format (1) | flags (1) | rows left in the partition (4, -1: no limit) | key | checksum (4)

The checksum covers the table's id too: a damaged position, or one of another table, is refused and not misread.
"""

import enum
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ebla.model.errors import InvalidRequest
from ebla.model.identity import TableId
from ebla.request.router_types import ReadPage, ReadQuery
from ebla.request.short_reads import (
    LiveRowContext,
    SettledPage,
    clip_spans,
    contains_key,
    is_beyond,
    spans_after,
    spans_after_rows,
)
from ebla.storage.codec.key_codec import enclosing_partition, split_key
from ebla.storage.codec.live_rows import has_static, is_live_row
from ebla.storage.codec.row_codec import is_head
from ebla.wire.row_messages import Item, Span

FORMAT = 1
_BEGIN = struct.Struct(">BBi")
_CHECKSUM_BYTES = 4
_NO_LIMIT = -1
_ADVICE = "start again without a position, or send back the one of the page before as it was, with the same query"


class _Flag(enum.IntFlag):
    REVERSED = 1


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The rest of the read begins at `bound`; the rest of a reversed read ends before it."""

    bound: bytes
    partition_rows_left: int | None = None
    """Rows that the partition of the bound may still give; None: any number."""


def encode_position(position: ReadPosition, table: TableId, *, is_reversed: bool) -> bytes:
    left = _NO_LIMIT if position.partition_rows_left is None else position.partition_rows_left
    body = _BEGIN.pack(FORMAT, _Flag.REVERSED if is_reversed else 0, left) + position.bound
    return body + _checksum(body, table)


def decode_position(data: bytes, query: ReadQuery) -> ReadPosition:
    """Raises `InvalidRequest` if the position does not belong to this query."""
    if len(data) < _BEGIN.size + _CHECKSUM_BYTES:
        raise InvalidRequest(f"a paging position of {len(data)} bytes is too short", advice=_ADVICE)
    stored, flags, left = _BEGIN.unpack_from(data)
    if stored != FORMAT:
        raise InvalidRequest(f"a paging position of format {stored} is not known here", advice=_ADVICE)
    body = data[:-_CHECKSUM_BYTES]
    if _checksum(body, query.table) != data[-_CHECKSUM_BYTES:]:
        raise InvalidRequest("the paging position is damaged or belongs to another table", advice=_ADVICE)
    if bool(flags & _Flag.REVERSED) != query.is_reversed:
        raise InvalidRequest("the paging position belongs to a read in the other order", advice=_ADVICE)
    if (left == _NO_LIMIT) != (query.partition_rows_max == 0) or left > query.partition_rows_max or left < _NO_LIMIT:
        raise InvalidRequest("the paging position belongs to a read with another limit per partition", advice=_ADVICE)
    bound = body[_BEGIN.size :]
    if not query.spans or bound < query.spans[0][0] or is_beyond(bound, query.spans[-1][1], is_reversed=False):
        raise InvalidRequest("the paging position is outside of what is read", advice=_ADVICE)
    return ReadPosition(bound, None if left == _NO_LIMIT else left)


def _checksum(body: bytes, table: TableId) -> bytes:
    return zlib.crc32(body, zlib.crc32(table.bytes)).to_bytes(_CHECKSUM_BYTES)


def check_query(query: ReadQuery) -> None:
    """Raises `InvalidRequest`."""
    if query.rows_max <= 0 or query.partition_rows_max < 0:
        raise InvalidRequest(f"a page of {query.rows_max} rows, {query.partition_rows_max} per partition, is none")
    if not query.spans:
        raise InvalidRequest("a read of no spans")
    for start, end in query.spans:
        if end is not None and end <= start:
            raise InvalidRequest("a span of a read ends before it begins")
    for (_, end), (start, _) in pairwise(query.spans):
        if end is None or start <= end:
            raise InvalidRequest("the spans of a read are not apart", advice="sort them, and join those that meet")


class PageBuilder:
    """The page of one request as it grows, and the spans that are left to read."""

    def __init__(self, query: ReadQuery, bytes_max: int) -> None:
        self._query = query
        self._bytes_left = bytes_max
        self._prefix = b""
        self._partition_left = query.partition_rows_max
        self.rows_left = query.rows_max
        self.items: list[Item] = []
        self.rest: tuple[Span, ...] = query.spans
        if query.position:
            self._resume(decode_position(query.position, query))

    def _resume(self, position: ReadPosition) -> None:
        limits: Span = (b"", position.bound) if self._query.is_reversed else (position.bound, None)
        self.rest = clip_spans(self.rest, limits)
        prefix = enclosing_partition(position.bound)
        if prefix is not None and position.partition_rows_left is not None:
            self._prefix, self._partition_left = prefix, position.partition_rows_left

    @property
    def is_full(self) -> bool:
        return self.rows_left == 0 or self._bytes_left <= 0

    @property
    def entered_partition(self) -> tuple[bytes, int] | None:
        """The partition in which the rest begins, and the rows it may still give, if these are fewer than the limit."""
        if (
            0 < self._partition_left < self._query.partition_rows_max
            and enclosing_partition(self._bound) == self._prefix
        ):
            return self._prefix, self._partition_left
        return None

    def take(self, page: SettledPage, spans: Sequence[Span], row_context: LiveRowContext) -> bool:
        """Adds the live rows of the next part of the rest, which was read from these spans. False: nothing that follows
        may be added now, because the page is full or this part is not known to its end."""
        for key, value in page.items:
            if is_head(value):
                self._take_head(key, value, row_context)
            elif self._has_partition_room(key) and is_live_row(value, row_context.schema, row_context.now_s):
                self._take_row(key, value)
                if self.is_full:
                    self._move_past(key)
                    return False
        if page.end is not None:
            self._move_past(page.end)
            return False
        if self._query.is_reversed:
            self.rest = clip_spans(self.rest, (b"", spans[0][0]))
        else:
            end = spans[-1][1]
            self.rest = () if end is None else clip_spans(self.rest, (end, None))
        return True

    def page(self) -> ReadPage:
        return ReadPage(tuple(self.items), self._position())

    def _position(self) -> bytes:
        """Empty: nothing follows the page."""
        if not self.rest:
            return b""
        left = None
        if self._query.partition_rows_max:
            in_begun = enclosing_partition(self._bound) == self._prefix
            left = self._partition_left if in_begun else self._query.partition_rows_max
        return encode_position(ReadPosition(self._bound, left), self._query.table, is_reversed=self._query.is_reversed)

    @property
    def _bound(self) -> bytes:
        """Where the rest begins: its least key, or for a reversed read the key it ends before. That is b"" (and no
        partition) as long as nothing of an unbounded span has been read."""
        return (self.rest[-1][1] or b"") if self._query.is_reversed else self.rest[0][0]

    def _has_partition_room(self, key: bytes) -> bool:
        """Whether the limit per partition allows another row of this key's partition."""
        if not self._query.partition_rows_max:
            return True
        prefix = split_key(key)[0]
        if prefix != self._prefix:
            self._prefix, self._partition_left = prefix, self._query.partition_rows_max
        return self._partition_left > 0

    def _take_row(self, key: bytes, value: bytes) -> None:
        self.items.append((key, value))
        self.rows_left -= 1
        self._bytes_left -= len(key) + len(value)
        self._partition_left -= 1

    def _take_head(self, key: bytes, value: bytes, row_context: LiveRowContext) -> None:
        """Heads that were read only for their deletions are outside the spans."""
        if has_static(value, row_context.schema, row_context.now_s) and contains_key(self.rest, key):
            self.items.append((key, value))
            self._bytes_left -= len(key) + len(value)

    def _move_past(self, key: bytes) -> None:
        is_reversed = self._query.is_reversed
        self.rest = spans_after(self.rest, key, is_reversed=is_reversed)
        if self._query.partition_rows_max and self._partition_left == 0 and enclosing_partition(key) == self._prefix:
            self.rest = spans_after_rows(self.rest, self._prefix, is_reversed=is_reversed)
