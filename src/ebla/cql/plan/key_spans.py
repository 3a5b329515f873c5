"""Turns key restrictions with their values into spans of stored keys. Pure.

Stored keys sort in the order of rows, also for descending columns, so every key restriction is a list of spans. A slice
over several columns with different directions is several spans: `(a, b) > (x, y)` is `a = x and b > y`, or `a > x`; if
`a` descends, the second span comes first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ebla.model.schema import Column
from ebla.model.token import TOKEN_MAX, TOKEN_MIN
from ebla.storage.codec.key_codec import (
    encode_clustering,
    encode_token,
    prefix_end,
    row_key,
)
from ebla.wire.row_messages import Span


@dataclass(frozen=True, slots=True)
class SliceBound:
    """One bound of a slice, for the clustering columns from the first one of the slice on."""

    values: tuple[bytes, ...]
    is_lower: bool
    """Rows must be greater, in the order of the type; else smaller."""
    inclusive: bool


def row_spans(
    columns: Sequence[Column], prefix: bytes, equal: Sequence[bytes], ends: Sequence[SliceBound]
) -> list[Span]:
    """The rows of a partition (`prefix`) whose first clustering columns equal these values, and whose next columns are
    within these bounds; without the partition head."""
    base = row_key(prefix, encode_clustering(columns, equal))
    if len(equal) == len(columns):
        return [(base, base + b"\0")]
    spans: list[Span] = [(base, prefix_end(base))]
    for end in ends:
        spans = intersect(spans, _end_spans(columns[len(equal) :], base, end))
    return spans


def _end_spans(columns: Sequence[Column], base: bytes, end: SliceBound) -> list[Span]:
    spans: list[Span] = []
    for depth, value in enumerate(end.values):
        column = columns[depth]
        is_last = depth == len(end.values) - 1
        here = base + encode_clustering([column], [value])
        beyond = end.is_lower != column.descending
        if is_last and end.inclusive:
            spans.append((here, prefix_end(base)) if beyond else (base, prefix_end(here)))
        else:
            spans.append((prefix_end(here), prefix_end(base)) if beyond else (base, here))
        base = here
    return coalesce(spans)


def token_span(low: int, high: int) -> list[Span]:
    """Tokens from `low` to `high`, both inclusive."""
    if low > high:
        return []
    low = max(low, TOKEN_MIN)
    return [(encode_token(low), None if high >= TOKEN_MAX else encode_token(high + 1))]


def coalesce(spans: Iterable[Span]) -> list[Span]:
    """Ascending, disjoint, without empty spans."""
    joined: list[Span] = []
    for start, end in sorted(spans, key=_start_of):
        if end is not None and start >= end:
            continue
        if joined:
            last_start, last_end = joined[-1]
            if last_end is None or start <= last_end:
                joined[-1] = (last_start, None if last_end is None or end is None else max(last_end, end))
                continue
        joined.append((start, end))
    return joined


def intersect(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    """Both must be ascending and disjoint."""
    found: list[Span] = []
    for start, end in one:
        for other_start, other_end in other:
            first = max(start, other_start)
            last = end if other_end is None else other_end if end is None else min(end, other_end)
            if last is None or first < last:
                found.append((first, last))
    return found


def _start_of(span: Span) -> bytes:
    return span[0]
