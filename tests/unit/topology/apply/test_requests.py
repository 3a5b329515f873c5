"""Making, withdrawing and ending requests."""

from typing import Any

import msgspec
import pytest
from tests.unit.topology.world import Coordinator, World, cluster, host

from ebla.model.identity import RequestId, TableId, TopologyVersion
from ebla.topology.apply.draft import FINISHED_REQUESTS_MAX
from ebla.topology.apply.requests import PENDING_REQUESTS_MAX
from ebla.topology.cdc_generations import has_current_streams
from ebla.topology.commands import (
    AbortRequest,
    AdvanceNode,
    CancelRequest,
    CommitCdcGeneration,
    CompleteRequest,
    CreateKeyspace,
    CreateTable,
    ExcludeHosts,
    FinishGlobalRequest,
    IncludeHost,
    RaiseFence,
    SetBalancing,
    SetIgnoredNodes,
    StartCdcCommit,
    SubmitGlobalRequest,
    SubmitJoin,
    SubmitNodeRequest,
    WriteCdcPart,
)
from ebla.topology.next_step import DropAbandoned, side_steps
from ebla.topology.node_states import NODE_TABLE, REQUEST_STARTS
from ebla.topology.snapshot import (
    CdcGenerationPart,
    CdcRange,
    Exclusion,
    GenerationId,
    GlobalRequest,
    Keyspace,
    Replication,
    Table,
)
from ebla.topology.states import (
    GlobalRequestKind,
    NodeRequestKind,
    NodeState,
    RequestOutcome,
    Strategy,
    TransitionState,
)

RF_CHANGE = GlobalRequestKind.KEYSPACE_RF_CHANGE
CDC = GlobalRequestKind.CHECK_AND_REPAIR_CDC_STREAMS


def submit(world: World, kind: NodeRequestKind, number: int, **changes: Any) -> str:
    return world.refused(SubmitNodeRequest(world.request(kind, number, **changes)))


def test_a_request_does_not_make_a_version() -> None:
    world, _ = cluster(3)
    before = world.snapshot.version
    world.ask(NodeRequestKind.REBUILD, 2)
    assert world.snapshot.version == before


def test_who_may_join() -> None:
    world, _ = cluster(2)
    join = NodeRequestKind.JOIN
    assert "already a member" in world.refused(SubmitJoin(world.node(2), world.request(join, 2)))
    assert "joins for itself" in world.refused(SubmitJoin(world.node(3), world.request(join, 4)))
    assert "num_tokens" in world.refused(SubmitJoin(world.node(3, num_tokens=0), world.request(join, 3)))
    assert "shards" in world.refused(SubmitJoin(world.node(3, shard_count=0), world.request(join, 3)))
    leave = world.request(NodeRequestKind.LEAVE, 3)
    assert "cannot ask to leave" in world.refused(SubmitJoin(world.node(3), leave))
    odd = world.request(join, 3, replaced=host(2))
    assert "replaces nobody" in world.refused(SubmitJoin(world.node(3), odd))
    world.ask_to_join(world.node(3))
    assert "ebla reset-node" in world.refused(SubmitJoin(world.node(3), world.request(join, 3)))


def test_a_joining_node_starts_from_nothing_whatever_it_says() -> None:
    world, _ = cluster(2)
    world.ask_to_join(world.node(3, state=NodeState.NORMAL, tokens=(5,)))
    node = world.snapshot.node(host(3))
    assert (node.state, node.tokens) == (NodeState.NONE, ())


def test_who_may_be_replaced() -> None:
    world, coordinator = cluster(4)
    world.ask(NodeRequestKind.LEAVE, 4)
    coordinator.settle()
    replace = NodeRequestKind.REPLACE
    cases = [
        (world.request(replace, 9), "whom it replaces"),
        (world.request(replace, 9, replaced=host(77)), "not a member"),
        (world.request(replace, 9, replaced=host(4)), "it is left"),
        (world.request(replace, 9, replaced=host(2)), "it is in dc1/r2, the new node in dc1/r0"),
        (world.request(replace, 9, replaced=host(3), ignored_nodes=(host(4),)), "node to ignore is no member"),
    ]
    for request, reason in cases:
        assert reason in world.refused(SubmitJoin(world.node(9, rack="r0"), request))
    first = world.ask_to_join(world.node(9, rack="r0"), replaced=host(3), ignored_nodes=(host(1),))
    assert world.snapshot.state.ignored_nodes == (host(1), host(3))
    second = world.request(replace, 10, replaced=host(3))
    refusal = f"node is already being replaced: 127.0.0.3: request {first.id}"
    assert refusal in world.refused(SubmitJoin(world.node(10, rack="r0"), second))
    assert refusal in submit(world, NodeRequestKind.REMOVE, 3)


