"""Which request is next: priority, viability with dead and excluded nodes, and when a blocked queue is cancelled."""

import itertools
from typing import Any

import pytest
from tests.unit.topology.world import Coordinator, World, cluster, host

from ebla.model.errors import EblaError, InvalidRequest, Refused
from ebla.model.identity import TableId
from ebla.topology.commands import (
    AbortRequest,
    CreateKeyspace,
    CreateTable,
    ExcludeHosts,
    RaiseFence,
    RejectNode,
    SetIgnoredNodes,
)
from ebla.topology.request_queue import (
    PRIORITY,
    BlockedQueue,
    Objection,
    Reason,
    RejectRequest,
    RequestGrace,
    StartRequest,
    cancellation,
    choose_request,
    draining_hosts,
    objections_text,
    objections_to_submit,
    pending_requests,
    queue_position,
    submission_error,
    unsettled_requests,
)
from ebla.topology.snapshot import Exclusion, Keyspace, Replication, Snapshot, Table
from ebla.topology.states import NodeRequestKind, NodeState, RequestOutcome, Strategy, TransitionState


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
    assert choice.verdicts[0].viable, "whom a request removes or replaces is excluded, and blocks no other"


def test_of_equals_the_oldest_goes_first() -> None:
    world, _ = cluster(3)
    first = world.ask_to_join(world.node(9))
    second = world.ask_to_join(world.node(8))
    assert [each.id for each in pending_requests(world.snapshot)] == [first.id, second.id]


def test_nothing_pending() -> None:
    world, _ = cluster(2)
    assert choose_request(world.snapshot, world.liveness) is None


@pytest.mark.parametrize("kind", [kind for kind in NodeRequestKind if kind is not NodeRequestKind.REBUILD])
@pytest.mark.parametrize("excluded", [False, True])
def test_a_dead_node_blocks_unless_it_is_excluded(kind: NodeRequestKind, excluded: bool) -> None:
    world, _ = cluster(4)
    world.dead.add(host(3))
    ask(world, kind, 2)
    if excluded:
        world.do(SetIgnoredNodes((*world.snapshot.state.ignored_nodes, host(3))))
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, StartRequest if excluded else BlockedQueue)
    (verdict,) = choice.verdicts
    expected = [] if excluded else [(Reason.NODES_DOWN, (host(3),))]
    assert [(each.reason, each.hosts) for each in verdict.objections] == expected


@pytest.mark.parametrize("state", [NodeState.NONE, NodeState.LEFT])
def test_a_dead_node_that_is_not_normal_does_not_block(state: NodeState) -> None:
    world, _ = cluster(3)
    world.ask_to_join(world.node(8))
    world.dead.add(host(8))
    if state is NodeState.LEFT:
        world.do(RejectNode(host(8), "", world.now_ms))
    world.ask_to_join(world.node(9))
    assert world.snapshot.node(host(8)).state is state
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, StartRequest)
    assert all(verdict.viable for verdict in choice.verdicts)


def on_vnodes(world: World, factor: int) -> None:
    replication = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", factor),))
    world.do(CreateKeyspace(Keyspace(name="v", replication=replication, on_tablets=False)))
    world.do(CreateTable(Table(id=TableId(world.new_id()), keyspace="v", name="t")))


def test_a_leave_by_which_an_excluded_node_gains_a_range_cannot_run() -> None:
    world, _ = cluster(4)
    on_vnodes(world, 2)
    world.dead.add(host(3))
    world.do(SetIgnoredNodes((host(3),)))
    join = world.ask_to_join(world.node(9))
    leave = world.ask(NodeRequestKind.LEAVE, 2)
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, StartRequest)
    assert choice.request.id == join.id, "only the new node gains ranges"
    blocked = choice.verdicts[1]
    assert blocked.request.id == leave.id
    assert blocked.objections == (Objection(Reason.EXCLUDED_GAINS, (host(3),)),)
    assert "127.0.0.3" in objections_text(world.snapshot, blocked.objections)


