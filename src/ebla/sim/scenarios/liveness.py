"""Failure detection while processes are killed, paused, cut off and slowed down.

Each node has a control, a shard and a bulk process on one machine, the same code as in production. During the faults
the checker compares every opinion with the real state. After the last fault all opinions must settle and stay right.
"""

import asyncio
import enum
from collections.abc import Sequence

from ebla.model.identity import ClusterId, ShardNumber
from ebla.sim.checkers.liveness import SAMPLE_S, LivenessBounds, LivenessChecker
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.clusters.nodes import LIMITS, SimCluster, SimNode
from ebla.sim.faults import links
from ebla.sim.network import PathFault
from ebla.sim.scenario import Scenario
from ebla.sim.world import Unit, World

NODES = 4
SETTLE_S = 12.0
"""From the last fault to the right opinion: silence detected, one connection given up, one made, one heartbeat
answered."""
STEADY_S = 10.0


class LivenessFault(enum.Enum):
    KILL = enum.auto()
    POWER = enum.auto()
    PAUSE = enum.auto()
    CUT_ONE_WAY = enum.auto()
    CUT = enum.auto()
    SLOW = enum.auto()
    LOSSY = enum.auto()
    RESET = enum.auto()
    WALL_CLOCK = enum.auto()


async def run(world: World) -> None:
    cluster = build_cluster(world)
    nodes = cluster.nodes
    for unit in cluster.units():
        unit.start()
    # A node with a fault before it has joined may be rejected, and then it rightly never serves.
    await cluster.wait_all_normal()
    bounds = LivenessBounds(LIMITS.peer_silence_ms / 1000, SETTLE_S, LIMITS.feed_silence_ms / 1000)
    checker = LivenessChecker(world, nodes, bounds)
    async with asyncio.TaskGroup() as tasks:
        sampling = tasks.create_task(_sample(checker))
        storms = [tasks.create_task(_storm(world, nodes)) for _ in range(2)]
        await asyncio.wait(storms)
        world.heal()
        world.log("scenario", "the last fault is over")
        await asyncio.sleep(SETTLE_S)
        world.check(checker.all_settled(), "opinions and serving rights did not settle after the last fault")
        await asyncio.sleep(STEADY_S)
        world.check(checker.all_settled(), "opinions or serving rights changed without a fault")
        sampling.cancel()
    world.check(checker.samples > world.seconds, "the checker hardly ran")


async def _sample(checker: LivenessChecker) -> None:
    while True:
        checker.sample()
        await asyncio.sleep(SAMPLE_S)


def build_cluster(world: World) -> SimCluster:
    """Its nodes are not yet started."""
    cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail), stop_s=60.0)
    for _ in range(NODES):
        cluster.add_node(shards=(ShardNumber(0),))
    return cluster


# ---- the faults


async def _storm(world: World, nodes: list[SimNode]) -> None:
    """One fault after another. Two storms overlap."""
    ends_at = world.now() + world.seconds
    while world.now() < ends_at:
        await asyncio.sleep(world.rng.between(0.5, 8.0))
        node = world.rng.choice(nodes)
        victim = world.rng.choice([node.control, node.control, node.shards[0].unit])
        other = _partner(world, nodes, node, victim)
        await _strike(world, world.rng.choice(list(LivenessFault)), victim, other)


def _partner(world: World, nodes: list[SimNode], node: SimNode, victim: Unit) -> Unit:
    if victim is node.shards[0].unit:
        return node.control
    return world.rng.choice([other.control for other in nodes if other is not node])


async def _strike(world: World, fault: LivenessFault, victim: Unit, other: Unit) -> None:
    world.log("scenario", f"{fault.name} {victim.name} {other.name}")
    lasts_s = world.rng.between(0.5, 12.0)
    there, back = (victim.name, other.name), (other.name, victim.name)
    match fault:
        case LivenessFault.KILL:
            victim.kill()
            await _restart_machine(world, victim, lasts_s)
        case LivenessFault.POWER:
            victim.crash()
            await _restart_machine(world, victim, lasts_s)
        case LivenessFault.PAUSE:
            victim.pause()
            await asyncio.sleep(lasts_s)
            victim.resume()
        case LivenessFault.CUT_ONE_WAY:
            await links.cut(world, [there], lasts_s)
        case LivenessFault.CUT:
            await links.cut(world, [there, back], lasts_s)
        case LivenessFault.SLOW:
            await _strain(world, PathFault(extra_latency_ms=world.rng.between(50.0, 1_500.0)), (there, back), lasts_s)
        case LivenessFault.LOSSY:
            await _strain(world, PathFault(extra_loss=world.rng.between(0.05, 0.6)), (there, back), lasts_s)
        case LivenessFault.RESET:
            world.network.reset(victim.name, other.name)
        case LivenessFault.WALL_CLOCK:
            victim.machine.clock.jump(int(world.rng.between(-3e8, 3e8)))


async def _strain(world: World, fault: PathFault, pairs: Sequence[tuple[str, str]], lasts_s: float) -> None:
    async with asyncio.TaskGroup() as tasks:
        for pair in pairs:
            tasks.create_task(links.strain(world, pair, fault, lasts_s))


async def _restart_machine(world: World, victim: Unit, lasts_s: float) -> None:
    await asyncio.sleep(lasts_s)
    for unit in [unit for unit in world.units.values() if unit.machine is victim.machine and unit.down]:
        unit.start()


SCENARIO = Scenario(
    name="liveness", summary="nodes have the right opinion of each other under faults", seconds=90.0, run=run
)
