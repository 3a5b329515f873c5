"""How many ranges of each keyspace lack live replicas: fewer than a quorum, or none at all."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import msgspec

from ebla.model.identity import HostId
from ebla.topology.routing.replica_sets import VnodeRings
from ebla.topology.routing.vnode_ring import ring_use
from ebla.topology.snapshot import Keyspace, Node, NodeRequest, Snapshot
from ebla.topology.states import NodeRequestKind, NodeState, Strategy
from ebla.topology.tablet_stages import Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyspaceLosses:
    """Of a keyspace with tables."""

    keyspace: str
    unit: str
    """What is counted: vnode ranges, once for the keyspace, or tablets, of all its tables."""
    count: int
    below_quorum: int
    without_replica: int
    """Those of `below_quorum` that have no live replica."""

    def __str__(self) -> str:
        return (
            f"{self.keyspace}: {self.below_quorum} of {self.count} {self.unit} with fewer live replicas than a quorum, "
            f"{self.without_replica} without any"
        )


def keyspace_losses(snapshot: Snapshot, gone: Collection[HostId]) -> tuple[KeyspaceLosses, ...]:
    """Of every keyspace that has ranges with fewer live replicas than a quorum while these hosts are gone, by name."""
    rings = VnodeRings(snapshot)
    names = sorted({table.keyspace for table in snapshot.tables.values()})
    counted = (_count(snapshot, snapshot.keyspaces[name], rings, gone) for name in names)
    return tuple(losses for losses in counted if losses.below_quorum)


def _count(snapshot: Snapshot, keyspace: Keyspace, rings: VnodeRings, gone: Collection[HostId]) -> KeyspaceLosses:
    found = _tablet_replicas(snapshot, keyspace) if keyspace.on_tablets else _range_replicas(snapshot, keyspace, rings)
    live = [(sum(host not in gone for host in hosts), quorum) for hosts, quorum in found]
    return KeyspaceLosses(
        keyspace=keyspace.name,
        unit="tablets" if keyspace.on_tablets else "vnode ranges",
        count=len(live),
        below_quorum=sum(count < quorum for count, quorum in live),
        without_replica=sum(not count for count, _ in live),
    )


def _range_replicas(
    snapshot: Snapshot, keyspace: Keyspace, rings: VnodeRings
) -> Iterator[tuple[tuple[HostId, ...], int]]:
    """The hosts that serve reads of each vnode range, and how many of them are a quorum."""
    ring = rings.previous if ring_use(snapshot).reads is Selector.PREVIOUS else rings.after
    vnodes = ring(keyspace.replication).vnodes
    quorum = keyspace.replication.total // 2 + 1
    for position in range(len(vnodes.ring.tokens)):
        yield vnodes.hosts_at(position), quorum


def _tablet_replicas(snapshot: Snapshot, keyspace: Keyspace) -> Iterator[tuple[tuple[HostId, ...], int]]:
    for table in sorted(snapshot.tablets):
        if snapshot.tables[table].keyspace == keyspace.name:
            for replicas in snapshot.tablets[table].replica_sets():
                yield tuple(replica.host for replica in replicas), len(replicas) // 2 + 1


def concerns_about_removal(snapshot: Snapshot, request: NodeRequest, silent: Collection[HostId]) -> tuple[str, ...]:
    """What an operator should know before a node leaves or is removed, one sentence each. `silent`: the hosts that do
    not answer."""
    if request.kind not in (NodeRequestKind.LEAVE, NodeRequestKind.REMOVE):
        return ()
    gone = {*silent, *snapshot.state.ignored_nodes, *request.ignored_nodes}
    leaving = snapshot.node(request.host)
    if request.kind is NodeRequestKind.REMOVE:
        # Nothing can be read from it, so what counts is who has its ranges now.
        losses = keyspace_losses(snapshot, {*gone, leaving.host})
    else:
        losses = keyspace_losses(_without(snapshot, leaving), gone)
    return (*_keyspaces_short_of_nodes(snapshot, leaving), *(str(one) for one in losses))


def _without(snapshot: Snapshot, node: Node) -> Snapshot:
    """As if it had left, and others had received its ranges."""
    gone = msgspec.structs.replace(node, state=NodeState.LEFT, tokens=())
    return replace(snapshot, nodes=snapshot.nodes.put(node.host, gone))


def _keyspaces_short_of_nodes(snapshot: Snapshot, leaving: Node) -> tuple[str, ...]:
    """The keyspaces on vnodes whose replication factor exceeds the nodes that are left without this one, for people."""
    left = [node for node in snapshot.nodes_in(NodeState.NORMAL) if node.host != leaving.host]
    there = [node for node in left if node.datacenter == leaving.datacenter]
    found: list[str] = []
    for name in sorted(snapshot.keyspaces):
        replication = snapshot.keyspaces[name].replication
        is_simple = replication.strategy is Strategy.SIMPLE
        factor = replication.total if is_simple else replication.factor(leaving.datacenter)
        count, where = (len(left), "") if is_simple else (len(there), f" in {leaving.datacenter}")
        if not snapshot.keyspaces[name].on_tablets and factor > count:
            found.append(f"{name}: replication factor {factor}{where}, and {count} nodes left")
    return tuple(found)