def test_a_join_of_an_excluded_node_cannot_run_if_it_gains_a_range() -> None:
    world, _ = cluster(4)
    world.ask_to_join(world.node(9))
    world.dead.add(host(2))
    world.ask(NodeRequestKind.REMOVE, 2, ignored_nodes=(host(9),))
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, StartRequest)
    assert choice.request.kind is NodeRequestKind.JOIN, "no table is on vnodes"
    on_vnodes(world, 2)
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, StartRequest)
    assert choice.request.kind is NodeRequestKind.REMOVE
    assert choice.verdicts[0].objections == (Objection(Reason.EXCLUDED_GAINS, (host(9),)),)


def test_the_place_in_the_queue() -> None:
    world, coordinator = cluster(3)
    leave = world.ask(NodeRequestKind.LEAVE, 2)
    join = world.ask_to_join(world.node(9))
    assert [queue_position(world.snapshot, one.id) for one in (join, leave)] == [1, 2]
    coordinator.until(TransitionState.JOIN_GROUP0)
    assert [queue_position(world.snapshot, one.id) for one in (join, leave)] == [0, 1]


def test_a_rebuild_needs_its_own_node_only() -> None:
    world, _ = cluster(4)
    world.dead.add(host(3))
    ask(world, NodeRequestKind.REBUILD, 2)
    assert isinstance(choose_request(world.snapshot, world.liveness), StartRequest)
    world.dead.add(host(2))
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, BlockedQueue)
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
        error = world.snapshot.node_requests[request.id].error
        assert error == "cancelled: nodes down and not excluded: 127.0.0.3"


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
    assert isinstance(choice, BlockedQueue)
    assert [each.reason for each in choice.verdicts[0].objections] == [Reason.TARGET_ALIVE]
    coordinator.settle()
    assert world.snapshot.node(host(2)).state is NodeState.NORMAL
    assert world.snapshot.state.ignored_nodes == ()


def test_what_speaks_against_submitting() -> None:
    world, _ = cluster(4)
    world.dead.add(host(3))
    reasons = {
        (NodeRequestKind.REMOVE, 2): [Reason.TARGET_ALIVE, Reason.NODES_DOWN],
        (NodeRequestKind.REMOVE, 3): [],
        (NodeRequestKind.LEAVE, 2): [],
        (NodeRequestKind.LEAVE, 77): [Reason.TARGET_UNKNOWN],
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


REBUILD, LEAVE, REMOVE = NodeRequestKind.REBUILD, NodeRequestKind.LEAVE, NodeRequestKind.REMOVE
BAD_INPUT: list[tuple[NodeRequestKind, int, dict[str, Any], type[EblaError], str, str]] = [
    (LEAVE, 77, {}, InvalidRequest, f"no such node: {host(77)}", "ebla status"),
    (LEAVE, 9, {}, Refused, "node is not normal: 127.0.0.9: it is none", ""),
    (LEAVE, 2, {}, Refused, "node already has a request: 127.0.0.2: request ", "ebla topology abort REQUEST"),
    (
        LEAVE,
        5,
        {},
        Refused,
        "too few nodes would remain for the replication of a keyspace: 7 in dc1, for wide",
        "add a node",
    ),
    (LEAVE, 4, {}, Refused, "node is excluded: 127.0.0.4", "ebla recover"),
    (REBUILD, 4, {}, Refused, "node is excluded: 127.0.0.4", "ebla recover"),
    (REBUILD, 1, {"rebuild_source": "dc7"}, InvalidRequest, "to rebuild from: dc7; known are dc1", ""),
    (REMOVE, 1, {}, Refused, "node to remove or replace is alive: 127.0.0.1", "if it is excluded, stop it first"),
    (
        REMOVE,
        6,
        {"ignored_nodes": (host(77),)},
        InvalidRequest,
        f"node to ignore is no member: {host(77)}",
        "ebla status",
    ),
    (REMOVE, 6, {"ignored_nodes": (host(1),)}, Refused, "node to ignore is alive: 127.0.0.1", "nodes that are down"),
    (REMOVE, 6, {}, Refused, "nodes down and not excluded: 127.0.0.7", "--ignore-dead HOST"),
    (REMOVE, 8, {}, Refused, "node is already being replaced: 127.0.0.8: request ", "ebla topology abort REQUEST"),
]
"""In a cluster of eight nodes: node 2 has a request, node 4 is excluded and answers, nodes 6, 7 and 8 are down, node 8
is being replaced, node 9 waits to join."""


@pytest.mark.parametrize(("kind", "number", "fields", "error", "text", "advice"), BAD_INPUT)
def test_what_must_not_be_requested_is_refused_with_the_value_and_the_way_out(
    kind: NodeRequestKind, number: int, fields: dict[str, Any], error: type[EblaError], text: str, advice: str
) -> None:
    world, _ = cluster(8)
    world.do(ExcludeHosts((Exclusion(host=host(4), since_ms=1, by=host(1)),)))
    world.ask(NodeRequestKind.REBUILD, 2)
    world.ask_to_join(world.node(9))
    world.dead |= {host(6), host(7), host(8)}
    world.ask_to_join(world.node(10, rack=world.snapshot.node(host(8)).rack), replaced=host(8))
    if "wide" in text:
        wide = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 8),))
        world.do(CreateKeyspace(Keyspace(name="wide", replication=wide, on_tablets=True)))
    before = world.snapshot
    found = objections_to_submit(world.snapshot, world.request(kind, number, **fields), world.liveness)
    refusal = submission_error(world.snapshot, found)
    assert type(refusal) is error
    assert text in refusal.message
    assert advice in refusal.advice
    assert world.snapshot is before


