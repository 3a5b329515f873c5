import uuid

import pytest
from tests.unit.request.write_rig import AT_REST, MOVED, MOVING, NODES, A, B, C, D
from tests.unit.topology.small_cluster import TABLE, cluster, network, node, one_tablet, replica

from ebla.feed.topology_view import View, view_of
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import NotFound, Unavailable
from ebla.model.identity import HistoryId, HostId, Replica, TableId
from ebla.model.transaction import Revision
from ebla.request.write_plan import (
    WritePlanCache,
    WriteReplicaPlan,
    target_to_wait_for,
    too_few_replicas,
)
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeState

L = ConsistencyLevel
NO_HOSTS: frozenset[HostId] = frozenset()
NOWHERE: frozenset[Replica] = frozenset()


def view(snapshot: Snapshot) -> View:
    return view_of(snapshot, Revision(HistoryId(uuid.UUID(int=1)), 1))


def planned(snapshot: Snapshot, level: ConsistencyLevel = L.QUORUM, *down: Replica) -> WriteReplicaPlan:
    hosts = frozenset(each.host for each in down)
    return WritePlanCache(view(snapshot), "dc1", hosts, NOWHERE).plan(TABLE, 5, level)


@pytest.mark.parametrize(
    ("level", "needed"),
    [
        (L.ONE, (1,)),
        (L.TWO, (2,)),
        (L.THREE, (3,)),
        (L.QUORUM, (2,)),
        (L.ALL, (3,)),
        (L.LOCAL_ONE, (1,)),
        (L.LOCAL_QUORUM, (2,)),
        (L.EACH_QUORUM, (2,)),
    ],
)
def test_what_each_level_needs_with_and_without_a_pending_replica(
    level: ConsistencyLevel, needed: tuple[int, ...]
) -> None:
    assert planned(AT_REST, level).rule.needed == needed
    moving = planned(MOVING, level)
    assert moving.targets == (A, B, C, D)
    assert moving.rule.needed == tuple(count + 1 for count in needed)


def test_down_and_left_hosts_and_shards_that_refuse_get_no_copies_but_count() -> None:
    left = cluster(*NODES[:2], node(3, state=NodeState.LEFT), NODES[3], tablets=one_tablet(A, B, C))
    assert planned(left).targets == (A, B)
    assert planned(left, L.QUORUM, A).is_available is False
    book = WritePlanCache(view(AT_REST), "dc1", frozenset({C.host}), frozenset({A, replica(2, 3)}))
    plan = book.plan(TABLE, 5, L.ONE)
    assert (plan.targets, plan.skipped) == ((B,), (A, C))
    error = too_few_replicas(book.plan(TABLE, 5, L.QUORUM), L.QUORUM)
    assert (error.required, error.alive) == (2, 1)


def test_each_quorum_counts_every_datacenter() -> None:
    nodes = [node(number, datacenter="dc1" if number < 4 else "dc2") for number in range(1, 7)]
    replicas = [replica(number) for number in range(1, 7)]
    snapshot = cluster(*nodes, replication=network(dc1=3, dc2=3), tablets=one_tablet(*replicas))
    assert planned(snapshot, L.EACH_QUORUM, replicas[0], replicas[3]).is_available
    lost = planned(snapshot, L.EACH_QUORUM, replicas[3], replicas[4])
    assert not lost.is_available
    assert (too_few_replicas(lost, L.EACH_QUORUM).required, too_few_replicas(lost, L.EACH_QUORUM).alive) == (4, 3)
    assert planned(snapshot, L.LOCAL_QUORUM, replicas[3], replicas[4]).is_available
    assert not planned(snapshot, L.LOCAL_QUORUM, replicas[0], replicas[1]).is_available


def test_a_plan_is_worked_out_once_and_its_book_is_good_for_one_view_and_who_is_up() -> None:
    seen = view(AT_REST)
    book = WritePlanCache(seen, "dc1", NO_HOSTS, NOWHERE)
    assert book.plan(TABLE, 5, L.ONE) is book.plan(TABLE, 6, L.ONE)
    assert book.is_for(seen, NO_HOSTS, NOWHERE)
    assert not book.is_for(view(MOVED), NO_HOSTS, NOWHERE)
    assert not book.is_for(seen, frozenset({A.host}), NOWHERE)
    assert not book.is_for(seen, NO_HOSTS, frozenset({A}))


def test_tables_that_are_not_there_yet_or_any_more() -> None:
    with pytest.raises(NotFound):
        WritePlanCache(view(AT_REST), "dc1", NO_HOSTS, NOWHERE).plan(TableId(uuid.UUID(int=1)), 5, L.ONE)
    half_made = Snapshot(nodes=AT_REST.nodes, keyspaces=AT_REST.keyspaces, tables=AT_REST.tables, tablets=FrozenMap())
    with pytest.raises(Unavailable, match=r"ks\.t is still being created"):
        WritePlanCache(view(half_made), "dc1", NO_HOSTS, NOWHERE).plan(TABLE, 5, L.ONE)


def test_a_target_without_room_is_waited_for_unless_it_is_abandoned_and_not_needed() -> None:
    quorum, everyone = planned(AT_REST), planned(AT_REST, L.ALL)
    assert target_to_wait_for([quorum], {C: False}) == C
    assert target_to_wait_for([quorum], {C: True}) is None
    assert target_to_wait_for([everyone], {C: True}) == C
    assert target_to_wait_for([quorum, everyone], {C: True}) == C
    assert target_to_wait_for([quorum], {B: True, C: True}) == B
    assert target_to_wait_for([quorum], {B: True, C: False}) == C
