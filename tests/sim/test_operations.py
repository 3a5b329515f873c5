"""Operations in a cluster of control processes: requests on any node, leaders that go, joins that are asked again."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from tests.async_tests import runs_in

from ebla.control.fault_points import FaultPoint
from ebla.control.operations.operation_service import Operations
from ebla.group0.members import MemberRole, member_key
from ebla.group0.operations import Operation, OperationCode, OperationFailed, OperationKind, read_record
from ebla.group0.store import Group0Store
from ebla.model.identity import ClusterId
from ebla.node.control_process import ControlProcess
from ebla.sim.checkers.operations import settled_problem
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.clusters.nodes import SimCluster, SimNode
from ebla.sim.scenario import find_scenario, run_scenario
from ebla.sim.world import World
from ebla.topology.states import NodeState
from ebla.wire.fault_messages import FaultKind

WAIT_S = 60.0


@pytest.mark.parametrize("seed", range(1, 5))
def test_members_and_keys_change_together_under_faults(seed: int) -> None:
    """INV-ATOM-1 to INV-ATOM-4, with leaders that die at each step."""
    outcome = run_scenario(find_scenario("atomic-change"), seed)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"


def in_a_settled_cluster(story: Callable[[World, SimCluster], Awaitable[None]]) -> None:
    """Four control processes, all in the ring, three of them voters."""

    async def run(world: World) -> None:
        cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail))
        for _ in range(4):
            cluster.add_node(has_children=False).control.start()
        await cluster.wait_all_normal()
        assert await world.wait_for(lambda: has_voters(cluster, 3), WAIT_S)
        await story(world, cluster)

    World(seed=3, seconds=60.0).run(run)


pytestmark = runs_in(in_a_settled_cluster)


def process_of(node: SimNode) -> ControlProcess:
    assert node.control_process is not None
    return node.control_process


def operations_of(node: SimNode) -> Operations:
    operations = process_of(node).operations
    assert operations is not None
    return operations


def store_of(node: SimNode) -> Group0Store:
    store = process_of(node).topology.store
    assert store is not None
    return store


def has_voters(cluster: SimCluster, count: int) -> bool:
    stores = [process_of(node).topology.store for node in cluster.nodes if not node.control.down]
    return all(
        store is not None and sum(one.role is MemberRole.VOTER for one in store.members.values()) == count
        for store in stores
    )


def leader_of(cluster: SimCluster) -> SimNode | None:
    for node in cluster.nodes:
        process = node.live_control
        if process is not None and process.leadership is not None and process.leadership.group0.leads:
            return node
    return None


def found_leader(cluster: SimCluster) -> SimNode:
    leader = leader_of(cluster)
    assert leader is not None
    return leader


def learner_and_other(cluster: SimCluster) -> tuple[SimNode, SimNode]:
    """A node without a vote, whose removal leaves a majority if the leader dies, and a voter that does not lead."""
    leader = found_leader(cluster)
    members = store_of(leader).members
    others = [node for node in cluster.nodes if node is not leader]
    learner = next(node for node in others if members[member_key(node.host)].role is MemberRole.LEARNER)
    return learner, next(node for node in others if node is not learner)


def removal(node: SimNode) -> Operation:
    return Operation(id=uuid.UUID(int=1), kind=OperationKind.REMOVE, hosts=(node.host,))


async def test_any_node_takes_a_request_and_the_removed_node_stops(world: World, cluster: SimCluster, /) -> None:
    leader = found_leader(cluster)
    removed, asked = [node for node in cluster.nodes if node is not leader][:2]
    ended = await operations_of(asked).request(removal(removed))
    assert ended is not None
    assert ended.host == leader.host, "the leader runs it"
    assert await world.wait_for(lambda: removed.control.down, WAIT_S)
    assert process_of(leader).topology.snapshot.node(removed.host).state is NodeState.LEFT
    assert settled_problem(store_of(leader), process_of(leader).topology.snapshot) is None


async def test_the_leader_hands_over_before_it_is_removed(world: World, cluster: SimCluster, /) -> None:
    leader = found_leader(cluster)
    asked = next(node for node in cluster.nodes if node is not leader)
    points = process_of(leader).fault_points
    points.set(FaultPoint.ATOMIC_LOCKED, FaultKind.CRASH, once=True)
    ended = await operations_of(asked).request(removal(leader))
    assert ended is not None
    assert ended.host != leader.host, "another leader ran it"
    assert not any(view.reached for view in points.points()), "and ran all of it"
    assert await world.wait_for(lambda: leader.control.down, WAIT_S)


@pytest.mark.parametrize("point", [point for point in FaultPoint if point.startswith("atomic.")])
async def test_a_request_goes_on_at_the_next_leader(world: World, cluster: SimCluster, /, point: FaultPoint) -> None:
    leader = found_leader(cluster)
    removed, asked = learner_and_other(cluster)
    process_of(leader).fault_points.set(point, FaultKind.CRASH, once=True)
    await operations_of(asked).request(removal(removed))
    assert leader.control.down
    store = store_of(asked)
    assert read_record(store) is None
    assert store.members[member_key(removed.host)].role is MemberRole.REMOVED


@pytest.mark.parametrize("point", [FaultPoint.ATOMIC_KEYS, FaultPoint.ATOMIC_MEMBERS])
async def test_a_joiner_asks_again_and_goes_on(world: World, cluster: SimCluster, /, point: FaultPoint) -> None:
    leader = found_leader(cluster)
    process_of(leader).fault_points.set(point, FaultKind.CRASH, once=True)
    joiner = cluster.add_node(has_children=False)
    joiner.control.start()
    assert await world.wait_for(lambda: leader.control.down, WAIT_S)
    leader.control.start()
    await cluster.wait_all_normal()


async def test_a_paused_leader_goes_on_in_vain(world: World, cluster: SimCluster, /) -> None:
    """It stops before its membership entry; another leader removes the same node; then it goes on."""
    leader = found_leader(cluster)
    removed, asked = learner_and_other(cluster)
    points = process_of(leader).fault_points
    points.set(FaultPoint.ATOMIC_KEYS, FaultKind.PAUSE, once=True)
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(operations_of(asked).request(removal(removed)))
        assert await world.wait_for(lambda: any(view.waiting for view in points.points()), WAIT_S)
        for other in cluster.nodes:
            if other is not leader:
                world.network.cut(leader.control.name, other.control.name)
                world.network.cut(other.control.name, leader.control.name)
        assert await world.wait_for(lambda: request.done(), WAIT_S)
        world.heal()
        points.release(FaultPoint.ATOMIC_KEYS)
    ended = request.result()
    assert ended is not None
    assert ended.host != leader.host
    assert await world.wait_for(
        lambda: settled_problem(store_of(asked), process_of(asked).topology.snapshot) is None, 5
    )


async def test_what_is_refused_is_told_on_any_node(world: World, cluster: SimCluster, /) -> None:
    asked = next(node for node in cluster.nodes if node is not leader_of(cluster))
    unknown = Operation(id=uuid.UUID(int=2), kind=OperationKind.REMOVE, hosts=(uuid.UUID(int=99),))  # type: ignore[arg-type]  # any id
    with pytest.raises(OperationFailed) as caught:
        await operations_of(asked).request(unknown)
    assert caught.value.code is OperationCode.INVALID