def test_the_last_owner_of_tokens_and_nodes_with_tablets_stay() -> None:
    alone, _ = cluster(1)
    found = objections_to_submit(alone.snapshot, alone.request(LEAVE, 1), alone.liveness)
    refusal = submission_error(alone.snapshot, found)
    assert (type(refusal), refusal.message) == (Refused, "it is the last node that owns tokens: 127.0.0.1")
    assert "add a node" in refusal.advice
    world, _ = cluster(3)
    world.create_table(8, 1)
    count = world.snapshot.tablet_replicas_on(host(2))
    refusal = submission_error(
        world.snapshot, objections_to_submit(world.snapshot, world.request(LEAVE, 2), world.liveness)
    )
    assert count > 0
    assert (type(refusal), refusal.message) == (
        Refused,
        f"node holds tablets: {count} tablet replicas, which cannot be moved yet",
    )


DOWN, EXCLUDED, GONE = "down", "excluded", "down and excluded"
QUEUE: list[tuple[NodeRequestKind, dict[int, str], list[Reason]]] = [
    (NodeRequestKind.LEAVE, {2: DOWN}, [Reason.TARGET_DOWN]),
    (NodeRequestKind.LEAVE, {2: EXCLUDED}, [Reason.TARGET_EXCLUDED]),
    (NodeRequestKind.LEAVE, {3: DOWN}, [Reason.NODES_DOWN]),
    (NodeRequestKind.LEAVE, {4: GONE}, [Reason.EXCLUDED_GAINS]),
    (NodeRequestKind.LEAVE, {3: GONE}, []),
    (NodeRequestKind.REBUILD, {2: DOWN}, [Reason.TARGET_DOWN]),
    (NodeRequestKind.REBUILD, {2: GONE}, [Reason.TARGET_EXCLUDED]),
    (NodeRequestKind.REBUILD, {3: DOWN}, []),
    (NodeRequestKind.REMOVE, {2: EXCLUDED}, [Reason.TARGET_ALIVE]),
    (NodeRequestKind.REMOVE, {2: DOWN, 3: DOWN}, [Reason.NODES_DOWN]),
    (NodeRequestKind.REMOVE, {2: DOWN, 4: GONE}, []),
    (NodeRequestKind.REPLACE, {2: EXCLUDED}, [Reason.TARGET_ALIVE]),
    (NodeRequestKind.REPLACE, {2: DOWN, 3: DOWN}, [Reason.NODES_DOWN]),
    (NodeRequestKind.REPLACE, {2: DOWN, 4: GONE}, []),
    (NodeRequestKind.JOIN, {3: DOWN}, [Reason.NODES_DOWN]),
    (NodeRequestKind.JOIN, {3: GONE}, []),
]
"""A request about node 2 (or a join), what happened to nodes after it was made, and what is said against it. By the
leave or removal of node 2, nodes 1 and 4 gain ranges."""