def test_a_replace_ends_what_the_dead_node_had_asked_for() -> None:
    world, _ = cluster(3)
    old = world.ask(NodeRequestKind.REBUILD, 2)
    world.ask_to_join(world.node(9, rack="r2"), replaced=host(2))
    assert "being replaced" in world.snapshot.node_requests[old.id].error
    assert world.snapshot.node(host(2)).request is None


def test_requests_of_members() -> None:
    world, _ = cluster(3)
    assert "not a member" in submit(world, NodeRequestKind.LEAVE, 9)
    assert "cannot join again" in submit(world, NodeRequestKind.JOIN, 2)
    assert "dc7; known are dc1" in submit(world, NodeRequestKind.REBUILD, 2, rebuild_source="dc7")
    request = world.ask(NodeRequestKind.REBUILD, 2, rebuild_source="dc1")
    assert world.snapshot.node(host(2)).rebuild_source == "dc1"
    assert f"already has a request: 127.0.0.2: request {request.id}" in submit(world, NodeRequestKind.LEAVE, 2)
    world.ask_to_join(world.node(4))
    assert "it is none" in submit(world, NodeRequestKind.LEAVE, 4)
    world.do(SetIgnoredNodes((host(3),)))
    for kind in (NodeRequestKind.LEAVE, NodeRequestKind.REBUILD):
        assert "node is excluded: 127.0.0.3" in submit(world, kind, 3)


def test_too_few_may_not_remain() -> None:
    world, _ = cluster(3)
    world.create_table(4, 2)
    world.ask(NodeRequestKind.LEAVE, 3)
    assert "too few nodes would remain" in submit(world, NodeRequestKind.LEAVE, 2), "the one that waits counts as gone"


def test_the_last_owner_of_tokens_stays() -> None:
    world, _ = cluster(1)
    assert "last node that owns tokens" in submit(world, NodeRequestKind.LEAVE, 1)


def test_an_id_is_used_once() -> None:
    world, _ = cluster(3)
    first = world.ask(NodeRequestKind.REBUILD, 2)
    twin = world.request(NodeRequestKind.REBUILD, 3)
    twin = msgspec.structs.replace(twin, id=first.id, start_ms=1)
    assert "was made before" in world.refused(SubmitNodeRequest(twin))


def test_the_queue_is_bounded() -> None:
    world, _ = cluster(1, checking=False)
    for number in range(PENDING_REQUESTS_MAX):
        world.ask_to_join(world.node(1000 + number))
    assert "try again" in world.refused(SubmitJoin(world.node(5), world.request(NodeRequestKind.JOIN, 5)))


def test_finished_requests_are_kept_up_to_a_bound() -> None:
    world, _ = cluster(2)
    made = []
    for _ in range(FINISHED_REQUESTS_MAX + 5):
        request = world.ask(NodeRequestKind.REBUILD, 2)
        world.do(AbortRequest(request.id, "never mind", world.now_ms))
        made.append(request.id)
    kept = world.snapshot.node_requests
    assert len(kept) == FINISHED_REQUESTS_MAX
    assert made[-1] in kept
    assert made[0] not in kept


def test_a_pending_request_is_aborted_at_once() -> None:
    world, _ = cluster(3)
    request = world.ask(NodeRequestKind.REMOVE, 2)
    world.do(AbortRequest(request.id, "never mind", world.now_ms))
    assert world.snapshot.node_requests[request.id].error == "aborted: never mind"
    assert world.snapshot.state.ignored_nodes == ()
    assert world.snapshot.node(host(2)).request is None
    assert "already failed" in world.refused(AbortRequest(request.id, "", 1))
    assert "no request" in world.refused(AbortRequest(RequestId(world.new_id()), "", 1))


def test_a_pending_join_is_aborted_at_once() -> None:
    world, _ = cluster(2)
    request = world.ask_to_join(world.node(3))
    version = world.snapshot.version
    world.do(AbortRequest(request.id, "wrong rack", world.now_ms))
    assert world.snapshot.node(host(3)).state is NodeState.LEFT
    assert world.snapshot.node_requests[request.id].error == "aborted: wrong rack"
    assert world.snapshot.version == version + 1, "nodes learn that the row is left"
    assert "already failed: aborted: wrong rack" in world.refused(AbortRequest(request.id, "", 1))


