"""System tables: the columns that drivers and Scylla's document expect, and rows during operations."""

import uuid
from dataclasses import replace

import msgspec
import pytest
from tests.unit.cql.world import NOW_US, Cql
from tests.unit.topology.world import host

from ebla.cql.system_tables.topology_tables import VersionHistory, as_timeuuid, requests, tablets, topology
from ebla.group0.members import Member, MemberRole
from ebla.model.cql_types import freeze, parse_type
from ebla.model.identity import Address, HistoryId
from ebla.model.schema import ColumnKind
from ebla.model.token import TOKEN_MAX
from ebla.topology.commands import ExcludeHosts, SetIgnoredNodes, StartMoves, TabletMove
from ebla.topology.snapshot import Exclusion
from ebla.topology.states import (
    GlobalRequestKind,
    NodeRequestKind,
    NodeState,
    TransitionKind,
    TransitionState,
)
from ebla.wire.group0_messages import Group0Report, MemberReport

SEED_TOPOLOGY = """
    key text
    host_id uuid
    datacenter text
    ignore_msb int
    node_state text
    num_tokens int
    rack text
    rebuild_option text
    release_version text
    replaced_id uuid
    ignore_nodes set<uuid>
    shard_count int
    tokens set<text>
    topology_request text
    transition_state text static
    committed_cdc_generations set<tuple<timestamp, timeuuid>> static
    unpublished_cdc_generations set<tuple<timestamp, timeuuid>> static
    global_topology_request text static
    global_topology_request_id timeuuid static
    new_cdc_generation_data_uuid timeuuid static
    new_keyspace_rf_change_ks_name text static
    new_keyspace_rf_change_data frozen<map<text, text>> static
    upgrade_state text static
"""
"""The table of Scylla's document, and its additional column."""
SEED_STATES = {"none", "bootstrapping", "decommissioning", "removing", "replacing", "rebuilding", "normal", "left"}
SEED_TRANSITIONS = {
    "commit_cdc_generation",
    "write_both_read_old",
    "write_both_read_new",
    "left_token_ring",
    "rollback_to_normal",
    "join_group0",
    "tablet_draining",
    "tablet_migration",
}


@pytest.fixture
def cql() -> Cql:
    made = Cql()
    made.run("CREATE TABLE t (k int PRIMARY KEY) WITH tablets = {'min_tablet_count': 4}")
    return made


# ---- the seed's table


def test_the_topology_has_the_seeds_columns() -> None:
    for line in SEED_TOPOLOGY.strip().splitlines():
        name, kind = line.strip().split(" ", 1)
        column = topology.schema.by_name[name]
        assert freeze(column.type) == freeze(parse_type(kind.removesuffix(" static"))), name
        assert (column.kind is ColumnKind.STATIC) == kind.endswith(" static"), name
    assert [column.name for column in topology.schema.partition_key] == ["key"]
    assert [column.name for column in topology.schema.clustering] == ["host_id"]


def test_states_are_spelled_as_in_the_seed() -> None:
    assert {str(state) for state in NodeState} == SEED_STATES
    assert {str(state) for state in TransitionState} >= SEED_TRANSITIONS


def test_nodes_at_rest(cql: Cql) -> None:
    rows = cql.rows("SELECT key, host_id, node_state, datacenter, rack, shard_count, num_tokens FROM system.topology")
    assert rows == [("topology", host(number), "normal", "dc1", f"r{number % 3}", 2, 4) for number in (1, 2, 3)]
    ((state, request, version, upgrade),) = cql.rows(
        "SELECT DISTINCT transition_state, global_topology_request, version, upgrade_state FROM system.topology "
        "WHERE key = 'topology'"
    )
    assert (state, request, upgrade) == (None, None, "done")
    assert version == cql.view.current.version
    assert all(len(tokens) == 4 for (tokens,) in cql.rows("SELECT tokens FROM system.topology"))


