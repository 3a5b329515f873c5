"""Group 0 under every fault, with members that come and go, judged by what its clients saw."""

import asyncio

from ebla.group0.members import MemberRole
from ebla.raft.events import TransferLeadership
from ebla.raft.messages import PeerId
from ebla.sim.checkers.group0 import find_disagreement, find_problem
from ebla.sim.clients import start_clients
from ebla.sim.clusters.group0 import Group0Cluster, add_node
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.workloads.group0_client import TOTAL, Group0Load, Group0Watcher, Group0WorkloadClient
from ebla.sim.world import World

CLIENTS = ("c1", "c2", "c3", "c4")
CALM_S = 40.0
FEED_S = 20.0


async def run(world: World) -> None:
    cluster = Group0Cluster()
    names = [f"n{number}" for number in range(world.rng.randrange(3, 8))]
    nodes = [add_node(world, cluster, name) for name in names]
    everyone = tuple(node.address for node in cluster.nodes.values())
    for number, node in enumerate(cluster.nodes.values()):
        node.contacts = everyone
        node.rack = f"rack{number % 3}"
    load = Group0Load(addresses=everyone)
    start_clients(world, CLIENTS, lambda environment, name: Group0WorkloadClient(environment, name, load))
    start_clients(world, ("watcher",), lambda environment, name: Group0Watcher(environment, name, load))
    for unit in nodes:
        unit.start()
    async with asyncio.TaskGroup() as tasks:
        beside = [tasks.create_task(_meddle(world, cluster)), tasks.create_task(cluster.check_accepted(world))]
        await harsh(world, nodes, world.seconds)
        for task in beside:
            task.cancel()
    await _judge(world, cluster, load)


async def _meddle(world: World, cluster: Group0Cluster) -> None:
    """Transfers leadership while everything else continues."""
    while True:
        await asyncio.sleep(1.0 + world.rng.random() * 4)
        for name, running in cluster.running().items():
            voters = running.raft.core.membership.voters
            if running.raft.is_leader and voters:
                target = world.rng.choice(voters)
                world.log(name, f"must transfer leadership to {target}")
                running.raft.post(TransferLeadership(PeerId(target)))


async def _judge(world: World, cluster: Group0Cluster, load: Group0Load) -> None:
    await load.stop(world, CALM_S)
    settled = await world.wait_for(lambda: _settled(cluster), CALM_S)
    stores = cluster.stores()
    world.check(settled, f"the nodes do not settle: {[store.index for store in stores.values()]}")
    problem = find_problem(load.record, TOTAL) or find_disagreement(stores)
    world.check(problem is None, str(problem))
    wanted, mirror = next(iter(stores.values())), load.record.mirror
    content = {key: wanted.entries[key].value for key in wanted.keys("user/")}
    whole = await world.wait_for(lambda: mirror.content == content, FEED_S)
    differing = sorted(key for key in {*content, *mirror.content} if content.get(key) != mirror.content.get(key))
    world.check(whole, f"the feed and the store differ: {differing}")
    answered = sum(operation.returned is not None for operation in load.record.registers.operations())
    world.log("scenario", f"{answered} calls, {load.record.moves} moves, {len(load.record.locks)} locks are right")


def _settled(cluster: Group0Cluster) -> bool:
    stores = cluster.stores()
    if len(stores) < len(cluster.nodes):
        return False
    voters = {sum(one.role is MemberRole.VOTER for one in store.members.values()) for store in stores.values()}
    return len({store.index for store in stores.values()}) == 1 and voters == {_voters_wanted(len(cluster.nodes))}


def _voters_wanted(nodes: int) -> int:
    return min(5, nodes if nodes % 2 else nodes - 1)


SCENARIO = Scenario(
    name="group0",
    summary="the replicated store is linearizable, its feed whole, its lock a fence",
    seconds=20.0,
    run=run,
)
