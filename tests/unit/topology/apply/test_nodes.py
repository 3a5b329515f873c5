"""Node operations, command by command: what is refused and why, and what each end leaves behind."""

import msgspec
import pytest
from tests.unit.topology.world import Coordinator, World, cluster, host

from ebla.model.identity import TableId, TopologyVersion
from ebla.topology.commands import (
    AbortRequest,
    AdvanceNode,
    AlterKeyspace,
    ChooseTokens,
    Command,
    CommitCdcGeneration,
    CompleteRequest,
    CreateCluster,
    CreateKeyspace,
    CreateTable,
    ExcludeHosts,
    FailDraining,
    IncludeHost,
    RejectNode,
    RollBackNode,
    SetIgnoredNodes,
    StartNodeRequest,
    SubmitJoin,
)
from ebla.topology.routing.replica_sets import ReplicaSets
from ebla.topology.routing.vnode_ring import previous_ring
from ebla.topology.snapshot import Exclusion, Keyspace, Replication, Snapshot, Table
from ebla.topology.states import (
    NodeRequestKind,
    NodeState,
    RequestOutcome,
    SessionKind,
    Strategy,
    TransitionState,
    UpgradeState,
)
from ebla.topology.token_allocation import choose_tokens


def test_the_first_node_is_normal_at_once() -> None:
    world = World()
    world.create(world.node(1))
    node = world.snapshot.node(host(1))
    assert (node.state, len(node.tokens)) == (NodeState.NORMAL, 4)
    assert world.snapshot.state.upgrade is UpgradeState.DONE
    again = world.write_generation()
    assert "exists" in world.refused(
        CreateCluster(node=world.node(2), tokens=(1, 2, 3, 4), generation=again, timestamp_ms=1)
    )


def test_a_first_node_needs_all_its_tokens() -> None:
    world = World()
    generation = world.write_generation()
    assert "4 tokens" in world.refused(
        CreateCluster(node=world.node(1), tokens=(1,), generation=generation, timestamp_ms=1)
    )


def test_before_the_upgrade_nothing_moves() -> None:
    world = World()
    assert "upgrade first" in world.refused(RejectNode(host(1), "", 1))
    assert "upgrade first" in world.refused(SubmitJoin(world.node(1), world.request(NodeRequestKind.JOIN, 1)))


def test_a_join_ends_normal_with_even_tokens_and_a_committed_generation() -> None:
    world, coordinator = cluster(1)
    request = world.ask_to_join(world.node(2))
    coordinator.settle()
    node = world.snapshot.node(host(2))
    assert (node.state, node.request, len(node.tokens)) == (NodeState.NORMAL, None, 4)
    assert world.outcome(request.id) is RequestOutcome.DONE
    assert sum(each.timestamp_ms is not None for each in world.snapshot.cdc_generations.values()) == 2
    assert not world.snapshot.sessions


def test_a_session_is_open_exactly_while_ranges_stream() -> None:
    world, coordinator = cluster(2)
    world.ask_to_join(world.node(3))
    seen: dict[TransitionState | None, bool] = {}
    for _ in range(6):
        coordinator.step()
        seen[world.snapshot.transition] = bool(world.snapshot.sessions)
    streaming = TransitionState.WRITE_BOTH_READ_OLD
    assert [state for state, is_open in seen.items() if is_open] == [streaming]


def test_the_session_of_a_request_names_it() -> None:
    world, coordinator = cluster(2)
    request = world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    (session,) = world.snapshot.sessions.values()
    assert (session.kind, session.request) == (SessionKind.REQUEST, request.id)
    assert world.snapshot.state.session == session.id


@pytest.mark.parametrize("transition", [TransitionState.JOIN_GROUP0, TransitionState.COMMIT_CDC_GENERATION])
def test_a_failed_join_leaves_no_token_and_never_comes_back(transition: TransitionState) -> None:
    world, coordinator = cluster(2)
    request = world.ask_to_join(world.node(3))
    coordinator.until(transition)
    world.do(RollBackNode(host=host(3), leaving=transition, reason="no answer", now_ms=world.now_ms))
    assert world.snapshot.transition is TransitionState.LEFT_TOKEN_RING
    coordinator.settle()
    node = world.snapshot.node(host(3))
    assert (node.state, node.tokens) == (NodeState.LEFT, ())
    assert world.snapshot.node_requests[request.id].error == "rolled back: no answer"
    again = SubmitJoin(world.node(3), world.request(NodeRequestKind.JOIN, 3))
    assert "cannot come back" in world.refused(again)


