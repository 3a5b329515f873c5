"""Which request is next: priority, viability with dead and ignored nodes, and the end of a hopeless queue."""

import itertools

import pytest
from tests.unit.topology.world import Coordinator, World, cluster, host

from ebla.topology.commands import SetIgnoredNodes
from ebla.topology.request_queue import (
    PRIORITY,
    CancelQueue,
    Reason,
    RejectRequest,
    StartRequest,
    choose_request,
    draining_hosts,
    objections_to_submit,
    pending_requests,
)
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeRequestKind, NodeState, TransitionState


def ask(world: World, kind: NodeRequestKind, number: int) -> None:
    """A request of this kind, for the node or (join, replace) by a new one; marks the node dead if it must be."""
    if kind in (NodeRequestKind.REMOVE, NodeRequestKind.REPLACE):
        world.dead.add(host(number))
    match kind:
        case NodeRequestKind.JOIN:
            world.ask_to_join(world.node(number + 100))
        case NodeRequestKind.REPLACE:
            rack = world.snapshot.node(host(number)).rack
            world.ask_to_join(world.node(number + 100, rack=rack), replaced=host(number))
        case _:
            world.ask(kind, number)


def test_the_priority_names_every_kind_once() -> None:
    assert sorted(PRIORITY) == sorted(NodeRequestKind)


@pytest.mark.parametrize(("better", "worse"), list(itertools.combinations(PRIORITY, 2)))
def test_the_better_priority_goes_first_however_late_it_comes(better: NodeRequestKind, worse: NodeRequestKind) -> None:
    world, _ = cluster(6)
    ask(world, worse, 2)
    ask(world, better, 4)
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, StartRequest)
    assert [verdict.request.kind for verdict in choice.verdicts] == [better, worse]
    assert choice.request == next(verdict.request for verdict in choice.verdicts if verdict.viable)
    bears_the_dead = better not in (NodeRequestKind.JOIN, NodeRequestKind.LEAVE) or not world.dead
    assert choice.verdicts[0].viable is bears_the_dead


def test_of_equals_the_oldest_goes_first() -> None:
    world, _ = cluster(3)
    first = world.ask_to_join(world.node(9))
    second = world.ask_to_join(world.node(8))
    assert [each.id for each in pending_requests(world.snapshot)] == [first.id, second.id]


def test_nothing_pending() -> None:
    world, _ = cluster(2)
    assert choose_request(world.snapshot, world.liveness) is None


@pytest.mark.parametrize("kind", [NodeRequestKind.JOIN, NodeRequestKind.LEAVE])
@pytest.mark.parametrize("ignored", [False, True])
def test_join_and_leave_bear_no_dead_node_even_an_ignored_one(kind: NodeRequestKind, ignored: bool) -> None:
    world, _ = cluster(4)
    world.dead.add(host(3))
    if ignored:
        world.do(SetIgnoredNodes((host(3),)))
    ask(world, kind, 2)
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, CancelQueue)
    (verdict,) = choice.verdicts
    assert [(each.reason, each.hosts) for each in verdict.objections] == [(Reason.NODES_DOWN, (host(3),))]


@pytest.mark.parametrize("kind", [NodeRequestKind.REMOVE, NodeRequestKind.REPLACE])
@pytest.mark.parametrize("ignored", [False, True])
def test_remove_and_replace_bear_dead_nodes_that_are_ignored(kind: NodeRequestKind, ignored: bool) -> None:
    world, _ = cluster(4)
    world.dead |= {host(2), host(3)}
    ask(world, kind, 2)
    if ignored:
        world.do(SetIgnoredNodes((host(2), host(3))))
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, StartRequest if ignored else CancelQueue)


def test_a_rebuild_needs_its_own_node_only() -> None:
    world, _ = cluster(4)
    world.dead.add(host(3))
    ask(world, NodeRequestKind.REBUILD, 2)
    assert isinstance(choose_request(world.snapshot, world.liveness), StartRequest)
    world.dead.add(host(2))
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, CancelQueue)
    assert choice.verdicts[0].objections[0].reason is Reason.TARGET_DOWN


def test_a_viable_request_goes_before_better_ones_that_are_not() -> None:
    world, _ = cluster(4)
    world.dead.add(host(3))
    ask(world, NodeRequestKind.JOIN, 2)
    ask(world, NodeRequestKind.REBUILD, 2)
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, StartRequest)
    assert choice.request.kind is NodeRequestKind.REBUILD
    assert [verdict.viable for verdict in choice.verdicts] == [False, True]


def test_a_hopeless_queue_is_cancelled_with_the_reasons() -> None:
    world, coordinator = cluster(4)
    world.dead.add(host(3))
    join = world.ask_to_join(world.node(9))
    leave = world.ask(NodeRequestKind.LEAVE, 2)
    coordinator.settle()
    assert world.snapshot.node(host(9)).state is NodeState.LEFT
    assert world.snapshot.node(host(2)).state is NodeState.NORMAL
    for request in (join, leave):
        assert str(host(3)) in world.snapshot.node_requests[request.id].error


