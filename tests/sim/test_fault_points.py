"""A fault point kills a simulated node as it kills a real one: the node starts again from its disk."""

from ebla.control.fault_points import FaultPoint
from ebla.model.identity import ClusterId
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.clusters.nodes import SimCluster
from ebla.sim.world import World
from ebla.wire.fault_messages import FaultKind


async def crash_at_a_point(world: World) -> None:
    cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail))
    node = cluster.add_node(has_children=False)
    node.control.start()
    await cluster.wait_all_normal()
    process = node.control_process
    assert process is not None
    process.fault_points.set(FaultPoint.PURGE_PUSHED, FaultKind.CRASH)
    node.control.incarnation.context.run(world.loop.create_task, process.fault_points.reach(FaultPoint.PURGE_PUSHED))
    assert await world.wait_for(lambda: node.control.down, 1)
    node.control.start()
    await cluster.wait_all_normal()


def test_a_crash_ends_the_process_and_it_starts_again() -> None:
    World(seed=1, seconds=60).run(crash_at_a_point)