def test_two_requests_never_run_at_once() -> None:
    """INV-NODE-2."""
    world, coordinator = cluster(3)
    first = world.ask_to_join(world.node(4))
    second = world.ask_to_join(world.node(5))
    coordinator.step()
    running = world.snapshot.node_in_transition()
    assert running is not None
    other = second if running.host == first.host else first
    assert "topology is in join_group0" in world.refused(StartNodeRequest(other.id, world.new_session()))
    coordinator.settle()
    assert {world.snapshot.node(host(n)).state for n in (4, 5)} == {NodeState.NORMAL}


def test_a_rebuild_shuts_others_out_though_the_topology_has_no_transition_state() -> None:
    world, coordinator = cluster(3)
    world.ask(NodeRequestKind.REBUILD, 2)
    coordinator.step()
    assert (world.snapshot.transition, world.snapshot.node(host(2)).state) == (None, NodeState.REBUILDING)
    other = world.ask_to_join(world.node(5))
    assert "is rebuilding" in world.refused(StartNodeRequest(other.id, world.new_session()))


def test_a_command_of_an_old_view_is_refused() -> None:
    world, coordinator = cluster(2)
    world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    repeated = AdvanceNode(
        host=host(3),
        leaving=TransitionState.WRITE_BOTH_READ_OLD,
        session=world.new_session(),
        now_ms=1,
        fence=world.snapshot.version,
    )
    world.do(repeated)
    assert "not in write_both_read_old any more" in world.refused(repeated)


@pytest.mark.parametrize(
    "transition",
    [
        TransitionState.WRITE_BOTH_READ_OLD,
        TransitionState.WRITE_BOTH_READ_NEW,
        TransitionState.LEFT_TOKEN_RING,
        TransitionState.ROLLBACK_TO_NORMAL,
    ],
)
def test_without_a_barrier_no_state_is_left(transition: TransitionState) -> None:
    world, coordinator = cluster(3)
    world.ask(NodeRequestKind.LEAVE, 2)
    if transition is TransitionState.ROLLBACK_TO_NORMAL:
        coordinator.until(TransitionState.TABLET_DRAINING)
        world.do(RollBackNode(host=host(2), leaving=TransitionState.TABLET_DRAINING, reason="no", now_ms=1))
    coordinator.until(transition)
    hurried = AdvanceNode(host=host(2), leaving=transition, session=world.new_session(), now_ms=1)
    assert "no barrier yet" in world.refused(hurried)
    old = AdvanceNode(
        host=host(2),
        leaving=transition,
        session=world.new_session(),
        now_ms=1,
        fence=TopologyVersion(world.snapshot.version - 1),
    )
    assert "no barrier yet" in world.refused(old)
    world.do(
        AdvanceNode(
            host=host(2), leaving=transition, session=world.new_session(), now_ms=1, fence=world.snapshot.version
        )
    )


def test_without_a_barrier_no_generation_is_committed() -> None:
    world, coordinator = cluster(2)
    world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.COMMIT_CDC_GENERATION)
    assert "no barrier yet" in world.refused(
        CommitCdcGeneration(timestamp_ms=world.now_ms, session=world.new_session(), now_ms=1)
    )
    early = CommitCdcGeneration(timestamp_ms=5, session=world.new_session(), now_ms=1, fence=world.snapshot.version)
    assert "must be later" in world.refused(early)


def test_the_fence_rises_with_the_step_that_needed_it() -> None:
    world, coordinator = cluster(2)
    world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    at = world.snapshot.version
    coordinator.step()
    assert (world.snapshot.fence, world.snapshot.version) == (at, at + 1)


def test_a_fence_ahead_of_the_version_is_refused() -> None:
    world, coordinator = cluster(2)
    world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    ahead = TopologyVersion(world.snapshot.version + 1)
    command = AdvanceNode(
        host=host(3), leaving=TransitionState.WRITE_BOTH_READ_OLD, session=world.new_session(), now_ms=1, fence=ahead
    )
    assert "ahead of the version" in world.refused(command)


def joining_in_group0() -> tuple[World, Coordinator]:
    world, coordinator = cluster(2)
    world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.JOIN_GROUP0)
    return world, coordinator


def test_tokens_must_be_free_distinct_and_as_many_as_asked() -> None:
    world, _ = joining_in_group0()
    generation = world.write_generation()
    taken = world.snapshot.node(host(1)).tokens[0]
    assert "belongs to" in world.refused(ChooseTokens(host(3), (1, 2, 3, taken), generation))
    assert "twice" in world.refused(ChooseTokens(host(3), (1, 2, 3, 3), generation))
    assert "4 tokens" in world.refused(ChooseTokens(host(3), (1, 2, 3), generation))
    assert "needs a CDC generation" in world.refused(ChooseTokens(host(3), (11, 12, 13, 14), None))
    assert "no data" in world.refused(ChooseTokens(host(3), (11, 12, 13, 14), world.new_id()))


