"""Which ranges a checkpoint of a table can answer: those of which this node had a complete copy. Pure.

That a stack exists proves little. A pending replica lacks what has not been streamed yet. A replica that left lacks
what was written since. A table on vnodes has a stack for the whole ring on every shard, whatever the node owns. A query
of such a range would return too few rows, or none, and no one would notice. So a range counts only if the node is a
natural replica of it or serves reads of it: the first gets every write, the second has every acknowledged one. While a
tablet migrates these are different nodes for a time, and either will do. The node must qualify both at the version
before the checkpoint was started and at the version after it was taken. Without the first check, a replica that was
pending when its files were linked would count as what it became afterwards. Without the second, one whose files were
gone by then would count as what it had been.

A ticket is valid only for the incarnations of the replicas it was issued for. Suppose a plan at QUORUM uses any two of
A, B and C. Then C's tablet moves to D, and later B's tablet moves to C: C now has a copy of B's, and B may still keep
what it had when the read was opened. Merged, the two are one replica's data, and a write that A and C acknowledged is
in neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ebla.feed.topology_view import View
from ebla.model.errors import Stale
from ebla.model.identity import HostId, ShardNumber, TableId
from ebla.model.token import TokenRange, merge_ranges
from ebla.model.transfers import CheckpointPart
from ebla.storage.columns.sidecar import COLUMNS_NAME
from ebla.wire.table_calls import StackSizeEstimate

INCARNATION_BYTES = 4
Ranges = tuple[TokenRange, ...]
"""As `merge_ranges` returns them."""


class RangeNotOwned(Stale):
    """This node has no complete copy of the requested range. Others may."""


@dataclass(frozen=True, slots=True)
class OwnedRanges:
    """The ranges of which a host has complete copies, at one version."""

    by_shard: Mapping[ShardNumber, Ranges] | None
    """For a table on tablets: a tablet that moves between two shards of a node is complete on one of them."""
    of_node: Ranges
    shard_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCoverage:
    """What one checkpoint covers."""

    ranges: Ranges
    parts: tuple[CheckpointPart, ...]
    """Those with complete copies."""
    sizes: tuple[StackSizeEstimate, ...]
    is_by_part: bool = True
    """Each part covers its own range; else all parts together cover all ranges."""

    def has(self, asked: TokenRange, incarnations: bytes) -> bool:
        """Completely, from replicas whose incarnations are among those of the ticket."""
        known = {incarnations[at : at + INCARNATION_BYTES] for at in range(0, len(incarnations), INCARNATION_BYTES)}
        unchanged = [part for part in self.parts if _short_incarnation(part) in known]
        if self.is_by_part:
            return _covers(merge_ranges(part.range for part in unchanged), asked)
        return len(unchanged) == len(self.parts) and _covers(self.ranges, asked)

    @property
    def incarnations(self) -> bytes:
        return b"".join(_short_incarnation(part) for part in self.parts)


def owned_ranges(view: View, table: TableId, host: HostId) -> OwnedRanges:
    """For a table that the view has."""
    node, on_tablets = view.snapshot.nodes.get(host), view.snapshot.on_tablets(table)
    shard_count = 0 if node is None else node.shard_count
    if on_tablets and table not in view.snapshot.tablets:
        return OwnedRanges({}, (), shard_count)  # the tablets are not all known yet
    replicas = view.sets.of(table)
    ranges = dict.fromkeys((*replicas.ranges_of(host), *replicas.read_ranges_of(host)))
    if not on_tablets:
        return OwnedRanges(None, merge_ranges(ranges), shard_count)
    by_shard: dict[ShardNumber, list[TokenRange]] = {}
    for tablet in ranges:
        for replica in (*replicas.writing(tablet.end).natural, *replicas.reading(tablet.end)):
            if replica.host == host:
                by_shard.setdefault(replica.shard, []).append(tablet)
    return OwnedRanges(
        {shard: merge_ranges(found) for shard, found in by_shard.items()}, merge_ranges(ranges), shard_count
    )


def coverage_of(parts: Sequence[CheckpointPart], before: OwnedRanges, after: OwnedRanges) -> SnapshotCoverage:
    if before.by_shard is None or after.by_shard is None:
        return _of_vnodes(parts, before, after)
    counting = tuple(
        part
        for part in parts
        if _covers(before.by_shard.get(part.shard, ()), part.range)
        and _covers(after.by_shard.get(part.shard, ()), part.range)
    )
    sizes = tuple(StackSizeEstimate(part.range, _scanned_bytes(part), part.rows) for part in counting)
    return SnapshotCoverage(ranges=merge_ranges(part.range for part in counting), parts=counting, sizes=sizes)


def _of_vnodes(parts: Sequence[CheckpointPart], before: OwnedRanges, after: OwnedRanges) -> SnapshotCoverage:
    """Any range may have rows on any shard: with one shard missing, no range is complete."""
    there = {part.shard for part in parts}
    if any(ShardNumber(number) not in there for number in range(after.shard_count)):
        return SnapshotCoverage(ranges=(), parts=(), sizes=(), is_by_part=False)
    ranges = _common(before.of_node, after.of_node)
    width = sum(one.width for one in ranges)
    size_bytes, rows = sum(map(_scanned_bytes, parts)), sum(part.rows for part in parts)
    sizes = [StackSizeEstimate(one, size_bytes * one.width // width, rows * one.width // width) for one in ranges]
    return SnapshotCoverage(ranges=ranges, parts=tuple(parts), sizes=tuple(sizes), is_by_part=False)


def _scanned_bytes(part: CheckpointPart) -> int:
    """About what a scan reads: of a layer with a column sidecar only that."""
    columns = ([file.size_bytes for file in layer.files if file.name == COLUMNS_NAME] for layer in part.layers)
    return sum(found[0] if found else layer.size_bytes for layer, found in zip(part.layers, columns))


def _short_incarnation(part: CheckpointPart) -> bytes:
    """Incarnations are random, so a part of the number is enough."""
    return (part.incarnation % (1 << 8 * INCARNATION_BYTES)).to_bytes(INCARNATION_BYTES)


def _common(one: Ranges, other: Ranges) -> Ranges:
    """The intersection, in one pass over both: a node of a large ring has hundreds."""
    found: list[TokenRange] = []
    first = second = 0
    while first < len(one) and second < len(other):
        left, right = one[first], other[second]
        start, end = max(left.start, right.start), min(left.end, right.end)
        if start < end:
            found.append(TokenRange(start, end))
        if left.end <= right.end:
            first += 1
        else:
            second += 1
    return tuple(found)


def _covers(ranges: Ranges, asked: TokenRange) -> bool:
    return all(any(one.covers(piece) for one in ranges) for piece in asked.unwrapped())
