"""Which hosts become replicas of vnode ranges that nobody streams to them."""

from ebla.model.identity import HostId
from ebla.topology.routing.replica_sets import VnodeRings
from ebla.topology.routing.replication_strategies import RingReplicas
from ebla.topology.snapshot import Keyspace, Replication, Snapshot


def hosts_without_rows(snapshot: Snapshot) -> tuple[HostId, ...]:
    """The hosts that gain a range by the running operation and are no pending replicas in it. By host id."""
    suspects = snapshot.hosts_not_pending
    if not suspects:
        return ()
    rings, found = VnodeRings(snapshot), dict[HostId, None]()
    for replication in snapshot.vnode_replications():
        before, after = rings.previous(replication).vnodes, rings.after(replication).vnodes
        found |= dict.fromkeys(_gaining(before, after, suspects))
    return tuple(sorted(found))


def excluded_hosts_gaining(snapshot: Snapshot, old: Replication, keyspace: Keyspace) -> tuple[HostId, ...]:
    """The excluded hosts that gain a range of this keyspace when its replication changes. By host id."""
    has_rows = any(table.keyspace == keyspace.name for table in snapshot.tables.values())
    excluded = snapshot.excluded_hosts
    if keyspace.on_tablets or not has_rows or not excluded:
        return ()
    rings = VnodeRings(snapshot)
    before, after = rings.previous(old).vnodes, rings.previous(keyspace.replication).vnodes
    return tuple(sorted(dict.fromkeys(_gaining(before, after, excluded))))


def _gaining(before: RingReplicas, after: RingReplicas, suspects: tuple[HostId, ...]) -> list[HostId]:
    ends = sorted({*before.ring.tokens, *after.ring.tokens})
    return [
        host for end in ends for host in after.hosts_of(end) if host in suspects and host not in before.hosts_of(end)
    ]