def test_a_pending_join_is_aborted_while_another_node_joins() -> None:
    world, coordinator = cluster(2)
    world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    waiting = world.ask_to_join(world.node(4))
    session = world.snapshot.state.session
    world.do(AbortRequest(waiting.id, "", world.now_ms))
    assert world.snapshot.node(host(4)).state is NodeState.LEFT
    assert world.snapshot.node_requests[waiting.id].error == "aborted: no reason was given"
    assert (world.snapshot.transition, world.snapshot.state.session) == (TransitionState.WRITE_BOTH_READ_OLD, session)


def test_only_a_pending_request_is_cancelled() -> None:
    world, coordinator = cluster(2)
    request = world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.JOIN_GROUP0)
    assert "not cancelled" in world.refused(CancelRequest(request.id, "", 1))
    coordinator.settle()
    assert "already done" in world.refused(CancelRequest(request.id, "", 1))


def test_a_running_join_stores_its_abort_and_the_first_error_stays() -> None:
    world, coordinator = cluster(2)
    request = world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    before = world.snapshot
    world.do(AbortRequest(request.id, "wrong rack", world.now_ms))
    assert world.snapshot.transition is before.transition
    assert world.snapshot.state == before.state, "the failure edge is a step of its own"
    world.do(AbortRequest(request.id, "and slow", world.now_ms))
    stored = world.snapshot.node_requests[request.id]
    assert (stored.outcome, stored.error) == (RequestOutcome.RUNNING, "aborted: wrong rack")
    coordinator.until(TransitionState.LEFT_TOKEN_RING)
    assert "rolled back already: aborted: wrong rack" in world.refused(AbortRequest(request.id, "", 1))


def test_a_join_is_not_aborted_once_reads_use_the_new_ring() -> None:
    world, coordinator = cluster(2)
    request = world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.WRITE_BOTH_READ_NEW)
    since = world.snapshot.version
    world.do(SetBalancing(False))
    refusal = world.refused(AbortRequest(request.id, "", 1))
    assert refusal == f"too late: reads use the new ring since version {since}"
    coordinator.settle()
    assert world.refused(AbortRequest(request.id, "", 1)) == "the request is already done"


S = NodeState
T = TransitionState
ABORTABLE: dict[NodeRequestKind, tuple[tuple[T | None, bool], ...]] = {
    NodeRequestKind.JOIN: ((T.JOIN_GROUP0, True), (T.COMMIT_CDC_GENERATION, True), (T.WRITE_BOTH_READ_OLD, True)),
    NodeRequestKind.REPLACE: ((T.JOIN_GROUP0, True), (T.TABLET_DRAINING, True), (T.WRITE_BOTH_READ_OLD, True)),
    NodeRequestKind.LEAVE: (
        (T.TABLET_DRAINING, True),
        (T.WRITE_BOTH_READ_OLD, True),
        (T.WRITE_BOTH_READ_NEW, False),
        (T.LEFT_TOKEN_RING, False),
    ),
    NodeRequestKind.REMOVE: ((T.TABLET_DRAINING, True), (T.WRITE_BOTH_READ_OLD, True), (T.WRITE_BOTH_READ_NEW, False)),
    NodeRequestKind.REBUILD: ((None, True),),
}
"""The states of each kind of request while it runs, and whether it can be aborted there."""
ABORTS = [
    pytest.param(kind, transition, allowed, id=f"{kind}-{transition}")
    for kind, rows in ABORTABLE.items()
    for transition, allowed in rows
]


def running(kind: NodeRequestKind, transition: T | None) -> tuple[World, Coordinator, RequestId]:
    world, coordinator = cluster(4)
    if kind in (NodeRequestKind.REMOVE, NodeRequestKind.REPLACE):
        world.dead.add(host(2))
    match kind:
        case NodeRequestKind.JOIN:
            request = world.ask_to_join(world.node(9))
        case NodeRequestKind.REPLACE:
            request = world.ask_to_join(world.node(9, rack="r2"), replaced=host(2))
        case _:
            request = world.ask(kind, 2)
    coordinator.step()
    if transition is not None:
        coordinator.until(transition)
    return world, coordinator, request.id


