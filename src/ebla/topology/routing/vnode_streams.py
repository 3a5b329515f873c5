"""The streams of a node operation: per token range, its sources and destinations."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from ebla.model.identity import HostId, TableId
from ebla.model.token import Token, TokenRange
from ebla.topology.routing.replica_sets import VnodeRings
from ebla.topology.snapshot import Node, Replication, Snapshot
from ebla.topology.states import NodeState

SKIPPING_STATES = (NodeState.REMOVING, NodeState.REPLACING, NodeState.REBUILDING)
"""Of operations that skip a range without a source. The rows of a dead node's only replica are lost anyway."""
SKIPPED_LINES_MAX = 32


@dataclass(frozen=True, slots=True)
class RangeStream:
    """Each destination receives, for this range, the merged rows of all sources; without a source, nothing."""

    range: TokenRange
    sources: tuple[HostId, ...]
    destinations: tuple[HostId, ...]


def ring_streams(snapshot: Snapshot, replication: Replication) -> Iterator[RangeStream]:
    """Of the operation that the snapshot is in, for tables on vnodes with this replication. In ring order, the range
    that wraps around first. The ranges depend on the rings alone; the sources also on who is excluded."""
    node = snapshot.node_in_transition()
    if node is not None and node.state is NodeState.REBUILDING:
        yield from _rebuild_streams(snapshot, node, replication)
        return
    rings = VnodeRings(snapshot)
    previous, after = rings.previous(replication).vnodes, rings.after(replication).vnodes
    bounds, idle = sorted({*previous.ring.tokens, *after.ring.tokens}), snapshot.hosts_not_pending
    if not bounds:
        return
    start = bounds[-1]
    for end in bounds:
        before = previous.hosts_of(end)
        later = after.hosts_of(end)
        gaining = tuple(host for host in later if host not in before and host not in idle)
        if gaining and before:  # a range without replicas has no rows
            sources = stream_sources(before, later, snapshot.state.ignored_nodes)
            yield RangeStream(TokenRange(Token(start), Token(end)), sources, gaining)
        start = end


def _rebuild_streams(snapshot: Snapshot, node: Node, replication: Replication) -> Iterator[RangeStream]:
    """Every range that the node holds, from all other replicas, or from those of one datacenter."""
    placed = VnodeRings(snapshot).previous(replication).vnodes
    tokens = placed.ring.tokens
    if not tokens:
        return
    for position, (start, end) in enumerate(pairwise((tokens[-1], *tokens))):
        hosts = placed.hosts_at(position)
        if node.host in hosts:
            sources = tuple(host for host in hosts if host != node.host and _may_rebuild_from(snapshot, node, host))
            yield RangeStream(TokenRange(Token(start), Token(end)), sources, (node.host,))


def _may_rebuild_from(snapshot: Snapshot, node: Node, host: HostId) -> bool:
    is_there = node.rebuild_source is None or snapshot.node(host).datacenter == node.rebuild_source
    return is_there and host not in snapshot.state.ignored_nodes


def may_skip(snapshot: Snapshot) -> bool:
    """Whether a range without a source is skipped. Otherwise one of its replicas has to be recovered first."""
    node = snapshot.node_in_transition()
    return node is not None and node.state in SKIPPING_STATES


def skipped_parts(snapshot: Snapshot) -> tuple[str, ...]:
    """What the operation does not stream, for people: a line for each table, by name."""
    node = snapshot.node_in_transition()
    if node is None or node.state not in SKIPPING_STATES:
        return ()
    is_rebuild = node.state is NodeState.REBUILDING
    lines: list[str] = []
    for table in sorted(snapshot.tables.values(), key=lambda one: one.full_name):
        if snapshot.on_tablets(table.id):
            if is_rebuild:
                lines.append(f"{table.full_name}: skipped, because it is on tablets")
            continue
        streams = ring_streams(snapshot, snapshot.replication_of(table.id))
        count = sum(not stream.sources for stream in streams)
        if count and is_rebuild:
            lines.append(f"{table.full_name}: {count} ranges skipped, because no other replica has them")
        elif count:
            lines.append(f"{table.full_name}: {count} ranges lost, because no replica of them remains")
    more = len(lines) - SKIPPED_LINES_MAX
    return (*lines[:SKIPPED_LINES_MAX], f"and {more} tables more") if more > 0 else tuple(lines)


def why_streams_fail(snapshot: Snapshot, lost: Collection[HostId]) -> str:
    """Why the streams must not go on, with these hosts unreachable for too long; empty: they may. The remaining
    replicas take the place of a source that is excluded."""
    for table, stream, gone in sources_among(snapshot, lost):
        name, where = snapshot.tables[table].full_name, snapshot.node(gone).address
        part = f"tokens after {stream.range.start} up to {stream.range.end}"
        return f"{where}, the source of {name}, {part}, is unreachable"
    return ""


def sources_among(snapshot: Snapshot, hosts: Collection[HostId]) -> Iterator[tuple[TableId, RangeStream, HostId]]:
    """What is streamed from these hosts."""
    for table in sorted(snapshot.tables) if hosts else ():
        if snapshot.on_tablets(table):
            continue
        for stream in ring_streams(snapshot, snapshot.replication_of(table)):
            for host in stream.sources:
                if host in hosts:
                    yield table, stream, host


def has_streams(snapshot: Snapshot) -> bool:
    """Whether any range of a table on vnodes has to move."""
    may_lack_sources = not may_skip(snapshot)
    return any(
        bool(stream.sources) or may_lack_sources
        for one in snapshot.vnode_replications()
        for stream in ring_streams(snapshot, one)
    )


def gaining_hosts(snapshot: Snapshot) -> tuple[HostId, ...]:
    """The hosts that gain a range of a table on vnodes by the change of the ring that the snapshot is in. Sorted."""
    found = {
        host: None
        for one in snapshot.vnode_replications()
        for stream in ring_streams(snapshot, one)
        for host in stream.destinations
    }
    return tuple(sorted(found))


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
