"""The transfers of a node operation: for each stack that gets ranges, some transfers of many ranges. Pure.

A transfer id follows from the session, the table, the ranges and the target, and the grouping of ranges into transfers
follows from the rings. So a repeat, by this pipeline or that of the next leader, makes the same transfers, and finds
what has been adopted. Sources are no part of it: another replica may take the place of one that was excluded.
"""

import uuid
from collections.abc import Collection, Iterator, Sequence

from ebla.model.errors import Unavailable
from ebla.model.identity import HostId, Replica, SessionId, TableId, TransferId
from ebla.model.token import TokenRange, advance, covering_range
from ebla.topology.routing.static_sharding import last_token_of_shard, static_shard
from ebla.topology.routing.vnode_streams import RangeStream, may_skip, ring_streams
from ebla.topology.snapshot import Node, Replication, Snapshot
from ebla.transfers.token_ranges import format_range
from ebla.transfers.transfer_run import RangeSources, RowCopy

TRANSFERS_PER_STACK_MAX = 64
"""A stack remembers a limited number of adoptions (`storage/manifest.py`), and reads each layer that was adopted."""
RANGES_PER_TRANSFER_MIN = 2
"""Fewer would make many small transfers; with more, a small cluster would have too few to keep Spark's tasks busy."""


def ring_copies(snapshot: Snapshot, tables: Collection[TableId], session: SessionId) -> tuple[RowCopy, ...]:
    """Of those among the tables that are on vnodes, for the operation that the snapshot is in. Raises `Unavailable` if
    a range has no replica to read from, unless the operation skips it."""
    stacks: dict[Replication, dict[Replica, list[RangeSources]]] = {}
    copies: list[RowCopy] = []
    for table in sorted(tables):
        if table not in snapshot.tables or snapshot.on_tablets(table):
            continue
        replication = snapshot.replication_of(table)
        if replication not in stacks:
            stacks[replication] = _ranges_by_stack(snapshot, ring_streams(snapshot, replication))
        for target, parts in stacks[replication].items():
            if not may_skip(snapshot):
                _check_sources(snapshot, table, parts)
            groups = (group for group in _groups(parts) if any(part.hosts for part in group))
            copies += (_copy(session, table, target, group) for group in groups)
    return tuple(copies)


def _ranges_by_stack(snapshot: Snapshot, streams: Iterator[RangeStream]) -> dict[Replica, list[RangeSources]]:
    """What each stack gets, ascending and cut at the borders of its shard."""
    found: dict[Replica, list[RangeSources]] = {}
    for stream in streams:
        for host in stream.destinations:
            for whole in stream.range.unwrapped():
                for part, target in _cut_at_shards(whole, snapshot.nodes[host]):
                    found.setdefault(target, []).append(RangeSources(part, stream.sources))
    return {target: sorted(found[target], key=lambda one: one.range.start) for target in sorted(found)}


def _cut_at_shards(whole: TokenRange, node: Node) -> Iterator[tuple[TokenRange, Replica]]:
    start = whole.start
    while start < whole.end:
        first = advance(start, 1)
        end = min(last_token_of_shard(first, node.shard_count, node.ignore_msb), whole.end)
        shard = static_shard(first, node.shard_count, node.ignore_msb)
        yield TokenRange(start, end), Replica(node.host, shard)
        start = end


def _groups(parts: Sequence[RangeSources]) -> Iterator[Sequence[RangeSources]]:
    size = max(RANGES_PER_TRANSFER_MIN, -(-len(parts) // TRANSFERS_PER_STACK_MAX))
    for start in range(0, len(parts), size):
        yield parts[start : start + size]


def _copy(session: SessionId, table: TableId, target: Replica, parts: Sequence[RangeSources]) -> RowCopy:
    """Parts without a source are in its id and in nothing else: a part may lose its last one by an exclusion."""
    ranges = [part.range for part in parts]
    hosts: dict[HostId, None] = dict.fromkeys(host for part in parts for host in part.hosts)
    return RowCopy(
        table=table,
        range=covering_range(ranges),
        sources=tuple(sorted(hosts)),
        targets=(target,),
        parts=tuple(_joined([part for part in parts if part.hosts])),
        transfers=(transfer_id(session, table, ranges, target),),
    )


def transfer_id(session: SessionId, table: TableId, ranges: Sequence[TokenRange], target: Replica) -> TransferId:
    listed = ",".join(f"{each.start}:{each.end}" for each in ranges)
    return TransferId(uuid.uuid5(session, f"{table}/{target.host}/{target.shard}/{listed}"))


def _joined(parts: Sequence[RangeSources]) -> Iterator[RangeSources]:
    """Adjacent ranges of the same sources are read in one go."""
    pending = parts[0]
    for part in parts[1:]:
        if part.range.start == pending.range.end and part.hosts == pending.hosts:
            pending = RangeSources(TokenRange(pending.range.start, part.range.end), part.hosts)
        else:
            yield pending
            pending = part
    yield pending


def _check_sources(snapshot: Snapshot, table: TableId, parts: Sequence[RangeSources]) -> None:
    for part in parts:
        if not part.hosts:
            raise Unavailable(
                f"no replica of {snapshot.tables[table].full_name} in {format_range(part.range)} is left to read from: "
                "all of them are excluded",
                advice="recover one of them with `ebla recover`, or abort the operation",
            )