def test_a_node_without_an_enabled_feature_is_rejected() -> None:
    world, coordinator = cluster(2)
    request = world.ask_to_join(world.node(9, supported_features=("alpha",)))
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, RejectRequest)
    assert (choice.objections[0].reason, choice.objections[0].detail) == (Reason.FEATURES_MISSING, "beta")
    coordinator.settle()
    assert "beta" in world.snapshot.node_requests[request.id].error


def test_a_replace_is_rejected_if_its_target_went_another_way() -> None:
    world, coordinator = cluster(4)
    world.dead.add(host(2))
    world.ask(NodeRequestKind.REMOVE, 2)
    coordinator.until(TransitionState.TABLET_DRAINING)
    world2, _ = cluster(4)
    world2.dead.add(host(2))
    world2.ask_to_join(world2.node(9, rack="r2"), replaced=host(2))
    moved = world2.snapshot
    nodes = moved.nodes.put(host(2), world.snapshot.node(host(2)))
    broken = Snapshot(state=moved.state, nodes=nodes, node_requests=moved.node_requests)
    choice = choose_request(broken, world2.liveness)
    assert isinstance(choice, RejectRequest)
    assert choice.objections[0].reason is Reason.REPLACED_NOT_NORMAL


@pytest.mark.parametrize("kind", [NodeRequestKind.REMOVE, NodeRequestKind.REPLACE])
def test_a_target_that_came_back_is_let_be(kind: NodeRequestKind) -> None:
    world, coordinator = cluster(4)
    world.dead.add(host(2))
    ask(world, kind, 2)
    world.dead.clear()
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, CancelQueue)
    assert [each.reason for each in choice.verdicts[0].objections] == [Reason.TARGET_ALIVE]
    coordinator.settle()
    assert world.snapshot.node(host(2)).state is NodeState.NORMAL
    assert world.snapshot.state.ignored_nodes == ()


def test_a_remove_ignores_its_target_though_a_failed_replace_took_it_off_the_list() -> None:
    world, coordinator = cluster(4)
    world.dead.add(host(2))
    world.ask_to_join(world.node(9, rack="r2", supported_features=()), replaced=host(2))
    world.ask(NodeRequestKind.REMOVE, 2)
    coordinator.step()
    assert world.snapshot.node(host(9)).state is NodeState.LEFT
    assert host(2) not in world.snapshot.state.ignored_nodes
    coordinator.until(TransitionState.TABLET_DRAINING)
    assert host(2) in world.snapshot.state.ignored_nodes


def test_what_speaks_against_submitting() -> None:
    world, _ = cluster(4)
    world.dead.add(host(3))
    reasons = {
        (NodeRequestKind.REMOVE, 2): [Reason.TARGET_ALIVE, Reason.NODES_DOWN],
        (NodeRequestKind.REMOVE, 3): [],
        (NodeRequestKind.LEAVE, 2): [],
        (NodeRequestKind.LEAVE, 77): [Reason.TARGET_NOT_NORMAL],
    }
    for (kind, number), expected in reasons.items():
        found = objections_to_submit(world.snapshot, world.request(kind, number), world.liveness)
        assert [each.reason for each in found] == expected, (kind, number)


def test_an_ignored_node_must_be_dead() -> None:
    world, _ = cluster(4)
    world.dead.add(host(3))
    request = world.request(NodeRequestKind.REMOVE, 3, ignored_nodes=(host(1),))
    found = objections_to_submit(world.snapshot, request, world.liveness)
    assert [each.reason for each in found] == [Reason.IGNORED_ALIVE]


def test_a_new_node_is_judged_by_whom_it_replaces() -> None:
    world, _ = cluster(4)
    node = world.node(9, rack="r2")
    request = world.request(NodeRequestKind.REPLACE, 9, replaced=host(2))
    found = objections_to_submit(world.snapshot, request, world.liveness, node)
    assert [each.reason for each in found] == [Reason.TARGET_ALIVE]
    world.dead.add(host(2))
    assert objections_to_submit(world.snapshot, request, world.liveness, node) == ()


def test_an_objection_reads_as_a_sentence() -> None:
    world, _ = cluster(4)
    world.dead.add(host(3))
    found = objections_to_submit(world.snapshot, world.request(NodeRequestKind.REMOVE, 2), world.liveness)
    assert str(found[1]) == f"other nodes are down and not ignored: {host(3)}"


def test_waiting_leaves_are_drained_along_with_the_first() -> None:
    world, coordinator = cluster(6)
    world.create_table(8, 2)
    assert draining_hosts(world.snapshot) == ()
    world.ask(NodeRequestKind.LEAVE, 2)
    world.ask(NodeRequestKind.LEAVE, 5)
    coordinator = Coordinator(world, moves_at_once=8)
    coordinator.until(TransitionState.TABLET_DRAINING)
    assert draining_hosts(world.snapshot) == (host(2), host(5))
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    assert not world.snapshot.has_tablets(host(2))
    assert not world.snapshot.has_tablets(host(5))
    coordinator.settle()
    assert {world.snapshot.node(host(number)).state for number in (2, 5)} == {NodeState.LEFT}
