"""Nodes that watch each other while processes are killed, paused, cut off and slowed down.

Each node is a control process and a shard on one machine, the same code as in production. While faults come and go
the checker compares every opinion with the truth; after the last one is over, all must settle and stay so.
"""

import asyncio
import enum
from dataclasses import dataclass

import msgspec

from ebla.control.control_process import ControlConfig, ControlProcess
from ebla.control.group0.node import Group0Config
from ebla.control.liveness.heartbeats import LivenessLimits
from ebla.group0.members import Member, MemberRole
from ebla.model.identity import Address, ClusterId, HostId, ShardNumber
from ebla.observe.event_reporter import EventReporter
from ebla.observe.metrics import Metrics
from ebla.ports.environment import Environment
from ebla.replica.shard_process import ShardConfig, ShardProcess
from ebla.replica.shard_services import ShardDeps
from ebla.sim.checkers.liveness import SAMPLE_S, LivenessBounds, LivenessChecker, LivenessNode
from ebla.sim.scenario import Scenario
from ebla.sim.world import Unit, World
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.store import StoreLimits
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
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


class NoChildProcesses:
    """The shard is a unit of the world, which starts and ends it."""

    def heard(self, name: str, pid: int) -> None:
        pass

    def statuses(self) -> tuple[ProcessStatus, ...]:
        return ()


async def run(world: World) -> None:
    nodes = build_nodes(world)
    for node in nodes:
        node.control.start()
        node.shard.start()
    bounds = LivenessBounds(LIMITS.silence_ms / 1000, SETTLE_S, FEED_SILENCE_MS / 1000)
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


# ---- the nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Casting:
    """What the two processes of one node run. Each life leaves its process in `nodes` for the checker."""

    world: World
    nodes: list[LivenessNode]
    number: int
    introduction: Introduction

    async def control(self, environment: Environment) -> None:
        addresses = [node.control.address(CONTROL_PORT) for node in self.nodes]
        own = addresses[self.number]
        setup = ControlConfig(
            introduction=self.introduction,
            address=own,
            local_address=SOCKET,
            group0=Group0Config(
                member=Member(host=self.introduction.host, role=MemberRole.LEARNER, address=own),
                cluster=_cluster_of(self.introduction),
                cluster_name=self.introduction.cluster_name,
                contacts=tuple(addresses),
                folder="/data/group0",
            ),
            liveness=LIMITS,
            wire=WIRE,
            report=_report(self.world, self.nodes[self.number].control.name),
            pid=self.number,
            release="sim",
        )
        process = ControlProcess(environment, setup, NoChildProcesses(), asyncio.Event())
        self.nodes[self.number].control_process = process
        await process.run()

    async def shard(self, environment: Environment) -> None:
        unit = self.nodes[self.number].shard
        setup = ShardConfig(
            introduction=msgspec.structs.replace(self.introduction, process="shard-0"),
            number=ShardNumber(0),
            folder="/data/shard-0",
            address=unit.address(SHARD_PORT),
            local_address_of=lambda number: Address(f"/data/run/shard-{number}.sock"),
            control_address=SOCKET,
            heartbeat_ms=CHILD_HEARTBEAT_MS,
            feed_silence_ms=FEED_SILENCE_MS,
            wire=WIRE,
            report=_report(self.world, unit.name),
            pid=self.number,
            store=StoreLimits(free_bytes_min=0),
        )
        process = ShardProcess(environment, setup, ShardDeps(engine=MemoryEngine(environment.disk), metrics=Metrics()))
        self.nodes[self.number].shard_process = process
        await process.run()


def _cluster_of(introduction: Introduction) -> ClusterId:
    assert introduction.cluster is not None
    return introduction.cluster


def build_nodes(world: World) -> list[LivenessNode]:
    """Nodes that are not yet started."""
    cluster = ClusterId(world.rng.uuid())
    nodes: list[LivenessNode] = []
    for number in range(NODES):
        host = HostId(world.rng.uuid())
        casting = _Casting(
            world=world,
            nodes=nodes,
            number=number,
            introduction=Introduction(host=host, cluster=cluster, cluster_name="sim"),
        )
        name = f"n{number + 1}"
        control = world.unit(name, casting.control, host_id=host)
        nodes.append(
            LivenessNode(control=control, shard=world.unit(f"{name}-shard", casting.shard, machine=name, host_id=host))
        )
    return nodes


def _report(world: World, name: str) -> EventReporter:
    def log(event: str, details: object) -> None:
        world.log(name, f"{event} {details}")

    return log


# ---- the faults


async def _storm(world: World, nodes: list[LivenessNode]) -> None:
    """One fault after another; two storms overlap."""
    ends_at = world.now() + world.seconds
    while world.now() < ends_at:
        await asyncio.sleep(world.rng.between(0.5, 8.0))
        node = world.rng.choice(nodes)
        victim = world.rng.choice([node.control, node.control, node.shard])
        other = _partner(world, nodes, node, victim)
        await _strike(world, world.rng.choice(list(LivenessFault)), victim, other)


def _partner(world: World, nodes: list[LivenessNode], node: LivenessNode, victim: Unit) -> Unit:
    if victim is node.shard:
        return node.control
    return world.rng.choice([other.control for other in nodes if other is not node])


async def _strike(world: World, fault: LivenessFault, victim: Unit, other: Unit) -> None:
    world.log("scenario", f"{fault.name} {victim.name} {other.name}")
    lasts_s = world.rng.between(0.5, 12.0)
    network = world.network
    there, back = network.path(victim.name, other.name), network.path(other.name, victim.name)
    match fault:
        case LivenessFault.KILL | LivenessFault.POWER:
            await _end_for_a_while(world, fault, victim, lasts_s)
        case LivenessFault.PAUSE:
            victim.pause()
            await asyncio.sleep(lasts_s)
            victim.resume()
        case LivenessFault.CUT_ONE_WAY:
            network.cut(victim.name, other.name)
            await asyncio.sleep(lasts_s)
            network.uncut(victim.name, other.name)
        case LivenessFault.CUT:
            network.cut(victim.name, other.name)
            network.cut(other.name, victim.name)
            await asyncio.sleep(lasts_s)
            network.uncut(victim.name, other.name)
            network.uncut(other.name, victim.name)
        case LivenessFault.SLOW:
            there.extra_latency_ms = back.extra_latency_ms = world.rng.between(50.0, 1_500.0)
            await asyncio.sleep(lasts_s)
            there.extra_latency_ms = back.extra_latency_ms = 0.0
        case LivenessFault.LOSSY:
            there.extra_loss = back.extra_loss = world.rng.between(0.05, 0.6)
            await asyncio.sleep(lasts_s)
            there.extra_loss = back.extra_loss = 0.0
        case LivenessFault.RESET:
            network.reset(victim.name, other.name)
        case LivenessFault.WALL_CLOCK:
            victim.machine.clock.jump(int(world.rng.between(-3e8, 3e8)))


async def _end_for_a_while(world: World, fault: LivenessFault, victim: Unit, lasts_s: float) -> None:
    on_machine = [unit for unit in world.units.values() if unit.machine is victim.machine]
    if fault is LivenessFault.POWER:
        victim.crash()
    else:
        victim.kill()
    await asyncio.sleep(lasts_s)
    for unit in on_machine:
        if unit.down:
            unit.start()


SCENARIO = Scenario(
    name="liveness", summary="nodes hold right opinions of each other under faults", seconds=90.0, run=run
)
