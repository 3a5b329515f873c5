"""How the first nodes get in: what each submits, and what the leader does about it."""

import msgspec
import pytest
from tests.unit.topology.world import World, host

from ebla.control.topology.join_steps import (
    KEEPS_SHARDS,
    LEFT,
    PARTS_PER_COMMIT_MAX,
    WAITS_FOR_COORDINATOR,
    WAITS_FOR_TURN,
    LeaderAction,
    LeaderIdle,
    LeaderView,
    leader_step,
    own_commands,
    own_problem,
    own_refusal,
)
from ebla.model.identity import HostId
from ebla.sim.rng import SimRng
from ebla.topology.apply.command import apply_commands
from ebla.topology.apply.draft import ProposedChange
from ebla.topology.cdc_generations import committed_generations, generation_data, is_optimal
from ebla.topology.commands import CreateKeyspace, EnableFeatures, RefreshNode, RejectNode, RollBackNode, SubmitJoin
from ebla.topology.snapshot import Keyspace, Node, Replication
from ebla.topology.states import NodeRequestKind, NodeState, Strategy, TransitionState

CHANCE = SimRng("joins")


def commit(world: World, commands: tuple[object, ...]) -> None:
    applied = apply_commands(world.snapshot, commands)  # type: ignore[arg-type]  # commands of whatever kind
    assert isinstance(applied, ProposedChange), applied
    world.commit(applied)


def submit(world: World, node: Node) -> None:
    commit(world, own_commands(world.snapshot, node, world.now_ms, CHANCE))


def around(world: World, gone: tuple[HostId, ...] = ()) -> LeaderView:
    return LeaderView(world.liveness, gone)


def step(world: World, *gone: HostId) -> LeaderAction | LeaderIdle:
    return leader_step(world.snapshot, around(world, gone), CHANCE)


def settle(world: World, *gone: HostId) -> LeaderIdle:
    for _ in range(200):
        found = step(world, *gone)
        if isinstance(found, LeaderIdle):
            return found
        if found.barrier is not None:
            assert found.barrier.version == world.snapshot.version
        commit(world, found.commands)
    raise AssertionError("the leader finds no end")


def first_nodes(count: int) -> World:
    world = World()
    for number in range(1, count + 1):
        submit(world, world.node(number))
    return world


def vnode_table(world: World) -> None:
    world.do(
        CreateKeyspace(Keyspace(name="vn", replication=Replication(Strategy.SIMPLE, (("", 1),)), on_tablets=False))
    )
    world.create_table(0, 0, "vn", "t")


# ---- what a node submits


def test_the_first_node_makes_the_cluster_in_one_commit() -> None:
    world = World()
    submit(world, world.node(1))
    assert world.group0.index == 1
    assert world.snapshot.node(host(1)).state is NodeState.NORMAL
    assert len(world.snapshot.node(host(1)).tokens) == 4


def test_of_two_first_nodes_one_makes_the_cluster() -> None:
    world = World()
    late = apply_commands(world.snapshot, own_commands(world.snapshot, world.node(2), 1, CHANCE))
    assert isinstance(late, ProposedChange)
    submit(world, world.node(1))
    assert world.group0.commit(late.transaction) is None
    (submitted,) = own_commands(world.snapshot, world.node(2), 1, CHANCE)
    assert isinstance(submitted, SubmitJoin)


def test_a_node_that_is_known_as_it_is_submits_nothing() -> None:
    world = first_nodes(2)
    for number in (1, 2):
        assert own_commands(world.snapshot, world.node(number), 1, CHANCE) == ()


@pytest.mark.parametrize("change", [{"release_version": "2.0"}, {"address": "10.0.0.9"}, {"shard_count": 5}])
def test_what_has_changed_at_a_start_is_told(change: dict[str, object]) -> None:
    world = first_nodes(1)
    now = world.node(1, **change)
    (refresh,) = own_commands(world.snapshot, now, 1, CHANCE)
    assert isinstance(refresh, RefreshNode)
    commit(world, (refresh,))
    known = world.snapshot.node(host(1))
    assert {name: getattr(known, name) for name in change} == change
    assert own_commands(world.snapshot, now, 1, CHANCE) == ()


def test_rows_that_lie_by_the_number_of_shards_hold_it() -> None:
    world = first_nodes(1)
    vnode_table(world)
    other = world.node(1, shard_count=5)
    assert own_commands(world.snapshot, other, 1, CHANCE) == ()
    assert own_problem(world.snapshot, other) == KEEPS_SHARDS.format(count=2)
    assert own_commands(world.snapshot, world.node(1, release_version="2.0"), 1, CHANCE) != ()


def test_a_node_with_fewer_shards_than_its_tablets_need_must_not_run() -> None:
    world = first_nodes(1)
    assert own_refusal(world.snapshot, world.node(1, shard_count=1)) == ""
    world.create_table(4, 1)
    assert "tablets live on shards" in own_refusal(world.snapshot, world.node(1, shard_count=1))
    assert own_refusal(world.snapshot, world.node(1, shard_count=3)) == ""
    assert own_refusal(world.snapshot, world.node(1)) == ""
    assert own_refusal(world.snapshot, world.node(2)) == "", "one that is not known is on its way"


def test_a_node_whose_rows_lie_by_the_number_of_shards_must_not_run_with_another() -> None:
    world = first_nodes(1)
    vnode_table(world)
    assert own_refusal(world.snapshot, world.node(1, shard_count=5)) == KEEPS_SHARDS.format(count=2)


