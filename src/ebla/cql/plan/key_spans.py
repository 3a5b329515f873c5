"""Key restrictions with their values as spans of stored keys. Pure.

The order of stored keys is the order of rows, descending columns included, so every restriction of a key is a list of
spans. A slice of several columns whose directions differ is several of them: `(a, b) > (x, y)` is `a = x and b > y`, or
`a > x`, and where a descends the second stands before the first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ebla.model.schema import Column
from ebla.model.token import TOKEN_MAX, TOKEN_MIN
from ebla.storage.codec.key_codec import (
    encode_clustering,
    encode_token,
    head_key,
    prefix_end,
    row_key,
)
from ebla.wire.row_messages import Span


@dataclass(frozen=True, slots=True)
class SliceBound:
    """One end of a slice, over the clustering columns from the slice's first on."""

    values: tuple[bytes, ...]
    is_lower: bool
    """What is sought is greater, as the type orders it; otherwise smaller."""
    inclusive: bool


def row_spans(
    columns: Sequence[Column], prefix: bytes, equal: Sequence[bytes], ends: Sequence[SliceBound]
) -> list[Span]:
    """The rows of a partition (`prefix`) whose first clustering columns equal these values and whose next ones lie
    between these ends; without heads."""
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


def with_head(prefix: bytes, spans: Sequence[Span]) -> list[Span]:
    """The partition's head comes along with every read of it: what it deletes is deleted in every slice."""
    head = head_key(prefix)
    return coalesce([(head, head + b"\0"), *spans])


def token_span(low: int, high: int) -> list[Span]:
    """Tokens from one to another, both included."""
    if low > high:
        return []
    low = max(low, TOKEN_MIN)
    return [(encode_token(low), None if high >= TOKEN_MAX else encode_token(high + 1))]


def coalesce(spans: Iterable[Span]) -> list[Span]:
    """Ascending, apart from each other, none empty."""
    joined: list[Span] = []
    for start, end in sorted(spans, key=_place):
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
    """Both ascending and apart."""
    found: list[Span] = []
    for start, end in one:
        for other_start, other_end in other:
            first = max(start, other_start)
            last = end if other_end is None else other_end if end is None else min(end, other_end)
            if last is None or first < last:
                found.append((first, last))
    return found


def _place(span: Span) -> bytes:
    return span[0]
