"""The topology in the form of Scylla's tables: nodes, requests, tablets, and which node serves which range."""

import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ebla.cql.plan.functions import timeuuid_of
from ebla.cql.system_tables.node_info import SystemTableSources, address_of, ring_members
from ebla.cql.system_tables.table_definition import SystemRow, system_table
from ebla.feed.topology_view import View
from ebla.model.identity import HostId
from ebla.topology.snapshot import GlobalRequest, Node, NodeRequest, Snapshot
from ebla.topology.tablet_map import ReplicaSet, TabletMap

# ---- nodes and requests


@system_table(
    """CREATE TABLE system.topology (
        key text,
        host_id uuid,
        datacenter text,
        ignore_msb int,
        node_state text,
        num_tokens int,
        rack text,
        rebuild_option text,
        release_version text,
        replaced_id uuid,
        ignore_nodes set<uuid>,
        shard_count int,
        tokens set<text>,
        incomplete boolean,
        topology_request text,
        request_id uuid,
        supported_features set<text>,
        transition_state text static,
        committed_cdc_generations set<frozen<tuple<timestamp, timeuuid>>> static,
        unpublished_cdc_generations set<frozen<tuple<timestamp, timeuuid>>> static,
        global_topology_request text static,
        global_topology_request_id timeuuid static,
        new_cdc_generation_data_uuid timeuuid static,
        new_keyspace_rf_change_ks_name text static,
        new_keyspace_rf_change_data frozen<map<text, text>> static,
        version bigint static,
        fence_version bigint static,
        session uuid static,
        enabled_features set<text> static,
        tablet_balancing_enabled boolean static,
        upgrade_state text static,
        PRIMARY KEY (key, host_id)
    )""",
    "nodes of the cluster and the topology operation in progress",
)
def topology(sources: SystemTableSources) -> Iterable[SystemRow]:
    snapshot = sources.snapshot
    shared = _shared_columns(snapshot)
    for host in sorted(snapshot.nodes):
        yield {**shared, **_node_columns(snapshot, snapshot.nodes[host]), "key": "topology"}


@system_table(
    """CREATE TABLE system.topology_requests (
        id uuid PRIMARY KEY,
        done boolean,
        end_time timestamp,
        error text,
        ignore_nodes set<uuid>,
        initiating_host uuid,
        new_keyspace_rf_change_data frozen<map<text, text>>,
        new_keyspace_rf_change_ks_name text,
        outcome text,
        rebuild_option text,
        replaced_id uuid,
        request_type text,
        start_time timestamp,
        target_host uuid
    )""",
    "topology requests and their outcomes",
)
def requests(sources: SystemTableSources) -> Iterable[SystemRow]:
    snapshot = sources.snapshot
    for one in snapshot.node_requests.values():
        yield {
            **_request_row(one, one.host),
            "ignore_nodes": list(one.ignored_nodes) or None,
            "rebuild_option": one.rebuild_source,
            "replaced_id": one.replaced,
        }
    for change in snapshot.global_requests.values():
        yield {
            **_request_row(change, None),
            "new_keyspace_rf_change_ks_name": change.keyspace or None,
            "new_keyspace_rf_change_data": _factors(change),
        }


@system_table(
    """CREATE TABLE system.cluster_status (
        peer inet PRIMARY KEY,
        dc text,
        excluded boolean,
        host_id uuid,
        incomplete boolean,
        owns float,
        rack text,
        shards int,
        status text,
        tokens int,
        up boolean
    )""",
    "the nodes as this node sees them",
)
def cluster_status(sources: SystemTableSources) -> Iterable[SystemRow]:
    snapshot, down = sources.snapshot, sources.view.down
    nodes = ring_members(snapshot)
    owned = sum(len(node.tokens) for node in nodes) or 1
    for node in nodes:
        yield {
            "peer": address_of(node),
            "dc": node.datacenter,
            "rack": node.rack,
            "host_id": node.host,
            "excluded": node.host in snapshot.excluded_hosts,
            "incomplete": node.is_incomplete,
            "owns": len(node.tokens) / owned,
            "shards": node.shard_count,
            "status": node.state.upper(),
            "tokens": len(node.tokens),
            "up": node.host not in down,
        }


# ---- ranges


