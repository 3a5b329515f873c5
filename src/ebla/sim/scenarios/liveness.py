"""Nodes that watch each other while processes are killed, paused, cut off and slowed down.

Each node is a control process and a shard on one machine, the same code as in production. While faults come and go
the checker compares every opinion with the truth; after the last one is over, all must settle and stay so.
"""

import asyncio
import enum
from dataclasses import dataclass

import msgspec

from ebla.control.control_process import ControlProcess, ControlSetup
from ebla.control.group0_server import Group0Setup
from ebla.control.liveness import LivenessLimits
from ebla.group0.members import Member, Role
from ebla.model.identity import Address, ClusterId, HostId, ShardNumber
from ebla.observe.metrics import Metrics
from ebla.ports.surroundings import Surroundings
from ebla.replica.fronts import ShardParts
from ebla.replica.shard_process import ShardProcess, ShardSetup
from ebla.sim.checkers.liveness import SAMPLE_S, Bounds, LivenessChecker, SimNode
from ebla.sim.scenario import Scenario
from ebla.sim.world import Unit, World
from ebla.storage.memory import MemoryEngine
from ebla.storage.store import StoreLimits
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.report import Report
from ebla.wire.verbs import ProcessStatus

NODES = 4
LIMITS = LivenessLimits()
WIRE = WireLimits()
CHILD_HEARTBEAT_MS = 1_000
FEED_SILENCE_MS = 5_000
CONTROL_PORT, SHARD_PORT = 7000, 7010
SOCKET = Address("/data/run/control.sock")
SETTLE_S = 12.0
"""From the last fault to the right opinion: silence noticed, one connection given up, one made, one beat answered."""
STEADY_S = 10.0


class Fault(enum.Enum):
    KILL = enum.auto()
    POWER = enum.auto()
    PAUSE = enum.auto()
    CUT_ONE_WAY = enum.auto()
    CUT = enum.auto()
    SLOW = enum.auto()
    LOSSY = enum.auto()
    RESET = enum.auto()
    WALL_CLOCK = enum.auto()


class NoChildren:
    """The shard is a unit of the world, which starts and ends it."""

    def heard(self, name: str, pid: int) -> None:
        pass

    def statuses(self) -> tuple[ProcessStatus, ...]:
        return ()


async def run(world: World) -> None:
    nodes = build(world)
    for node in nodes:
        node.control.start()
        node.shard.start()
    bounds = Bounds(LIMITS.silence_ms / 1000, SETTLE_S, FEED_SILENCE_MS / 1000)
    checker = LivenessChecker(world, nodes, bounds)
    async with asyncio.TaskGroup() as tasks:
        sampling = tasks.create_task(_sample(checker))
        storms = [tasks.create_task(_storm(world, nodes)) for _ in range(2)]
        await asyncio.wait(storms)
        world.heal()
        world.tell("scenario", "the last fault is over")
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


# ---- the nodes


@dataclass(frozen=True, slots=True)
class _Casting:
    """What the two processes of one node run. Each life leaves its process in `nodes` for the checker."""

    world: World
    nodes: list[SimNode]
    number: int
    introduction: Introduction

    async def control(self, around: Surroundings) -> None:
        addresses = [node.control.address(CONTROL_PORT) for node in self.nodes]
        own = addresses[self.number]
        setup = ControlSetup(
            self.introduction,
            own,
            SOCKET,
            Group0Setup(
                Member(self.introduction.host, Role.LEARNER, own),
                _cluster_of(self.introduction),
                self.introduction.cluster_name,
                tuple(addresses),
                "/data/group0",
            ),
            LIMITS,
            WIRE,
            _report(self.world, self.nodes[self.number].control.name),
            self.number,
            "sim",
        )
        process = ControlProcess(around, setup, NoChildren(), asyncio.Event())
        self.nodes[self.number].control_process = process
        await process.run()

    async def shard(self, around: Surroundings) -> None:
        unit = self.nodes[self.number].shard
        setup = ShardSetup(
            msgspec.structs.replace(self.introduction, process="shard-0"),
            ShardNumber(0),
            "/data/shard-0",
            unit.address(SHARD_PORT),
            lambda number: Address(f"/data/run/shard-{number}.sock"),
            SOCKET,
            CHILD_HEARTBEAT_MS,
            FEED_SILENCE_MS,
            WIRE,
            _report(self.world, unit.name),
            self.number,
            store=StoreLimits(free_bytes_min=0),
        )
        process = ShardProcess(around, setup, ShardParts(MemoryEngine(around.disk), Metrics()))
        self.nodes[self.number].shard_process = process
        await process.run()


