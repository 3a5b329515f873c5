"""Joins of nodes in simulated clusters: at a few seeds under every fault, and one fault in each state of a join."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest
from tests.sim.topology_rig import END_S, ENDED, JOINED, NODES, OUTAGE_S, TopologyRig, commit

from ebla.control.fault_points import FaultPoint
from ebla.group0.members import member_key
from ebla.model.identity import ClusterId
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.clusters.nodes import SimCluster, SimNode
from ebla.sim.clusters.transfer_nodes import supervise_pipelines
from ebla.sim.disk import DiskFault
from ebla.sim.scenario import find_scenario, run_scenario
from ebla.sim.world import World
from ebla.topology.commands import AdvanceNode, RollBackNode
from ebla.topology.states import NodeState, TransitionState
from ebla.wire.fault_messages import FaultKind


@pytest.mark.parametrize("seed", range(1, 3))
def test_nodes_join_or_are_rolled_back_while_everything_fails(seed: int) -> None:
    """Under every fault: INV-NODE-1 to INV-NODE-22, INV-ATOM-4, INV-LAYER-GC, INV-XFER-1, and those of rows."""
    outcome = run_scenario(find_scenario("topology"), seed, 25.0)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"


def test_the_same_seed_gives_the_same_run() -> None:
    scenario = find_scenario("topology")
    assert run_scenario(scenario, 4, 6.0).trace == run_scenario(scenario, 4, 6.0).trace


# ---- one fault in each state


Strike = Callable[[TopologyRig, SimNode], Awaitable[None]]


async def coordinator_dies(rig: TopologyRig, _node: SimNode) -> None:
    leader = rig.leader()
    for unit in leader.units():
        unit.kill()
    await asyncio.sleep(OUTAGE_S / 2)
    rig.restart(leader)


async def new_node_dies(rig: TopologyRig, node: SimNode) -> None:
    """For longer than `peer_timeout_ms`, except where the join cannot be rolled back any more."""
    node.control.crash()
    await asyncio.sleep(3 * OUTAGE_S)
    if rig.cluster.state_of(node) is not ENDED:
        rig.restart(node)


async def source_dies(rig: TopologyRig, _node: SimNode) -> None:
    source = next(one for one in rig.old if one is not rig.leader())
    source.control.crash()
    await asyncio.sleep(OUTAGE_S)
    rig.restart(source)


async def link_cut(rig: TopologyRig, node: SimNode) -> None:
    network, leader = rig.world.network, rig.leader()
    pairs = [(one.name, two.name) for one in leader.units() for two in node.units()]
    for one, two in pairs:
        network.cut(one, two)
        network.cut(two, one)
    await asyncio.sleep(OUTAGE_S)
    network.heal()


async def barrier_refused(rig: TopologyRig, _node: SimNode) -> None:
    """A process of another node stands still, and its node does not acknowledge the next version."""
    stopped = next(one for one in rig.old if one is not rig.leader()).shards[0].unit
    stopped.pause()
    await rig.change_schema()
    await asyncio.sleep(OUTAGE_S)
    stopped.resume()


async def disk_full(rig: TopologyRig, node: SimNode) -> None:
    disk = node.control.machine.disk
    with disk.inject(DiskFault(capacity_bytes=disk.used_bytes() + 100)):
        await asyncio.sleep(OUTAGE_S)


async def spark_unavailable(rig: TopologyRig, _node: SimNode) -> None:
    rig.cluster.engine.lose(OUTAGE_S)
    await asyncio.sleep(OUTAGE_S)


async def aborted(rig: TopologyRig, node: SimNode) -> None:
    refusal = await rig.abort(node)
    newest = rig.cluster.newest()
    assert newest is not None, "a node runs"
    is_late = newest.transition is TransitionState.WRITE_BOTH_READ_NEW and newest.nodes[node.host].tokens
    assert refusal.startswith("too late") if is_late else not refusal


STRIKES: tuple[Strike, ...] = (
    coordinator_dies,
    new_node_dies,
    source_dies,
    link_cut,
    barrier_refused,
    disk_full,
    spark_unavailable,
    aborted,
)
QUEUED = None
"""The row is `none`: another join runs."""
STATES = (
    QUEUED,
    TransitionState.JOIN_GROUP0,
    TransitionState.COMMIT_CDC_GENERATION,
    TransitionState.WRITE_BOTH_READ_OLD,
    TransitionState.WRITE_BOTH_READ_NEW,
    TransitionState.LEFT_TOKEN_RING,
)
EITHER = (JOINED, ENDED)
ENDS: Mapping[tuple[TransitionState | None, Strike], tuple[NodeState, ...]] = {
    **{(state, new_node_dies): (ENDED,) for state in STATES},
    **{(state, aborted): (ENDED,) for state in STATES},
    **{(state, disk_full): EITHER for state in STATES},
    (TransitionState.WRITE_BOTH_READ_OLD, disk_full): (ENDED,),
    (TransitionState.WRITE_BOTH_READ_NEW, new_node_dies): (JOINED,),
    (TransitionState.WRITE_BOTH_READ_NEW, aborted): (JOINED,),
    **{(TransitionState.LEFT_TOKEN_RING, strike): (ENDED,) for strike in STRIKES},
}
"""How the join may end; elsewhere it completes."""
CAUSES: Mapping[tuple[TransitionState | None, Strike], str] = {
    (TransitionState.WRITE_BOTH_READ_OLD, spark_unavailable): "pipeline unavailable",
    (TransitionState.WRITE_BOTH_READ_OLD, barrier_refused): "barrier of version",
    (TransitionState.WRITE_BOTH_READ_NEW, barrier_refused): "barrier of version",
    (TransitionState.COMMIT_CDC_GENERATION, source_dies): "barrier of version",
    (TransitionState.COMMIT_CDC_GENERATION, new_node_dies): "no reply from",
    (QUEUED, source_dies): "queued",
}


@pytest.mark.parametrize("strike", STRIKES, ids=lambda strike: strike.__name__)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state or "queued")
def test_a_join_survives_one_fault_in_each_state(state: TransitionState | None, strike: Strike) -> None:
    async def tell(world: World) -> None:
        rig = TopologyRig(world)
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(supervise_pipelines(rig.cluster))]
            await rig.start()
            point = await stop_in(rig, state)
            node = rig.cluster.nodes[-1]
            beside.append(tasks.create_task(rig.note_causes(node)))
            striking = tasks.create_task(_coroutine(strike(rig, node)))
            await asyncio.sleep(0.5)
            rig.release(point)
            await striking
            ended = await rig.end(node)
            for task in beside:
                task.cancel()
        assert ended in ENDS.get((state, strike), (JOINED,)), f"{ended}: {rig.request_of(node)}"
        assert ended is JOINED or rig.request_of(node).error
        expected = CAUSES.get((state, strike))
        assert expected is None or any(cause.startswith(expected) for cause in rig.causes), rig.causes

    World(7, 60.0).run(tell)


async def stop_in(rig: TopologyRig, state: TransitionState | None) -> FaultPoint:
    """The last node that was added joins, and the coordinator has stopped in this state, before its barrier."""
    is_left = state is TransitionState.LEFT_TOKEN_RING
    stops_in = TransitionState.COMMIT_CDC_GENERATION if state is QUEUED or is_left else state
    point = FaultPoint(f"topology.{stops_in}.entered")
    rig.stop_at(point)
    node = await rig.join()
    await rig.until(lambda: rig.is_stopped(point), f"{point} is reached")
    if state is QUEUED:
        await rig.join()
    elif is_left:
        left = FaultPoint.LEFT_TOKEN_RING_ENTERED
        rig.stop_at(left)
        await rig.abort(node)
        rig.release(point)
        await rig.until(lambda: rig.is_stopped(left), f"{left} is reached")
        return left
    return point


def test_an_aborted_join_ends_its_streams() -> None:
    async def tell(world: World) -> None:
        rig = TopologyRig(world)
        async with asyncio.TaskGroup() as tasks:
            supervising = tasks.create_task(supervise_pipelines(rig.cluster))
            await rig.start()
            rig.cluster.engine.lose(END_S)
            node = await rig.join()
            streams = [process.streams for process in rig.processes()]
            await rig.until(lambda: any(one.result is not None for one in streams), "the pipeline has the order")
            assert not await rig.abort(node)
            await rig.until(lambda: rig.cluster.state_of(node) is ENDED, "the join is rolled back", 10.0)
            assert all(one.result is None for one in streams)
            supervising.cancel()

    World(7, 60.0).run(tell)


def test_a_member_whose_row_is_left_is_removed() -> None:
    """INV-NODE-22, also where the row alone was changed."""

    async def tell(world: World) -> None:
        cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail))
        for _ in range(NODES):
            cluster.add_node(has_children=False).control.start()
        await cluster.wait_all_normal()
        processes = [process for node in cluster.nodes if (process := node.live_control) is not None]
        for process in processes:
            process.fault_points.set(FaultPoint.COMMIT_CDC_GENERATION_ENTERED, FaultKind.PAUSE)
            process.fault_points.set(FaultPoint.LEFT_TOKEN_RING_AFTER_ACTION, FaultKind.PAUSE)
        new = cluster.add_node(has_children=False)
        new.control.start()
        committing, leaving = TransitionState.COMMIT_CDC_GENERATION, TransitionState.LEFT_TOKEN_RING
        assert await world.wait_for(lambda: processes[0].topology.snapshot.transition is committing, END_S)
        await commit(processes[0], RollBackNode(host=new.host, leaving=committing, reason="by a test", now_ms=1))
        assert await world.wait_for(lambda: processes[0].topology.snapshot.node(new.host).request is None, END_S)
        fence = processes[0].topology.snapshot.version
        await commit(processes[0], AdvanceNode(host=new.host, leaving=leaving, now_ms=1, fence=fence))
        store = processes[0].topology.store
        assert store is not None
        assert await world.wait_for(lambda: not store.members[member_key(new.host)].present, END_S)

    World(7, 60.0).run(tell)


async def _coroutine(work: Awaitable[None]) -> None:
    await work