@system_table(
    """CREATE TABLE system.tablets (
        table_id uuid,
        last_token bigint,
        keyspace_name text static,
        table_name text static,
        tablet_count int static,
        resize_type text static,
        resize_seq_number bigint static,
        replicas frozen<list<frozen<tuple<uuid, int>>>>,
        new_replicas frozen<list<frozen<tuple<uuid, int>>>>,
        stage text,
        transition text,
        session uuid,
        repair_time timestamp,
        PRIMARY KEY (table_id, last_token)
    )""",
    "the replicas of every tablet",
)
def tablets(sources: SystemTableSources) -> Iterable[SystemRow]:
    snapshot = sources.snapshot
    for table_id, tablets in snapshot.tablets.items():
        table = snapshot.tables[table_id]
        shared = {
            "table_id": table_id,
            "keyspace_name": table.keyspace,
            "table_name": table.name,
            "tablet_count": tablets.tablet_count,
            "resize_type": tablets.resize.kind,
            "resize_seq_number": tablets.resize.number,
        }
        yield from ({**shared, **row} for row in _tablet_rows(tablets))


@system_table(
    """CREATE TABLE system.token_ring (
        keyspace_name text,
        table_name text,
        start_token text,
        endpoint inet,
        dc text,
        end_token text,
        rack text,
        PRIMARY KEY (keyspace_name, table_name, start_token, endpoint)
    )""",
    "the nodes of every token range",
)
def token_ring(sources: SystemTableSources) -> Iterable[SystemRow]:
    view = sources.view.current
    for table_id, table in view.snapshot.tables.items():
        replicas = view.sets.of(table_id)
        for node in ring_members(view.snapshot):
            for token_range in replicas.ranges_of(node.host):
                yield {
                    "keyspace_name": table.keyspace,
                    "table_name": table.name,
                    "start_token": str(token_range.start),
                    "end_token": str(token_range.end),
                    "endpoint": address_of(node),
                    "dc": node.datacenter,
                    "rack": node.rack,
                }


# ---- group 0


@system_table(
    """CREATE TABLE system.group0_history (
        key text,
        state_id timeuuid,
        description text,
        PRIMARY KEY (key, state_id)
    ) WITH CLUSTERING ORDER BY (state_id DESC)""",
    "versions of the topology that this shard has installed",
)
def group0_history(sources: SystemTableSources) -> Iterable[SystemRow]:
    for wall_us, version, words in sources.history():
        state = timeuuid_of(wall_us, b"\0" * 4 + version.to_bytes(4))
        yield {"key": "history", "state_id": uuid.UUID(bytes=state), "description": words}


@system_table(
    """CREATE TABLE system.raft_state (
        group_id uuid,
        disposition text,
        server_id uuid,
        can_vote boolean,
        role text,
        PRIMARY KEY (group_id, disposition, server_id)
    )""",
    "members of group 0",
)
async def raft_state(sources: SystemTableSources) -> Iterable[SystemRow]:
    group0 = (await sources.status()).group0
    if group0 is None:
        return []
    return [
        {
            "group_id": group0.history,
            "disposition": "CURRENT",
            "server_id": one.member.host,
            "can_vote": one.member.role == "voter",
            "role": str(one.member.role),
        }
        for one in group0.members
        if one.member.present
    ]


TOPOLOGY_TABLES = (topology, requests, tablets, token_ring, cluster_status, group0_history, raft_state)


def _shared_columns(snapshot: Snapshot) -> dict[str, Any]:
    state = snapshot.state
    running = snapshot.global_requests.get(state.global_requests[0]) if state.global_requests else None
    committed = [one for one in snapshot.cdc_generations.values() if one.timestamp_ms is not None]
    pairs = {one.id: (one.timestamp_ms, as_timeuuid(one.id, one.timestamp_ms or 0)) for one in committed}
    unpublished = [pairs[one.id] for one in committed if not one.published]
    return {
        "transition_state": state.transition,
        "committed_cdc_generations": list(pairs.values()) or None,
        "unpublished_cdc_generations": unpublished or None,
        "global_topology_request": None if running is None else str(running.kind),
        "global_topology_request_id": None if running is None else as_timeuuid(running.id, running.start_ms),
        "new_cdc_generation_data_uuid": _maybe_timeuuid(state.new_cdc_generation),
        "new_keyspace_rf_change_ks_name": (running.keyspace or None) if running else None,
        "new_keyspace_rf_change_data": _factors(running),
        "version": state.version,
        "fence_version": state.fence,
        "session": state.session,
        "enabled_features": list(state.enabled_features) or None,
        "tablet_balancing_enabled": state.balancing_enabled,
        "upgrade_state": str(state.upgrade),
    }


