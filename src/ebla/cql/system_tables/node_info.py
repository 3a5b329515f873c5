"""What system tables are made from, and what a node tells drivers about itself."""

import hashlib
import ipaddress
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebla.feed.topology_view import TopologyView, View
from ebla.model.identity import HostId
from ebla.topology.snapshot import Node, Snapshot
from ebla.topology.states import NodeState
from ebla.wire.cql.compression import KNOWN
from ebla.wire.cql.frames import VERSION, VERSION_OLDEST
from ebla.wire.verbs import StatusAnswer

CQL_VERSION = "3.4.7"
PROTOCOL_VERSION = "4"
RELEASE_VERSION = "5.0.0"
"""The version of Cassandra that drivers assume: which tables to read, and that the server executes DESCRIBE."""
PARTITIONER = "org.apache.cassandra.dht.Murmur3Partitioner"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemTableSources:
    view: TopologyView
    host: HostId
    cluster_name: str
    release: str
    """The version of Ebla."""
    cql_port: int
    clients: Callable[[], Iterable[Mapping[str, Any]]]
    """Rows of `system.clients`."""
    config: Callable[[], Iterable[tuple[str, str, str]]]
    """The options of the node: name, value and origin."""
    status: Callable[[], Awaitable[StatusAnswer]]
    """The status from the control process: group 0 and peers."""
    history: Callable[[], Iterable[tuple[int, int, str]]]
    """Topology versions: wall time, number, and description."""

    @property
    def snapshot(self) -> Snapshot:
        return self.view.current.snapshot


def address_of(node: Node) -> str:
    """The IP address of a node, without a port."""
    return str(ipaddress.ip_address(node.address))


def ring_members(snapshot: Snapshot) -> list[Node]:
    """With those that are about to join the ring."""
    return [node for node in snapshot.members() if node.state is not NodeState.NONE]


def serving_nodes(snapshot: Snapshot) -> list[Node]:
    """The nodes that drivers may connect to: not one that joins, nor one that has left the ring."""
    return [node for node in snapshot.members() if node.takes_clients]


def schema_version(view: View) -> uuid.UUID:
    """Equal on all nodes with the same schema: drivers wait until all nodes agree."""
    digest = hashlib.md5(usedforsecurity=False)
    snapshot = view.snapshot
    for name in sorted(snapshot.keyspaces):
        keyspace = snapshot.keyspaces[name]
        digest.update(f"{name} {keyspace.replication} {keyspace.durable_writes} {keyspace.on_tablets}\n".encode())
    for table in sorted(snapshot.tables):
        digest.update(table.bytes)
        digest.update(snapshot.tables[table].definition)
    return uuid.UUID(bytes=digest.digest(), version=3)


SHARDING_ALGORITHM = "biased-token-round-robin"
TABLET_ROUTING = "TABLETS_ROUTING_V1"


def supported_options(
    *, shard: int, shard_count: int, ignore_msb: int, shard_aware_port: int, is_tls: bool = False
) -> Mapping[str, Sequence[str]]:
    """Also how drivers find the shard of a token in a table without tablets. A connection to the shard-aware port from
    client port p goes to shard p modulo the number of shards."""
    port_key = "SCYLLA_SHARD_AWARE_PORT_SSL" if is_tls else "SCYLLA_SHARD_AWARE_PORT"
    return {
        "CQL_VERSION": (CQL_VERSION,),
        "COMPRESSION": tuple(KNOWN),
        "PROTOCOL_VERSIONS": tuple(f"{version}/v{version}" for version in range(VERSION_OLDEST, VERSION + 1)),
        "SCYLLA_SHARD": (str(shard),),
        "SCYLLA_NR_SHARDS": (str(shard_count),),
        "SCYLLA_PARTITIONER": (PARTITIONER,),
        "SCYLLA_SHARDING_ALGORITHM": (SHARDING_ALGORITHM,),
        "SCYLLA_SHARDING_IGNORE_MSB": (str(ignore_msb),),
        port_key: (str(shard_aware_port),),
        TABLET_ROUTING: ("",),
    }