def test_a_join_in_the_middle(cql: Cql) -> None:
    request = cql.topology.ask_to_join(cql.topology.node(4))
    cql.coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    cql.install()
    columns = "node_state, topology_request, request_id, transition_state"
    text = f"SELECT {columns} FROM system.topology WHERE key = 'topology' AND host_id = {host(4)}"
    assert cql.rows(text) == [("bootstrapping", "join", request.id, "write_both_read_old")]
    peers = cql.rows("SELECT host_id FROM system.peers")
    assert (host(4),) not in peers, "drivers must not connect to it yet"
    columns = "done, outcome, request_type, target_host, end_time"
    asked = f"SELECT {columns} FROM system.topology_requests WHERE id = {request.id}"
    ((done, outcome, kind, target, end),) = cql.rows(asked)
    assert (done, kind, target, end) == (False, "join", host(4), None)
    assert outcome != "done"
    cql.coordinator.settle()
    cql.install()
    assert cql.rows(text) == [("normal", None, None, None)]
    ((done, outcome, *_),) = cql.rows(asked)
    assert (done, outcome) == (True, "done")
    assert cql.rows("SELECT count(*) FROM system.peers") == [(3,)]


def test_a_node_leaves_and_stays_in_the_table(cql: Cql) -> None:
    cql.run("DROP TABLE t")
    cql.topology.ask(NodeRequestKind.LEAVE, 3)
    cql.coordinator.settle()
    cql.install()
    states = "SELECT host_id, node_state FROM system.topology"
    assert cql.rows(states)[2] == (host(3), "left")
    assert cql.rows("SELECT host_id FROM system.peers") == [(host(2),)]
    assert cql.rows("SELECT count(*) FROM system.cluster_status") == [(2,)]


def test_a_global_request(cql: Cql) -> None:
    request = cql.topology.ask_global(GlobalRequestKind.KEYSPACE_RF_CHANGE, keyspace="ks", new_factors=(("dc1", 2),))
    cql.install()
    columns = "global_topology_request, new_keyspace_rf_change_ks_name, new_keyspace_rf_change_data"
    assert cql.rows(f"SELECT DISTINCT {columns} FROM system.topology WHERE key = 'topology'") == [
        (str(request.kind), "ks", [("dc1", "2")])
    ]
    ((identity,),) = cql.rows("SELECT DISTINCT global_topology_request_id FROM system.topology WHERE key = 'topology'")
    assert identity == as_timeuuid(request.id, request.start_ms)
    (row,) = cql.rows(
        "SELECT request_type, target_host, new_keyspace_rf_change_data FROM system.topology_requests "
        f"WHERE id = {request.id}"
    )
    assert row == (str(request.kind), None, [("dc1", "2")])


# ---- tablets and ranges


def test_tablets_and_their_transition(cql: Cql) -> None:
    (table,) = cql.view.current.schemas
    text = "SELECT last_token, tablet_count, replicas, new_replicas, stage, transition FROM system.tablets"
    before = cql.rows(text)
    assert [row[1] for row in before] == [4] * 4
    assert before[-1][0] == TOKEN_MAX
    assert all(row[3:] == (None, None, None) for row in before)
    ((old, shard),) = before[0][2]
    new = next(node for node in cql.topology.placeable() if node.host != old)
    replica = cql.topology.snapshot.tablets[table].replicas(0)[0]
    move = TabletMove(
        table=table, tablet=0, kind=TransitionKind.MIGRATION, new_replicas=(type(replica)(new.host, replica.shard),)
    )
    cql.topology.do(StartMoves((move,)))
    cql.install()
    after = cql.rows(text)
    assert after[0][2] == [(old, shard)]
    assert after[0][3] == [(new.host, shard)]
    assert after[0][4:] == ("allow_write_both_read_old", "migration")
    assert after[1:] == before[1:]
    ((state,),) = cql.rows("SELECT DISTINCT transition_state FROM system.topology WHERE key = 'topology'")
    assert state == "tablet_migration"


def test_the_ring_is_covered_once_for_every_copy(cql: Cql) -> None:
    rows = cql.rows("SELECT start_token, end_token, endpoint, dc FROM system.token_ring WHERE keyspace_name = 'ks'")
    assert len(rows) == 4
    ends = sorted(int(end) for _, end, _, _ in rows)
    starts = sorted(int(start) for start, *_ in rows)
    assert ends[:-1] == starts[1:]
    assert {row[3] for row in rows} == {"dc1"}


def test_shapes_of_the_other_topology_tables() -> None:
    assert [column.name for column in tablets.schema.static] == [
        "keyspace_name",
        "resize_seq_number",
        "resize_type",
        "table_name",
        "tablet_count",
    ]
    assert [column.name for column in requests.schema.partition_key] == ["id"]


