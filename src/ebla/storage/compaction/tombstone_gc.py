"""When a compaction may drop a tombstone or an expired cell: `INV-LAYER-GC`. Pure.

A tombstone hides older cells. It may be dropped only when no older cell can come back from anywhere:

(a) the table's mode allows it: the replicas that missed it have had their time, or were repaired since;
(b) it is older than everything in the overlapping layers that are not compacted with it, live included: else an older
    cell in one of them would become visible;
(c) nothing holds the tablet: in a transition or with a staging open, layers with older cells may still arrive.

(a) and (b) become a `GcRule`, which the compaction applies; (c) decides whether there is a rule at all. The shard
checks (b) and (c) again when the compaction returns (`compaction_plan.py`), by the newest thing that it dropped.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from ebla.model.rows import (
    NEVER_US,
    Cell,
    CollectionCells,
    Deletion,
    PartitionHead,
    Row,
    RowMarker,
)
from ebla.model.schema import TableOptions, TombstoneGc
from ebla.model.token import Token, TokenRange

K = TypeVar("K")


class RepairedRange(msgspec.Struct, frozen=True, array_like=True):
    """A range whose replicas all agreed at `at_s`."""

    range: TokenRange
    at_s: int


class GcContext(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What the shard knows of a tablet when a compaction is planned."""

    now_s: int
    replication_factor: int
    repaired: tuple[RepairedRange, ...] = ()
    """Without ranges that were never repaired."""


class GcSpan(msgspec.Struct, frozen=True, array_like=True):
    """In this range, what was deleted or expired before `before_s` may be dropped."""

    range: TokenRange
    before_s: int


class GcRule(msgspec.Struct, frozen=True, array_like=True):
    """Without arguments: everything is kept."""

    spans: tuple[GcSpan, ...] = ()
    below_us: int = NEVER_US
    """Only what has an older timestamp than this may be dropped."""

    def before_s(self, token: Token) -> int | None:
        """The latest of the spans that contain the token; None: nothing may be dropped."""
        found = [span.before_s for span in self.spans if token in span.range]
        return max(found, default=None)


KEEP_ALL = GcRule()


def gc_rule(options: TableOptions, terms: GcContext, token_range: TokenRange, below_us: int) -> GcRule:
    """(a) and (b) of `INV-LAYER-GC`, for the rows of `token_range`."""
    spans: tuple[GcSpan, ...]
    match options.tombstone_gc:
        case TombstoneGc.DISABLED:
            return KEEP_ALL
        case TombstoneGc.IMMEDIATE:
            spans = (GcSpan(token_range, terms.now_s),)
        case TombstoneGc.TIMEOUT:
            spans = (GcSpan(token_range, terms.now_s - options.gc_grace_s),)
        case TombstoneGc.REPAIR if terms.replication_factor == 1:
            # No other replica could have missed it.
            spans = (GcSpan(token_range, terms.now_s),)
        case TombstoneGc.REPAIR:
            spans = tuple(GcSpan(one.range, one.at_s - options.propagation_s) for one in terms.repaired)
    return GcRule(spans, below_us)


class TombstoneCollector:
    """Applies a rule to merged rows, and records the newest timestamp that it dropped."""

    def __init__(self, rule: GcRule) -> None:
        self._rule = rule
        self._before_s: int | None = None
        self.dropped_greatest_us = NEVER_US

    def row(self, token: Token, row: Row) -> Row:
        self._before_s = self._rule.before_s(token)
        return row if self._before_s is None else self._row(row)

    def head(self, token: Token, head: PartitionHead) -> PartitionHead:
        self._before_s = self._rule.before_s(token)
        if self._before_s is None:
            return head
        ranges = tuple(one for one in head.ranges if not self._deletion_goes(one.deletion))
        return PartitionHead(self._kept(head.deletion), ranges, self._row(head.static))

    def _row(self, row: Row) -> Row:
        collections = {}
        for number, elements in row.collections.items():
            left = CollectionCells(self._kept(elements.deletion), self._cells(elements.cells))
            if left.deletion is not None or left.cells:
                collections[number] = left
        return Row(
            marker=self._kept_marker(row.marker),
            deletion=self._kept(row.deletion),
            cells=self._cells(row.cells),
            collections=collections,
        )

    def _cells(self, cells: Mapping[K, Cell]) -> dict[K, Cell]:
        return {position: cell for position, cell in cells.items() if not self._cell_goes(cell)}

    def _cell_goes(self, cell: Cell) -> bool:
        return (cell.value is None or cell.ttl_s > 0) and self._goes(cell.timestamp_us, cell.at_s)

    def _deletion_goes(self, deletion: Deletion) -> bool:
        return self._goes(deletion.timestamp_us, deletion.at_s)

    def _kept(self, deletion: Deletion | None) -> Deletion | None:
        return None if deletion is None or self._deletion_goes(deletion) else deletion

    def _kept_marker(self, marker: RowMarker | None) -> RowMarker | None:
        if marker is None or (marker.ttl_s > 0 and self._goes(marker.timestamp_us, marker.at_s)):
            return None
        return marker

    def _goes(self, timestamp_us: int, at_s: int) -> bool:
        """`at_s` is when it was deleted, or when it expires: the grace period starts there."""
        assert self._before_s is not None
        goes = at_s < self._before_s and timestamp_us < self._rule.below_us
        if goes:
            self.dropped_greatest_us = max(self.dropped_greatest_us, timestamp_us)
        return goes
