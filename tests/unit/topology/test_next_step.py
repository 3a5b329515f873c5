"""The next step: its order, and what shuts out what."""

import uuid
from collections.abc import Callable

import pytest
from tests.unit.topology.world import FEATURES, Coordinator, World, cluster, host

from ebla.model.identity import Replica, RequestId, SessionId, ShardNumber, TableId
from ebla.topology.commands import (
    AbortRequest,
    CompleteRequest,
    CreateKeyspace,
    CreateTable,
    DecideResize,
    DropCdcGenerations,
    ExcludeHosts,
    FailDraining,
    MarkCdcPublished,
    OpenBulkSession,
    RefreshNode,
    ReportResizeReady,
    SetBalancing,
    StartMoves,
    TabletMove,
)
from ebla.topology.next_step import (
    AskBalancer,
    BeginResize,
    CloseBulkSessions,
    DriveGlobal,
    DriveNode,
    DropAbandoned,
    FinishResize,
    LeaveTrack,
    MoveTablets,
    PublishGeneration,
    Rest,
    RollBack,
    Step,
    TurnOnFeatures,
    next_step,
    side_steps,
)
from ebla.topology.node_states import NodeAction
from ebla.topology.request_queue import BlockedQueue, LivenessView, RejectRequest, StartRequest
from ebla.topology.snapshot import Exclusion, Keyspace, Replication, Session, Table
from ebla.topology.states import (
    GlobalRequestKind,
    NodeRequestKind,
    NodeState,
    RequestOutcome,
    ResizeType,
    SessionKind,
    Strategy,
    TransitionKind,
    TransitionState,
)


def now(world: World, *, plan_is_empty: bool = False) -> Step:
    return next_step(world.snapshot, world.liveness, plan_is_empty=plan_is_empty)


def with_everything() -> tuple[World, TableId]:
    """A join, a global request, a feature to enable, tablets to balance and a resize to finalise, all waiting."""
    world, _ = cluster(3)
    table = world.create_table(2, 2)
    world.do(DecideResize(table, ResizeType.SPLIT))
    world.do(ReportResizeReady(table, 1))
    for number in (1, 2, 3):
        world.do(
            RefreshNode(
                host=host(number),
                release_version="2.0",
                address="a",
                shard_count=2,
                ignore_msb=12,
                supported_features=(*FEATURES, "gamma"),
            )
        )
    world.ask_global(GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS)
    world.ask_to_join(world.node(4, supported_features=(*FEATURES, "gamma")))
    return world, table


def test_the_order() -> None:
    """Requests of nodes, global ones, features, migration, resize, rest; and a node in transition before all."""
    world, _ = with_everything()
    coordinator = Coordinator(world)
    order: list[type] = []
    for _ in range(60):
        step = now(world)
        if not order or order[-1] is not type(step):
            order.append(type(step))
        if isinstance(step, AskBalancer):
            order.append(type(now(world, plan_is_empty=True)))
        if isinstance(coordinator.step(), Rest):
            break
    assert order == [
        StartRequest,
        DriveNode,
        DriveGlobal,
        TurnOnFeatures,
        AskBalancer,
        BeginResize,
        FinishResize,
        AskBalancer,
        Rest,
    ]


def test_a_node_in_transition_shuts_out_everything_else() -> None:
    world, _ = with_everything()
    coordinator = Coordinator(world)
    coordinator.step()
    while world.snapshot.node_in_transition() is not None:
        step = now(world)
        assert isinstance(step, DriveNode)
        assert step.host == host(4)
        coordinator.step()


def test_a_request_that_waits_keeps_the_balancer_from_starting_more() -> None:
    world, _ = cluster(4)
    table = world.create_table(2, 2)
    replicas = world.snapshot.tablets[table].replicas(0)
    new = (replicas[0], Replica(host(4), ShardNumber(0)))
    world.do(StartMoves((TabletMove(table=table, tablet=0, kind=TransitionKind.MIGRATION, new_replicas=new),)))
    before = now(world)
    assert isinstance(before, MoveTablets)
    assert (before.tablets, before.ask_balancer) == (((table, 0),), True)
    world.ask_to_join(world.node(5))
    waiting = now(world)
    assert isinstance(waiting, MoveTablets)
    assert not waiting.ask_balancer
    coordinator = Coordinator(world)
    while world.snapshot.any_tablet_transition:
        coordinator.step()
    assert isinstance(now(world), LeaveTrack)
    coordinator.step()
    assert isinstance(now(world), StartRequest)


