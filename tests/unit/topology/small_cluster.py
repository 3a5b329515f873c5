"""Small snapshots for the tests of replicas, shards and streams."""

import uuid

import msgspec

from ebla.model.identity import HostId, Replica, RequestId, SessionId, ShardNumber, TableId
from ebla.topology import keys
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Keyspace, Node, Replication, Snapshot, Table, TopologyState
from ebla.topology.snapshot_builder import with_rows
from ebla.topology.states import NodeState, Strategy, TransitionState
from ebla.topology.tablet_map import TabletMap, TabletTransition, tablet_map

TABLE = TableId(uuid.UUID(int=0x7AB1E))
SHARDS = 4
IGNORE_MSB = 12


def host(number: int) -> HostId:
    return HostId(uuid.UUID(int=number))


def session(number: int) -> SessionId:
    return SessionId(uuid.UUID(int=number))


def request_id(number: int) -> RequestId:
    return RequestId(uuid.UUID(int=number))


def replica(number: int, shard: int = 0) -> Replica:
    return Replica(host(number), ShardNumber(shard))


def node(number: int, **fields: object) -> Node:
    plain = Node(
        host=host(number),
        datacenter="dc1",
        rack="r1",
        shard_count=SHARDS,
        ignore_msb=IGNORE_MSB,
        release_version="1",
        address=f"127.0.0.{number}",
        num_tokens=1,
        state=NodeState.NORMAL,
    )
    return msgspec.structs.replace(plain, **fields)


def network(**factors: int) -> Replication:
    return Replication(Strategy.NETWORK_TOPOLOGY, tuple(sorted(factors.items())))


def simple(factor: int) -> Replication:
    return Replication(Strategy.SIMPLE, (("", factor),))


def cluster(
    *nodes: Node,
    replication: Replication | None = None,
    tablets: TabletMap | None = None,
    transition: TransitionState | None = None,
) -> Snapshot:
    """One table, on tablets if a map is given."""
    keyspace = Keyspace(name="ks", replication=replication or network(dc1=3), on_tablets=tablets is not None)
    return Snapshot(
        state=TopologyState(transition=transition),
        nodes=FrozenMap({each.host: each for each in nodes}),
        keyspaces=FrozenMap({"ks": keyspace}),
        tables=FrozenMap({TABLE: Table(id=TABLE, keyspace="ks", name="t")}),
        tablets=FrozenMap() if tablets is None else FrozenMap({TABLE: tablets}),
    )


def one_tablet(*replicas: Replica, transition: TabletTransition | None = None) -> TabletMap:
    tablets = tablet_map(TABLE, [replicas])
    return tablets if transition is None else with_transition(tablets, 0, transition)


def with_transition(tablets: TabletMap, number: int, transition: TabletTransition | None) -> TabletMap:
    """As the feed would change it; None: the transition ends."""
    snapshot = Snapshot(tablets=FrozenMap({tablets.table: tablets}))
    rows = {keys.transition_key(tablets.table, number): transition}
    return with_rows(snapshot, rows).tablets[tablets.table]
