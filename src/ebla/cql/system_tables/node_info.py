"""What a node's system tables are made from."""

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


SHARDING_ALGORITHM = "biased-token-round-robin"
TABLET_ROUTING = "TABLETS_ROUTING_V1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingInfo:
    """By which drivers find the shard of a token that is in no tablet."""

    shard: int
    shard_count: int
    ignore_msb: int
    shard_aware_port: int
    """A connection from port p comes to shard p modulo the number of shards."""
    is_tls: bool = False


def supported_options(sharding: ShardingInfo) -> Mapping[str, Sequence[str]]:
    port_key = "SCYLLA_SHARD_AWARE_PORT_SSL" if sharding.is_tls else "SCYLLA_SHARD_AWARE_PORT"
    return {
        "CQL_VERSION": (CQL_VERSION,),
        "COMPRESSION": tuple(KNOWN),
        "PROTOCOL_VERSIONS": tuple(f"{version}/v{version}" for version in range(VERSION_OLDEST, VERSION + 1)),
        "SCYLLA_SHARD": (str(sharding.shard),),
        "SCYLLA_NR_SHARDS": (str(sharding.shard_count),),
        "SCYLLA_PARTITIONER": (PARTITIONER,),
        "SCYLLA_SHARDING_ALGORITHM": (SHARDING_ALGORITHM,),
        "SCYLLA_SHARDING_IGNORE_MSB": (str(sharding.ignore_msb),),
        port_key: (str(sharding.shard_aware_port),),
        TABLET_ROUTING: ("",),
    }