def test_balancing_switched_off_lets_moves_end_and_starts_none() -> None:
    world, _ = cluster(4)
    table = world.create_table(2, 1)
    new = (Replica(host(4), ShardNumber(0)),)
    world.do(StartMoves((TabletMove(table=table, tablet=0, kind=TransitionKind.MIGRATION, new_replicas=new),)))
    world.do(SetBalancing(False))
    step = now(world)
    assert isinstance(step, MoveTablets)
    assert not step.ask_balancer
    Coordinator(world).settle()
    assert isinstance(now(world), Rest)


def test_without_tablets_nobody_asks_the_balancer() -> None:
    world, _ = cluster(2)
    assert isinstance(now(world), Rest)


def test_draining_asks_for_moves_of_those_that_go() -> None:
    world, coordinator = cluster(4)
    world.create_table(4, 2)
    world.ask(NodeRequestKind.LEAVE, 2)
    coordinator.step()
    step = now(world)
    assert isinstance(step, MoveTablets)
    assert (step.ask_balancer, step.draining) == (True, (host(2),))


def test_draining_given_up_ends_its_moves_and_rolls_back() -> None:
    world, coordinator = cluster(4)
    world.create_table(4, 2)
    world.ask(NodeRequestKind.LEAVE, 2)
    coordinator.step()
    coordinator.step()
    world.do(FailDraining(host(2), "no room"))
    step = now(world)
    assert isinstance(step, MoveTablets)
    assert (step.ask_balancer, bool(step.tablets)) == (False, True)
    while world.snapshot.any_tablet_transition:
        coordinator.step()
    back = now(world)
    assert isinstance(back, RollBack)
    assert back.why == "draining failed: no room"


def test_a_replaced_nodes_tablets_are_not_drained() -> None:
    world, coordinator = cluster(3)
    world.create_table(4, 2)
    world.dead.add(host(2))
    world.ask_to_join(world.node(9, rack="r2"), replaced=host(2))
    coordinator.until(TransitionState.TABLET_DRAINING)
    step = now(world)
    assert isinstance(step, DriveNode)
    assert step.row.action is NodeAction.DRAIN_TABLETS


def test_a_hopeless_queue() -> None:
    world, _ = cluster(3)
    world.dead.add(host(2))
    world.ask_to_join(world.node(4))
    step = now(world)
    assert isinstance(step, BlockedQueue)
    assert step.why == "no request can run: nodes down and not excluded: 127.0.0.2"


JOIN_STATES_WITH_A_WAY_BACK = [
    TransitionState.JOIN_GROUP0,
    TransitionState.COMMIT_CDC_GENERATION,
    TransitionState.WRITE_BOTH_READ_OLD,
]


def joining_in(transition: TransitionState) -> tuple[World, Coordinator, RequestId]:
    world, coordinator = cluster(3)
    request = world.ask_to_join(world.node(9))
    coordinator.until(transition)
    return world, coordinator, request.id


def exclude(world: World, number: int) -> None:
    world.do(ExcludeHosts((Exclusion(host=host(number), since_ms=1, by=host(1)),)))


@pytest.mark.parametrize("transition", JOIN_STATES_WITH_A_WAY_BACK)
def test_an_aborted_join_is_rolled_back_by_any_leader(transition: TransitionState) -> None:
    world, coordinator, request = joining_in(transition)
    world.do(AbortRequest(request, "wrong rack", world.now_ms))
    step = now(world)
    assert isinstance(step, RollBack)
    assert step.why == "aborted: wrong rack"
    assert step.row.may_reject is (transition is TransitionState.JOIN_GROUP0)
    coordinator.settle()
    assert world.snapshot.node(host(9)).state is NodeState.LEFT
    assert world.snapshot.node_requests[request].error == "aborted: wrong rack"
    assert not world.snapshot.sessions


@pytest.mark.parametrize("transition", JOIN_STATES_WITH_A_WAY_BACK)
def test_the_join_of_a_node_that_is_excluded_or_lost_is_rolled_back(transition: TransitionState) -> None:
    world, coordinator, request = joining_in(transition)
    lost = LivenessView(world.liveness.alive, world.now_ms, frozenset({host(9)}))
    step = next_step(world.snapshot, lost)
    assert isinstance(step, RollBack)
    assert step.why == "127.0.0.9 does not answer"
    world.dead.add(host(9))
    assert isinstance(now(world), DriveNode), "down is not lost"
    exclude(world, 9)
    assert isinstance(now(world), RollBack)
    coordinator.settle()
    assert world.snapshot.node_requests[request].error == "rolled back: 127.0.0.9 was excluded"
    assert world.snapshot.state.ignored_nodes == ()


