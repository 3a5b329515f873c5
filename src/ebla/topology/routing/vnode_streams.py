"""The streams of a ring change: per token range, its sources and destinations."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ebla.model.identity import HostId
from ebla.model.token import Token, TokenRange
from ebla.topology.routing.replica_sets import VnodeRings
from ebla.topology.snapshot import Replication, Snapshot


@dataclass(frozen=True, slots=True)
class RangeStream:
    """Each destination receives, for this range, the merged rows of all sources."""

    range: TokenRange
    sources: tuple[HostId, ...]
    destinations: tuple[HostId, ...]


def ring_streams(snapshot: Snapshot, replication: Replication) -> Iterator[RangeStream]:
    """Of the change that the snapshot is in, for tables on vnodes with this replication. In ring order, the range that
    wraps around first. The ranges depend on the two rings alone; the sources also on who is excluded."""
    rings = VnodeRings(snapshot)
    previous, after = rings.previous(replication).vnodes, rings.after(replication).vnodes
    bounds = sorted({*previous.ring.tokens, *after.ring.tokens})
    if not bounds:
        return
    start = bounds[-1]
    for end in bounds:
        before = previous.hosts_of(end)
        later = after.hosts_of(end)
        gaining = tuple(host for host in later if host not in before)
        if gaining and before:  # a range without replicas has no rows
            sources = stream_sources(before, later, snapshot.state.ignored_nodes)
            yield RangeStream(TokenRange(Token(start), Token(end)), sources, gaining)
        start = end


def has_streams(snapshot: Snapshot) -> bool:
    """Whether any range of a table on vnodes has to move."""
    return any(next(ring_streams(snapshot, one), None) is not None for one in _replications(snapshot))


def gaining_hosts(snapshot: Snapshot) -> tuple[HostId, ...]:
    """The hosts that gain a range of a table on vnodes by the change that the snapshot is in. Sorted."""
    found = {
        host: None
        for one in _replications(snapshot)
        for stream in ring_streams(snapshot, one)
        for host in stream.destinations
    }
    return tuple(sorted(found))


def _replications(snapshot: Snapshot) -> tuple[Replication, ...]:
    """Of the tables on vnodes."""
    tables = (table for table in sorted(snapshot.tables) if not snapshot.on_tablets(table))
    return tuple(dict.fromkeys(snapshot.replication_of(table) for table in tables))


def stream_sources(
    before: tuple[HostId, ...], later: tuple[HostId, ...], excluded: Collection[HostId]
) -> tuple[HostId, ...]:
    """The host that loses the range, if it is alive: an exact copy replaces it, so quorums stay intact. If it is
    excluded, or no host loses the range, every remaining replica, because any one of them may lack a write that two
    others acknowledged."""
    losing = tuple(host for host in before if host not in later)
    if losing and not any(host in excluded for host in losing):
        return losing
    return tuple(host for host in before if host not in losing and host not in excluded)