# ---- nodes


def test_what_a_driver_reads_when_it_connects(cql: Cql) -> None:
    (local,) = cql.rows(
        "SELECT key, host_id, data_center, rack, partitioner, native_protocol_version, cluster_name, schema_version, "
        "rpc_address, rpc_port, tokens FROM system.local WHERE key='local'"
    )
    assert local[:7] == (
        "local",
        host(1),
        "dc1",
        "r1",
        "org.apache.cassandra.dht.Murmur3Partitioner",
        "4",
        "test cluster",
    )
    assert (str(local[8]), local[9], len(local[10])) == ("127.0.0.1", 9042, 4)
    peers = cql.rows("SELECT peer, host_id, schema_version, rpc_address FROM system.peers")
    assert {row[1] for row in peers} == {host(2), host(3)}
    assert {row[2] for row in peers} == {local[7]}
    assert all(row[0] == row[3] for row in peers)
    second = cql.rows("SELECT peer, native_port, native_address, host_id FROM system.peers_v2")
    assert {(row[0], row[3]) for row in second} == {(row[0], row[1]) for row in peers}
    assert {row[1] for row in second} == {9042}


def test_the_schema_version_follows_the_schema(cql: Cql) -> None:
    text = "SELECT schema_version FROM system.local"
    seen = [cql.rows(text)]
    for change in (
        "CREATE TABLE u (k int PRIMARY KEY)",
        "ALTER TABLE u ADD v int",
        "ALTER TABLE u WITH comment = 'x'",
        "DROP TABLE u",
        "CREATE KEYSPACE other WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "ALTER KEYSPACE other WITH durable_writes = false",
    ):
        cql.run(change)
        seen.append(cql.rows(text))
    assert seen[4] == seen[0]
    assert len({str(one) for one in seen}) == len(seen) - 1


def test_who_is_up(cql: Cql) -> None:
    cql.view.down = frozenset({host(2)})
    rows = cql.rows("SELECT host_id, up, status, shards FROM system.cluster_status")
    assert sorted(rows) == [(host(1), True, "NORMAL", 2), (host(2), False, "NORMAL", 2), (host(3), True, "NORMAL", 2)]


def test_who_is_excluded_and_who_is_incomplete(cql: Cql) -> None:
    """Excluded by a request too."""
    cql.topology.do(SetIgnoredNodes((host(2),)))
    cql.topology.do(ExcludeHosts((Exclusion(host=host(3), since_ms=1, by=host(1)),)))
    snapshot = cql.topology.snapshot
    incomplete = msgspec.structs.replace(snapshot.node(host(3)), is_incomplete=True)
    cql.topology.snapshot = replace(snapshot, nodes=snapshot.nodes.put(host(3), incomplete))
    cql.install()
    rows = cql.rows("SELECT host_id, excluded, incomplete FROM system.cluster_status")
    assert sorted(rows) == [(host(1), False, False), (host(2), True, False), (host(3), True, True)]
    assert [one for (one,) in cql.rows("SELECT incomplete FROM system.topology")] == [False, False, True]


def test_requests_with_their_parameters(cql: Cql) -> None:
    cql.run("DROP TABLE t")
    removal = cql.topology.ask(NodeRequestKind.REMOVE, 3, ignored_nodes=(host(2),))
    cql.install()
    columns = "request_type, target_host, ignore_nodes, rebuild_option, replaced_id"
    text = f"SELECT {columns} FROM system.topology_requests WHERE id = "
    assert cql.rows(f"{text}{removal.id}") == [("remove", host(3), [host(2)], None, None)]
    rebuild = cql.topology.ask(NodeRequestKind.REBUILD, 1, rebuild_source="dc1")
    cql.install()
    assert cql.rows(f"{text}{rebuild.id}") == [("rebuild", host(1), None, "dc1", None)]
    ignored = f"SELECT ignore_nodes FROM system.topology WHERE key = 'topology' AND host_id = {host(3)}"
    assert cql.rows(ignored) == [([host(2)],)]


