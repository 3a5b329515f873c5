"""What a row is made of: cells with their times, deletions, and the one rule by which two versions become one.

A cell never changes; of two cells for one place the winner is decided by their content alone, never by the order in
which they arrived or by the clock of who decides. So replicas, layers, folds and Spark tasks that see the same cells
agree on the row.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

NEVER_US = -(1 << 63)
"""Older than every write."""

K = TypeVar("K")


class Cell(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A value written at a time; without a value it is a tombstone.

    `at_s` (wall seconds) is when a value with a TTL expires, and when a tombstone was made: both count from there
    towards the end of their grace.
    """

    timestamp_us: int
    value: bytes | None
    ttl_s: int = 0
    at_s: int = 0

    def is_live(self, now_s: int) -> bool:
        return self.value is not None and (self.ttl_s == 0 or now_s < self.at_s)


class Deletion(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Everything it covers that is not newer is gone."""

    timestamp_us: int
    at_s: int

    def covers(self, timestamp_us: int) -> bool:
        return timestamp_us <= self.timestamp_us


class RowMarker(msgspec.Struct, frozen=True, array_like=True, order=True):
    """An INSERT leaves this: the row exists even when all its cells are null."""

    timestamp_us: int
    ttl_s: int = 0
    at_s: int = 0

    def is_live(self, now_s: int) -> bool:
        return self.ttl_s == 0 or now_s < self.at_s


class CollectionCells(msgspec.Struct, frozen=True, array_like=True):
    """A collection of many cells, by their path: a map's key, a set's element, a list's time-ordered id."""

    deletion: Deletion | None = None
    """What assigning the whole collection leaves behind, one microsecond older than the assigned elements."""
    cells: dict[bytes, Cell] = {}


class Row(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One row, or the static part of a partition. Cells and collections by column number."""

    marker: RowMarker | None = None
    deletion: Deletion | None = None
    cells: dict[int, Cell] = {}
    collections: dict[int, CollectionCells] = {}


EMPTY_ROW = Row()


class RangeDeletion(msgspec.Struct, frozen=True, array_like=True):
    """A slice of a partition that was deleted: from `start` up to `end`."""

    start: bytes
    """The least clustering bytes covered."""
    end: bytes | None
    """The least clustering bytes not covered any more; None: to the end of the partition."""
    deletion: Deletion

    @property
    def place(self) -> tuple[bytes, bool, bytes, Deletion]:
        """Its place in the one order in which a head lists them."""
        return (self.start, self.end is None, self.end or b"", self.deletion)

    def covers(self, clustering: bytes) -> bool:
        return self.start <= clustering and (self.end is None or clustering < self.end)


class PartitionHead(msgspec.Struct, frozen=True, array_like=True):
    """What is said of a whole partition: its deletion, deleted slices, and its static cells."""

    deletion: Deletion | None = None
    ranges: tuple[RangeDeletion, ...] = ()
    static: Row = EMPTY_ROW

    def deletion_of(self, clustering: bytes) -> Deletion | None:
        """The newest deletion that covers a row, its own excepted."""
        newest = self.deletion
        for one in self.ranges:
            if one.covers(clustering):
                newest = _newest(newest, one.deletion)
        return newest


EMPTY_HEAD = PartitionHead()


def newer_cell(one: Cell, other: Cell) -> Cell:
    """The tie rule: the later timestamp; a tombstone before a value; the larger bytes; then the later end."""
    return one if _weight(one) >= _weight(other) else other


def _weight(cell: Cell) -> tuple[int, bool, bytes, int, int]:
    return (cell.timestamp_us, cell.value is None, cell.value or b"", cell.at_s, cell.ttl_s)


def merge_rows(one: Row, other: Row) -> Row:
    """The row that has seen both. Commutative, associative, idempotent; what a deletion covers is left out."""
    deletion = _newest(one.deletion, other.deletion)
    marker = _newest(one.marker, other.marker)
    cells = _merge_cells(one.cells, other.cells) if one.cells or other.cells else one.cells
    collections = one.collections
    if other.collections:
        collections = {**one.collections}
        for number, elements in other.collections.items():
            mine = collections.get(number)
            collections[number] = elements if mine is None else merge_collections(mine, elements)
    merged = Row(marker=marker, deletion=deletion, cells=cells, collections=collections)
    return merged if deletion is None else without_deleted(merged, deletion)


def merge_collections(one: CollectionCells, other: CollectionCells) -> CollectionCells:
    deletion = _newest(one.deletion, other.deletion)
    return _uncovered_elements(CollectionCells(deletion, _merge_cells(one.cells, other.cells)), deletion)


def merge_heads(one: PartitionHead, other: PartitionHead) -> PartitionHead:
    deletion = _newest(one.deletion, other.deletion)
    ranges = one.ranges
    if other.ranges:
        ranges = tuple(sorted({*one.ranges, *other.ranges}, key=lambda found: found.place))
    static = merge_rows(one.static, other.static)
    if deletion is not None:
        ranges = tuple(kept for kept in ranges if not deletion.covers(kept.deletion.timestamp_us))
        static = without_deleted(static, deletion)
    return PartitionHead(deletion, ranges, static)


def without_deleted(row: Row, deletion: Deletion) -> Row:
    """The row without what a deletion covers. The row's own deletion goes too where the other is newer."""
    kept = row.deletion if row.deletion is not None and row.deletion > deletion else None
    if row.deletion is not None and row.deletion == deletion:
        kept = row.deletion
    marker = row.marker if row.marker is not None and not deletion.covers(row.marker.timestamp_us) else None
    cells = {number: cell for number, cell in row.cells.items() if not deletion.covers(cell.timestamp_us)}
    collections = {}
    for number, elements in row.collections.items():
        left = _uncovered_elements(elements, deletion)
        if left.deletion is not None and deletion.covers(left.deletion.timestamp_us):
            left = CollectionCells(None, left.cells)
        if left.deletion is not None or left.cells:
            collections[number] = left
    return Row(marker=marker, deletion=kept, cells=cells, collections=collections)


def _uncovered_elements(elements: CollectionCells, deletion: Deletion | None) -> CollectionCells:
    if deletion is None:
        return elements
    kept = {path: cell for path, cell in elements.cells.items() if not deletion.covers(cell.timestamp_us)}
    return CollectionCells(elements.deletion, kept)


def _merge_cells(one: Mapping[K, Cell], other: Mapping[K, Cell]) -> dict[K, Cell]:
    merged = dict(one)
    for place, cell in other.items():
        mine = merged.get(place)
        merged[place] = cell if mine is None else newer_cell(mine, cell)
    return merged


Timed = TypeVar("Timed", Deletion, RowMarker)


def _newest(one: Timed | None, other: Timed | None) -> Timed | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


_SIGN = 1 << 63


def list_path(timestamp_us: int, position: int) -> bytes:
    """Where an element of a list stands: after all that were written before, and those of one write in their order.
    The same write made again writes the same elements."""
    return (timestamp_us + _SIGN).to_bytes(8) + position.to_bytes(8)
