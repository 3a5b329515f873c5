"""Cuts the token ring into ranges that a transfer can move as one: into one stack on each replica. Pure.

On tablets, each replica of a tablet has one stack. On vnodes, each shard has one stack per table, which holds the part
of the ring that the shard owns. So a range is cut wherever its replicas or their shards change.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ebla.model.errors import NotFound
from ebla.model.identity import HostId, Replica, TableId
from ebla.model.token import WHOLE_RING, Token, TokenRange, advance
from ebla.topology.routing.replica_sets import ReplicaSets, WriteReplicas
from ebla.topology.routing.static_sharding import last_token_of_shard
from ebla.topology.routing.vnode_ring import next_ring, previous_ring
from ebla.topology.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ReplicaRange:
    """A range that does not wrap around and lies in one stack on each of these replicas."""

    range: TokenRange
    replicas: tuple[Replica, ...]
    """Those that serve reads. They should hold the same rows."""
    pending: tuple[Replica, ...] = ()

    @property
    def hosts(self) -> tuple[HostId, ...]:
        return tuple(replica.host for replica in self.replicas)

    def replica_on(self, host: HostId) -> Replica | None:
        return next((replica for replica in (*self.replicas, *self.pending) if replica.host == host), None)


def replica_ranges(sets: ReplicaSets, table: TableId, wanted: TokenRange) -> Iterator[ReplicaRange]:
    """The fewest ranges that cover `wanted`, in ring order from the lowest token. Raises `NotFound`: a table may be
    dropped while a job runs."""
    if table not in sets.snapshot.tables:
        raise NotFound(f"there is no table {table}; it may have been dropped")
    replicas = sets.of(table)

    def replicas_of(part: TokenRange) -> ReplicaRange:
        token = int(part.end)
        writing: WriteReplicas = replicas.writing(token)
        reading = replicas.reading(token)
        pending = (each for each in (*writing.natural, *writing.pending) if each not in reading)
        return ReplicaRange(part, tuple(sorted(reading)), tuple(sorted(pending)))

    # Each tablet is a stack of its own, even where neighbours have the same replicas.
    may_join = sets.snapshot.tablets.get(table) is None
    for whole in wanted.unwrapped():
        pending_range: ReplicaRange | None = None
        for part in cut_at_replica_borders(sets.snapshot, table, whole):
            found = replicas_of(part)
            before = pending_range
            if may_join and before is not None and (before.replicas, before.pending) == (found.replicas, found.pending):
                pending_range = ReplicaRange(TokenRange(before.range.start, part.end), before.replicas, before.pending)
                continue
            if before is not None:
                yield before
            pending_range = found
        if pending_range is not None:
            yield pending_range


def cut_at_replica_borders(snapshot: Snapshot, table: TableId, whole: TokenRange) -> Iterator[TokenRange]:
    """The parts of a range that does not wrap, in order, cut wherever replicas or their shards may change."""
    borders = (token for token in _replica_borders(snapshot, table) if whole.start < token < whole.end)
    for start, end in itertools.pairwise((whole.start, *borders, whole.end)):
        yield TokenRange(Token(start), Token(end))


def _replica_borders(snapshot: Snapshot, table: TableId) -> tuple[int, ...]:
    """The last token of each range within which replicas and shards are the same, in order."""
    tablets = snapshot.tablets.get(table)
    if tablets is not None:
        return tuple(tablets.last_token(number) for number in range(tablets.tablet_count))
    tokens = {*previous_ring(snapshot).tokens, *next_ring(snapshot).tokens}
    sharding_rules = {(node.shard_count, node.ignore_msb) for node in snapshot.members()}
    for shard_count, ignore_msb in sorted(sharding_rules):
        tokens.update(_shard_borders(shard_count, ignore_msb))
    return tuple(sorted(tokens))


def _shard_borders(shard_count: int, ignore_msb: int) -> Iterator[int]:
    token = WHOLE_RING.start
    while True:
        last = last_token_of_shard(token, shard_count, ignore_msb)
        yield last
        if last >= WHOLE_RING.end:
            return
        token = advance(last, 1)


def format_range(token_range: TokenRange) -> str:
    return f"({token_range.start}, {token_range.end}]"
