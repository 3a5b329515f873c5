"""Each invariant notices what breaks it."""

import uuid
from dataclasses import replace

import msgspec
import pytest
from tests.unit.topology.small_cluster import with_transition
from tests.unit.topology.world import World, cluster, host

from ebla.model.identity import Replica, RequestId, SessionId, ShardNumber, TopologyVersion
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.invariants import violations, violations_between
from ebla.topology.snapshot import Node, Session, Snapshot
from ebla.topology.states import (
    NodeRequestKind,
    NodeState,
    RequestOutcome,
    SessionKind,
    TabletStage,
    TransitionKind,
    TransitionState,
)
from ebla.topology.tablet_map import TabletTransition


def labels(snapshot: Snapshot) -> list[str]:
    return sorted({violation.label for violation in violations(snapshot)})


@pytest.fixture
def world() -> World:
    world, _ = cluster(3)
    world.create_table(4, 2)
    assert violations(world.snapshot) == ()
    return world


def with_node(snapshot: Snapshot, number: int, **changes: object) -> Snapshot:
    node = msgspec.structs.replace(snapshot.node(host(number)), **changes)
    return replace(snapshot, nodes=snapshot.nodes.put(host(number), node))


def with_state(snapshot: Snapshot, **changes: object) -> Snapshot:
    return replace(snapshot, state=msgspec.structs.replace(snapshot.state, **changes))


def test_who_left_has_nothing(world: World) -> None:
    assert "INV-NODE-1" in labels(with_node(world.snapshot, 2, state=NodeState.LEFT))


def test_one_node_in_transition(world: World) -> None:
    two = with_node(with_node(world.snapshot, 2, state=NodeState.REBUILDING), 3, state=NodeState.REBUILDING)
    assert "INV-NODE-2" in labels(two)


def test_state_and_transition_state_fit(world: World) -> None:
    assert labels(with_state(world.snapshot, transition=TransitionState.JOIN_GROUP0)) == ["INV-NODE-3"]
    assert "INV-NODE-3" in labels(with_node(world.snapshot, 2, state=NodeState.DECOMMISSIONING))


def test_tokens(world: World) -> None:
    snapshot = world.snapshot
    assert labels(with_node(snapshot, 2, tokens=())) == ["INV-NODE-4"]
    assert labels(with_node(snapshot, 2, tokens=snapshot.node(host(3)).tokens)) == ["INV-NODE-4"]
    world.ask_to_join(world.node(4))
    assert labels(with_node(world.snapshot, 4, tokens=(5,))) == ["INV-NODE-4"]


def test_a_replacing_node_has_the_tokens_of_the_one_it_replaces() -> None:
    world, coordinator = cluster(3)
    world.dead.add(host(2))
    world.ask_to_join(world.node(9, rack="r2"), replaced=host(2))
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    assert labels(with_node(world.snapshot, 9, tokens=(1, 2, 3, 4))) == ["INV-NODE-4"]


def test_version_and_fence(world: World) -> None:
    snapshot = world.snapshot
    ahead = TopologyVersion(snapshot.version + 1)
    assert labels(with_state(snapshot, fence=ahead)) == ["INV-NODE-5"]
    assert labels(with_state(snapshot, transition_since=ahead)) == ["INV-NODE-5"]
    for name in ("version", "fence"):
        lower = with_state(snapshot, **{name: TopologyVersion(getattr(snapshot, name) - 1)})
        assert [each.label for each in violations_between(snapshot, lower)] == ["INV-NODE-5"]
    moved = with_node(snapshot, 2, tokens=(1, 2, 3, 4))
    assert [each.label for each in violations_between(snapshot, moved)] == ["INV-NODE-5"]


def test_replicas_do_not_change_within_a_version(world: World) -> None:
    snapshot = world.snapshot
    (table,) = snapshot.tablets
    other = snapshot.tablets[table].with_replicas(0, (Replica(host(3), ShardNumber(0)),))
    changed = replace(snapshot, tablets=snapshot.tablets.put(table, other))
    assert [each.label for each in violations_between(snapshot, changed)] == ["INV-NODE-5"]
    repaired = snapshot.tablets[table].with_repair_time(0, 9)
    harmless = replace(snapshot, tablets=snapshot.tablets.put(table, repaired))
    assert violations_between(snapshot, harmless) == ()