def _cluster_of(introduction: Introduction) -> ClusterId:
    assert introduction.cluster is not None
    return introduction.cluster


def build(world: World) -> list[SimNode]:
    """Nodes that are not yet started."""
    cluster = ClusterId(world.chance.uuid())
    nodes: list[SimNode] = []
    for number in range(NODES):
        host = HostId(world.chance.uuid())
        casting = _Casting(world, nodes, number, Introduction(host, cluster, "sim"))
        name = f"n{number + 1}"
        control = world.unit(name, casting.control, host_id=host)
        nodes.append(SimNode(control, world.unit(f"{name}-shard", casting.shard, machine=name, host_id=host)))
    return nodes


def _report(world: World, name: str) -> Report:
    def tell(event: str, details: object) -> None:
        world.tell(name, f"{event} {details}")

    return tell


# ---- the faults


async def _storm(world: World, nodes: list[SimNode]) -> None:
    """One fault after another; two storms overlap."""
    ends_at = world.now() + world.seconds
    while world.now() < ends_at:
        await asyncio.sleep(world.chance.between(0.5, 8.0))
        node = world.chance.choice(nodes)
        victim = world.chance.choice([node.control, node.control, node.shard])
        other = _partner(world, nodes, node, victim)
        await _strike(world, world.chance.choice(list(Fault)), victim, other)


def _partner(world: World, nodes: list[SimNode], node: SimNode, victim: Unit) -> Unit:
    if victim is node.shard:
        return node.control
    return world.chance.choice([other.control for other in nodes if other is not node])


async def _strike(world: World, fault: Fault, victim: Unit, other: Unit) -> None:
    world.tell("scenario", f"{fault.name} {victim.name} {other.name}")
    lasts_s = world.chance.between(0.5, 12.0)
    network = world.network
    there, back = network.path(victim.name, other.name), network.path(other.name, victim.name)
    match fault:
        case Fault.KILL | Fault.POWER:
            await _end_for_a_while(world, fault, victim, lasts_s)
        case Fault.PAUSE:
            victim.pause()
            await asyncio.sleep(lasts_s)
            victim.resume()
        case Fault.CUT_ONE_WAY:
            network.cut(victim.name, other.name)
            await asyncio.sleep(lasts_s)
            network.mend(victim.name, other.name)
        case Fault.CUT:
            network.cut(victim.name, other.name)
            network.cut(other.name, victim.name)
            await asyncio.sleep(lasts_s)
            network.mend(victim.name, other.name)
            network.mend(other.name, victim.name)
        case Fault.SLOW:
            there.extra_ms = back.extra_ms = world.chance.between(50.0, 1_500.0)
            await asyncio.sleep(lasts_s)
            there.extra_ms = back.extra_ms = 0.0
        case Fault.LOSSY:
            there.extra_loss = back.extra_loss = world.chance.between(0.05, 0.6)
            await asyncio.sleep(lasts_s)
            there.extra_loss = back.extra_loss = 0.0
        case Fault.RESET:
            network.reset(victim.name, other.name)
        case Fault.WALL_CLOCK:
            victim.machine.clock.jump(int(world.chance.between(-3e8, 3e8)))


async def _end_for_a_while(world: World, fault: Fault, victim: Unit, lasts_s: float) -> None:
    on_machine = [unit for unit in world.units.values() if unit.machine is victim.machine]
    if fault is Fault.POWER:
        victim.crash()
    else:
        victim.kill()
    await asyncio.sleep(lasts_s)
    for unit in on_machine:
        if unit.down:
            unit.start()


SCENARIO = Scenario("liveness", "nodes hold right opinions of each other under faults", seconds=90.0, run=run)
