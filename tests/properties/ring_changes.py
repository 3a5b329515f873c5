"""Rings of one token per node, the operations on one of them, and what routers do in each state of an operation."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import msgspec
from tests.properties.quorum_model import View

from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import HostId, TableId
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.node_states import NODE_TABLE, REQUEST_STARTS, NodeAction, StatePair
from ebla.topology.routing.replica_sets import ReplicaSets
from ebla.topology.snapshot import Keyspace, Node, Replication, Snapshot, Table, TopologyState
from ebla.topology.states import NodeRequestKind, NodeState, Strategy, TransitionState

TABLE = TableId(uuid.UUID(int=7))


def host_id(number: int) -> HostId:
    return HostId(uuid.UUID(int=number))


def node(number: int, rack: str = "r1", **fields: object) -> Node:
    plain = Node(
        host=host_id(number),
        datacenter="dc1",
        rack=rack,
        shard_count=4,
        ignore_msb=12,
        release_version="1",
        address=f"127.0.0.{number}",
        num_tokens=1,
        state=NodeState.NORMAL,
    )
    return msgspec.structs.replace(plain, **fields)


@dataclass(frozen=True)
class RingChange:
    """One operation on the node `SUBJECT` of a ring with one token per node. All rack layouts are tried, and rotating
    the ring changes nothing, so a fixed subject covers all cases."""

    kind: NodeRequestKind
    racks: tuple[str, ...]
    replication: Replication


def rack_layouts(count: int, most: int = 3) -> Iterator[tuple[str, ...]]:
    """Every way to put the nodes into at most `most` racks, up to rack names."""

    def extend(labels: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(labels) == count:
            yield labels
            return
        for label in range(min(max(labels, default=-1) + 2, most)):
            yield from extend((*labels, label))

    return (tuple(f"r{label}" for label in labels) for labels in extend(()))


def ring_changes(factor: int, kind: NodeRequestKind) -> Iterator[RingChange]:
    network = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", factor),))
    simple = Replication(Strategy.SIMPLE, (("", factor),))
    for count in range(2, factor + 2):
        for racks in rack_layouts(count):
            yield RingChange(kind, racks, network)
        yield RingChange(kind, ("r0",) * count, simple)


SUBJECT = 0
REPLACED = 100
"""The host that is being replaced; both have the same token."""


def ring_snapshot(change: RingChange, place: StatePair) -> Snapshot:
    """The cluster while the subject is at this place of the node table."""
    nodes = [node(number, rack, tokens=(number * 10,)) for number, rack in enumerate(change.racks) if number != SUBJECT]
    rack, tokens = change.racks[SUBJECT], (SUBJECT * 10,)
    state = place.state
    assert state is not None
    if change.kind is NodeRequestKind.REPLACE:
        taken_over = state is NodeState.NORMAL
        dead = NodeState.LEFT if taken_over else NodeState.NORMAL
        nodes.append(node(REPLACED, rack, tokens=() if taken_over else tokens, state=dead))
        nodes.append(node(SUBJECT, rack, tokens=_tokens(place, tokens), state=state, replaced=host_id(REPLACED)))
    else:
        nodes.append(node(SUBJECT, rack, tokens=_tokens(place, tokens), state=state))
    return Snapshot(
        state=TopologyState(transition=place.transition),
        nodes=FrozenMap({each.host: each for each in nodes}),
        keyspaces=FrozenMap({"ks": Keyspace(name="ks", replication=change.replication, on_tablets=False)}),
        tables=FrozenMap({TABLE: Table(id=TABLE, keyspace="ks", name="t")}),
    )


def _tokens(place: StatePair, tokens: tuple[int, ...]) -> tuple[int, ...]:
    without = place.state in (NodeState.NONE, NodeState.LEFT) or place.transition is TransitionState.JOIN_GROUP0
    return () if without else tokens


def ring_view(sets: ReplicaSets, token: int) -> View:
    writing = sets.of(TABLE).writing(token)
    reading = sets.of(TABLE).reading(token)
    hosts = {host.int: host.int for host in sets.snapshot.nodes}
    return View(
        write_hosts=tuple(replica.host.int for replica in (*writing.natural, *writing.pending)),
        write_needed=sets.required_write_replies(TABLE, token, ConsistencyLevel.QUORUM, "dc1")[0].count,
        read_hosts=tuple(replica.host.int for replica in reading),
        read_needed=sets.required_read_replies(TABLE, token, ConsistencyLevel.QUORUM, "dc1")[0].count,
        applies={number: (number,) for number in hosts},
        serves=hosts,
        knows=frozenset(hosts),
    )


@cache
def ring_paths(kind: NodeRequestKind) -> tuple[tuple[tuple[StatePair, StatePair, bool, bool], ...], ...]:
    """Every way through the node table: (from, to, after its barrier, streamed)."""

    def walk(at: StatePair) -> Iterator[tuple[tuple[StatePair, StatePair, bool, bool], ...]]:
        row = NODE_TABLE.get((at.state, at.transition))
        if row is None or at.transition is None:
            yield ()
            return
        streamed = row.action is NodeAction.STREAM
        for rest in walk(row.next):
            yield ((at, row.next, row.barrier, streamed), *rest)
        if row.on_failure is not None:
            for rest in walk(row.on_failure):
                yield ((at, row.on_failure, False, False), *rest)

    start = REQUEST_STARTS[kind]
    begin = (StatePair(start.source, None), start.target, False, False)
    return tuple((begin, *rest) for rest in walk(start.target))


def name_of(place: StatePair) -> str:
    return f"{place.state} {place.transition}"


def dead_host(change: RingChange) -> int | None:
    return {NodeRequestKind.REPLACE: REPLACED, NodeRequestKind.REMOVE: SUBJECT}.get(change.kind)