def test_a_node_whose_ranges_are_read_is_not_given_up() -> None:
    world, _, _ = joining_in(TransitionState.WRITE_BOTH_READ_NEW)
    exclude(world, 9)
    step = next_step(world.snapshot, LivenessView(frozenset(), world.now_ms, frozenset({host(9)})))
    assert isinstance(step, DriveNode)


def test_a_replace_whose_new_node_is_lost_waits_for_moves_and_is_rolled_back() -> None:
    world, coordinator = cluster(3)
    world.dead.add(host(2))
    world.ask_to_join(world.node(9, rack="r2"), replaced=host(2))
    coordinator.until(TransitionState.TABLET_DRAINING)
    lost = LivenessView(world.liveness.alive, world.now_ms, frozenset({host(9)}))
    assert isinstance(next_step(world.snapshot, lost), RollBack)


def test_a_new_leader_drives_what_is_left_of_a_rolled_back_join() -> None:
    """Its request has ended already: the operator was answered, and only the removal is left."""
    world, coordinator, request = joining_in(TransitionState.WRITE_BOTH_READ_OLD)
    coordinator.step(fails=True)
    world.do(CompleteRequest(host(9), world.now_ms))
    assert world.snapshot.node_requests[request].outcome is RequestOutcome.FAILED
    step = now(world)
    assert isinstance(step, DriveNode)
    assert step.row.action is NodeAction.LEAVE_GROUP0
    coordinator.settle()
    assert world.snapshot.node(host(9)).state is NodeState.LEFT


K, T = NodeRequestKind, TransitionState
FAILURES: dict[tuple[NodeRequestKind, TransitionState | None], tuple[str, ...]] = {
    (K.LEAVE, T.TABLET_DRAINING): ("subject",),
    (K.LEAVE, T.WRITE_BOTH_READ_OLD): ("subject", "destination"),
    (K.LEAVE, T.WRITE_BOTH_READ_NEW): (),
    (K.LEAVE, T.LEFT_TOKEN_RING): (),
    (K.REMOVE, T.TABLET_DRAINING): (),
    (K.REMOVE, T.WRITE_BOTH_READ_OLD): ("destination",),
    (K.REMOVE, T.WRITE_BOTH_READ_NEW): (),
    (K.REPLACE, T.JOIN_GROUP0): ("subject",),
    (K.REPLACE, T.TABLET_DRAINING): ("subject",),
    (K.REPLACE, T.WRITE_BOTH_READ_OLD): ("subject",),
    (K.REPLACE, T.WRITE_BOTH_READ_NEW): (),
    (K.REBUILD, None): ("subject",),
}
"""Whose exclusion or loss makes an operation take its failure edge. A destination is who gains ranges."""


def on_vnodes(world: World, factor: int) -> None:
    replication = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", factor),))
    world.do(CreateKeyspace(Keyspace(name="v", replication=replication, on_tablets=False)))
    world.do(CreateTable(Table(id=TableId(world.new_id()), keyspace="v", name="t")))


@pytest.mark.parametrize(("kind", "transition"), FAILURES)
@pytest.mark.parametrize("how", ["excluded", "lost"])
def test_who_must_not_be_missing(kind: NodeRequestKind, transition: TransitionState | None, how: str) -> None:
    for role in ("subject", "destination", "bystander"):
        world, coordinator = cluster(4)
        on_vnodes(world, 3)
        REQUESTED[kind](world)
        coordinator.step()
        if transition is not None:
            coordinator.until(transition)
        joins = kind is K.REPLACE
        number = {"subject": 7 if joins else 2, "destination": 7 if joins else 4, "bystander": 3}[role]
        if role == "subject" and kind is K.REMOVE:
            continue  # it is excluded anyway
        if how == "excluded":
            exclude(world, number)
        else:
            world.lost.add(host(number))
        failed = role in FAILURES[kind, transition] or (joins and role == "destination" and FAILURES[kind, transition])
        step = now(world)
        assert isinstance(step, RollBack if failed else DriveNode), role
        if failed:
            assert step.why == f"127.0.0.{number} {'was excluded' if how == 'excluded' else 'does not answer'}"
            coordinator.settle()
            assert world.snapshot.node(host(2)).state is NodeState.NORMAL
            assert not world.snapshot.sessions


def test_a_host_that_was_excluded_before_a_remove_does_not_fail_it() -> None:
    world, coordinator = cluster(4)
    on_vnodes(world, 3)
    world.dead |= {host(2), host(4)}
    exclude(world, 4)
    world.ask(NodeRequestKind.REMOVE, 2)
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    lost = LivenessView(world.liveness.alive, world.now_ms, frozenset({host(2), host(4)}))
    assert isinstance(next_step(world.snapshot, lost), DriveNode)
    coordinator.settle()
    assert world.snapshot.node(host(2)).state is NodeState.LEFT