@pytest.mark.parametrize(("kind", "transition", "allowed"), ABORTS)
def test_when_a_running_request_can_be_aborted(kind: NodeRequestKind, transition: T | None, allowed: bool) -> None:
    world, coordinator, request = running(kind, transition)
    switched = world.snapshot.state.transition_since
    if transition is T.LEFT_TOKEN_RING:
        switched = TopologyVersion(switched - 1)
    command = AbortRequest(request, "wrong node", world.now_ms)
    if not allowed:
        assert world.refused(command) == f"too late: reads use the new ring since version {switched}"
        coordinator.settle()
        assert world.outcome(request) is RequestOutcome.DONE
        return
    world.do(command)
    node = world.snapshot.node_in_transition()
    assert node is not None
    onward = AdvanceNode(
        host=node.host,
        leaving=transition,
        session=world.new_session(),
        now_ms=world.now_ms,
        fence=world.snapshot.version,
    )
    if transition not in (T.JOIN_GROUP0, T.COMMIT_CDC_GENERATION):
        assert "aborted: wrong node" in world.refused(onward), "the abort came first"
    coordinator.settle()
    stored = world.snapshot.node_requests[request]
    assert (stored.outcome, stored.error) == (RequestOutcome.FAILED, "aborted: wrong node")
    joins = kind in (NodeRequestKind.JOIN, NodeRequestKind.REPLACE)
    assert world.snapshot.node(stored.host).state is (S.LEFT if joins else S.NORMAL)
    assert world.snapshot.node(host(2)).state is S.NORMAL
    assert not world.snapshot.sessions
    assert world.snapshot.state.ignored_nodes == ()


def test_every_state_before_the_point_of_no_return_is_in_the_table_of_aborts() -> None:
    going_back = (T.ROLLBACK_TO_NORMAL, T.TABLET_MIGRATION)
    for kind, start in REQUEST_STARTS.items():
        state = start.target.state
        forward = {place for subject, place in NODE_TABLE if subject is state and place not in going_back}
        if kind in (NodeRequestKind.JOIN, NodeRequestKind.REPLACE):
            forward -= {T.WRITE_BOTH_READ_NEW, T.LEFT_TOKEN_RING}
        assert forward == {transition for transition, _ in ABORTABLE[kind]}


def test_the_rollback_of_an_aborted_leave_is_not_aborted_again() -> None:
    world, coordinator, request = running(NodeRequestKind.LEAVE, T.WRITE_BOTH_READ_OLD)
    world.do(AbortRequest(request, "wrong node", world.now_ms))
    coordinator.until(T.ROLLBACK_TO_NORMAL)
    assert "rolled back already: aborted: wrong node" in world.refused(AbortRequest(request, "", 1))


@pytest.mark.parametrize("kind", [NodeRequestKind.REMOVE, NodeRequestKind.REPLACE])
def test_a_failed_request_gives_back_whom_it_excluded(kind: NodeRequestKind) -> None:
    world, _ = cluster(5)
    world.dead |= {host(2), host(3), host(4)}
    world.do(ExcludeHosts((Exclusion(host=host(4), since_ms=1, by=host(1)),)))
    rack = world.snapshot.node(host(2)).rack
    ignored = (host(3), host(4))
    if kind is NodeRequestKind.REPLACE:
        request = world.ask_to_join(world.node(9, rack=rack), replaced=host(2), ignored_nodes=ignored)
    else:
        request = world.ask(kind, 2, ignored_nodes=ignored)
    other = world.ask(NodeRequestKind.REMOVE, 5, ignored_nodes=(host(3),))
    version = world.snapshot.version
    world.do(AbortRequest(request.id, "", world.now_ms))
    assert excluded(world) == [3, 4, 5], "another request, and failover"
    assert world.snapshot.version == version + 1, "the nodes must see it"
    world.do(AbortRequest(other.id, "", world.now_ms))
    assert excluded(world) == [4]


def excluded(world: World) -> list[int]:
    return [one.int for one in world.snapshot.excluded_hosts]


def test_after_a_success_the_ignored_nodes_stay_excluded() -> None:
    world, coordinator = cluster(5)
    world.dead |= {host(2), host(3)}
    world.ask(NodeRequestKind.REMOVE, 2, ignored_nodes=(host(3),))
    coordinator.settle()
    assert world.snapshot.node(host(2)).state is NodeState.LEFT
    assert excluded(world) == [3]
    later = world.ask(NodeRequestKind.REMOVE, 3)
    world.do(AbortRequest(later.id, "", world.now_ms))
    assert excluded(world) == [3], "it is excluded until it is recovered"
    world.do(IncludeHost(host(3)))
    assert excluded(world) == []


