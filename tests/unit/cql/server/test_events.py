"""Events: the differences of two views, pushed to subscribers."""

import uuid
from dataclasses import replace

import msgspec
import pytest
from cassandra.protocol import EventMessage
from tests.unit.topology.world import cluster
from tests.unit.wire.cql.responses_rig import event

from ebla.cql.server.events import EventPublisher, node_changes, schema_changes
from ebla.feed.topology_view import View, view_of
from ebla.model.cql_types import SCALARS
from ebla.model.identity import HistoryId, HostId, TableId
from ebla.model.schema import Column, ColumnKind, TableSchema, encode_schema, new_schema
from ebla.model.transaction import Revision
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Keyspace, Node, Replication, Snapshot, Table
from ebla.topology.states import NodeState, Strategy
from ebla.wire.cql.responses import EventKind, NodeChange

COLUMNS = (
    Column(name="a", type=SCALARS["int"], kind=ColumnKind.PARTITION_KEY),
    Column(name="b", type=SCALARS["text"], kind=ColumnKind.REGULAR),
)
FACTORS = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 1),))
NO_HOSTS: frozenset[HostId] = frozenset()


@pytest.fixture(scope="module")
def bare() -> Snapshot:
    world, _ = cluster(3)
    return replace(world.snapshot, keyspaces=FrozenMap(), tables=FrozenMap(), tablets=FrozenMap())


def seen(snapshot: Snapshot, before: View | None = None) -> View:
    return view_of(snapshot, Revision(HistoryId(uuid.UUID(int=1)), int(snapshot.version)), before)


def with_keyspace(snapshot: Snapshot, name: str, *, durable: bool = True) -> Snapshot:
    keyspace = Keyspace(name=name, replication=FACTORS, on_tablets=False, durable_writes=durable)
    return replace(snapshot, keyspaces=snapshot.keyspaces.put(name, keyspace))


def schema_of(name: str, number: int = 1, columns: tuple[Column, ...] = COLUMNS) -> TableSchema:
    return new_schema(TableId(uuid.UUID(int=number)), "ks", name, columns)


def with_table(snapshot: Snapshot, schema: TableSchema) -> Snapshot:
    table = Table(id=schema.id, keyspace="ks", name=schema.name, definition=encode_schema(schema))
    return replace(snapshot, tables=snapshot.tables.put(schema.id, table))


def output(before: Snapshot, after: Snapshot) -> list[str]:
    first = seen(before)
    changes = schema_changes(first, seen(after, first))
    return [f"{change.kind} {change.target} {change.keyspace} {change.table}".strip() for change in changes]


def test_keyspaces_come_change_and_go(bare: Snapshot) -> None:
    first = with_keyspace(bare, "ks")
    assert output(bare, first) == ["CREATED KEYSPACE ks"]
    assert output(first, with_keyspace(first, "ks", durable=False)) == ["UPDATED KEYSPACE ks"]
    assert output(first, bare) == ["DROPPED KEYSPACE ks"]
    assert output(first, with_keyspace(first, "ks")) == []


def test_tables_come_change_and_go_inside_their_keyspace(bare: Snapshot) -> None:
    first = with_table(with_keyspace(bare, "ks"), schema_of("t"))
    assert output(bare, first) == ["CREATED KEYSPACE ks", "CREATED TABLE ks t"]
    assert output(first, bare) == ["DROPPED TABLE ks t", "DROPPED KEYSPACE ks"]
    wider = (*COLUMNS, Column(name="c", type=SCALARS["int"], kind=ColumnKind.REGULAR))
    assert output(first, with_table(first, schema_of("t", columns=wider))) == ["UPDATED TABLE ks t"]
    assert output(first, with_table(first, schema_of("u", 2))) == ["CREATED TABLE ks u"]


def test_a_table_that_was_truncated_has_another_id(bare: Snapshot) -> None:
    first = with_table(with_keyspace(bare, "ks"), schema_of("t", 1))
    again = with_table(with_keyspace(bare, "ks"), schema_of("t", 2))
    assert output(first, again) == ["UPDATED TABLE ks t"]


def in_state(snapshot: Snapshot, node: Node, state: NodeState) -> Snapshot:
    return replace(snapshot, nodes=snapshot.nodes.put(node.host, msgspec.structs.replace(node, state=state)))


def test_nodes_come_and_go(bare: Snapshot) -> None:
    node = next(bare.members())
    coming = in_state(bare, node, NodeState.BOOTSTRAPPING)
    new = [(NodeChange.NEW_NODE, node), (NodeChange.UP, node)]
    assert list(node_changes(coming, NO_HOSTS, bare, NO_HOSTS)) == new
    assert list(node_changes(coming, NO_HOSTS, bare, {node.host})) == new[:1]
    left = in_state(bare, node, NodeState.LEFT)
    assert list(node_changes(bare, NO_HOSTS, left, NO_HOSTS)) == [(NodeChange.REMOVED_NODE, node)]
    assert list(node_changes(left, NO_HOSTS, left, {node.host})) == []


@pytest.mark.parametrize("state", [NodeState.DECOMMISSIONING, NodeState.REMOVING, NodeState.REBUILDING])
def test_a_node_on_its_way_is_still_there(bare: Snapshot, state: NodeState) -> None:
    node = next(bare.members())
    assert list(node_changes(bare, NO_HOSTS, in_state(bare, node, state), NO_HOSTS)) == []


def test_nodes_fall_silent_and_are_back(bare: Snapshot) -> None:
    node = next(bare.members())
    assert list(node_changes(bare, NO_HOSTS, bare, {node.host})) == [(NodeChange.DOWN, node)]
    assert list(node_changes(bare, {node.host}, bare, NO_HOSTS)) == [(NodeChange.UP, node)]
    stranger = HostId(uuid.UUID(int=99))
    assert list(node_changes(bare, NO_HOSTS, bare, {stranger})) == []


class Listener:
    def __init__(self) -> None:
        self.heard: list[EventMessage] = []

    def push_event(self, body: bytes) -> None:
        self.heard.append(event(body))


def test_each_hears_what_it_asked_for_and_nothing_twice(bare: Snapshot) -> None:
    publisher = EventPublisher(9042)
    schema, status = Listener(), Listener()
    publisher.subscribe(schema, [EventKind.SCHEMA_CHANGE])
    publisher.subscribe(status, [EventKind.STATUS_CHANGE, EventKind.TOPOLOGY_CHANGE])
    first = seen(bare)
    publisher.publish_changes(first, NO_HOSTS)
    assert schema.heard == status.heard == []
    second = seen(with_keyspace(bare, "ks"), first)
    host = next(bare.members())
    for _ in range(2):
        publisher.publish_changes(second, frozenset({host.host}))
    (created,) = schema.heard
    assert created.event_args["keyspace"] == "ks"
    (down,) = status.heard
    assert down.event_args == {"change_type": "DOWN", "address": (host.address, 9042)}
    publisher.forget(schema)
    publisher.publish_changes(seen(bare, second), NO_HOSTS)
    assert len(schema.heard) == 1
    assert [heard.event_args["change_type"] for heard in status.heard] == ["DOWN", "UP"]