def test_requests_that_cannot_run_do_not_hold_up_global_ones() -> None:
    world, coordinator = cluster(3)
    world.dead.add(host(2))
    join = world.ask_to_join(world.node(4))
    assert isinstance(now(world), BlockedQueue)
    request = world.ask_global(GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS)
    assert isinstance(now(world), DriveGlobal)
    rebuild = world.ask(NodeRequestKind.REBUILD, 3)
    step = now(world)
    assert isinstance(step, StartRequest), "a node request that can run goes first"
    assert step.request.id == rebuild.id
    while world.snapshot.global_requests[request.id].is_open:
        coordinator.step()
    assert world.outcome(request.id) is RequestOutcome.DONE
    assert world.snapshot.node_requests[join.id].outcome is RequestOutcome.PENDING
    assert isinstance(now(world), BlockedQueue)


def test_a_node_to_reject() -> None:
    world, _ = cluster(2)
    world.ask_to_join(world.node(4, supported_features=()))
    step = now(world)
    assert isinstance(step, RejectRequest)
    assert "alpha" in step.why


def joined(world: World) -> None:
    world.ask_to_join(world.node(7))


def left(world: World) -> None:
    world.ask(NodeRequestKind.LEAVE, 2)


def removed(world: World) -> None:
    world.dead.add(host(2))
    world.ask(NodeRequestKind.REMOVE, 2)


def replaced(world: World) -> None:
    world.dead.add(host(2))
    world.ask_to_join(world.node(7, rack="r2"), replaced=host(2))


def rebuilt(world: World) -> None:
    world.ask(NodeRequestKind.REBUILD, 2)


REQUESTED = {K.LEAVE: left, K.REMOVE: removed, K.REPLACE: replaced, K.REBUILD: rebuilt}


@pytest.mark.parametrize("start", [joined, left, removed, replaced, rebuilt])
def test_the_same_step_until_its_outcome_is_committed(start: Callable[[World], None]) -> None:
    """A new leader repeats the current step: it follows from the snapshot alone."""
    world, coordinator = cluster(4)
    world.create_table(4, 2)
    start(world)
    for _ in range(200):
        step = now(world)
        assert step == now(world)
        assert step == next_step(world.snapshot, LivenessView(world.liveness.alive, world.now_ms + 1_000_000))
        if isinstance(coordinator.step(), Rest):
            return
    raise AssertionError("no rest")


def test_every_step_says_why() -> None:
    world, _ = with_everything()
    coordinator = Coordinator(world)
    for _ in range(60):
        step = now(world)
        assert step.why
        if isinstance(coordinator.step(), Rest):
            return
    raise AssertionError("no rest")


def test_side_steps_close_what_is_over_and_publish_what_is_new() -> None:
    world, _ = cluster(1)
    table = world.create_table(1, 1)
    (generation,) = world.snapshot.cdc_generations
    ids = [SessionId(uuid.UUID(int=number)) for number in (1, 2)]
    for session, deadline_ms in zip(ids, (world.now_ms + 1000, world.now_ms + 2000)):
        world.do(OpenBulkSession(Session(id=session, kind=SessionKind.BULK_JOB, table=table, deadline_ms=deadline_ms)))
    assert list(side_steps(world.snapshot, world.liveness)) == [
        PublishGeneration(generation, "the oldest one that clients cannot see yet")
    ]
    world.do(MarkCdcPublished(generation))
    world.now_ms += 1500
    (closing,) = side_steps(world.snapshot, world.liveness)
    assert isinstance(closing, CloseBulkSessions)
    assert closing.sessions == (ids[0],)
    world.now_ms += 1500
    (closing,) = side_steps(world.snapshot, world.liveness)
    assert isinstance(closing, CloseBulkSessions)
    assert closing.sessions == tuple(ids)


def abandoned(world: World) -> list[DropAbandoned]:
    return [step for step in side_steps(world.snapshot, world.liveness) if isinstance(step, DropAbandoned)]


def test_data_of_a_generation_is_dropped_once_nobody_can_be_about_to_commit_it() -> None:
    world, coordinator = cluster(2)
    world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.JOIN_GROUP0)
    generation = world.write_generation()
    assert abandoned(world) == [], "the leader may be about to name it"
    coordinator.step()
    (step,) = abandoned(world)
    assert step.generations == (generation,)
    assert world.snapshot.state.new_cdc_generation not in step.generations
    world.ask_global(GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS)
    assert abandoned(world) == []
    coordinator.settle()
    world.do(DropCdcGenerations(abandoned(world)[0].generations))
    assert abandoned(world) == []