def test_join_group0_does_not_end_by_the_common_command() -> None:
    world, _ = joining_in_group0()
    plain = AdvanceNode(host=host(3), leaving=TransitionState.JOIN_GROUP0, session=world.new_session(), now_ms=1)
    assert "command of its own" in world.refused(plain)


def replacing() -> tuple[World, Coordinator]:
    world, coordinator = cluster(3)
    world.dead.add(host(2))
    world.ask_to_join(world.node(9, rack="r2", num_tokens=7), replaced=host(2))
    return world, coordinator


def test_a_replacing_node_inherits_tokens_and_the_replaced_one_is_left() -> None:
    world, coordinator = replacing()
    tokens = world.snapshot.node(host(2)).tokens
    assert host(2) in world.snapshot.state.ignored_nodes
    coordinator.until(TransitionState.JOIN_GROUP0)
    assert "inherits" in world.refused(ChooseTokens(host(9), (1, 2, 3, 4), None))
    assert "no CDC generation" in world.refused(ChooseTokens(host(9), tokens, world.write_generation()))
    assert choose_tokens(world.snapshot, world.snapshot.node(host(9))) == tokens
    coordinator.settle()
    new, old = world.snapshot.node(host(9)), world.snapshot.node(host(2))
    assert (new.state, new.tokens, new.replaced) == (NodeState.NORMAL, tokens, host(2))
    assert (old.state, old.tokens) == (NodeState.LEFT, ())
    assert world.snapshot.state.ignored_nodes == ()


def test_a_failed_replace_leaves_the_old_node_as_it_was() -> None:
    world, coordinator = replacing()
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    coordinator.step(fails=True)
    coordinator.settle()
    assert world.snapshot.node(host(9)).state is NodeState.LEFT
    old = world.snapshot.node(host(2))
    assert (old.state, len(old.tokens)) == (NodeState.NORMAL, 4)
    assert world.snapshot.state.ignored_nodes == (), "it must be waited for again"


def test_a_replaced_node_keeps_its_tablets_until_they_are_rebuilt() -> None:
    world, coordinator = cluster(3)
    table = world.create_table(4, 2)
    world.dead.add(host(2))
    world.ask_to_join(world.node(9, rack="r2"), replaced=host(2))
    coordinator.settle()
    assert world.snapshot.node(host(2)).state is NodeState.LEFT
    assert list(world.snapshot.tablets[table].tablets_on(host(2)))


def leaving(tablets: int = 4) -> tuple[World, Coordinator]:
    world, coordinator = cluster(4)
    world.create_table(tablets, 2)
    world.ask(NodeRequestKind.LEAVE, 2)
    coordinator.until(TransitionState.TABLET_DRAINING)
    return world, coordinator


def test_a_leaving_node_goes_only_without_tablets() -> None:
    """INV-NODE-7."""
    world, coordinator = leaving()
    command = AdvanceNode(host=host(2), leaving=TransitionState.TABLET_DRAINING, session=world.new_session(), now_ms=1)
    assert "still has tablets" in world.refused(command)
    coordinator.step()
    assert "still in transition" in world.refused(command)
    coordinator.settle()
    assert world.snapshot.node(host(2)).state is NodeState.LEFT
    assert not world.snapshot.has_tablets(host(2))


def test_a_rollback_waits_for_tablets_on_the_move() -> None:
    """INV-TABL-3: in `rollback_to_normal` no tablet is in transition."""
    world, coordinator = leaving()
    coordinator.step()
    assert world.snapshot.any_tablet_transition
    back = RollBackNode(host=host(2), leaving=TransitionState.TABLET_DRAINING, reason="no", now_ms=1)
    assert "must come to an end first" in world.refused(back)
    world.do(FailDraining(host(2), "no room"))
    assert "already" in world.refused(FailDraining(host(2), "again"))
    coordinator.settle()
    node = world.snapshot.node(host(2))
    assert (node.state, len(node.tokens)) == (NodeState.NORMAL, 4)
    (request,) = [each for each in world.snapshot.node_requests.values() if each.kind is NodeRequestKind.LEAVE]
    assert (request.outcome, request.error) == (RequestOutcome.FAILED, "draining failed: no room")


