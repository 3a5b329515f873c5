"""Events pushed to drivers: schema changes, and nodes that join, leave, go down or come up.

Every shard pushes events to its own connections, from the difference between two views. A change that was reverted
between two views is not reported, and no event is sent twice: a driver reads the new state on its own.
"""

import ipaddress
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ebla.feed.topology_view import View
from ebla.model.identity import HostId, TableId
from ebla.model.schema import TableSchema
from ebla.topology.snapshot import Node, Snapshot
from ebla.wire.cql.messages import SchemaChangeKind, SchemaChangeResult
from ebla.wire.cql.responses import EventKind, NodeChange, node_event, schema_event


@dataclass(frozen=True, slots=True)
class CqlEvent:
    kind: EventKind
    body: bytes


class EventSubscriber(Protocol):
    def push_event(self, body: bytes) -> None: ...


class EventPublisher:
    """The subscribers, and the view they have been notified of."""

    def __init__(self, cql_port: int) -> None:
        self._port = cql_port
        self._subscribers: dict[EventKind, dict[EventSubscriber, None]] = {kind: {} for kind in EventKind}
        self._view: View | None = None
        self._down: frozenset[HostId] = frozenset()

    def subscribe(self, subscriber: EventSubscriber, kinds: Collection[EventKind]) -> None:
        for kind in kinds:
            self._subscribers[kind][subscriber] = None

    def forget(self, subscriber: EventSubscriber) -> None:
        for subscribers in self._subscribers.values():
            subscribers.pop(subscriber, None)

    def publish_changes(self, view: View, down: frozenset[HostId]) -> None:
        """Notifies subscribers of the differences to the previous view. The first view causes no event."""
        before, was_down = self._view, self._down
        self._view, self._down = view, down
        if before is None or (view is before and down == was_down):
            return
        for event in self._events(before, was_down):
            for subscriber in list(self._subscribers[event.kind]):
                subscriber.push_event(event.body)

    def _events(self, before: View, was_down: frozenset[HostId]) -> Iterator[CqlEvent]:
        view = self._view
        assert view is not None
        if view is not before:
            yield from (
                CqlEvent(EventKind.SCHEMA_CHANGE, schema_event(change)) for change in schema_changes(before, view)
            )
        changes = node_changes(before.snapshot, was_down, view.snapshot, self._down)
        for change, node in changes:
            yield CqlEvent(change.kind, node_event(change, ipaddress.ip_address(node.address).packed, self._port))


def schema_changes(before: View, after: View) -> Sequence[SchemaChangeResult]:
    """Created keyspaces come before their tables, dropped ones after them."""
    was, now = before.snapshot, after.snapshot
    changes: list[SchemaChangeResult] = []
    if was.keyspaces is not now.keyspaces:
        for name in sorted(now.keyspaces):
            if name not in was.keyspaces:
                changes.append(SchemaChangeResult(SchemaChangeKind.CREATED, name))
            elif was.keyspaces[name] != now.keyspaces[name]:
                changes.append(SchemaChangeResult(SchemaChangeKind.UPDATED, name))
    if was.tables is not now.tables:
        changes += _table_changes(_by_name(before), _by_name(after))
    if was.keyspaces is not now.keyspaces:
        gone = sorted(name for name in was.keyspaces if name not in now.keyspaces)
        changes += [SchemaChangeResult(SchemaChangeKind.DROPPED, name) for name in gone]
    return changes


_Named = dict[tuple[str, str], tuple[TableId, TableSchema | None]]


def _by_name(view: View) -> _Named:
    tables = view.snapshot.tables.values()
    return {(table.keyspace, table.name): (table.id, view.schemas.get(table.id)) for table in tables}


def _table_changes(was: _Named, now: _Named) -> Iterator[SchemaChangeResult]:
    for keyspace, name in sorted(was.keys() | now.keys()):
        before, after = was.get((keyspace, name)), now.get((keyspace, name))
        if before is None:
            yield SchemaChangeResult(SchemaChangeKind.CREATED, keyspace, name)
        elif after is None:
            yield SchemaChangeResult(SchemaChangeKind.DROPPED, keyspace, name)
        elif before != after:
            # Also if only the id changed, as by TRUNCATE: the id is a column of the table's row.
            yield SchemaChangeResult(SchemaChangeKind.UPDATED, keyspace, name)


def node_changes(
    was: Snapshot, was_down: Collection[HostId], now: Snapshot, now_down: Collection[HostId]
) -> Iterator[tuple[NodeChange, Node]]:
    for host in sorted(was.nodes.keys() | now.nodes.keys()):
        before, after = _serving(was, host), _serving(now, host)
        if after is None:
            if before is not None:
                yield NodeChange.REMOVED_NODE, before
        elif before is None:
            yield NodeChange.NEW_NODE, after
            if host not in now_down:
                yield NodeChange.UP, after
        elif (host in was_down) != (host in now_down):
            yield NodeChange.DOWN if host in now_down else NodeChange.UP, after


def _serving(snapshot: Snapshot, host: HostId) -> Node | None:
    node = snapshot.nodes.get(host)
    return node if node is not None and node.takes_clients else None
