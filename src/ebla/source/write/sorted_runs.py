"""Sorts the rows of a task by key, and cuts them by route.

A key begins with its token, so in key order the rows of a route are adjacent, and cutting is a search for the ends of
the routes. A route that wraps around the ring has two such spans.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebla.model.errors import InternalError
from ebla.model.schema import TableSchema
from ebla.model.token import TOKEN_MIN, TokenRange
from ebla.storage.codec.row_file import ROWS_SCHEMA
from ebla.storage.columns.binary_columns import concat_columns, take_binary
from ebla.storage.columns.key_columns import token_words
from ebla.storage.columns.load_encoding import EncodedRows
from ebla.storage.merge.chunk_merge import key_order, sort_rows
from ebla.wire.table_calls import StagingRoute

TokenWords = npt.NDArray[np.uint64]
"""Tokens as unsigned numbers, in key order."""
RowSpan = tuple[int, int]
"""Positions of rows: start included, end excluded."""


@dataclass(frozen=True, slots=True)
class RoutedRows:
    """Rows in key order, and the targets that get all of them."""

    targets: tuple[int, ...]
    """Positions in the plan."""
    batches: tuple[pa.RecordBatch, ...]

    @property
    def rows(self) -> int:
        return sum(len(batch) for batch in self.batches)

    @property
    def size_bytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches)


def sort_and_route(
    schema: TableSchema, routes: Sequence[StagingRoute], parts: Sequence[EncodedRows]
) -> Iterator[RoutedRows]:
    """Rows in any order become one run for each set of targets. Lazy, so that there is never a copy of all rows."""
    keys = concat_columns([keys for keys, _ in parts])
    values = concat_columns([values for _, values in parts])
    words = token_words(keys)
    order, same_key = key_order(keys, words)
    if same_key.any():
        yield from route_rows(sort_rows(schema, keys, values, words), routes)
        return
    keys = take_binary(keys, order)
    for pieces, targets in _alike(words[order], routes).items():
        batches = [[keys.slice(start, end - start), values.take(pa.array(order[start:end]))] for start, end in pieces]
        yield RoutedRows(targets, tuple(pa.RecordBatch.from_arrays(one, schema=ROWS_SCHEMA) for one in batches))


def route_rows(rows: pa.RecordBatch, routes: Sequence[StagingRoute]) -> tuple[RoutedRows, ...]:
    """Splits rows in key order by target. Targets that get exactly the same rows share one entry."""
    return tuple(
        RoutedRows(targets, tuple(rows.slice(start, end - start) for start, end in pieces))
        for pieces, targets in _alike(token_words(rows.column(0)), routes).items()
    )


def rows_within(rows: pa.RecordBatch, ranges: Sequence[TokenRange]) -> pa.RecordBatch:
    """The subset of rows inside any of the ranges, in key order."""
    chosen = np.zeros(len(rows), np.bool_)
    words = token_words(rows.column(0))
    for start, end in _cuts(words, [part for one in ranges for part in one.unwrapped()]):
        chosen[start:end] = True
    return rows if chosen.all() else rows.filter(pa.array(chosen))


def _alike(words: TokenWords, routes: Sequence[StagingRoute]) -> dict[tuple[RowSpan, ...], tuple[int, ...]]:
    """Targets grouped by the spans of rows they get."""
    alike: dict[tuple[RowSpan, ...], list[int]] = {}
    for target, found in sorted(_pieces_of_targets(words, routes).items()):
        alike.setdefault(_joined(found), []).append(target)
    return {pieces: tuple(targets) for pieces, targets in alike.items()}


def _pieces_of_targets(words: TokenWords, routes: Sequence[StagingRoute]) -> dict[int, list[RowSpan]]:
    ranges = [(part, route.targets) for route in routes for part in route.range.unwrapped()]
    cuts = _cuts(words, [part for part, _ in ranges])
    found = sum(end - start for start, end in cuts)
    if found != len(words):
        raise InternalError(f"the plan of a write routes {found} of {len(words)} rows")
    pieces: dict[int, list[RowSpan]] = {}
    for cut, (_, targets) in zip(cuts, ranges):
        if cut[1] > cut[0]:
            for target in targets:
                pieces.setdefault(target, []).append(cut)
    return pieces


def _cuts(words: TokenWords, ranges: Sequence[TokenRange]) -> list[RowSpan]:
    """The span of rows of each range. No range wraps around the ring."""
    starts = np.searchsorted(words, _words([one.start for one in ranges]), side="right")
    ends = np.searchsorted(words, _words([one.end for one in ranges]), side="right")
    return list(zip(starts.tolist(), ends.tolist()))


def _words(tokens: Sequence[int]) -> TokenWords:
    return np.array([token - TOKEN_MIN for token in tokens], np.uint64)


def _joined(pieces: list[RowSpan]) -> tuple[RowSpan, ...]:
    """Sorted, with adjacent spans merged."""
    joined: list[RowSpan] = []
    for start, end in sorted(pieces):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)