def test_requests_and_nodes_know_each_other(world: World) -> None:
    unknown = RequestId(uuid.UUID(int=3))
    assert labels(with_node(world.snapshot, 2, request=unknown)) == ["INV-NODE-6"]
    request = world.ask(NodeRequestKind.REBUILD, 2)
    assert labels(with_node(world.snapshot, 2, request=None)) == ["INV-NODE-6"]
    running = msgspec.structs.replace(request, outcome=RequestOutcome.RUNNING)
    requests = world.snapshot.node_requests.put(request.id, running)
    assert labels(replace(world.snapshot, node_requests=requests)) == ["INV-NODE-6"]
    assert labels(with_state(world.snapshot, global_requests=(unknown,))) == ["INV-NODE-6"]
    stray = Node(
        host=host(8),
        datacenter="dc1",
        rack="r1",
        shard_count=1,
        ignore_msb=12,
        release_version="1.0",
        address="a",
        num_tokens=4,
    )
    assert labels(replace(world.snapshot, nodes=world.snapshot.nodes.put(host(8), stray))) == ["INV-NODE-6"]


def test_past_draining_a_node_that_goes_has_no_tablets(world: World) -> None:
    going = with_node(world.snapshot, 2, state=NodeState.DECOMMISSIONING)
    assert "INV-NODE-7" in labels(with_state(going, transition=TransitionState.WRITE_BOTH_READ_NEW))


def test_ignored_nodes_are_members(world: World) -> None:
    assert labels(with_state(world.snapshot, ignored_nodes=(host(77),))) == ["INV-NODE-8"]


def test_sessions_belong_to_what_goes_on(world: World) -> None:
    session = SessionId(uuid.UUID(int=9))
    stray = FrozenMap({session: Session(id=session, kind=SessionKind.REQUEST)})
    assert labels(replace(world.snapshot, sessions=stray)) == ["INV-NODE-9"]
    assert labels(with_state(world.snapshot, session=session)) == ["INV-NODE-9"]


def test_a_bulk_session_closes_with_a_version_and_for_good(world: World) -> None:
    session = SessionId(uuid.UUID(int=9))
    listed = replace(world.snapshot, sessions=FrozenMap({session: Session(id=session, kind=SessionKind.BULK_JOB)}))
    assert labels(listed) == []
    assert [each.label for each in violations_between(listed, world.snapshot)] == ["INV-XFER-1"]
    assert labels(with_state(listed, bulk_closed=(session,))) == ["INV-XFER-1"]
    ahead = TopologyVersion(world.snapshot.version + 1)
    assert labels(with_state(world.snapshot, bulk_forgotten=ahead)) == ["INV-NODE-5"]


def test_a_generation_to_commit_and_its_state_go_together(world: World) -> None:
    assert labels(with_state(world.snapshot, new_cdc_generation=uuid.UUID(int=4))) == ["INV-NODE-12"]


def test_at_rest_no_replica_set_changes(world: World) -> None:
    joining = with_node(world.snapshot, 2, state=NodeState.BOOTSTRAPPING)
    assert "INV-NODE-10" in labels(joining)


def test_the_promises_of_a_join() -> None:
    world, coordinator = cluster(3)
    world.ask_to_join(world.node(4))
    coordinator.until(TransitionState.JOIN_GROUP0)
    assert labels(with_node(world.snapshot, 4, tokens=(5,))) == ["INV-NODE-11"]
    coordinator.until(TransitionState.COMMIT_CDC_GENERATION)
    assert labels(with_node(world.snapshot, 4, tokens=())) == ["INV-NODE-12"]
    assert labels(replace(world.snapshot, cdc_parts=FrozenMap())) == ["INV-NODE-12"]
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    assert labels(with_node(world.snapshot, 4, tokens=())) == ["INV-NODE-14"]
    streaming = world.snapshot
    coordinator.until(TransitionState.WRITE_BOTH_READ_NEW)
    open_still = replace(with_state(world.snapshot, session=streaming.state.session), sessions=streaming.sessions)
    assert labels(open_still) == ["INV-NODE-15", "INV-NODE-9"]


