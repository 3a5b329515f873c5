"""Fresh nodes that list one another, started in any order under faults, form exactly one cluster (INV-FORM-1)."""

import asyncio
from contextlib import ExitStack

from ebla.control.group0.join_state import JoinStage
from ebla.group0.members import MemberRole
from ebla.sim.clusters.group0 import Group0Cluster, add_node
from ebla.sim.disk import DiskFault
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.world import Unit, World

CALM_S = 60.0


async def run(world: World) -> None:
    cluster = Group0Cluster()
    units = [add_node(world, cluster, f"n{number}") for number in range(world.rng.randrange(3, 8))]
    _draw_contacts(world, cluster)
    async with asyncio.TaskGroup() as tasks:
        for unit in units:
            tasks.create_task(_start_later(world, unit))
        if world.rng.happens(0.5):
            tasks.create_task(_crash_founder(world, cluster))
        checking = tasks.create_task(cluster.check_accepted(world))
        await harsh(world, units, world.seconds)
        checking.cancel()
    await _judge(world, cluster)


def _draw_contacts(world: World, cluster: Group0Cluster) -> None:
    """Every node lists an earlier one, the first lists the last, and some list more."""
    nodes = list(cluster.nodes.values())
    for number, node in enumerate(nodes):
        earlier = nodes[world.rng.randrange(0, number)] if number else nodes[-1]
        more = [other for other in nodes if other is not node and world.rng.random() < 0.3]
        node.contacts = tuple(sorted({earlier.address, *(other.address for other in more)}))


async def _start_later(world: World, unit: Unit) -> None:
    await asyncio.sleep(world.rng.random() * world.seconds / 2)
    if unit.down:
        unit.start()


async def _crash_founder(world: World, cluster: Group0Cluster) -> None:
    """A cluster is created once in a run, and only one sync lies between its first record and the mark of its creation.
    A random crash would rarely hit that moment, so all syncs are slow until then."""
    sync_ms = world.rng.between(5.0, 100.0)
    with ExitStack() as faults:
        for unit in world.units.values():
            faults.enter_context(unit.machine.disk.inject(DiskFault(sync_ms=sync_ms)))
        try:
            async with asyncio.timeout(world.seconds):
                await cluster.foundings.first.wait()
                await asyncio.sleep(world.rng.between(0.0, 1.5 * sync_ms / 1000.0))
        except TimeoutError:
            return
        world.log("faults", "the founder is struck")
        world.units[cluster.foundings.founder].crash()


async def _judge(world: World, cluster: Group0Cluster) -> None:
    _check_one_cluster(world, cluster)
    joined = await world.wait_for(lambda: _all_in(cluster), CALM_S)
    _check_one_cluster(world, cluster)
    world.check(joined, f"not all nodes have joined: {_state(cluster)}")
    members = next(iter(cluster.stores().values())).members.values()
    voters = [member for member in members if member.role is MemberRole.VOTER]
    world.log("scenario", f"one cluster of {len(cluster.nodes)} nodes with {len(voters)} voters")


def _check_one_cluster(world: World, cluster: Group0Cluster) -> None:
    violation = cluster.foundings.violation()
    world.check(violation is None, str(violation))


def _all_in(cluster: Group0Cluster) -> bool:
    stores, count = cluster.stores().values(), len(cluster.nodes)
    return len(stores) == count and all(
        store.index > 0 and sum(member.present for member in store.members.values()) == count for store in stores
    )


def _state(cluster: Group0Cluster) -> str:
    parts = []
    for node in cluster.nodes.values():
        assert node.group0 is not None
        stage = node.group0.join_state.mark.stage
        waits = node.group0.formation.waits_for if stage is not JoinStage.MEMBER else ""
        parts.append(f"{node.name} {stage}{f' ({waits})' if waits else ''}")
    return ", ".join(parts)


SCENARIO = Scenario(
    name="formation", summary="fresh nodes form exactly one cluster, in any order, under faults", seconds=20.0, run=run
)
