"""Leaves, removes and rebuilds in simulated clusters, step by step."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.sim.topology_rig import ENDED, JOINED, TopologyRig

from ebla.group0.members import member_key
from ebla.sim.clusters.nodes import SimNode
from ebla.sim.clusters.transfer_nodes import supervise_pipelines
from ebla.sim.world import World
from ebla.topology.states import NodeRequestKind, RequestOutcome


def run(tell: Callable[[TopologyRig, SimNode], Awaitable[None]]) -> None:
    """With four nodes; the last one, which holds no tablet, has joined."""

    async def main(world: World) -> None:
        rig = TopologyRig(world)
        async with asyncio.TaskGroup() as tasks:
            supervising = tasks.create_task(supervise_pipelines(rig.cluster))
            await rig.start()
            node = await rig.join()
            await rig.until(lambda: rig.cluster.state_of(node) is JOINED, "the node has joined")
            await tell(rig, node)
            supervising.cancel()

    World(7, 60.0).run(main)


def test_a_node_leaves() -> None:
    async def tell(rig: TopologyRig, node: SimNode) -> None:
        request = await rig.submit(NodeRequestKind.LEAVE, node)
        assert await rig.end(node) is ENDED, rig.request_of(node)
        assert rig.outcome_of(request) is RequestOutcome.DONE
        store = rig.cluster.newest_store()
        assert store is not None
        assert not store.members[member_key(node.host)].present

    run(tell)
