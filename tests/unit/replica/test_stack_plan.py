"""Which stacks a shard must have."""

import dataclasses

import msgspec
import pytest
from tests.unit.replica.shard_rig import OWN, small_cluster
from tests.unit.storage.small_table import SMALL
from tests.unit.topology.small_cluster import replica, with_transition

from ebla.model.errors import Refused
from ebla.model.token import WHOLE_RING
from ebla.replica.stack_plan import Hop, check_no_resize, plan_shard, stack_keys
from ebla.topology.snapshot import TopologyState
from ebla.topology.states import NodeState, TabletStage, TransitionKind, TransitionState
from ebla.topology.tablet_map import TOKEN_BITS, TabletMap, TabletTransition, tablet_map

FOUR = tablet_map(SMALL.id, [(OWN,), (replica(1, 1),), (replica(2), OWN), (replica(2),)])


def moved(number: int, kind: TransitionKind, stage: TabletStage, *new: int) -> TabletMap:
    """To these shards of node 1."""
    to = tuple(replica(1, shard) for shard in new)
    return with_transition(FOUR, number, TabletTransition(kind=kind, stage=stage, new_replicas=to))


def test_a_shard_has_the_tablets_of_which_it_is_a_replica() -> None:
    plan = plan_shard(small_cluster(FOUR), OWN)[SMALL.id]
    assert sorted(plan.ranges) == [0, 2]
    assert plan.shift == 62
    assert plan.pending == plan.moving == ()
    assert plan.ranges[0] == WHOLE_RING.split(4)[0]
    assert plan.ranges[2] == WHOLE_RING.split(4)[2]


def test_what_it_gets_and_what_it_has_to_lose_are_its_own_too() -> None:
    stage = TabletStage.WRITE_BOTH_READ_OLD
    gets = plan_shard(small_cluster(moved(3, TransitionKind.MIGRATION, stage, 0)), OWN)[SMALL.id]
    assert sorted(gets.ranges) == [0, 2, 3]
    assert gets.pending == gets.moving == (3,)
    loses = with_transition(
        FOUR, 0, TabletTransition(kind=TransitionKind.MIGRATION, stage=TabletStage.CLEANUP, new_replicas=(replica(3),))
    )
    plan = plan_shard(small_cluster(loses), OWN)[SMALL.id]
    assert sorted(plan.ranges) == [0, 2]
    assert plan.pending == ()
    assert plan.moving == (0,)


def test_a_table_on_vnodes_has_one_stack_and_moves_with_the_ring() -> None:
    snapshot = small_cluster()
    plan = plan_shard(snapshot, OWN)
    assert stack_keys(plan) == [(SMALL.id, WHOLE_RING)]
    assert plan[SMALL.id].shift == TOKEN_BITS
    assert plan[SMALL.id].moving == ()
    changing = dataclasses.replace(snapshot, state=TopologyState(transition=TransitionState.WRITE_BOTH_READ_OLD))
    assert plan_shard(changing, OWN)[SMALL.id].moving == (0,)


def test_what_did_not_change_is_the_same_object() -> None:
    snapshot = small_cluster(FOUR)
    plan = plan_shard(snapshot, OWN)
    again = plan_shard(dataclasses.replace(snapshot, state=TopologyState()), OWN, snapshot, plan)
    assert again[SMALL.id] is plan[SMALL.id]


@pytest.mark.parametrize(
    ("stage", "own_shard", "hop"),
    [
        (TabletStage.ALLOW_WRITE_BOTH_READ_OLD, 0, None),
        (TabletStage.WRITE_BOTH_READ_OLD, 0, Hop(replica(1, 1).shard, here=True)),
        (TabletStage.WRITE_BOTH_READ_NEW, 0, Hop(replica(1, 1).shard, here=True)),
        (TabletStage.USE_NEW, 0, Hop(replica(1, 1).shard, here=False)),
        (TabletStage.WRITE_BOTH_READ_OLD, 1, None),
        (TabletStage.USE_NEW, 1, None),
    ],
)
def test_only_the_old_shard_of_a_move_inside_a_node_passes_writes_on(
    stage: TabletStage, own_shard: int, hop: Hop | None
) -> None:
    tablets = moved(0, TransitionKind.INTRANODE_MIGRATION, stage, 1)
    plan = plan_shard(small_cluster(tablets), replica(1, own_shard))[SMALL.id]
    assert plan.hops.get(0) == hop


def test_a_split_is_refused_before_anything_is_dropped() -> None:
    halves, quarters = WHOLE_RING.split(2), WHOLE_RING.split(4)
    check_no_resize([(SMALL.id, halves[0])], [(SMALL.id, halves[0]), (SMALL.id, halves[1])])
    with pytest.raises(Refused, match="other bounds"):
        check_no_resize([(SMALL.id, quarters[0])], [(SMALL.id, halves[0])])


def test_a_table_on_vnodes_moves_while_its_own_node_is_rebuilt() -> None:
    snapshot = small_cluster()
    rebuilt = msgspec.structs.replace(snapshot.node(OWN.host), state=NodeState.REBUILDING)
    assert plan_shard(dataclasses.replace(snapshot, nodes=snapshot.nodes.put(OWN.host, rebuilt)), OWN)[
        SMALL.id
    ].moving == (0,)
    other = next(host for host in snapshot.nodes if host != OWN.host)
    elsewhere = msgspec.structs.replace(snapshot.node(other), state=NodeState.REBUILDING)
    plan = plan_shard(dataclasses.replace(snapshot, nodes=snapshot.nodes.put(other, elsewhere)), OWN)
    assert plan[SMALL.id].moving == ()
