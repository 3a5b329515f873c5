import uuid
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.topology.small_cluster import cluster, host, network, node, one_tablet, replica, request_id, simple

from ebla.model.errors import InvalidRequest, Outcome, Refused
from ebla.model.identity import HostId, ShardNumber, TableId
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.placement import Capacities, PlacementRules, initial_tablet_count, place_new_table, placeable_nodes
from ebla.topology.snapshot import Keyspace, Node, NodeRequest, Replication, Snapshot, Table
from ebla.topology.states import NodeRequestKind, NodeState
from ebla.topology.tablet_map import TABLETS_PER_COMMIT_MAX, ReplicaSet

NEW = Table(id=TableId(uuid.UUID(int=1)), keyspace="ks", name="new")
RULES = PlacementRules()


def empty_cluster(*nodes: Node, replication: Replication, initial_tablets: int = 0) -> Snapshot:
    keyspace = Keyspace(name="ks", replication=replication, on_tablets=True, initial_tablets=initial_tablets)
    return replace(cluster(*nodes), keyspaces=FrozenMap({"ks": keyspace}), tables=FrozenMap())


def place(snapshot: Snapshot, capacities: Capacities | None = None, table: Table = NEW) -> tuple[ReplicaSet, ...]:
    return place_new_table(snapshot, table, capacities or Capacities(), RULES)


def per_host(placed: tuple[ReplicaSet, ...]) -> Counter[HostId]:
    return Counter(each.host for replicas in placed for each in replicas)


THREE_RACKS = [node(number, rack=f"r{number % 3}") for number in range(6)]


def test_replicas_of_a_tablet_are_in_different_racks_and_load_is_even() -> None:
    placed = place(empty_cluster(*THREE_RACKS, replication=network(dc1=3), initial_tablets=64))
    assert len(placed) == 64
    for replicas in placed:
        assert len({each.host.int % 3 for each in replicas}) == 3
    assert set(per_host(placed).values()) == {32}
    shards = Counter(each for replicas in placed for each in replicas)
    assert set(shards.values()) == {8}


def test_a_larger_node_gets_more() -> None:
    nodes = [node(number) for number in range(3)]
    capacities = Capacities({host(0): 300, host(1): 100, host(2): 200})
    placed = place(empty_cluster(*nodes, replication=network(dc1=1), initial_tablets=1024), capacities)
    counts = per_host(placed)
    assert abs(counts[host(0)] - 512) <= 1
    assert abs(counts[host(1)] - 1024 / 6) <= 1
    assert abs(counts[host(2)] - 1024 / 3) <= 1


def test_a_node_of_unknown_capacity_counts_as_an_average_one() -> None:
    nodes = [node(number) for number in range(3)]
    capacities = Capacities({host(0): 300, host(1): 100})
    placed = place(empty_cluster(*nodes, replication=network(dc1=1), initial_tablets=64), capacities)
    assert abs(per_host(placed)[host(2)] - 64 / 3) <= 1


def test_what_is_full_already_breaks_ties() -> None:
    """One tablet: it goes to the node and the shard without one."""
    busy = cluster(node(1), node(2), replication=network(dc1=1), tablets=one_tablet(replica(1, 0)))
    keyspace = Keyspace(name="ks", replication=network(dc1=1), on_tablets=True, initial_tablets=1)
    snapshot = replace(busy, keyspaces=FrozenMap({"ks": keyspace}))
    assert place(snapshot) == ((replica(2, 0),),)
    alone = replace(snapshot, nodes=FrozenMap({host(1): node(1)}))
    assert place(alone) == ((replica(1, 1),),)


def test_each_datacenter_gets_its_own_replicas() -> None:
    nodes = [*THREE_RACKS[:3], *(node(number, datacenter="dc2") for number in (10, 11))]
    placed = place(empty_cluster(*nodes, replication=network(dc1=3, dc2=2), initial_tablets=16))
    assert per_host(placed) == {each.host: 16 for each in nodes}


def test_two_racks_hold_three_replicas_as_evenly_as_they_can() -> None:
    nodes = [node(number, rack=f"r{number % 2}") for number in range(4)]
    for replicas in place(empty_cluster(*nodes, replication=network(dc1=3), initial_tablets=32)):
        racks = Counter(each.host.int % 2 for each in replicas)
        assert sorted(racks.values()) == [1, 2]