def test_what_a_node_waits_for_is_told() -> None:
    world = World()
    second = world.node(2)
    assert own_problem(world.snapshot, second) == WAITS_FOR_TURN
    submit(world, world.node(1))
    submit(world, second)
    assert own_problem(world.snapshot, second) == WAITS_FOR_TURN
    world.create_table(4, 1)
    assert own_problem(world.snapshot, second) == WAITS_FOR_COORDINATOR
    assert own_problem(world.snapshot, world.node(1)) == ""


# ---- what the leader does


def test_all_that_wait_are_let_in_one_after_another() -> None:
    world = first_nodes(5)
    settle(world)
    assert [node.state for node in world.snapshot.members()] == [NodeState.NORMAL] * 5
    ring = [token for node in world.snapshot.members() for token in node.tokens]
    newest = committed_generations(world.snapshot)[-1].generation
    assert is_optimal(generation_data(world.snapshot, newest), ring)
    assert all(each.timestamp_ms is not None for each in world.snapshot.cdc_generations.values())


def test_barriers_are_asked_of_the_ring_and_of_who_comes_in() -> None:
    world = first_nodes(3)
    barriers = []
    while world.snapshot.node(host(2)).state is not NodeState.NORMAL:
        found = step(world)
        assert isinstance(found, LeaderAction)
        if found.barrier is not None:
            barriers.append((world.snapshot.transition, found.barrier.hosts))
        commit(world, found.commands)
    in_it = (host(1), host(2))
    assert barriers == [
        (TransitionState.COMMIT_CDC_GENERATION, in_it),
        (TransitionState.WRITE_BOTH_READ_OLD, in_it),
        (TransitionState.WRITE_BOTH_READ_NEW, in_it),
    ], "a node that has only asked is in no ring yet"


def test_the_wall_clock_may_step_back_between_two_joins() -> None:
    world = first_nodes(3)
    world.now_ms = 5
    settle(world)
    assert all(node.state is NodeState.NORMAL for node in world.snapshot.members())


def test_one_that_is_down_lets_others_pass() -> None:
    world = first_nodes(3)
    world.dead = {host(2)}
    found = step(world)
    assert isinstance(found, LeaderAction)
    commit(world, found.commands)
    assert world.snapshot.node(host(3)).state is NodeState.BOOTSTRAPPING
    settle(world)
    assert step(world) == LeaderIdle("no node that asked to join is up")
    world.dead = set()
    settle(world)
    assert world.snapshot.node(host(2)).state is NodeState.NORMAL


def test_nobody_is_turned_away_because_a_member_is_down() -> None:
    world = first_nodes(2)
    world.dead = {host(1)}
    found = step(world)
    assert isinstance(found, LeaderIdle)
    assert "down" in found.why
    assert world.snapshot.node(host(2)).state is NodeState.NONE


def test_with_tables_nobody_is_let_in() -> None:
    world = first_nodes(1)
    world.create_table(4, 1)
    submit(world, world.node(2))
    assert step(world) == LeaderIdle(WAITS_FOR_COORDINATOR)
    assert step(world, host(2)) == LeaderAction((RejectNode(host(2), "it was removed from group 0", world.now_ms),))


def test_a_node_without_the_features_is_rejected() -> None:
    world = first_nodes(1)
    submit(world, world.node(2, supported_features=()))
    settle(world)
    assert world.snapshot.node(host(2)).state is NodeState.LEFT
    assert own_problem(world.snapshot, world.node(2)) == LEFT
    assert own_refusal(world.snapshot, world.node(2)) == LEFT
    assert own_commands(world.snapshot, world.node(2), 1, CHANCE) == ()


def test_features_that_all_have_are_turned_on() -> None:
    world = first_nodes(1)
    commit(world, own_commands(world.snapshot, world.node(1, supported_features=("alpha", "beta", "c")), 1, CHANCE))
    assert step(world) == LeaderAction((EnableFeatures(("c",)),))


@pytest.mark.parametrize(
    "reached",
    [
        TransitionState.JOIN_GROUP0,
        TransitionState.COMMIT_CDC_GENERATION,
        TransitionState.WRITE_BOTH_READ_OLD,
        TransitionState.WRITE_BOTH_READ_NEW,
    ],
)
def test_one_removed_from_group_0_on_its_way_holds_up_nobody(reached: TransitionState) -> None:
    world = first_nodes(3)
    while world.snapshot.transition is not reached:
        found = step(world)
        assert isinstance(found, LeaderAction)
        commit(world, found.commands)
    there_is_a_way_back = reached is not TransitionState.WRITE_BOTH_READ_NEW
    found = step(world, host(2))
    assert isinstance(found, LeaderAction)
    assert isinstance(found.commands[0], RollBackNode) is there_is_a_way_back
    settle(world, host(2))
    ended = world.snapshot.node(host(2)).state
    assert ended is (NodeState.LEFT if there_is_a_way_back else NodeState.NORMAL)
    assert world.snapshot.node(host(3)).state is NodeState.NORMAL


def test_other_operations_wait_for_the_coordinator() -> None:
    world = first_nodes(2)
    settle(world)
    world.ask(NodeRequestKind.LEAVE, 2)
    assert isinstance(step(world), LeaderIdle)
    assert world.snapshot.node(host(2)).state is NodeState.NORMAL


def test_more_streams_than_one_commit_takes_are_refused_in_words() -> None:
    world = World()
    wide = {"num_tokens": 64, "shard_count": 1024}
    commit(world, own_commands(world.snapshot, world.node(1), 1, CHANCE))
    submit(world, msgspec.structs.replace(world.node(2), **wide))
    commit(world, _deed(world).commands)
    found = step(world)
    assert isinstance(found, LeaderIdle)
    assert "too many" in found.why
    assert PARTS_PER_COMMIT_MAX == 3


def _deed(world: World) -> LeaderAction:
    found = step(world)
    assert isinstance(found, LeaderAction)
    return found
