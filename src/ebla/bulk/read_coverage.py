"""What a checkpoint of a table can answer for: the ranges of which this node had a whole copy. Pure.

That a stack is there says little. One of a pending replica lacks what has not been brought yet; one of a replica that
left lacks what was written since; a table on vnodes has a stack for the whole ring at every shard, whatever the node
owns. A question for such a range would be answered with too few rows, or none, and nobody would notice. So a range
counts only if the node is a natural replica of it or serves reads of it: the first takes every write, the second has
every one that was acknowledged. While a tablet moves these are two different ones for a time, and either will do. And
that must be so at the version before the checkpoint was begun and at the one after it was taken: before, or a replica
that was pending when its files were linked counts by what it became afterwards; after, or one whose files were gone by
then counts by what it had been.

A ticket counts for the lives of replicas that it was given for, and no others. A plan at QUORUM takes any two of A, B
and C. Later C's tablet goes to D, and then B's to C: what C has now is a copy of B's, and B may still keep what it had
when the read was opened. Merged, the two are one replica's word, and a write that A and C acknowledged is in neither.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ebla.feed.topology_view import View
from ebla.model.errors import Stale
from ebla.model.identity import HostId, ShardNumber, TableId
from ebla.model.token import TokenRange
from ebla.model.transfers import CheckpointPart
from ebla.storage.columns.sidecar import COLUMNS_NAME
from ebla.wire.table_calls import StackSizeEstimate

INCARNATION_BYTES = 4
Ranges = tuple[TokenRange, ...]
"""Ascending, without overlap or touch, none over the top of the ring."""


class RangeNotOwned(Stale):
    """This node has no whole copy of the range that was asked for. Others may."""


@dataclass(frozen=True, slots=True)
class OwnedRanges:
    """What a host has whole copies of, at one version."""

    by_shard: Mapping[ShardNumber, Ranges] | None
    """Of a table on tablets: one that moves between two shards of a node is whole at one of them, or the other."""
    of_node: Ranges
    shard_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCoverage:
    """Of one checkpoint."""

    ranges: Ranges
    parts: tuple[CheckpointPart, ...]
    """Those that count."""
    sizes: tuple[StackSizeEstimate, ...]
    is_by_part: bool = True
    """Each part answers for its own range; else all of them together for all."""

    def has(self, asked: TokenRange, lives: bytes) -> bool:
        """Wholly, by replicas that live since the ticket with these was given."""
        known = {lives[at : at + INCARNATION_BYTES] for at in range(0, len(lives), INCARNATION_BYTES)}
        lasting = [part for part in self.parts if _life(part) in known]
        if self.is_by_part:
            return _covers(merge_ranges(part.range for part in lasting), asked)
        return len(lasting) == len(self.parts) and _covers(self.ranges, asked)

    @property
    def lives(self) -> bytes:
        return b"".join(_life(part) for part in self.parts)


def owned_ranges(view: View, table: TableId, host: HostId) -> OwnedRanges:
    """Of a table that the view has."""
    node, on_tablets = view.snapshot.nodes.get(host), view.snapshot.on_tablets(table)
    shard_count = 0 if node is None else node.shard_count
    if on_tablets and table not in view.snapshot.tablets:
        return OwnedRanges({}, (), shard_count)  # they are not all known yet
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
    """Any range may have rows at any shard: with one of them missing, none is whole."""
    there = {part.shard for part in parts}
    if any(ShardNumber(number) not in there for number in range(after.shard_count)):
        return SnapshotCoverage(ranges=(), parts=(), sizes=(), is_by_part=False)
    ranges = _common(before.of_node, after.of_node)
    width = sum(one.width for one in ranges)
    size_bytes, rows = sum(map(_scanned_bytes, parts)), sum(part.rows for part in parts)
    sizes = [StackSizeEstimate(one, size_bytes * one.width // width, rows * one.width // width) for one in ranges]
    return SnapshotCoverage(ranges=ranges, parts=tuple(parts), sizes=tuple(sizes), is_by_part=False)


def _scanned_bytes(part: CheckpointPart) -> int:
    """About what a scan of it reads: of a layer that has columns, those alone."""
    columns = ([file.size_bytes for file in layer.files if file.name == COLUMNS_NAME] for layer in part.layers)
    return sum(found[0] if found else layer.size_bytes for layer, found in zip(part.layers, columns))


def _life(part: CheckpointPart) -> bytes:
    """Lives are drawn at random, so a part of the number will do."""
    return (part.incarnation % (1 << 8 * INCARNATION_BYTES)).to_bytes(INCARNATION_BYTES)


def merge_ranges(ranges: Iterable[TokenRange]) -> Ranges:
    found: list[TokenRange] = []
    for one in sorted(piece for each in ranges for piece in each.unwrapped()):
        if found and one.start <= found[-1].end:
            last = found.pop()
            found.append(TokenRange(last.start, max(last.end, one.end)))
        else:
            found.append(one)
    return tuple(found)


def _common(one: Ranges, other: Ranges) -> Ranges:
    """By one pass over both: a node of a large ring has hundreds."""
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
