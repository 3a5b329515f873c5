"""Group 0 under every fault, with members that come and go, judged by what its clients saw."""

import asyncio
import functools

from ebla.group0.members import MemberRole
from ebla.group0.store import Group0Store
from ebla.ports.environment import Environment
from ebla.raft.events import TransferLeadership
from ebla.raft.messages import PeerId
from ebla.sim.checkers.group0 import Group0Record, find_disagreement, find_problem
from ebla.sim.clusters.group0 import Group0Cluster, add_node
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.workloads.group0_client import TOTAL, Group0Load, Group0Watcher, Group0WorkloadClient
from ebla.sim.world import World

CLIENTS = ("c1", "c2", "c3", "c4")
CALM_S = 40.0


async def run(world: World) -> None:
    cluster = Group0Cluster()
    names = [f"n{number}" for number in range(world.rng.randrange(3, 8))]
    nodes = [add_node(world, cluster, name) for name in names]
    everyone = tuple(node.address for node in cluster.nodes.values())
    for number, node in enumerate(cluster.nodes.values()):
        node.contacts = everyone
        node.rack = f"rack{number % 3}"
    load = Group0Load(addresses={name: node.address for name, node in cluster.nodes.items()}, record=Group0Record())
    for name in CLIENTS:
        world.unit(name, functools.partial(_client, name=name, load=load)).start()
    world.unit("watcher", functools.partial(_watcher, load=load)).start()
    for unit in nodes:
        unit.start()
    async with asyncio.TaskGroup() as tasks:
        meddling = tasks.create_task(_meddle(world, cluster))
        await harsh(world, nodes, world.seconds)
        meddling.cancel()
    await _judge(world, cluster, load)


async def _client(environment: Environment, name: str, load: Group0Load) -> None:
    await Group0WorkloadClient(environment, name, load).run()


async def _watcher(environment: Environment, load: Group0Load) -> None:
    await Group0Watcher(environment, "watcher", load).run()


async def _meddle(world: World, cluster: Group0Cluster) -> None:
    """Transfers leadership while everything else goes on."""
    while True:
        await asyncio.sleep(1.0 + world.rng.random() * 4)
        for node in cluster.running():
            assert node.group0 is not None
            raft = node.group0.running.raft
            voters = raft.core.membership.voters
            if raft.is_leader and voters:
                target = world.rng.choice(voters)
                world.log(node.name, f"must transfer leadership to {target}")
                raft.post(TransferLeadership(PeerId(target)))


async def _judge(world: World, cluster: Group0Cluster, load: Group0Load) -> None:
    world.check(await load.stop(CALM_S), "calls are still open long after all was healed")
    for _ in range(int(CALM_S * 2)):
        if _settled(cluster):
            break
        await asyncio.sleep(0.5)
    stores = _stores(cluster)
    world.check(_settled(cluster), f"the nodes do not settle: {[store.index for store in stores.values()]}")
    problem = find_problem(load.record, TOTAL) or find_disagreement(stores)
    world.check(problem is None, str(problem))
    await _judge_feed(world, cluster, load)
    answered = sum(operation.returned is not None for operation in load.record.registers.operations())
    world.log("scenario", f"{answered} calls, {len(load.record.moves)} moves, {len(load.record.locks)} locks are right")


async def _judge_feed(world: World, cluster: Group0Cluster, load: Group0Load) -> None:
    wanted = next(iter(_stores(cluster).values()))
    content = {key: wanted.entries[key].value for key in wanted.keys("user/")}
    for _ in range(40):
        if load.record.mirror.content == content:
            return
        await asyncio.sleep(0.5)
    mirrored = load.record.mirror.content
    differing = sorted(key for key in {*content, *mirrored} if content.get(key) != mirrored.get(key))
    world.fail(f"the feed and the store differ: {differing}")


def _settled(cluster: Group0Cluster) -> bool:
    stores = _stores(cluster)
    if len(stores) < len(cluster.nodes):
        return False
    voters = {sum(one.role is MemberRole.VOTER for one in store.members.values()) for store in stores.values()}
    return len({store.index for store in stores.values()}) == 1 and voters == {_voters_wanted(len(cluster.nodes))}


def _voters_wanted(nodes: int) -> int:
    return min(5, nodes if nodes % 2 else nodes - 1)


def _stores(cluster: Group0Cluster) -> dict[str, Group0Store]:
    return {node.name: node.group0.running.store for node in cluster.running() if node.group0 is not None}


SCENARIO = Scenario(
    name="group0",
    summary="the replicated store is linearizable, its feed whole, its lock a fence",
    seconds=20.0,
    run=run,
)
