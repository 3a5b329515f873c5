"""Rows: cells with timestamps, deletions, and the rule that merges two versions.

A cell is immutable; of two cells of one column the content alone decides which wins, never the order of arrival or a
local clock. So replicas, layers, compactions and Spark tasks that see the same cells agree on the row.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

NEVER_US = -(1 << 63)
"""Older than every write."""

K = TypeVar("K")


class Cell(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A value with a timestamp; without a value it is a tombstone.

    `at_s` (wall seconds) is when a value with a TTL expires, and when a tombstone was written: the grace period starts
    there. Cassandra calls it local deletion time.
    """

    timestamp_us: int
    value: bytes | None
    ttl_s: int = 0
    at_s: int = 0

    def is_live(self, now_s: int) -> bool:
        return self.value is not None and (self.ttl_s == 0 or now_s < self.at_s)


class Deletion(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A tombstone of a row, collection, range or partition: it hides what it covers and is not newer."""

    timestamp_us: int
    at_s: int

    def covers(self, timestamp_us: int) -> bool:
        return timestamp_us <= self.timestamp_us


class RowMarker(msgspec.Struct, frozen=True, array_like=True):
    """Written by INSERT: the row exists even if all its cells are null."""

    timestamp_us: int
    ttl_s: int = 0
    at_s: int = 0

    def is_live(self, now_s: int) -> bool:
        return self.ttl_s == 0 or now_s < self.at_s


class CollectionCells(msgspec.Struct, frozen=True, array_like=True):
    """The cells of a multi-cell collection by path: a map's key, a set's element, a list's time-ordered id."""

    deletion: Deletion | None = None
    """Written when the whole collection is assigned, one microsecond older than the assigned elements."""
    cells: dict[bytes, Cell] = {}


class Row(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One row, or the static part of a partition. Cells and collections by column number."""

    marker: RowMarker | None = None
    deletion: Deletion | None = None
    cells: dict[int, Cell] = {}
    collections: dict[int, CollectionCells] = {}


EMPTY_ROW = Row()


class RangeDeletion(msgspec.Struct, frozen=True, array_like=True):
    """A range tombstone: a deleted slice of a partition, from `start` up to `end`."""

    start: bytes
    """The least clustering bytes covered."""
    end: bytes | None
    """The least clustering bytes no longer covered; None: to the end of the partition."""
    deletion: Deletion

    @property
    def sort_key(self) -> tuple[bytes, bool, bytes, Deletion]:
        """For the order in which a head lists them."""
        return (self.start, self.end is None, self.end or b"", self.deletion)

    def covers(self, clustering: bytes) -> bool:
        return self.start <= clustering and (self.end is None or clustering < self.end)


class PartitionHead(msgspec.Struct, frozen=True, array_like=True):
    """What applies to a whole partition: its tombstone, range tombstones, and static cells."""

    deletion: Deletion | None = None
    ranges: tuple[RangeDeletion, ...] = ()
    static: Row = EMPTY_ROW

    def deletion_of(self, clustering: bytes) -> Deletion | None:
        """The newest deletion of the head that covers a row."""
        newest = self.deletion
        for one in self.ranges:
            if one.covers(clustering):
                newest = _newest(newest, one.deletion)
        return newest


EMPTY_HEAD = PartitionHead()


def newer_cell(one: Cell, other: Cell) -> Cell:
    """The tie rule: the later timestamp wins; then a tombstone over a value that expires, and that over one that does
    not; then the later deletion time or expiry; then the greater value; then the greater TTL.

    The expiry comes before the value: otherwise a cell that is about to expire could win over one that lives longer,
    and the row would be empty although a write with the same timestamp is still valid.
    """
    return one if _rank(one) >= _rank(other) else other


def _rank(cell: Cell) -> tuple[int, bool, bool, int, bytes, int]:
    return (cell.timestamp_us, cell.value is None, cell.ttl_s > 0, cell.at_s, cell.value or b"", cell.ttl_s)


def _marker_rank(marker: RowMarker) -> tuple[int, bool, int, int]:
    """As of a cell without a value of its own."""
    return (marker.timestamp_us, marker.ttl_s > 0, marker.at_s, marker.ttl_s)


def merge_rows(one: Row, other: Row) -> Row:
    """The merge of both. Commutative, associative, idempotent; what a deletion covers is left out."""
    deletion = _newest(one.deletion, other.deletion)
    marker = _newest_marker(one.marker, other.marker)
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
        ranges = tuple(sorted({*one.ranges, *other.ranges}, key=lambda one: one.sort_key))
    static = merge_rows(one.static, other.static)
    if deletion is not None:
        ranges = tuple(kept for kept in ranges if not deletion.covers(kept.deletion.timestamp_us))
        static = without_deleted(static, deletion)
    return PartitionHead(deletion, ranges, static)


def without_deleted(row: Row, deletion: Deletion) -> Row:
    """The row without what a deletion covers. The row's own deletion is removed too where the other is newer."""
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
    for position, cell in other.items():
        mine = merged.get(position)
        merged[position] = cell if mine is None else newer_cell(mine, cell)
    return merged


def _newest(one: Deletion | None, other: Deletion | None) -> Deletion | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def _newest_marker(one: RowMarker | None, other: RowMarker | None) -> RowMarker | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other, key=_marker_rank)


_SIGN = 1 << 63


def list_path(timestamp_us: int, position: int) -> bytes:
    """The path of a list element: it sorts after all that were written before, and elements of one write keep their
    order. A retried write writes the same elements."""
    return (timestamp_us + _SIGN).to_bytes(8) + position.to_bytes(8)