def test_the_promises_of_a_leave() -> None:
    world, coordinator = cluster(4)
    world.create_table(4, 2)
    world.ask(NodeRequestKind.LEAVE, 2)
    coordinator.until(TransitionState.TABLET_DRAINING)
    assert labels(with_state(world.snapshot, transition=TransitionState.ROLLBACK_TO_NORMAL)) == ["INV-NODE-17"]
    assert labels(with_state(world.snapshot, transition=TransitionState.TABLET_MIGRATION)) == ["INV-NODE-18"]
    (table,) = world.snapshot.tablets
    tablets = world.snapshot.tablets[table]
    elsewhere = next(n for n, each in enumerate(tablets.replica_sets()) if host(2) not in [r.host for r in each])
    new = (tablets.replicas(elsewhere)[0], Replica(host(2), ShardNumber(0)))
    coming = TabletTransition(kind=TransitionKind.MIGRATION, stage=TabletStage.USE_NEW, new_replicas=new)
    placed = replace(world.snapshot, tablets=FrozenMap({table: with_transition(tablets, elsewhere, coming)}))
    assert labels(placed) == ["INV-NODE-13"]
    coordinator.until(TransitionState.LEFT_TOKEN_RING)
    assert labels(with_node(world.snapshot, 2, tokens=(5,))) == ["INV-NODE-16"]


def test_nothing_moves_while_tablet_counts_change(world: World) -> None:
    finalizing = with_state(moving(TabletStage.USE_NEW, world), transition=TransitionState.TABLET_SPLIT_FINALIZATION)
    assert labels(finalizing) == ["INV-NODE-19", "INV-TABL-3"]


def moving(stage: TabletStage, world: World) -> Snapshot:
    snapshot = world.snapshot
    (table,) = snapshot.tablets
    new = (Replica(host(1), ShardNumber(0)), Replica(host(3), ShardNumber(0)))
    tablets = with_transition(
        snapshot.tablets[table], 0, TabletTransition(kind=TransitionKind.MIGRATION, stage=stage, new_replicas=new)
    )
    return replace(snapshot, tablets=snapshot.tablets.put(table, tablets))


def test_tablets_move_on_their_track_only(world: World) -> None:
    at_rest = moving(TabletStage.USE_NEW, world)
    assert labels(at_rest) == ["INV-NODE-10", "INV-TABL-3"]
    assert labels(with_state(at_rest, transition=TransitionState.TABLET_MIGRATION)) == []


def test_no_session_outlives_its_stage(world: World) -> None:
    streaming = with_state(moving(TabletStage.STREAMING, world), transition=TransitionState.TABLET_MIGRATION)
    assert labels(streaming) == ["INV-TABL-2"]


def test_rows_of_nodes_stay_for_ever(world: World) -> None:
    snapshot = world.snapshot
    without = replace(snapshot, nodes=snapshot.nodes.without(host(3)))
    assert "INV-NODE-1" in [each.label for each in violations_between(snapshot, without)]
    left = with_node(snapshot, 2, state=NodeState.LEFT, tokens=())
    back = with_state(with_node(left, 2, state=NodeState.NORMAL), version=TopologyVersion(snapshot.version + 1))
    assert [each.label for each in violations_between(left, back)] == ["INV-NODE-1"]
    assert str(violations_between(left, back)[0]).startswith("INV-NODE-1: ")


def test_an_incomplete_node_stays_excluded_until_it_has_left(world: World) -> None:
    """INV-NODE-23."""
    lacking = with_node(world.snapshot, 2, is_incomplete=True)
    assert "INV-NODE-23" in labels(lacking)
    excluded = with_state(lacking, ignored_nodes=(host(2),))
    assert labels(excluded) == []
    assert [each.label for each in violations_between(excluded, world.snapshot)] == ["INV-NODE-23"]
    gone = with_node(excluded, 2, state=NodeState.LEFT, tokens=())
    assert not [each for each in violations_between(excluded, gone) if each.label == "INV-NODE-23"]
