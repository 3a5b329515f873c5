"""Rows of a task, gathered up to a bound, in key order, and cut by where they go.

Keys begin with their token, so that in key order the rows of a route stand side by side, and cutting is a search for
the routes' ends. A route over the top of the ring has two such places.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebla.model.errors import InternalError
from ebla.model.schema import TableSchema
from ebla.model.token import TOKEN_MIN, TokenRange
from ebla.source.task_order import RUN_BYTES
from ebla.storage.byte_columns import concatenated
from ebla.storage.key_columns import token_words
from ebla.storage.load_columns import Encoded
from ebla.storage.sorted_rows import sorted_rows
from ebla.wire.table_access import WriteRoute

Piece = tuple[int, int]
"""From the place of a row up to and without that of another."""


@dataclass(frozen=True, slots=True)
class RoutedRows:
    """Rows in key order that go to these targets, all of them to each."""

    targets: tuple[int, ...]
    """Places in the plan."""
    batches: tuple[pa.RecordBatch, ...]

    @property
    def rows(self) -> int:
        return sum(len(batch) for batch in self.batches)

    @property
    def size_bytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches)


class RunBuffer:
    """Encoded rows in the order in which they come."""

    def __init__(self, schema: TableSchema, routes: Sequence[WriteRoute], run_bytes: int = RUN_BYTES) -> None:
        self._schema = schema
        self._routes = tuple(routes)
        self._run_bytes = run_bytes
        self._parts: list[Encoded] = []
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        return self._size_bytes >= self._run_bytes

    def add(self, encoded: Encoded) -> None:
        self._parts.append(encoded)
        self._size_bytes += sum(column.nbytes for column in encoded)

    def take(self) -> tuple[RoutedRows, ...]:
        """All that came since the last time, as one run for each target that any is for."""
        if not self._parts:
            return ()
        parts, self._parts, self._size_bytes = self._parts, [], 0
        keys = concatenated([keys for keys, _ in parts])
        values = concatenated([values for _, values in parts])
        parts.clear()
        return routed(sorted_rows(self._schema, keys, values), self._routes)


def routed(rows: pa.RecordBatch, routes: Sequence[WriteRoute]) -> tuple[RoutedRows, ...]:
    """Rows in key order, by where they go. Targets that get the very same rows stand together."""
    pieces = _pieces_of_targets(rows, routes)
    alike: dict[tuple[Piece, ...], list[int]] = {}
    for target, found in sorted(pieces.items()):
        alike.setdefault(_joined(found), []).append(target)
    return tuple(
        RoutedRows(tuple(targets), tuple(rows.slice(start, end - start) for start, end in found))
        for found, targets in alike.items()
    )


def rows_within(rows: pa.RecordBatch, ranges: Sequence[TokenRange]) -> pa.RecordBatch:
    """What of rows in key order is in any of the ranges, still in key order."""
    chosen = np.zeros(len(rows), np.bool_)
    for start, end in _cuts(rows, [part for one in ranges for part in one.unwrapped()]):
        chosen[start:end] = True
    return rows if chosen.all() else rows.filter(pa.array(chosen))


def _pieces_of_targets(rows: pa.RecordBatch, routes: Sequence[WriteRoute]) -> dict[int, list[Piece]]:
    ranges = [(part, route.targets) for route in routes for part in route.range.unwrapped()]
    cuts = _cuts(rows, [part for part, _ in ranges])
    found = sum(end - start for start, end in cuts)
    if found != len(rows):
        raise InternalError(f"the plan of a write has {found} places for {len(rows)} rows")
    pieces: dict[int, list[Piece]] = {}
    for cut, (_, targets) in zip(cuts, ranges):
        if cut[1] > cut[0]:
            for target in targets:
                pieces.setdefault(target, []).append(cut)
    return pieces


def _cuts(rows: pa.RecordBatch, ranges: Sequence[TokenRange]) -> list[Piece]:
    """Where the rows of each range stand; none of them goes over the top of the ring."""
    words = token_words(rows.column(0))
    starts = np.searchsorted(words, _words([one.start for one in ranges]), side="right")
    ends = np.searchsorted(words, _words([one.end for one in ranges]), side="right")
    return list(zip(starts.tolist(), ends.tolist()))


def _words(tokens: Sequence[int]) -> npt.NDArray[np.uint64]:
    return np.array([token - TOKEN_MIN for token in tokens], np.uint64)


def _joined(pieces: list[Piece]) -> tuple[Piece, ...]:
    """In order, neighbours as one."""
    joined: list[Piece] = []
    for start, end in sorted(pieces):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)
