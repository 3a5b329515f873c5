"""What is known of a layer without reading it: the range of its timestamps and which kinds of values it holds.

Compactions, reads and scans decide by these, so they may be wider than the truth but never narrower: a least timestamp
that is too high would let a compaction drop a tombstone whose older cells are still in this layer.
"""

import msgspec

from ebla.model.rows import NEVER_US, PartitionHead, Row
from ebla.storage.codec.row_codec import Layouts, decode_head, decode_row, is_head, plain_timestamp_us

ALWAYS_US = (1 << 63) - 1
"""Newer than every write: the least timestamp of nothing."""


class LayerFacts(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Without arguments: the facts of nothing."""

    least_us: int = ALWAYS_US
    greatest_us: int = NEVER_US
    rows: int = 0
    """The number of puts: an upper bound where keys were put again, exact in a built layer."""
    has_heads: bool = False
    """It may hold a partition head; without one, a read of a row needs no second get."""
    has_tombstones: bool = False
    """It may hold a deletion of any kind, or a cell without value."""
    has_expiring: bool = False
    """Some cell or marker may have a TTL."""
    all_plain: bool = True
    """Every value is a row of the plain shape."""

    def widened(self, other: "LayerFacts") -> "LayerFacts":
        """The facts of both together."""
        return LayerFacts(
            least_us=min(self.least_us, other.least_us),
            greatest_us=max(self.greatest_us, other.greatest_us),
            rows=self.rows + other.rows,
            has_heads=self.has_heads or other.has_heads,
            has_tombstones=self.has_tombstones or other.has_tombstones,
            has_expiring=self.has_expiring or other.has_expiring,
            all_plain=self.all_plain and other.all_plain,
        )

    def covers(self, other: "LayerFacts") -> bool:
        """Whether these stay true of a layer once rows with facts `other` are put there too, row counts aside."""
        return (
            self.least_us <= other.least_us
            and self.greatest_us >= other.greatest_us
            and self.has_heads >= other.has_heads
            and self.has_tombstones >= other.has_tombstones
            and self.has_expiring >= other.has_expiring
            and self.all_plain <= other.all_plain
        )


NO_FACTS = LayerFacts()


def plain_facts(value: bytes) -> LayerFacts:
    """Of one encoded plain row, from its header."""
    timestamp_us = plain_timestamp_us(value)
    return LayerFacts(least_us=timestamp_us, greatest_us=timestamp_us, rows=1)


def row_facts(row: Row) -> LayerFacts:
    """Of one row that is not plain."""
    collections = row.collections.values()
    cells = [*row.cells.values(), *(cell for elements in collections for cell in elements.cells.values())]
    deletions = [row.deletion, *(elements.deletion for elements in collections)]
    dated = [one for one in (row.marker, *deletions, *cells) if one is not None]
    timestamps = [one.timestamp_us for one in dated]
    return LayerFacts(
        least_us=min(timestamps, default=ALWAYS_US),
        greatest_us=max(timestamps, default=NEVER_US),
        rows=1,
        has_tombstones=any(one is not None for one in deletions) or any(cell.value is None for cell in cells),
        has_expiring=any(cell.ttl_s for cell in cells) or (row.marker is not None and row.marker.ttl_s > 0),
        all_plain=False,
    )


def head_facts(head: PartitionHead) -> LayerFacts:
    deletions = [one.deletion for one in head.ranges]
    if head.deletion is not None:
        deletions.append(head.deletion)
    timestamps = [one.timestamp_us for one in deletions]
    facts = LayerFacts(
        least_us=min(timestamps, default=ALWAYS_US),
        greatest_us=max(timestamps, default=NEVER_US),
        has_heads=True,
        has_tombstones=bool(deletions),
        all_plain=False,
    )
    return row_facts(head.static).widened(facts)


def stored_facts(value: bytes, layouts: Layouts) -> LayerFacts:
    """Of one stored value that is not a plain row."""
    return head_facts(decode_head(value)) if is_head(value) else row_facts(decode_row(value, layouts))