def test_draining_that_was_given_up_cannot_go_on() -> None:
    world, _ = cluster(4)
    coordinator = Coordinator(world)
    world.ask(NodeRequestKind.LEAVE, 2)
    coordinator.until(TransitionState.TABLET_DRAINING)
    world.do(FailDraining(host(2), "no room"))
    command = AdvanceNode(host=host(2), leaving=TransitionState.TABLET_DRAINING, session=world.new_session(), now_ms=1)
    assert "must be rolled back" in world.refused(command)


def test_a_rolled_back_remove_does_not_stay_ignored() -> None:
    world, coordinator = cluster(4)
    world.dead.add(host(2))
    world.ask(NodeRequestKind.REMOVE, 2)
    assert host(2) in world.snapshot.state.ignored_nodes
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    coordinator.step(fails=True)
    coordinator.settle()
    assert world.snapshot.node(host(2)).state is NodeState.NORMAL
    assert world.snapshot.state.ignored_nodes == ()


def test_in_left_token_ring_the_operator_is_answered_before_the_node_shuts_down() -> None:
    world, coordinator = cluster(3)
    request = world.ask(NodeRequestKind.LEAVE, 2)
    coordinator.until(TransitionState.LEFT_TOKEN_RING)
    world.do(CompleteRequest(host(2), world.now_ms))
    assert world.outcome(request.id) is RequestOutcome.DONE
    assert world.snapshot.node(host(2)).state is NodeState.DECOMMISSIONING
    assert "answered already" in world.refused(CompleteRequest(host(2), world.now_ms))
    coordinator.settle()
    assert world.snapshot.node(host(2)).state is NodeState.LEFT


def test_a_rejected_node_is_left_while_others_go_on() -> None:
    world, coordinator = cluster(2)
    world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    request = world.ask_to_join(world.node(4))
    world.do(RejectNode(host(4), "an old release", world.now_ms))
    assert world.snapshot.transition is TransitionState.WRITE_BOTH_READ_OLD
    assert world.snapshot.node(host(4)).state is NodeState.LEFT
    assert world.snapshot.node_requests[request.id].error == "rejected: an old release"


def test_who_is_in_can_no_longer_be_rejected() -> None:
    world, coordinator = cluster(2)
    assert "can no longer be rejected" in world.refused(RejectNode(host(2), "", 1))
    world.ask_to_join(world.node(3))
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    assert "can no longer be rejected" in world.refused(RejectNode(host(3), "", 1))
    assert "not known" in world.refused(RejectNode(host(8), "", 1))


@pytest.mark.parametrize("kind", list(NodeRequestKind))
def test_a_left_node_takes_part_in_nothing(kind: NodeRequestKind) -> None:
    """INV-NODE-1, when a request is accepted."""
    world, coordinator = cluster(3)
    world.ask(NodeRequestKind.LEAVE, 3)
    coordinator.settle()
    request = world.request(kind, 3)
    commands: list[Command] = [
        RejectNode(host(3), "", 1),
        AdvanceNode(host=host(3), leaving=None, session=world.new_session(), now_ms=1),
    ]
    if kind in (NodeRequestKind.JOIN, NodeRequestKind.REPLACE):
        commands.append(SubmitJoin(world.node(3), msgspec.structs.replace(request, replaced=None)))
    before = world.snapshot
    for command in commands:
        world.refused(command)
    assert world.snapshot is before


def versions_of(world: World, coordinator: Coordinator) -> list[Snapshot]:
    seen = [world.snapshot]
    for _ in range(200):
        coordinator.step()
        if world.snapshot is seen[-1]:
            return seen
        seen.append(world.snapshot)
    raise AssertionError("no rest")


def test_every_step_of_an_operation_is_a_version_of_its_own() -> None:
    world, coordinator = cluster(3)
    world.ask_to_join(world.node(4))
    seen = versions_of(world, coordinator)
    transitions = [each.transition for each in seen]
    assert transitions == [
        None,
        TransitionState.JOIN_GROUP0,
        TransitionState.COMMIT_CDC_GENERATION,
        TransitionState.WRITE_BOTH_READ_OLD,
        TransitionState.WRITE_BOTH_READ_NEW,
        None,
    ]
    assert [each.version for each in seen] == list(range(seen[0].version, seen[0].version + 6))


# Excluded and incomplete nodes


def on_vnodes(world: World, factor: int, keyspace: str = "v") -> TableId:
    replication = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", factor),))
    world.do(CreateKeyspace(Keyspace(name=keyspace, replication=replication, on_tablets=False)))
    table = Table(id=TableId(world.new_id()), keyspace=keyspace, name="t")
    world.do(CreateTable(table))
    return table.id


def excluded(world: World, *numbers: int) -> None:
    world.dead |= {host(number) for number in numbers}
    world.do(ExcludeHosts(tuple(Exclusion(host=host(number), since_ms=1, by=host(1)) for number in numbers)))


