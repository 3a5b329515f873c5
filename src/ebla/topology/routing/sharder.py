"""Which shard of a node serves a token. For routing only; `has_replica` says whether a shard *has* a replica.

For a tablet in transition a node's answer is the same in every stage, whatever the selectors say: a router may be one
stage behind or ahead, and what it sends to the leaving or the pending replica must find its shard. Only inside one node
(`intranode_migration`) do the answers follow the stage: there routers see one host all the time, and the node itself
decides by its own view which of its two shards to read and which to write.
"""

from dataclasses import dataclass
from typing import Protocol

from ebla.model.identity import HostId, Replica, ShardNumber, TableId
from ebla.topology.routing.static_sharding import static_shard
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import TransitionKind
from ebla.topology.tablet_map import ReplicaSet, TabletMap
from ebla.topology.tablet_stages import Selector, stage_row

NO_REPLICA_SHARD = ShardNumber(0)
"""The shard used if the host has no replica: some shard must refuse the request."""


class Sharder(Protocol):
    """Bound to one host and one version of the topology, unless it says otherwise."""

    def shard_for_reads(self, token: int) -> ShardNumber: ...

    def shards_for_writes(self, token: int) -> tuple[ShardNumber, ...]:
        """All of them must apply the write before it is acknowledged. Never empty."""
        ...


@dataclass(frozen=True, slots=True)
class StaticSharder:
    """For a table on vnodes."""

    shard_count: int
    ignore_msb: int

    def shard_for_reads(self, token: int) -> ShardNumber:
        return static_shard(token, self.shard_count, self.ignore_msb)

    def shards_for_writes(self, token: int) -> tuple[ShardNumber, ...]:
        return (static_shard(token, self.shard_count, self.ignore_msb),)


@dataclass(frozen=True, slots=True)
class TabletSharder:
    """For a table on tablets."""

    tablets: TabletMap
    host: HostId

    def shard_for_reads(self, token: int) -> ShardNumber:
        number = self.tablets.number_of(token)
        replicas = self.tablets.replicas(number)
        transition = self.tablets.transition(number)
        if transition is None:
            return _first(_shard_on(self.host, replicas), None)
        old = _shard_on(self.host, replicas)
        new = _shard_on(self.host, transition.new_replicas)
        if transition.kind is TransitionKind.INTRANODE_MIGRATION and stage_row(transition).reads is Selector.NEXT:
            return _first(new, old)
        return _first(old, new)

    def shards_for_writes(self, token: int) -> tuple[ShardNumber, ...]:
        number = self.tablets.number_of(token)
        replicas = self.tablets.replicas(number)
        transition = self.tablets.transition(number)
        if transition is None:
            return (_first(_shard_on(self.host, replicas), None),)
        old = _shard_on(self.host, replicas)
        new = _shard_on(self.host, transition.new_replicas)
        if old == new or transition.kind is not TransitionKind.INTRANODE_MIGRATION:
            return (_first(old, new),)
        assert old is not None, "an intranode migration stays on its host"
        assert new is not None, "an intranode migration stays on its host"
        match stage_row(transition).writes:
            case Selector.PREVIOUS:
                return (old,)
            case Selector.BOTH:
                return (new, old)
            case Selector.NEXT:
                return (new,)


def sharder_for(snapshot: Snapshot, table: TableId, host: HostId) -> Sharder:
    """The sharder of this version."""
    tablets = snapshot.tablets.get(table)
    if tablets is not None:
        return TabletSharder(tablets, host)
    assert not snapshot.on_tablets(table), "a table on tablets is not routed by its tokens alone"
    node = snapshot.node(host)
    return StaticSharder(node.shard_count, node.ignore_msb)


def has_replica(tablets: TabletMap, number: int, replica: Replica) -> bool:
    """Whether this shard has, is gaining or has yet to drop the tablet. Says nothing about routing."""
    if replica in tablets.replicas(number):
        return True
    transition = tablets.transition(number)
    return transition is not None and replica in transition.new_replicas


def _shard_on(host: HostId, replicas: ReplicaSet) -> ShardNumber | None:
    for replica in replicas:
        if replica.host == host:
            return replica.shard
    return None


def _first(preferred: ShardNumber | None, other: ShardNumber | None) -> ShardNumber:
    if preferred is not None:
        return preferred
    return other if other is not None else NO_REPLICA_SHARD
