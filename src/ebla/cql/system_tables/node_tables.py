"""The node and its peers, which drivers read when they connect; clients and options."""

import uuid
from collections.abc import Iterable

from ebla.cql.system_tables.node_info import (
    CQL_VERSION,
    PARTITIONER,
    PROTOCOL_VERSION,
    RELEASE_VERSION,
    SystemTableSources,
    address_of,
    schema_version,
    serving_nodes,
)
from ebla.cql.system_tables.table_definition import SystemRow, empty_table, system_table
from ebla.topology.snapshot import Node

CONTROL_PORT = 7000


@system_table(
    """CREATE TABLE system.local (
        key text PRIMARY KEY,
        bootstrapped text,
        broadcast_address inet,
        broadcast_port int,
        cluster_name text,
        cql_version text,
        data_center text,
        gossip_generation int,
        host_id uuid,
        listen_address inet,
        listen_port int,
        native_protocol_version text,
        partitioner text,
        rack text,
        release_version text,
        rpc_address inet,
        rpc_port int,
        schema_version uuid,
        supported_features text,
        tokens set<text>,
        truncated_at map<uuid, blob>
    )""",
    "information about the local node",
)
def local(sources: SystemTableSources) -> Iterable[SystemRow]:
    view = sources.view.current
    node = view.snapshot.nodes.get(sources.host)
    if node is None:
        return
    address = address_of(node)
    yield {
        **_described(node, schema_version(view)),
        "key": "local",
        "bootstrapped": "COMPLETED",
        "broadcast_address": address,
        "broadcast_port": CONTROL_PORT,
        "cluster_name": sources.cluster_name,
        "cql_version": CQL_VERSION,
        "gossip_generation": 0,
        "listen_address": address,
        "listen_port": CONTROL_PORT,
        "native_protocol_version": PROTOCOL_VERSION,
        "partitioner": PARTITIONER,
        "rpc_address": address,
        "rpc_port": sources.cql_port,
    }


def _described(node: Node, version: uuid.UUID) -> dict[str, object]:
    return {
        "data_center": node.datacenter,
        "rack": node.rack,
        "host_id": node.host,
        "release_version": RELEASE_VERSION,
        "schema_version": version,
        "supported_features": ",".join(node.supported_features),
        "tokens": [str(token) for token in sorted(node.tokens)] or None,
    }


def _others(sources: SystemTableSources) -> Iterable[tuple[Node, dict[str, object]]]:
    view = sources.view.current
    version = schema_version(view)
    for node in serving_nodes(view.snapshot):
        if node.host != sources.host:
            yield node, _described(node, version)


@system_table(
    """CREATE TABLE system.peers (
        peer inet PRIMARY KEY,
        data_center text,
        host_id uuid,
        preferred_ip inet,
        rack text,
        release_version text,
        rpc_address inet,
        schema_version uuid,
        supported_features text,
        tokens set<text>
    )""",
    "information about known peers in the cluster",
)
def peers(sources: SystemTableSources) -> Iterable[SystemRow]:
    for node, row in _others(sources):
        address = address_of(node)
        yield {**row, "peer": address, "preferred_ip": address, "rpc_address": address}


@system_table(
    """CREATE TABLE system.peers_v2 (
        peer inet,
        peer_port int,
        data_center text,
        host_id uuid,
        native_address inet,
        native_port int,
        preferred_ip inet,
        preferred_port int,
        rack text,
        release_version text,
        schema_version uuid,
        tokens set<text>,
        PRIMARY KEY (peer, peer_port)
    )""",
    "information about known peers in the cluster",
)
def peers_v2(sources: SystemTableSources) -> Iterable[SystemRow]:
    for node, row in _others(sources):
        address = address_of(node)
        yield {
            **row,
            "peer": address,
            "peer_port": CONTROL_PORT,
            "native_address": address,
            "native_port": sources.cql_port,
            "preferred_ip": address,
            "preferred_port": CONTROL_PORT,
        }


@system_table(
    "CREATE TABLE system.config (name text PRIMARY KEY, source text, type text, value text)",
    "the options of this node",
)
def config(sources: SystemTableSources) -> Iterable[SystemRow]:
    for name, value, source in sources.config():
        yield {"name": name, "value": value, "source": source, "type": "text"}


@system_table(
    "CREATE TABLE system.versions (key text PRIMARY KEY, build_id text, build_mode text, version text)",
    "the release of this node",
)
def versions(sources: SystemTableSources) -> Iterable[SystemRow]:
    yield {"key": "local", "version": sources.release, "build_mode": "release", "build_id": ""}


@system_table(
    """CREATE TABLE system.clients (
        address inet,
        port int,
        client_type text,
        connection_stage text,
        driver_name text,
        driver_version text,
        hostname text,
        keyspace_name text,
        protocol_version int,
        scheduling_group text,
        shard_id int,
        ssl_cipher_suite text,
        ssl_enabled boolean,
        ssl_protocol text,
        username text,
        PRIMARY KEY (address, port, client_type)
    )""",
    "clients connected to this shard",
)
def clients(sources: SystemTableSources) -> Iterable[SystemRow]:
    return sources.clients()


NODE_TABLES = (
    local,
    peers,
    peers_v2,
    clients,
    config,
    versions,
    empty_table(
        """CREATE TABLE system.size_estimates (
        keyspace_name text, table_name text, range_start text, range_end text,
        mean_partition_size bigint, partitions_count bigint,
        PRIMARY KEY (keyspace_name, table_name, range_start, range_end))""",
    ),
    empty_table(
        "CREATE TABLE system.built_views (keyspace_name text, view_name text, PRIMARY KEY (keyspace_name, view_name))"
    ),
)