def incomplete(world: World) -> list[int]:
    return [node.host.int for node in world.snapshot.members() if node.is_incomplete]


def pending_hosts(world: World, table: TableId) -> set[int]:
    sets, tokens = ReplicaSets(world.snapshot), [token for node in world.snapshot.members() for token in node.tokens]
    return {replica.host.int for token in tokens for replica in sets.of(table).writing(token).pending}


def test_a_node_that_is_excluded_before_a_remove_is_not_pending_in_it_and_incomplete_after_it() -> None:
    """INV-NODE-23."""
    world, coordinator = cluster(4)
    table = on_vnodes(world, 3)
    excluded(world, 4)
    world.dead.add(host(2))
    request = world.ask(NodeRequestKind.REMOVE, 2)
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    assert world.snapshot.node_requests[request.id].excluded_at_start == (host(4),)
    assert pending_hosts(world, table) == {1}
    assert incomplete(world) == []
    coordinator.settle()
    assert incomplete(world) == [4], "of three nodes and three copies, each has a replica of everything"
    assert "lacks rows" in world.refused(IncludeHost(host(4)))
    world.do(SetIgnoredNodes(()))
    assert world.snapshot.excluded_hosts == (host(4),)
    later = world.ask(NodeRequestKind.REMOVE, 3)
    world.do(AbortRequest(later.id, "", world.now_ms))
    assert world.snapshot.excluded_hosts == (host(4),)
    world.ask_to_join(world.node(9, rack="r1"), replaced=host(4))
    coordinator.settle()
    assert world.snapshot.node(host(4)).state is NodeState.LEFT
    assert incomplete(world) == []


def test_a_remove_by_which_no_excluded_node_gains_leaves_none_incomplete() -> None:
    world, coordinator = cluster(4)
    on_vnodes(world, 1)
    world.create_table(2, 1)
    excluded(world, 3)
    world.dead.add(host(2))
    world.ask(NodeRequestKind.REMOVE, 2)
    ring = previous_ring(world.snapshot)
    successors = {
        ring.owners[(place + 1) % len(ring.owners)]
        for place, owner in enumerate(ring.owners)
        if owner == host(2) and ring.owners[(place + 1) % len(ring.owners)] != host(2)
    }
    coordinator.settle()
    assert incomplete(world) == ([3] if host(3) in successors else [])


def test_a_rolled_back_remove_leaves_no_node_incomplete() -> None:
    world, coordinator = cluster(4)
    on_vnodes(world, 3)
    excluded(world, 4)
    world.dead.add(host(2))
    world.ask(NodeRequestKind.REMOVE, 2)
    coordinator.until(TransitionState.WRITE_BOTH_READ_OLD)
    coordinator.step(fails=True)
    coordinator.settle()
    assert incomplete(world) == []
    world.do(IncludeHost(host(4)))


def test_a_node_that_is_excluded_while_a_remove_runs_stays_counted() -> None:
    world, coordinator = cluster(4)
    table = on_vnodes(world, 3)
    world.dead.add(host(2))
    world.ask(NodeRequestKind.REMOVE, 2)
    coordinator.until(TransitionState.WRITE_BOTH_READ_NEW)
    before = pending_hosts(world, table)
    excluded(world, 4)
    assert 4 in before
    assert pending_hosts(world, table) == before, "routers one version apart count alike"
    coordinator.settle()
    assert incomplete(world) == [], "its ranges were streamed to it"


def test_an_excluded_node_that_gains_by_a_change_of_replication_is_incomplete() -> None:
    world, _ = cluster(3)
    on_vnodes(world, 1)
    excluded(world, 3)
    replication = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 3),))
    world.do(AlterKeyspace(Keyspace(name="v", replication=replication, on_tablets=False)))
    assert incomplete(world) == [3]
    empty, _ = cluster(3)
    narrow = Keyspace(name="v", replication=Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", 1),)), on_tablets=False)
    empty.do(CreateKeyspace(narrow))
    excluded(empty, 3)
    empty.do(AlterKeyspace(msgspec.structs.replace(narrow, replication=replication)))
    assert incomplete(empty) == [], "there are no rows that it could lack"


def test_a_node_is_not_included_while_a_node_operation_runs() -> None:
    world, coordinator = cluster(4)
    excluded(world, 3)
    request = world.ask(NodeRequestKind.REBUILD, 2)
    coordinator.step()
    refusal = world.refused(IncludeHost(host(3)))
    assert f"rebuild (request {request.id})" in refusal
    assert "abort it" in refusal
    coordinator.settle()
    world.do(IncludeHost(host(3)))
