"""Replicas of a new table's tablets: over racks, nodes and shards, in proportion to capacity.

Greedy, one tablet at a time: each replica goes to a rack that has fewest of this tablet, there to the node that would
be least full of this table, there to its emptiest shard. Heaps keep that at a few comparisons per replica, however
many nodes there are. The outcome depends on the snapshot and the capacities alone.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ebla.model.errors import InvalidRequest, Refused
from ebla.model.identity import HostId, Replica, ShardNumber
from ebla.topology.request_queue import LEAVING_KINDS
from ebla.topology.snapshot import Keyspace, Node, Snapshot, Table
from ebla.topology.states import NodeState, Strategy
from ebla.topology.tablet_map import TABLETS_PER_COMMIT_MAX, ReplicaSet


@dataclass(frozen=True, slots=True)
class PlacementRules:
    tablets_per_shard: int = 10
    """Of a table whose options name no count."""
    distinct_racks: bool = False
    """Refuse to put two replicas of a tablet into one rack, rather than do so where racks are too few."""


@dataclass(frozen=True, slots=True)
class Capacities:
    """Bytes per node, where known. A node of unknown capacity counts as average."""

    bytes_by_host: Mapping[HostId, int] = field(default_factory=dict)

    def of(self, host: HostId) -> float:
        known = self.bytes_by_host.get(host)
        if known:
            return float(known)
        values = [value for value in self.bytes_by_host.values() if value]
        return sum(values) / len(values) if values else 1.0


def place_new_table(
    snapshot: Snapshot, table: Table, capacities: Capacities, rules: PlacementRules
) -> tuple[ReplicaSet, ...]:
    """Replicas of every tablet, by number. Raises `InvalidRequest` or `Refused` where the cluster cannot hold them."""
    keyspace = snapshot.keyspaces[table.keyspace]
    if keyspace.replication.strategy is not Strategy.NETWORK_TOPOLOGY:
        raise InvalidRequest(f"keyspace {keyspace.name} is on tablets, which need NetworkTopologyStrategy")
    nodes = list(placeable_nodes(snapshot))
    for datacenter, factor in keyspace.replication.factors:
        _check_room([node for node in nodes if node.datacenter == datacenter], (datacenter, factor), rules)
    existing = _existing_load(snapshot)
    pools = [
        (_Pool([node for node in nodes if node.datacenter == datacenter], capacities, existing), factor)
        for datacenter, factor in keyspace.replication.factors
        if factor
    ]
    count = initial_tablet_count(keyspace, table, nodes, rules)
    return tuple(tuple(replica for pool, factor in pools for replica in pool.take(factor)) for _ in range(count))


def placeable_nodes(snapshot: Snapshot) -> Iterable[Node]:
    """Nodes that accept new tablets: in the cluster, not ignored, and not requested to leave."""
    for node in snapshot.nodes_in(NodeState.NORMAL, NodeState.REBUILDING):
        request = snapshot.request_of(node)
        going = request is not None and request.kind in LEAVING_KINDS
        if not going and node.host not in snapshot.state.ignored_nodes:
            yield node


def initial_tablet_count(keyspace: Keyspace, table: Table, nodes: Iterable[Node], rules: PlacementRules) -> int:
    """The count from the options, or enough for every shard to have its share; rounded up to a power of two."""
    wanted = max(keyspace.initial_tablets, table.min_tablet_count)
    if not wanted:
        shards: dict[str, int] = {}
        for node in nodes:
            shards[node.datacenter] = shards.get(node.datacenter, 0) + node.shard_count
        wanted = max(
            shards[datacenter] * rules.tablets_per_shard // factor
            for datacenter, factor in keyspace.replication.factors
            if factor
        )
    return min(1 << max(wanted - 1, 0).bit_length(), TABLETS_PER_COMMIT_MAX)


def _check_room(nodes: list[Node], wanted: tuple[str, int], rules: PlacementRules) -> None:
    datacenter, factor = wanted
    if len(nodes) < factor:
        raise Refused(
            f"{factor} replicas are asked for in {datacenter}, which has {len(nodes)} nodes that take tablets",
            advice="add nodes, or lower the replication factor",
        )
    racks = len({node.rack for node in nodes})
    if rules.distinct_racks and racks < factor:
        raise Refused(
            f"{factor} replicas in different racks are asked for in {datacenter}, which has {racks} racks",
            advice="add nodes in another rack, or lower the replication factor",
        )


def _existing_load(snapshot: Snapshot) -> dict[Replica, int]:
    """Replicas per shard of all tables there are."""
    load: dict[Replica, int] = {}
    for tablets in snapshot.tablets.values():
        for replicas in tablets.replica_sets():
            for replica in replicas:
                load[replica] = load.get(replica, 0) + 1
    return load


@dataclass(slots=True, kw_only=True)
class _Room:
    """One node while a table is placed."""

    node: Node
    capacity: float
    others: int
    """Replicas of other tables."""
    shards: list[tuple[int, int, int]]
    """A heap of (replicas of this table, of others, shard)."""
    taken: int = 0

    @property
    def fullness(self) -> tuple[float, float, HostId]:
        """How full it would be with one more replica, of this table first; host ids break ties the same way on every
        node."""
        return (self.taken + 1) / self.capacity, (self.others + self.taken + 1) / self.capacity, self.node.host

    def take(self) -> Replica:
        own, others, shard = self.shards[0]
        heapq.heapreplace(self.shards, (own + 1, others, shard))
        self.taken += 1
        return Replica(self.node.host, ShardNumber(shard))


_RackHeap = list[tuple[tuple[float, float, HostId], _Room]]


class _Pool:
    """The nodes of one datacenter, by rack, the least full of each rack first."""

    def __init__(self, nodes: list[Node], capacities: Capacities, existing: Mapping[Replica, int]) -> None:
        self._racks: dict[str, _RackHeap] = {}
        for node in nodes:
            shards = [
                (0, existing.get(Replica(node.host, ShardNumber(shard)), 0), shard) for shard in range(node.shard_count)
            ]
            heapq.heapify(shards)
            room = _Room(
                node=node,
                capacity=capacities.of(node.host),
                others=sum(others for _, others, _ in shards),
                shards=shards,
            )
            heapq.heappush(self._racks.setdefault(node.rack, []), (room.fullness, room))

    def take(self, factor: int) -> Iterable[Replica]:
        """Replicas of one tablet, on distinct nodes."""
        used = dict.fromkeys(self._racks, 0)
        taken: list[tuple[str, _Room]] = []
        for _ in range(factor):
            rack = min(
                (name for name, heap in self._racks.items() if heap),
                key=lambda name: (used[name], self._racks[name][0][0]),
            )
            _, room = heapq.heappop(self._racks[rack])
            used[rack] += 1
            taken.append((rack, room))
        replicas = [room.take() for _, room in taken]
        for rack, room in taken:
            heapq.heappush(self._racks[rack], (room.fullness, room))
        return replicas