@pytest.mark.parametrize(("kind", "happened", "reasons"), QUEUE)
def test_what_keeps_a_request_from_running(
    kind: NodeRequestKind, happened: dict[int, str], reasons: list[Reason]
) -> None:
    world, _ = cluster(4)
    on_vnodes(world, 3)
    ask(world, kind, 2)
    world.dead.clear()
    for number, how in happened.items():
        if how in (DOWN, GONE):
            world.dead.add(host(number))
        if how in (EXCLUDED, GONE):
            world.do(ExcludeHosts((Exclusion(host=host(number), since_ms=1, by=host(1)),)))
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, StartRequest if not reasons else BlockedQueue)
    (verdict,) = choice.verdicts
    assert [one.reason for one in verdict.objections] == reasons


SUBMISSIONS: list[tuple[NodeRequestKind, int, dict[str, Any], str, type[EblaError]]] = [
    (NodeRequestKind.LEAVE, 77, {}, "no such node", InvalidRequest),
    (NodeRequestKind.LEAVE, 4, {}, "node is not normal: 127.0.0.4: it is left", Refused),
    (NodeRequestKind.LEAVE, 1, {}, "node holds tablets: 4 tablet replicas, which cannot be moved yet", Refused),
    (NodeRequestKind.REMOVE, 2, {}, "node to remove or replace is alive: 127.0.0.2", Refused),
    (NodeRequestKind.REMOVE, 3, {}, "nodes down and not excluded: 127.0.0.5", Refused),
    (NodeRequestKind.REMOVE, 3, {"ignored_nodes": (host(2), host(5))}, "node to ignore is alive: 127.0.0.2", Refused),
    (
        NodeRequestKind.REMOVE,
        3,
        {"ignored_nodes": (host(4),)},
        "node to ignore is no member: 127.0.0.4",
        InvalidRequest,
    ),
    (NodeRequestKind.REBUILD, 2, {"rebuild_source": "dc9"}, "dc9; known are dc1", InvalidRequest),
]


@pytest.mark.parametrize(("kind", "number", "changes", "text", "error"), SUBMISSIONS)
def test_the_errors_of_a_submission(
    kind: NodeRequestKind, number: int, changes: dict[str, Any], text: str, error: type[EblaError]
) -> None:
    world, coordinator = cluster(5)
    world.ask(NodeRequestKind.LEAVE, 4)
    coordinator.settle()
    world.create_table(16, 1)
    world.dead |= {host(3), host(5)}
    request = world.request(kind, number, **changes)
    found = submission_error(world.snapshot, objections_to_submit(world.snapshot, request, world.liveness))
    assert type(found) is error
    assert text in found.message
    assert found.advice or "tablet" in text or "normal" in text or "dc9" in text


def test_an_objection_reads_as_a_sentence() -> None:
    world, _ = cluster(4)
    world.dead.add(host(3))
    found = objections_to_submit(world.snapshot, world.request(NodeRequestKind.REMOVE, 2), world.liveness)
    assert str(found[1]) == f"nodes down and not excluded: {host(3)}"


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


# How long a blocked queue waits

GRACE_MS = 60_000


def blocked_by(world: World, *dead: int) -> BlockedQueue:
    world.dead = {host(number) for number in dead}
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, BlockedQueue)
    return choice


def test_a_request_is_cancelled_after_its_objection_has_stood_for_the_grace() -> None:
    world, _ = cluster(4)
    request = world.ask_to_join(world.node(9)).id
    grace = RequestGrace()
    assert grace.overdue(0, 500) == ()
    assert grace.left_ms(request, GRACE_MS, 500) is None
    grace.observe(blocked_by(world, 3), 1_000)
    assert grace.left_ms(request, GRACE_MS, 31_000) == 30_000
    assert grace.overdue(GRACE_MS, 60_999) == ()
    grace.observe(blocked_by(world, 3), 60_999)
    assert grace.overdue(GRACE_MS, 60_999) == ()
    (verdict,) = grace.overdue(GRACE_MS, 61_000)
    assert verdict.request.id == request
    assert grace.left_ms(request, GRACE_MS, 70_000) == 0
    world.do(cancellation(world.snapshot, verdict, world.now_ms))
    assert world.snapshot.node(host(9)).state is NodeState.LEFT
    assert world.snapshot.node_requests[request].error == "cancelled: nodes down and not excluded: 127.0.0.3"