def test_options_and_history(cql: Cql) -> None:
    assert cql.rows("SELECT name, value, source FROM system.config") == [("shards", "2", "default")]
    ((key, state, words),) = cql.rows("SELECT key, state_id, description FROM system.group0_history")
    assert (key, words) == ("history", "version 7: tables changed")
    assert (state.time - 0x01B21DD213814000) // 10 == NOW_US
    assert cql.rows("SELECT version FROM system.versions") == [("0.1",)]


def test_members_of_group_0(cql: Cql) -> None:
    assert cql.rows("SELECT * FROM system.raft_state") == []
    history = HistoryId(uuid.UUID(int=9))
    roles = (MemberRole.VOTER, MemberRole.LEARNER, MemberRole.REMOVED)
    members = tuple(
        MemberReport(Member(host=host(number), role=role, address=Address("127.0.0.1", 7000)))
        for number, role in enumerate(roles, start=1)
    )
    cql.group0 = Group0Report(
        history=history, role="leader", term=1, leader=host(1), commit=5, applied=5, first=1, last=5, members=members
    )
    rows = cql.rows("SELECT group_id, disposition, server_id, can_vote FROM system.raft_state")
    assert rows == [(history, "CURRENT", host(1), True), (history, "CURRENT", host(2), False)]


# ---- the schema


def test_the_schema_shows_tables_and_system_tables(cql: Cql) -> None:
    cql.run(
        "CREATE TABLE u (k int, c text, s blob static, v frozen<list<int>>, PRIMARY KEY (k, c)) "
        "WITH CLUSTERING ORDER BY (c DESC)"
    )
    rows = cql.rows(
        "SELECT column_name, kind, position, clustering_order, type FROM system_schema.columns "
        "WHERE keyspace_name = 'ks' AND table_name = 'u'"
    )
    assert rows == [
        ("c", "clustering", 0, "desc", "text"),
        ("k", "partition_key", 0, "none", "int"),
        ("s", "static", -1, "none", "blob"),
        ("v", "regular", -1, "none", "frozen<list<int>>"),
    ]
    keyspaces = [row[0] for row in cql.rows("SELECT keyspace_name FROM system_schema.keyspaces")]
    assert sorted(keyspaces) == ["ks", "system", "system_schema", "system_virtual_schema"]
    ((identity,),) = cql.rows("SELECT id FROM system_schema.tables WHERE keyspace_name = 'ks' AND table_name = 'u'")
    assert identity in cql.view.current.schemas
    assert cql.rows("SELECT count(*) FROM system_schema.tables WHERE keyspace_name = 'system'")[0][0] > 10
    assert cql.rows("SELECT initial_tablets FROM system_schema.scylla_keyspaces") == [(0,)]


def every_table() -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in Cql().rows("SELECT keyspace_name, table_name FROM system_schema.tables")]


def test_every_system_table_can_be_read() -> None:
    cql = Cql()
    for keyspace, name in every_table():
        whole = cql.rows(f"SELECT * FROM {keyspace}.{name}")
        pages = cql.pages(f"SELECT * FROM {keyspace}.{name}", 2)
        assert [row for page in pages for row in page] == whole
        assert cql.rows(f"SELECT count(*) FROM {keyspace}.{name}") == [(len(whole),)]


def test_tables_of_what_there_is_none_of() -> None:
    cql = Cql()
    for name in ("types", "functions", "aggregates", "indexes", "triggers", "views", "dropped_columns"):
        assert cql.rows(f"SELECT * FROM system_schema.{name}") == []


# ---- ids and versions


def test_ids_as_time_based_ones() -> None:
    mine = uuid.UUID("8ac6d1dc-fbeb-11ed-be56-0242ac120002")
    assert as_timeuuid(mine, 5) == mine
    other = as_timeuuid(uuid.UUID(int=7, version=4), 1_700_000_000_000)
    assert other.version == 1
    assert (other.time - 0x01B21DD213814000) // 10_000 == 1_700_000_000_000


def test_versions_that_were_seen(cql: Cql) -> None:
    seen = VersionHistory()
    seen.record(cql.view.current, 1)
    seen.record(cql.view.current, 2)
    cql.run("CREATE TABLE u (k int PRIMARY KEY)")
    seen.record(cql.view.current, 3)
    first, second = seen.rows()
    assert first[0] == 1
    assert second[:2] == (3, cql.view.current.version)
    assert "2 tables" in second[2]
