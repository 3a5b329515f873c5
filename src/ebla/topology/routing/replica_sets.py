"""The replicas of a token, natural, pending and reading, as total functions of a snapshot, a table and a token.

*Natural* replicas receive writes and define quorums; each *pending* replica also receives writes and raises the
required acknowledgements by one; *reading* replicas serve reads. A process keeps one `ReplicaSets` per topology version
and queries it once per request.

Sets contain host ids, and a host that left may be among them until its tablets are rebuilt elsewhere. `addresses_of`
never returns one: nothing listens there any more, or another node does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import msgspec

from ebla.model.consistency import ConsistencyLevel, ReplicaCounts, RequiredReplies, required_replies
from ebla.model.identity import HostId, Replica, ShardNumber, TableId
from ebla.model.token import TOKEN_MAX, Token, TokenRange, merge_ranges
from ebla.topology.routing.replication_strategies import NodeLocation, RingReplicas
from ebla.topology.routing.static_sharding import last_token_of_shard, static_shard
from ebla.topology.routing.vnode_ring import RingUse, TokenRing, next_ring, previous_ring, ring_use
from ebla.topology.snapshot import Node, Replication, Snapshot
from ebla.topology.states import NodeState, Strategy, TransitionKind
from ebla.topology.tablet_map import CHUNK_BITS, CHUNK_MASK, TOKEN_BIAS, ReplicaSet, TabletMap
from ebla.topology.tablet_stages import Selector, pending_replicas, stage_row

NO_REPLICAS: ReplicaSet = ()

_ShardRule = tuple[int, int]
"""Shard count and ignored bits."""


class WriteReplicas(msgspec.Struct, frozen=True, gc=False):
    natural: ReplicaSet
    pending: ReplicaSet


class TableReplicas(Protocol):
    """The replicas of one table at one version."""

    def writing(self, token: int) -> WriteReplicas: ...

    def reading(self, token: int) -> ReplicaSet: ...

    def same_readers_until(self, token: int) -> int:
        """The last token, at or after this one, up to which the same shards serve reads: one request to each of them
        can ask for all of it. Never beyond a tablet, nor past the end of the ring."""
        ...

    def ranges_of(self, host: HostId) -> Iterator[TokenRange]:
        """The ranges that the host is a natural replica of, in ring order."""
        ...

    def read_ranges_of(self, host: HostId) -> Iterator[TokenRange]:
        """The ranges that the host serves reads of, in ring order."""
        ...

    def counts(self, natural: ReplicaSet) -> ReplicaCounts:
        """The number of replicas that quorums are computed from."""
        ...


class TabletReplicas:
    """A table on tablets."""

    __slots__ = ("_chunks", "_datacenters", "_shift", "_tablets")

    def __init__(self, tablets: TabletMap, datacenters: Mapping[HostId, str]) -> None:
        self._tablets = tablets
        self._chunks = tablets.chunks
        self._shift = tablets.shift
        self._datacenters = datacenters

    def writing(self, token: int) -> WriteReplicas:
        # Called for every write; `TabletMap.replicas` and `transition` would look up the chunk twice.
        number = (token + TOKEN_BIAS) >> self._shift
        chunk = self._chunks[number >> CHUNK_BITS]
        replicas = chunk.replicas[number & CHUNK_MASK]
        if not chunk.transitions:
            return WriteReplicas(replicas, NO_REPLICAS)
        transition = chunk.transitions.get(number)
        if transition is None:
            return WriteReplicas(replicas, NO_REPLICAS)
        match stage_row(transition).writes:
            case Selector.PREVIOUS:
                return WriteReplicas(replicas, NO_REPLICAS)
            case Selector.NEXT:
                return WriteReplicas(transition.new_replicas, NO_REPLICAS)
            case Selector.BOTH:
                # Within one node a router sees no pending replica: the node writes to both of its shards before it
                # acknowledges, and counting it twice would require more replicas than exist.
                inside = transition.kind is TransitionKind.INTRANODE_MIGRATION
                return WriteReplicas(
                    replicas, NO_REPLICAS if inside else pending_replicas(replicas, transition.new_replicas)
                )

    def reading(self, token: int) -> ReplicaSet:
        number = self._tablets.number_of(token)
        transition = self._tablets.transition(number)
        if transition is None or stage_row(transition).reads is Selector.PREVIOUS:
            return self._tablets.replicas(number)
        return transition.new_replicas

    def same_readers_until(self, token: int) -> int:
        return self._tablets.last_token(self._tablets.number_of(token))

    def ranges_of(self, host: HostId) -> Iterator[TokenRange]:
        return self._ranges(host, lambda token: self.writing(token).natural)

    def read_ranges_of(self, host: HostId) -> Iterator[TokenRange]:
        return self._ranges(host, self.reading)

    def _ranges(self, host: HostId, replicas_of: Callable[[int], ReplicaSet]) -> Iterator[TokenRange]:
        for number in range(self._tablets.tablet_count):
            last = self._tablets.last_token(number)
            if any(replica.host == host for replica in replicas_of(last)):
                yield TokenRange(Token(self._tablets.after_token(number)), Token(last))

    def counts(self, natural: ReplicaSet) -> ReplicaCounts:
        """The tablet's own count: while a replication factor changes tablet by tablet, the keyspace's number is wrong
        for the tablets that have not changed yet."""
        return ReplicaCounts(len(natural), count_by_datacenter(natural, self._datacenters))


class VnodePlacement:
    """Hosts of vnodes with the shard each has for a token. The `Replica` values are made once and shared."""

    __slots__ = ("_by_position", "_nodes", "_shards", "vnodes")

    def __init__(self, vnodes: RingReplicas, nodes: Mapping[HostId, Node]) -> None:
        self.vnodes = vnodes
        self._nodes = nodes
        self._shards: dict[HostId, tuple[Replica, ...]] = {}
        self._by_position: dict[int, tuple[_ShardRule | None, tuple[ReplicaSet, ...], tuple[int, ...]]] = {}

    def replicas_of(self, token: int) -> ReplicaSet:
        position = self.vnodes.position_of(token)
        found = self._by_position.get(position)
        if found is None:
            found = self._by_position[position] = self._at(position)
        same_rule, shards_of, ignored_bits = found
        if same_rule is not None:
            shard = static_shard(token, *same_rule)
            return tuple([shards[shard] for shards in shards_of])
        return tuple([shards[static_shard(token, len(shards), bits)] for shards, bits in zip(shards_of, ignored_bits)])

    def same_until(self, token: int) -> int:
        """The last token, at or after this one, up to which the same shards have replicas, in whatever order."""
        vnodes = self.vnodes
        tokens = vnodes.ring.tokens
        if not tokens or token > tokens[-1]:
            position, end = 0, TOKEN_MAX
        else:
            position = vnodes.position_of(token)
            end = Token(tokens[position])
        hosts = vnodes.hosts_at(position)
        nodes = [self._nodes[host] for host in hosts]
        bound = min(
            (last_token_of_shard(token, node.shard_count, node.ignore_msb) for node in nodes), default=TOKEN_MAX
        )
        wanted = sorted(hosts)
        while end < bound:
            # The last vnode wraps around the ring and so contains the first tokens too.
            position = (position + 1) % len(tokens)
            if sorted(vnodes.hosts_at(position)) != wanted:
                break
            end = Token(tokens[position]) if position else TOKEN_MAX
        return min(end, bound)

    def _at(self, position: int) -> tuple[_ShardRule | None, tuple[ReplicaSet, ...], tuple[int, ...]]:
        nodes = [self._nodes[host] for host in self.vnodes.hosts_at(position)]
        rules = [(node.shard_count, node.ignore_msb) for node in nodes]
        same_rule = rules[0] if rules and all(rule == rules[0] for rule in rules) else None
        return same_rule, tuple(self._shards_of(node) for node in nodes), tuple(bits for _, bits in rules)

    def _shards_of(self, node: Node) -> ReplicaSet:
        known = self._shards.get(node.host)
        if known is None:
            known = tuple(Replica(node.host, ShardNumber(shard)) for shard in range(node.shard_count))
            self._shards[node.host] = known
        return known


class VnodeRings:
    """Both rings of a snapshot with the replicas of their vnodes, shared between versions with the same nodes."""

    __slots__ = ("_after", "_known", "_nodes", "_previous")

    def __init__(self, snapshot: Snapshot) -> None:
        self._nodes = snapshot.nodes
        self._previous: TokenRing = previous_ring(snapshot)
        self._after: TokenRing = next_ring(snapshot)
        self._known: list[tuple[Replication, VnodePlacement]] = []

    def previous(self, replication: Replication) -> VnodePlacement:
        return self._on(self._previous, replication)

    def after(self, replication: Replication) -> VnodePlacement:
        return self._on(self._after, replication)

    def _on(self, ring: TokenRing, replication: Replication) -> VnodePlacement:
        for known, placed in self._known:
            if known == replication and placed.vnodes.ring == ring:
                return placed
        places = {host: NodeLocation(node.datacenter, node.rack) for host, node in self._nodes.items()}
        made = VnodePlacement(RingReplicas(ring, replication, places), self._nodes)
        self._known.append((replication, made))
        return made


@dataclass(frozen=True, slots=True)
class HeldRangesOfHost:
    """The ranges of which a host is a replica, and those of them of which it is a pending one. Ascending, disjoint."""

    ranges: tuple[TokenRange, ...]
    pending: tuple[TokenRange, ...]


class VnodeReplicas:
    """A table on vnodes."""

    __slots__ = ("_next", "_nodes", "_not_pending", "_previous", "_read", "_replication", "_use")

    def __init__(self, snapshot: Snapshot, replication: Replication, rings: VnodeRings) -> None:
        self._nodes = snapshot.nodes
        self._replication = replication
        self._use: RingUse = ring_use(snapshot)
        self._not_pending = snapshot.hosts_not_pending
        self._previous = rings.previous(replication)
        self._next = rings.after(replication)
        self._read = self._previous if self._use.reads is Selector.PREVIOUS else self._next

    def writing(self, token: int) -> WriteReplicas:
        match self._use.writes:
            case Selector.PREVIOUS:
                return WriteReplicas(self._previous.replicas_of(token), NO_REPLICAS)
            case Selector.NEXT:
                return WriteReplicas(self._next.replicas_of(token), NO_REPLICAS)
            case Selector.BOTH:
                natural = self._previous.replicas_of(token)
                pending = pending_replicas(natural, self._next.replicas_of(token))
                if self._not_pending:
                    # Without a stream it has no older rows, and while it is excluded it takes no new ones: a write that
                    # had to wait for it would never be acknowledged.
                    pending = tuple([replica for replica in pending if replica.host not in self._not_pending])
                return WriteReplicas(natural, pending)

    def reading(self, token: int) -> ReplicaSet:
        return self._read.replicas_of(token)

    def same_readers_until(self, token: int) -> int:
        return self._read.same_until(token)

    def ranges_of(self, host: HostId) -> Iterator[TokenRange]:
        replicas = self._next if self._use.writes is Selector.NEXT else self._previous
        return _ring_ranges_of(replicas.vnodes, host)

    def read_ranges_of(self, host: HostId) -> Iterator[TokenRange]:
        return _ring_ranges_of(self._read.vnodes, host)

    def held_ranges_of(self, host: HostId) -> "HeldRangesOfHost":
        bounds = sorted({*self._previous.vnodes.ring.tokens, *self._next.vnodes.ring.tokens})
        natural, pending = list[TokenRange](), list[TokenRange]()
        for start, end in pairwise((*bounds[-1:], *bounds)):
            targets = self.writing(end)
            for found, replicas in ((natural, targets.natural), (pending, targets.pending)):
                if any(replica.host == host for replica in replicas):
                    found.append(TokenRange(Token(start), Token(end)))
        return HeldRangesOfHost(merge_ranges((*natural, *pending)), merge_ranges(pending))

    def counts(self, natural: ReplicaSet) -> ReplicaCounts:
        """By the keyspace's factors, even with fewer nodes: QUORUM of three means two copies."""
        if self._replication.strategy is Strategy.SIMPLE:
            datacenters = {replica.host: self._nodes[replica.host].datacenter for replica in natural}
            return ReplicaCounts(self._replication.total, count_by_datacenter(natural, datacenters))
        return ReplicaCounts(self._replication.total, dict(self._replication.factors))