def test_without_grace_a_request_is_cancelled_at_the_first_look() -> None:
    world, _ = cluster(4)
    world.ask_to_join(world.node(9))
    grace = RequestGrace()
    grace.observe(blocked_by(world, 3), 1_000)
    assert len(grace.overdue(0, 1_000)) == 1


def test_no_time_counts_while_something_runs() -> None:
    """Otherwise a join that a dead node blocks would be cancelled while the replacement of that node runs."""
    world, _ = cluster(4)
    request = world.ask_to_join(world.node(9)).id
    grace = RequestGrace()
    grace.observe(blocked_by(world, 3), 0)
    grace.observe(None, 20_000)
    assert grace.overdue(0, 900_000) == ()
    assert grace.left_ms(request, GRACE_MS, 900_000) == 40_000
    grace.observe(blocked_by(world, 3), 900_000)
    assert grace.overdue(GRACE_MS, 939_999) == ()
    assert len(grace.overdue(GRACE_MS, 940_000)) == 1


def test_another_objection_starts_the_grace_again() -> None:
    world, _ = cluster(4)
    world.ask_to_join(world.node(9))
    grace = RequestGrace()
    grace.observe(blocked_by(world, 3), 0)
    grace.observe(blocked_by(world, 4), 50_000)
    assert grace.overdue(GRACE_MS, 109_999) == ()
    assert len(grace.overdue(GRACE_MS, 110_000)) == 1


def test_a_request_that_could_run_in_between_starts_again() -> None:
    world, _ = cluster(4)
    world.ask_to_join(world.node(9))
    request = world.ask(NodeRequestKind.LEAVE, 2).id
    grace = RequestGrace()
    grace.observe(blocked_by(world, 3), 0)
    world.dead.clear()
    grace.observe(choose_request(world.snapshot, world.liveness), 50_000)
    assert grace.left_ms(request, GRACE_MS, 50_000) is None
    grace.observe(blocked_by(world, 3), 60_000)
    assert grace.left_ms(request, GRACE_MS, 60_000) == GRACE_MS


def test_a_request_that_can_run_keeps_the_others_from_being_cancelled() -> None:
    world, _ = cluster(4)
    world.ask_to_join(world.node(9))
    grace = RequestGrace()
    grace.observe(blocked_by(world, 3), 0)
    world.ask(NodeRequestKind.REBUILD, 2)
    choice = choose_request(world.snapshot, world.liveness)
    assert isinstance(choice, StartRequest)
    grace.observe(choice, 10_000)
    assert grace.overdue(GRACE_MS, 500_000) == ()


def test_a_cancelled_leave_keeps_its_node() -> None:
    world, _ = cluster(4)
    request = world.ask(NodeRequestKind.LEAVE, 2).id
    (verdict,) = blocked_by(world, 3).verdicts
    world.do(cancellation(world.snapshot, verdict, world.now_ms))
    assert world.snapshot.node(host(2)).state is NodeState.NORMAL
    assert world.snapshot.node_requests[request].error == "cancelled: nodes down and not excluded: 127.0.0.3"


@pytest.mark.parametrize("kind", NodeRequestKind)
def test_a_request_is_settled_once_the_fence_is_at_the_version_that_ended_it(kind: NodeRequestKind) -> None:
    """Of a join and a leave every barrier precedes the end."""
    world, coordinator = cluster(4)
    ask(world, kind, 2)
    (request,) = pending_requests(world.snapshot)
    while world.snapshot.node_requests[request.id].is_open:
        coordinator.step()
    ended = world.snapshot.node_requests[request.id]
    assert ended.outcome is RequestOutcome.DONE
    waits = kind in (NodeRequestKind.REMOVE, NodeRequestKind.REPLACE, NodeRequestKind.REBUILD)
    assert unsettled_requests(world.snapshot) == ((ended,) if waits else ())
    world.do(RaiseFence(world.snapshot.version))
    assert unsettled_requests(world.snapshot) == ()


def test_a_failed_request_has_nothing_to_settle() -> None:
    world, _ = cluster(4)
    world.dead.add(host(2))
    request = world.ask(NodeRequestKind.REMOVE, 2)
    world.do(AbortRequest(request.id, "", world.now_ms))
    assert unsettled_requests(world.snapshot) == ()