@pytest.mark.parametrize(
    ("initial", "least", "expected"), [(0, 0, 64), (1, 0, 1), (5, 0, 8), (8, 0, 8), (2, 30, 32), (0, 3, 4)]
)
def test_how_many_tablets_a_table_starts_with(initial: int, least: int, expected: int) -> None:
    """By the options; without any, ten for each of sixteen shards, divided by three replicas: 53, so 64."""
    nodes = [node(number) for number in range(4)]
    snapshot = empty_cluster(*nodes, replication=network(dc1=3), initial_tablets=initial)
    assert len(place(snapshot, table=Table(id=NEW.id, keyspace="ks", name="new", min_tablet_count=least))) == expected


def test_there_is_a_greatest_number_of_tablets() -> None:
    keyspace = Keyspace(
        name="ks", replication=network(dc1=1), on_tablets=True, initial_tablets=TABLETS_PER_COMMIT_MAX + 1
    )
    assert initial_tablet_count(keyspace, NEW, [node(1)], RULES) == TABLETS_PER_COMMIT_MAX


def test_too_few_nodes_are_refused_with_the_numbers() -> None:
    snapshot = empty_cluster(node(1), node(2), replication=network(dc1=3))
    with pytest.raises(Refused, match=r"3 replicas are asked for in dc1, which has 2 nodes") as refused:
        place(snapshot)
    assert refused.value.outcome is Outcome.NOT_APPLIED
    assert "add nodes" in refused.value.advice
    with pytest.raises(Refused, match="dc9, which has 0 nodes"):
        place(empty_cluster(node(1), replication=network(dc1=1, dc9=1)))


def test_too_few_racks_are_refused_where_different_racks_are_asked_for() -> None:
    nodes = [node(number, rack=f"r{number % 2}") for number in range(4)]
    snapshot = empty_cluster(*nodes, replication=network(dc1=3))
    with pytest.raises(Refused, match="different racks are asked for in dc1, which has 2 racks"):
        place_new_table(snapshot, NEW, Capacities(), PlacementRules(distinct_racks=True))
    fine = empty_cluster(*THREE_RACKS, replication=network(dc1=3))
    assert place_new_table(fine, NEW, Capacities(), PlacementRules(distinct_racks=True))


def test_simple_strategy_has_no_tablets() -> None:
    with pytest.raises(InvalidRequest, match="NetworkTopologyStrategy"):
        place(empty_cluster(node(1), replication=simple(1)))


def test_nodes_that_go_or_are_given_up_take_no_new_tablets() -> None:
    leaving = NodeRequest(id=request_id(1), kind=NodeRequestKind.LEAVE, host=host(2), initiator=host(2), start_ms=0)
    rebuilding = NodeRequest(
        id=request_id(2), kind=NodeRequestKind.REBUILD, host=host(3), initiator=host(3), start_ms=0
    )
    nodes = [
        node(1),
        node(2, request=leaving.id),
        node(3, request=rebuilding.id),
        node(4),
        node(5, state=NodeState.BOOTSTRAPPING),
        node(6, state=NodeState.LEFT),
    ]
    snapshot = empty_cluster(*nodes, replication=network(dc1=1))
    snapshot = replace(snapshot, node_requests=FrozenMap({leaving.id: leaving, rebuilding.id: rebuilding}))
    snapshot = replace(snapshot, state=msgspec.structs.replace(snapshot.state, ignored_nodes=(host(4),)))
    assert [each.host.int for each in placeable_nodes(snapshot)] == [1, 3]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(0, 5),
)
def test_any_cluster_is_filled_within_its_rules(
    machines: list[tuple[int, int, int]], factor: int, exponent: int
) -> None:
    nodes = [node(number, rack=f"r{rack}", shard_count=shards) for number, (rack, shards, _) in enumerate(machines)]
    capacities = Capacities({host(number): size for number, (_, _, size) in enumerate(machines)})
    snapshot = empty_cluster(*nodes, replication=network(dc1=factor), initial_tablets=1 << exponent)
    if len(nodes) < factor:
        with pytest.raises(Refused):
            place(snapshot, capacities)
        return
    placed = place(snapshot, capacities)
    assert placed == place(snapshot, capacities)
    racks = {each.host: each.rack for each in nodes}
    shards = {each.host: each.shard_count for each in nodes}
    for replicas in placed:
        assert len({each.host for each in replicas}) == factor
        assert len({racks[each.host] for each in replicas}) == min(factor, len(set(racks.values())))
        assert all(0 <= each.shard < shards[each.host] for each in replicas)
    for each in nodes:
        used = Counter(one.shard for replicas in placed for one in replicas if one.host == each.host)
        counts = [used[ShardNumber(shard)] for shard in range(each.shard_count)]
        assert max(counts) - min(counts) <= 1