class ReplicaSets:
    """Every table's replicas at one version. Results of the previous version are reused where they still hold."""

    __slots__ = ("_by_table", "_datacenters", "_rings", "snapshot")

    def __init__(self, snapshot: Snapshot, before: "ReplicaSets | None" = None) -> None:
        self.snapshot = snapshot
        self._by_table: dict[TableId, TableReplicas] = {}
        self._datacenters = {host: node.datacenter for host, node in snapshot.nodes.items()}
        same_nodes = before is not None and before.snapshot.nodes is snapshot.nodes
        self._rings: VnodeRings | None = before.rings if before is not None and same_nodes else None

    @property
    def rings(self) -> VnodeRings:
        """Built lazily: a cluster with tablets only never needs it."""
        if self._rings is None:
            self._rings = VnodeRings(self.snapshot)
        return self._rings

    def of(self, table: TableId) -> TableReplicas:
        """Raises `KeyError` for a table the snapshot does not have."""
        found = self._by_table.get(table)
        if found is None:
            found = self._by_table[table] = self._build(table)
        return found

    def required_write_replies(
        self, table: TableId, token: int, level: ConsistencyLevel, local_datacenter: str
    ) -> tuple[RequiredReplies, ...]:
        """How many replicas of `writing` must acknowledge, pending ones included."""
        replicas = self.of(table)
        targets = replicas.writing(token)
        pending = count_by_datacenter(targets.pending, self._datacenters)
        return required_replies(level, replicas.counts(targets.natural), local_datacenter, pending)

    def required_read_replies(
        self, table: TableId, token: int, level: ConsistencyLevel, local_datacenter: str
    ) -> tuple[RequiredReplies, ...]:
        """How many of the replicas of `reading` must answer."""
        replicas = self.of(table)
        return required_replies(level, replicas.counts(replicas.reading(token)), local_datacenter)

    def addresses_of(self, replicas: Iterable[Replica]) -> tuple[str, ...]:
        """The addresses of these replicas' nodes, without nodes that left."""
        nodes = (self.snapshot.node(replica.host) for replica in replicas)
        return tuple(node.address for node in nodes if node.state is not NodeState.LEFT)

    def _build(self, table: TableId) -> TableReplicas:
        snapshot = self.snapshot
        tablets = snapshot.tablets.get(table)
        if tablets is not None:
            return TabletReplicas(tablets, self._datacenters)
        assert not snapshot.on_tablets(table), f"the tablets of {snapshot.tables[table].full_name} are not known yet"
        replication = snapshot.replication_of(table)
        return VnodeReplicas(snapshot, replication, self.rings)


def _ring_ranges_of(replicas: RingReplicas, host: HostId) -> Iterator[TokenRange]:
    """The vnodes that the host has a replica of, in ring order, the one that wraps around first."""
    tokens = replicas.ring.tokens
    if not tokens:
        return
    for position, (start, end) in enumerate(pairwise((tokens[-1], *tokens))):
        if host in replicas.hosts_at(position):
            yield TokenRange(Token(start), Token(end))


def count_by_datacenter(replicas: Iterable[Replica], datacenters: Mapping[HostId, str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for replica in replicas:
        name = datacenters[replica.host]
        counts[name] = counts.get(name, 0) + 1
    return counts


@dataclass(frozen=True, slots=True)
class TokenReplicas:
    natural: ReplicaSet
    pending: ReplicaSet
    reading: ReplicaSet


def token_replicas(snapshot: Snapshot, table: TableId, token: int) -> TokenReplicas:
    """For a single query."""
    replicas = ReplicaSets(snapshot).of(table)
    writing = replicas.writing(token)
    return TokenReplicas(writing.natural, writing.pending, replicas.reading(token))
