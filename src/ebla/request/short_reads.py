"""Short-read protection: up to which key several replicas' pages are known, and where a read continues. Pure.

A page that was cut off says nothing about keys beyond its last one. For example: two replicas have rows 1 to 9, and
each has missed different deletions. Asked for two rows, one answers 1 and 2, the other 3 (it has deleted 1 and 2) and
4. Merged, 3 and 4 would be the first two live rows, although the first replica may hold a deletion of 3. So nothing
beyond the smallest last key of the cut pages is returned (for reversed reads, beyond the greatest). It is read again.

With a limit per partition, every partition of a page may be cut off in the same way, even if the page is complete.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ebla.model.schema import TableSchema
from ebla.storage.codec.key_codec import clip_span, enclosing_partition, head_key, prefix_end, row_key, split_key
from ebla.storage.codec.live_rows import is_live_row, may_be_live
from ebla.storage.codec.row_codec import is_head
from ebla.wire.row_messages import Item, ReadRowsAnswer, Span


@dataclass(frozen=True, slots=True)
class LiveRowContext:
    """What decides whether a row is live."""

    schema: TableSchema
    now_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    row_context: LiveRowContext
    gc_before_s: int
    """Deletions and expirations from before this time are no difference: a replica may have purged them rightly."""
    is_reversed: bool = False
    partition_rows_max: int = 0


@dataclass(frozen=True, slots=True)
class SettledPage:
    """The part of a merged page that is known for certain, in the order of the read."""

    items: tuple[Item, ...]
    end: bytes | None
    """The last key up to which everything is known; None: the end of the spans."""


def common_end(pages: Iterable[ReadRowsAnswer], *, is_reversed: bool) -> bytes | None:
    """The last key that every page covers; None: all pages cover everything that was asked for."""
    ends = [page.last_key for page in pages if not page.is_whole]
    if not ends:
        return None
    return max(ends) if is_reversed else min(ends)


def is_beyond(key: bytes, end: bytes | None, *, is_reversed: bool) -> bool:
    if end is None:
        return False
    return key < end if is_reversed else key > end


def partition_stops(page: Sequence[Item], rows_max: int, row_context: LiveRowContext) -> dict[bytes, bytes]:
    """The last row in each partition in which the replica stopped at the limit.

    Replicas count the rows that are live by their own version of the schema. Counting every row that may be live finds
    at least as many: at worst a complete partition is taken for cut off and read once more."""
    counts: dict[bytes, int] = {}
    last: dict[bytes, bytes] = {}
    for key, value in page:
        if is_head(value):
            continue
        prefix = split_key(key)[0]
        last[prefix] = key
        if may_be_live(value, row_context.schema, row_context.now_s):
            counts[prefix] = counts.get(prefix, 0) + 1
    return {prefix: last[prefix] for prefix, count in counts.items() if count >= rows_max}


def merge_stops(stops: Iterable[Mapping[bytes, bytes]], *, is_reversed: bool) -> dict[bytes, bytes]:
    """The first stop of each partition, in the order of the read."""
    joined: dict[bytes, bytes] = {}
    for one in stops:
        for prefix, key in one.items():
            known = joined.get(prefix)
            if known is None or (key > known if is_reversed else key < known):
                joined[prefix] = key
    return joined


def cut_at_stops(items: Sequence[Item], stops: Mapping[bytes, bytes], *, is_reversed: bool) -> tuple[Item, ...]:
    """Drops the rows beyond the stop of their partition. Heads stay: no limit counts them."""
    if not stops:
        return tuple(items)
    kept = []
    for key, value in items:
        if is_head(value) or not is_beyond(key, stops.get(split_key(key)[0]), is_reversed=is_reversed):
            kept.append((key, value))
    return tuple(kept)


def settle_page(
    items: Sequence[Item], end: bytes | None, stops: Mapping[bytes, bytes], options: ReconcileOptions
) -> SettledPage:
    """Merged items, cut at a partition that has fewer live rows than its limit although some replica stopped in it: the
    rest of that partition is not known."""
    live: dict[bytes, int] = dict.fromkeys(stops, 0)
    for key, value in items:
        prefix = split_key(key)[0]
        if prefix in live and not is_head(value):
            live[prefix] += is_live_row(value, options.row_context.schema, options.row_context.now_s)
    for prefix, stop in sorted(stops.items(), reverse=options.is_reversed):
        if is_beyond(stop, end, is_reversed=options.is_reversed):
            break
        if live[prefix] < options.partition_rows_max:
            known = [item for item in items if not is_beyond(item[0], stop, is_reversed=options.is_reversed)]
            return SettledPage(tuple(known), stop)
    return SettledPage(tuple(items), end)


# -- what is left to read ------------------------------------------------------------------------------------------


def spans_after(spans: Sequence[Span], after: bytes, *, is_reversed: bool) -> tuple[Span, ...]:
    """The spans after a key, in the order of the read."""
    return clip_spans(spans, (b"", after) if is_reversed else (after + b"\0", None))


def spans_after_rows(spans: Sequence[Span], prefix: bytes, *, is_reversed: bool) -> tuple[Span, ...]:
    """The spans after the rows of a partition. In a reversed read its head is still to come."""
    return clip_spans(spans, (b"", row_key(prefix)) if is_reversed else (prefix_end(prefix), None))


def split_partition(
    spans: Sequence[Span], prefix: bytes, *, is_reversed: bool
) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """What is left of a partition, and what comes after it."""
    end = prefix_end(prefix)
    return clip_spans(spans, (prefix, end)), clip_spans(spans, (b"", prefix) if is_reversed else (end, None))


def clip_spans(spans: Sequence[Span], limits: Span) -> tuple[Span, ...]:
    """What of the spans is inside the limits. The spans are ascending and apart, and a request may have thousands of
    them: only the first and the last that the limits touch are looked at."""
    start, end = limits
    first = max(0, bisect_right(spans, start, key=_start_of) - 1)
    behind = len(spans) if end is None else bisect_left(spans, end, key=_start_of)
    touched = tuple(spans[first:behind])
    if len(touched) <= 2:
        return tuple(part for span in touched for part in clip_span(span, (limits,)))
    return (*clip_span(touched[0], (limits,)), *touched[1:-1], *clip_span(touched[-1], (limits,)))


def contains_key(spans: Sequence[Span], key: bytes) -> bool:
    """The spans are ascending and apart."""
    position = bisect_right(spans, key, key=_start_of) - 1
    if position < 0:
        return False
    end = spans[position][1]
    return end is None or key < end


def _start_of(span: Span) -> bytes:
    return span[0]


def partitions_entered_midway(spans: Sequence[Span]) -> tuple[bytes, ...]:
    """The partitions inside which a span begins and whose heads are in none of the spans."""
    prefixes = dict.fromkeys(enclosing_partition(start) for start, _ in spans)
    return tuple(one for one in prefixes if one is not None and not contains_key(spans, head_key(one)))


def head_spans(prefixes: Iterable[bytes]) -> tuple[Span, ...]:
    keys = [head_key(prefix) for prefix in sorted(prefixes)]
    return tuple((key, key + b"\0") for key in keys)