def _factors(request: GlobalRequest | None) -> Mapping[str, str] | None:
    if request is None or not request.new_factors:
        return None
    return {name: str(factor) for name, factor in request.new_factors}


def _node_columns(snapshot: Snapshot, node: Node) -> dict[str, Any]:
    request = None if node.request is None else snapshot.node_requests.get(node.request)
    ignored = () if request is None else request.ignored_nodes
    return {
        "host_id": node.host,
        "datacenter": node.datacenter,
        "rack": node.rack,
        "ignore_msb": node.ignore_msb,
        "node_state": str(node.state),
        "num_tokens": node.num_tokens,
        "rebuild_option": node.rebuild_source,
        "release_version": node.release_version,
        "replaced_id": node.replaced,
        "ignore_nodes": list(ignored) or None,
        "shard_count": node.shard_count,
        "tokens": [str(token) for token in node.tokens] or None,
        "incomplete": node.is_incomplete,
        "topology_request": None if request is None else str(request.kind),
        "request_id": node.request,
        "supported_features": list(node.supported_features) or None,
    }


def _request_row(request: NodeRequest | GlobalRequest, target: HostId | None) -> dict[str, Any]:
    return {
        "id": request.id,
        "done": not request.is_open,
        "end_time": request.end_ms,
        "error": request.error or None,
        "initiating_host": request.initiator,
        "outcome": str(request.outcome),
        "request_type": str(request.kind),
        "start_time": request.start_ms,
        "target_host": target,
    }


def _tablet_rows(tablets: TabletMap) -> Iterator[dict[str, Any]]:
    for number in range(tablets.tablet_count):
        transition = tablets.transition(number)
        row: dict[str, Any] = {
            "last_token": tablets.last_token(number),
            "replicas": _replica_pairs(tablets.replicas(number)),
        }
        if transition is not None:
            row |= {
                "new_replicas": _replica_pairs(transition.new_replicas),
                "stage": str(transition.stage),
                "transition": str(transition.kind),
                "session": transition.session,
            }
        yield row


def _replica_pairs(replicas: ReplicaSet) -> list[tuple[HostId, int]]:
    return [(replica.host, replica.shard) for replica in replicas]


def as_timeuuid(identity: uuid.UUID, timestamp_ms: int) -> uuid.UUID:
    """An id as a timeuuid, the type in Scylla's tables: unchanged, or made from a time and its last bytes."""
    if identity.version == 1:
        return identity
    return uuid.UUID(bytes=timeuuid_of(timestamp_ms * 1000, identity.bytes[8:]))


def _maybe_timeuuid(identity: uuid.UUID | None) -> uuid.UUID | None:
    return None if identity is None else as_timeuuid(identity, 0)


VERSIONS_KEPT_MAX = 200


class VersionHistory:
    def __init__(self) -> None:
        self._versions: deque[tuple[int, int, str]] = deque(maxlen=VERSIONS_KEPT_MAX)
        self._before: Snapshot | None = None

    def record(self, view: View, wall_us: int) -> None:
        before, self._before = self._before, view.snapshot
        if before is None or before.version != view.version:
            self._versions.append((wall_us, int(view.version), _description(before, view.snapshot)))

    def rows(self) -> Iterable[tuple[int, int, str]]:
        return tuple(self._versions)


def _description(before: Snapshot | None, after: Snapshot) -> str:
    if before is None:
        return f"version {after.version}, as this shard found it"
    parts = [
        f"{len(here)} {what}" if len(here) != len(there) else f"{what} changed"
        for what, there, here in (
            ("nodes", before.nodes, after.nodes),
            ("keyspaces", before.keyspaces, after.keyspaces),
            ("tables", before.tables, after.tables),
            ("sessions", before.sessions, after.sessions),
        )
        if there is not here
    ]
    if before.tablets is not after.tablets:
        parts.append("tablets changed")
    if before.transition is not after.transition:
        parts.append(f"in {after.transition or 'rest'}")
    return f"version {after.version}: {', '.join(parts) or 'a step'}"
