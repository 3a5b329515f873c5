"""Reads one page of a replica's rows, in turns, so that a long page does not block the loop.

A page ends when it has the requested rows or bytes, when it has read as many items as one page may, or at the end of
its spans. Deleted rows cost as much to read as live ones, and there may be many more of them. So items are counted, not
rows found, and a page may end without a row. Between turns the stack may get other layers: each turn opens it again and
continues after the last key.
"""

from collections.abc import Iterator, Sequence

from ebla.model.errors import Stale
from ebla.model.rows import EMPTY_HEAD
from ebla.replica.replica_context import ReplicaLimits
from ebla.replica.replica_stacks import TableStacks
from ebla.storage.codec.key_codec import (
    clustering_of,
    enclosing_partition,
    head_key,
    is_single_key,
    last_tablet_index,
    partition_of_head,
    partition_prefix_of,
    prefix_end,
    row_key,
    same_token,
    tablet_start,
    token_word,
)
from ebla.storage.codec.live_rows import is_live_row
from ebla.storage.codec.row_codec import decode_head, is_head
from ebla.storage.codec.row_digest import digest_rows
from ebla.storage.layers.layer import Item
from ebla.storage.merge.row_merge import without_deleted_cells
from ebla.storage.stack import OpenStack, Stack
from ebla.wire.row_messages import ReadRowsAnswer, ReadRowsRequest, Span

SPAN_START_ITEMS = 16
"""How many items the start of a scan counts as: many empty tablets are work too."""


class StackSpan:
    """A span, or a part of one, within one stack."""

    __slots__ = ("end", "stack", "start")

    def __init__(self, stack: Stack, start: bytes, end: bytes | None) -> None:
        self.stack = stack
        self.start = start
        self.end = end


class StackPageReader:
    def __init__(self, request: ReadRowsRequest, table: TableStacks, limits: ReplicaLimits) -> None:
        self._request = request
        self._limits = limits
        self._parts = _parts(request.spans, table, is_reversed=request.is_reversed)
        self._part: StackSpan | None = None
        self._is_over = False
        self._is_whole = False
        self._items: list[Item] = []
        self._last_key = b""
        self._live_rows = 0
        self._bytes = 0
        self._bytes_max = min(request.bytes_max, limits.page_bytes_max)
        self._items_read = 0
        self._prefix = b""
        """Of the current partition; empty: none yet."""
        self._head = EMPTY_HEAD
        self._partition_rows = 0
        self._schema = next(iter(table.stacks.values())).schema

    def turn(self) -> Stack | None:
        """Reads without an await. Returns a stack whose layers must be opened first; None: the page is ready
        (`is_over`), or other work should get a turn."""
        turn_ends = self._items_read + self._limits.turn_items_max
        while not self._is_over and self._items_read < turn_ends:
            part = self._part or self._next_part()
            if part is None:
                break
            opened = part.stack.find_open()
            if opened is None:
                return part.stack
            self._items_read += SPAN_START_ITEMS
            self._schema = part.stack.schema
            if self._read(part, opened, turn_ends):
                self._last_key = (part.start if self._request.is_reversed else part.end) or b""
                self._part = None
                self._check_bounds()
            elif self._items_read >= self._limits.page_items_max:
                self._is_over = True
        return None

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def stack(self) -> Stack | None:
        """The stack being read."""
        return None if self._part is None else self._part.stack

    def answer(self) -> ReadRowsAnswer:
        request = self._request
        digest = digest_rows(self._items, self._schema, request.gc_before_s) if request.with_digest else b""
        items = () if request.digest_only else tuple(self._items)
        last_key = b"" if self._is_whole else self._last_key
        return ReadRowsAnswer(
            items=items, digest=digest, is_whole=self._is_whole, last_key=last_key, live_rows=self._live_rows
        )

    # -- parts -------------------------------------------------------------------------------------------------------

    def _next_part(self) -> StackSpan | None:
        """None: the page is over, at the end of the spans or before a tablet that is not here."""
        try:
            self._part = next(self._parts, None)
        except Stale:
            if not self._last_key:
                raise
            self._is_over = True
            return None
        if self._part is None:
            self._is_over = self._is_whole = True
        return self._part

    def _check_bounds(self) -> None:
        """After a part: there may be more parts, and the page may be full."""
        full = self._live_rows >= self._request.rows_max or self._bytes >= self._bytes_max
        if full or self._items_read >= self._limits.page_items_max:
            rest = self._next_part()
            self._is_over = True
            self._part = None
            self._is_whole = rest is None and self._is_whole

    # -- items -------------------------------------------------------------------------------------------------------

    def _read(self, part: StackSpan, opened: OpenStack, turn_ends: int) -> bool:
        """Whether the part was read to its end; otherwise it now starts where the read continues."""
        is_reversed = self._request.is_reversed
        has_heads = opened.has_heads
        self._enter(part, opened, has_heads=has_heads)
        items = opened.scan_merged((part.start, part.end), is_reversed=is_reversed)
        rows_max, partition_rows_max = self._request.rows_max, self._request.partition_rows_max
        needs_prefix = has_heads or bool(partition_rows_max)
        for key, value in items:
            self._items_read += 1
            if is_head(value):
                self._at_head(key, value)
                self._add(key, value)
            else:
                if needs_prefix:
                    self._at_row(key, opened if is_reversed and has_heads else None)
                left: bytes | None = value
                if self._head is not EMPTY_HEAD:
                    left = without_deleted_cells(value, self._head, clustering_of(key, self._prefix), self._schema)
                if left is not None:
                    self._add(key, left)
                    if is_live_row(left, self._schema, self._request.now_s):
                        self._live_rows += 1
                        self._partition_rows += 1
            self._last_key = key
            if self._live_rows >= rows_max or self._bytes >= self._bytes_max:
                return self._cut(part, key, items)
            if partition_rows_max and self._partition_rows >= partition_rows_max and not is_head(value):
                return self._skip_partition(part)
            if self._items_read >= turn_ends:
                _continue_after(part, key, is_reversed=is_reversed)
                return False
        return True

    def _enter(self, part: StackSpan, opened: OpenStack, *, has_heads: bool) -> None:
        """A part that starts inside a partition is covered by its head, which may lie outside of the part."""
        if self._request.is_reversed:
            # Where the last turn ended; the first row of another partition does the rest.
            self._head = opened.head(self._prefix) if has_heads and self._prefix else EMPTY_HEAD
            return
        prefix = _partition_of(part.start) or b""
        if prefix != self._prefix:
            self._prefix, self._partition_rows = prefix, 0
        self._head = opened.head(prefix) if has_heads and prefix else EMPTY_HEAD

    def _at_head(self, key: bytes, value: bytes) -> None:
        prefix = partition_of_head(key)
        if prefix != self._prefix:
            self._partition_rows = 0
        self._prefix, self._head = prefix, decode_head(value)

    def _at_row(self, key: bytes, opened: OpenStack | None) -> None:
        """Enters the partition of a row. Reading forward, its head would have come before; in a reversed read it is
        still to come, and is looked up."""
        prefix = partition_prefix_of(key)
        if prefix == self._prefix:
            return
        self._prefix, self._partition_rows = prefix, 0
        self._head = EMPTY_HEAD if opened is None else opened.head(self._prefix)

    def _add(self, key: bytes, value: bytes) -> None:
        self._items.append((key, value))
        self._bytes += len(key) + len(value)

    def _cut(self, part: StackSpan, key: bytes, items: Iterator[Item]) -> bool:
        """The page is full. It is still complete if nothing follows."""
        if next(items, None) is None:
            return True
        _continue_after(part, key, is_reversed=self._request.is_reversed)
        self._is_over = True
        return False

    def _skip_partition(self, part: StackSpan) -> bool:
        """Skips the rest of its rows; a reversed read still needs its head."""
        if self._request.is_reversed:
            part.end = row_key(self._prefix)
            return part.end <= part.start
        part.start = prefix_end(self._prefix)
        return part.end is not None and part.end <= part.start


