"""What a node's system tables are made from."""

import hashlib
import ipaddress
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ebla.feed.topology_view import TopologyView, View
from ebla.model.identity import HostId
from ebla.topology.snapshot import Node, Snapshot
from ebla.topology.states import NodeState
from ebla.wire.verbs import StatusAnswer

CQL_VERSION = "3.4.7"
PROTOCOL_VERSION = "4"
RELEASE_VERSION = "5.0.0"
"""What drivers take us for: it tells them which tables to look for and that DESCRIBE is done by the server."""
PARTITIONER = "org.apache.cassandra.dht.Murmur3Partitioner"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemTableSources:
    view: TopologyView
    host: HostId
    cluster_name: str
    release: str
    """Ebla's own."""
    cql_port: int
    clients: Callable[[], Iterable[Mapping[str, Any]]]
    """Rows of `system.clients`."""
    config: Callable[[], Iterable[tuple[str, str, str]]]
    """A node's options: name, value and where it comes from."""
    status: Callable[[], Awaitable[StatusAnswer]]
    """What control knows of group 0 and of its peers."""
    history: Callable[[], Iterable[tuple[int, int, str]]]
    """Versions that were seen: wall time, number, and words."""


def address_of(node: Node) -> str:
    """A node's address without a port, as an IP address can be read from it."""
    return str(ipaddress.ip_address(node.address))


def ring_members(snapshot: Snapshot) -> list[Node]:
    """Nodes that drivers may connect to."""
    return [node for node in snapshot.members() if node.state is not NodeState.NONE]


def schema_version(view: View) -> uuid.UUID:
    """The same on every node that has the same schema: drivers wait until they agree."""
    digest = hashlib.md5(usedforsecurity=False)
    snapshot = view.snapshot
    for name in sorted(snapshot.keyspaces):
        keyspace = snapshot.keyspaces[name]
        digest.update(f"{name} {keyspace.replication} {keyspace.durable_writes} {keyspace.on_tablets}\n".encode())
    for table in sorted(snapshot.tables):
        digest.update(table.bytes)
        digest.update(snapshot.tables[table].definition)
    return uuid.UUID(bytes=digest.digest(), version=3)