def test_nobody_returns_in_the_middle_of_the_operation_of_another_node() -> None:
    """Its barriers have not waited for that node: by its old view, the node would send writes to no pending replica."""
    world, coordinator = cluster(5)
    on_vnodes(world, 1)
    world.dead.add(host(5))
    removal = world.ask(NodeRequestKind.REMOVE, 5)
    joining = world.ask_to_join(world.node(9))
    coordinator.until(T.WRITE_BOTH_READ_OLD)
    world.do(AbortRequest(removal.id, "", world.now_ms))
    assert excluded(world) == [5]
    assert "is not done yet" in world.refused(SetIgnoredNodes(()))
    coordinator.settle()
    assert world.snapshot.node_requests[joining.id].outcome is RequestOutcome.DONE
    assert excluded(world) == [], "the end of the operation gives it back"


def test_a_node_that_a_remove_did_not_count_stays_excluded_though_its_own_request_is_aborted() -> None:
    """INV-NODE-23: it becomes a replica without the rows."""
    world, coordinator = cluster(4)
    on_vnodes(world, 3)
    world.dead |= {host(3), host(4)}
    removal = world.ask(NodeRequestKind.REMOVE, 3)
    other = world.ask(NodeRequestKind.REMOVE, 4)
    coordinator.until(T.WRITE_BOTH_READ_NEW)
    assert world.snapshot.node_requests[removal.id].excluded_at_start == (host(4),)
    world.do(AbortRequest(other.id, "", world.now_ms))
    coordinator.settle()
    assert world.snapshot.node(host(4)).is_incomplete
    assert excluded(world) == [4]


def test_an_answered_leave_holds_up_no_return() -> None:
    """Its barrier has passed, and nothing ends after it that could give the node back."""
    world, coordinator = cluster(5)
    world.dead.add(host(5))
    removal = world.ask(NodeRequestKind.REMOVE, 5)
    leaving = world.ask(NodeRequestKind.LEAVE, 4)
    world.dead.clear()
    coordinator.until(T.LEFT_TOKEN_RING)
    world.do(RaiseFence(world.snapshot.version))
    world.do(CompleteRequest(leaving.host, world.now_ms))
    world.do(AbortRequest(removal.id, "", world.now_ms))
    assert excluded(world) == []


def on_vnodes(world: World, factor: int) -> None:
    replication = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", factor),))
    world.do(CreateKeyspace(Keyspace(name="v", replication=replication, on_tablets=False)))
    world.do(CreateTable(Table(id=TableId(world.new_id()), keyspace="v", name="t")))


def test_requests_for_new_streams_are_shared() -> None:
    world, coordinator = cluster(2)
    first = world.ask_global(CDC)
    second = GlobalRequest(id=RequestId(world.new_id()), kind=CDC, initiator=host(1), start_ms=1)
    assert str(first.id) in world.refused(SubmitGlobalRequest(second))
    coordinator.settle()
    assert world.outcome(first.id) is RequestOutcome.DONE
    assert world.snapshot.state.global_requests == ()


def test_new_streams_are_aborted_until_their_generation_is_committed() -> None:
    world, coordinator = cluster(2)
    request = world.ask_global(CDC)
    coordinator.until(TransitionState.COMMIT_CDC_GENERATION)
    generation = world.snapshot.state.new_cdc_generation
    assert generation is not None
    assert world.snapshot.global_requests[request.id].generation == generation
    world.do(AbortRequest(request.id, "not now", world.now_ms))
    ended = world.snapshot.global_requests[request.id]
    assert (ended.outcome, ended.error) == (RequestOutcome.FAILED, "aborted: not now")
    assert (world.snapshot.transition, world.snapshot.state.new_cdc_generation) == (None, None)
    late = CommitCdcGeneration(
        timestamp_ms=world.now_ms, session=world.new_session(), now_ms=1, fence=world.snapshot.version
    )
    assert "no CDC generation is to be committed" in world.refused(late)
    (dropped,) = [one for one in side_steps(world.snapshot, world.liveness) if isinstance(one, DropAbandoned)]
    assert dropped.generations == (generation,)