def _continue_after(part: StackSpan, key: bytes, *, is_reversed: bool) -> None:
    if is_reversed:
        part.end = key
    else:
        part.start = key + b"\0"


def _partition_of(start: bytes) -> bytes | None:
    """The partition after whose head a span starts."""
    prefix = enclosing_partition(start)
    return prefix if prefix is not None and start > head_key(prefix) else None


def _parts(spans: Sequence[Span], table: TableStacks, *, is_reversed: bool) -> Iterator[StackSpan]:
    """In the order of the read. Raises `Stale` at a tablet that is not here."""
    shift, stacks = table.shift, table.stacks
    for start, end in reversed(spans) if is_reversed else spans:
        first, last = token_word(start) >> shift, last_tablet_index(end, shift)
        for number in range(last, first - 1, -1) if is_reversed else range(first, last + 1):
            stack = stacks.get(number)
            if stack is None:
                raise Stale(f"this shard has no replica of tablet {number}", advice="refresh and retry")
            low = start if number == first else tablet_start(number, shift)
            high = end if number == last else tablet_start(number + 1, shift)
            yield StackSpan(stack, low, high)


def read_keys(request: ReadRowsRequest, opened: OpenStack, stack: Stack) -> ReadRowsAnswer:
    """Single keys of one partition: one get per key and layer."""
    schema = stack.schema
    items: list[Item] = []
    live_rows = 0
    for start, _ in request.spans:
        value = opened.read(start)
        if value is None:
            continue
        items.append((start, value))
        if not is_head(value) and is_live_row(value, schema, request.now_s):
            live_rows += 1
    if request.is_reversed:
        items.reverse()
    digest = digest_rows(items, schema, request.gc_before_s) if request.with_digest else b""
    return ReadRowsAnswer(
        items=() if request.digest_only else tuple(items),
        digest=digest,
        is_whole=True,
        last_key=b"",
        live_rows=live_rows,
    )


def are_single_keys(spans: Sequence[Span]) -> bool:
    """Whether these are a single key, or two of one token (a head and a row), which always fit a page."""
    if len(spans) == 1:
        return is_single_key(spans[0])
    if len(spans) != 2 or not same_token(spans[0][0], spans[1][0]):
        return False
    return is_single_key(spans[0]) and is_single_key(spans[1])