def commit_streams_of(world: World, tokens: list[int]) -> None:
    generation = GenerationId(int=world.new_id().int)
    part = CdcGenerationPart(tuple(CdcRange(token, (b"0123456789abcdef",), 12) for token in sorted(tokens)))
    world.do(WriteCdcPart(generation=generation, part_count=1, number=0, part=part))
    request = world.ask_global(CDC)
    world.do(StartCdcCommit(request.id, generation))
    now, fence = world.now_ms, world.snapshot.version
    world.do(CommitCdcGeneration(timestamp_ms=now, session=world.new_session(), now_ms=now, fence=fence))


def test_there_is_nothing_to_repair_if_the_newest_streams_are_those_of_the_ring() -> None:
    world, coordinator = cluster(2)
    ring = [token for node in world.snapshot.members() for token in node.tokens]
    assert not has_current_streams(world.snapshot)
    commit_streams_of(world, ring[1:])
    assert not has_current_streams(world.snapshot), "a vnode has no streams"
    commit_streams_of(world, ring)
    assert has_current_streams(world.snapshot)
    count = len(world.snapshot.cdc_generations)
    request = world.ask_global(CDC)
    coordinator.settle()
    ended = world.snapshot.global_requests[request.id]
    assert (ended.outcome, ended.generation) == (RequestOutcome.DONE, None)
    assert len(world.snapshot.cdc_generations) == count
    commit_streams_of(world, [*ring, 5])
    assert not has_current_streams(world.snapshot), "streams of a vnode that is gone"


def test_a_failed_commit_of_a_generation_is_answered() -> None:
    world, coordinator = cluster(2)
    request = world.ask_global(CDC)
    coordinator.until(TransitionState.COMMIT_CDC_GENERATION)
    assert "its own command" in world.refused(FinishGlobalRequest(request.id, "", 1))
    coordinator.step(fails=True)
    assert world.outcome(request.id) is RequestOutcome.FAILED
    assert world.snapshot.transition is None


@pytest.mark.parametrize(
    ("keyspace", "factors", "reason"),
    [
        ("none", (("dc1", 3),), "no keyspace none"),
        ("ks", (("dc1", 2),), "by one replica"),
        ("ks", (("dc1", 4),), "by one replica"),
        ("ks", (("dc1", 2), ("dc2", 1)), "dc2 has 0 nodes"),
    ],
)
def test_which_changes_of_replication_may_be_asked_for(
    keyspace: str, factors: tuple[tuple[str, int], ...], reason: str
) -> None:
    world, _ = cluster(3)
    world.create_table(4, 2)
    request = GlobalRequest(
        id=RequestId(world.new_id()),
        kind=RF_CHANGE,
        initiator=host(1),
        start_ms=1,
        keyspace=keyspace,
        new_factors=factors,
    )
    assert reason in world.refused(SubmitGlobalRequest(request))


def test_a_change_of_replication_rebuilds_every_tablet() -> None:
    world, coordinator = cluster(4)
    table = world.create_table(4, 2)
    request = world.ask_global(RF_CHANGE, keyspace="ks", new_factors=(("dc1", 3),))
    again = GlobalRequest(
        id=RequestId(world.new_id()),
        kind=RF_CHANGE,
        initiator=host(1),
        start_ms=1,
        keyspace="ks",
        new_factors=(("dc1", 3),),
    )
    assert "is waiting" in world.refused(SubmitGlobalRequest(again))
    coordinator.step()
    assert "still moving" in world.refused(FinishGlobalRequest(request.id, "", 1))
    assert "running" in world.refused(AbortRequest(request.id, "", 1))
    coordinator.settle()
    assert world.outcome(request.id) is RequestOutcome.DONE
    assert {len(each) for each in world.snapshot.tablets[table].replica_sets()} == {3}
    fewer = world.ask_global(RF_CHANGE, keyspace="ks", new_factors=(("dc1", 2),))
    coordinator.settle()
    assert world.outcome(fewer.id) is RequestOutcome.DONE
    assert {len(each) for each in world.snapshot.tablets[table].replica_sets()} == {2}


def test_global_requests_wait_in_line() -> None:
    world, coordinator = cluster(3)
    world.create_table(2, 2)
    first = world.ask_global(CDC)
    second = world.ask_global(RF_CHANGE, keyspace="ks", new_factors=(("dc1", 3),))
    assert "not the one that runs" in world.refused(FinishGlobalRequest(second.id, "", 1))
    world.do(AbortRequest(second.id, "later", 1))
    assert world.snapshot.state.global_requests == (first.id,)
    coordinator.settle()
    assert world.outcome(first.id) is RequestOutcome.DONE
