"""Three nodes whose children follow the topology under every fault: a returned barrier stays true."""

import asyncio
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from ebla.feed.topology_follower import TopologyFollower, TopologyFollowerConfig
from ebla.feed.topology_view import TopologyView, View
from ebla.group0.commands import Done
from ebla.model.errors import DiskFull, EblaError
from ebla.model.identity import Address, ClusterId, HostId, TopologyVersion
from ebla.model.transaction import KeyUnchanged, PutKey, Transaction
from ebla.node.context import NodeContext
from ebla.node.control_process import ControlProcess
from ebla.node.group0_config import group0_config
from ebla.observe.event_reporter import EventReporter
from ebla.options import NodeOptions, PipelineOptions
from ebla.ports.environment import Environment
from ebla.sim.clusters.nodes import SimChildren
from ebla.sim.faults.harsh import harsh
from ebla.sim.world import Unit, World
from ebla.topology import keys
from ebla.topology.snapshot import TopologyState
from ebla.topology.states import NodeState
from ebla.wire.feed_messages import ChildReport, NodeBarrierRequest
from ebla.wire.frames import Introduction
from ebla.wire.group0_messages import ExecuteRequest, Group0ReadRequest
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.verbs import GROUP0_EXECUTE, GROUP0_READ, NODE_BARRIER

NODES = 3
PORT = 7000
NONE = TopologyVersion(0)
SOCKET = Address("/data/run/control.sock")
CHILDREN = ("bulk", "shard-0")
CALM_S = 40.0


@dataclass(kw_only=True)
class Child:
    """The current incarnation of a child: what it has prepared, installed and still runs."""

    world: World
    environment: Environment
    name: str
    view: TopologyView = field(default_factory=TopologyView)
    prepared: View | None = None

    async def prepare(self, view: View, before: View | None) -> None:
        assert before is None or before is self.view.current
        if self.environment.rng.random() < 0.1:
            raise DiskFull("no space left")
        await asyncio.sleep(self.environment.rng.random() * 0.3)
        self.prepared = view

    def on_view_installed(self, view: View) -> None:
        assert self.prepared is not None
        assert self.prepared.snapshot is view.snapshot, "installed as it was prepared"

    def report_of(self, view: View) -> ChildReport:
        return ChildReport(
            name=self.name,
            pid=1,
            version=view.version,
            fence=view.fence,
            oldest_running=self.view.versions.oldest(view.version),
            pending_replicas_open=True,
        )

    async def route(self) -> None:
        """Requests that hold the version by which they began."""
        rng = self.environment.rng
        while True:
            if self.view.is_known:
                version = self.view.current.version
                self.view.hold(version)
                await asyncio.sleep(rng.random() * 2)
                self.view.release(version)
            await asyncio.sleep(rng.random() * 0.2)


@dataclass(kw_only=True)
class Node:
    control: Unit
    host: HostId
    units: dict[str, Unit] = field(default_factory=dict)
    children: dict[str, Child] = field(default_factory=dict)
    process: ControlProcess | None = None
    acknowledged: TopologyVersion = NONE
    """The highest version whose barrier this node confirmed, in any incarnation."""


class FeedWorld:
    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes: list[Node] = []
        self.cluster = ClusterId(world.rng.uuid())
        self.newest = NONE
        self.barriers = 0
        for number in range(NODES):
            self._add(f"n{number + 1}")
        self.driver = world.unit("driver", self._drive, machine="n1", host_id=self.nodes[0].host)

    def units(self) -> list[Unit]:
        return [unit for node in self.nodes for unit in (node.control, *node.units.values())] + [self.driver]

    def is_formed(self) -> bool:
        """A node that crashed before it was accepted could not come back."""
        snapshots = [node.process.topology.snapshot for node in self.nodes if node.process is not None]
        return len(snapshots) == NODES and all(len(list(one.nodes_in(NodeState.NORMAL))) == NODES for one in snapshots)

    def _add(self, name: str) -> None:
        host = HostId(self.world.rng.uuid())

        async def control(environment: Environment) -> None:
            await self._control(environment, node, name)

        node = Node(control=self.world.unit(name, control, host_id=host), host=host)
        self.nodes.append(node)
        for child in CHILDREN:

            async def run_child(environment: Environment, child: str = child) -> None:
                await self._child(environment, node, child)

            node.units[child] = self.world.unit(f"{name}-{child}", run_child, machine=name, host_id=host)

    def _introduction(self, node: Node, process: str) -> Introduction:
        return Introduction(host=node.host, cluster=self.cluster, cluster_name="sim", process=process)

    def _report(self, name: str) -> EventReporter:
        return lambda event, details: self.world.log(name, f"{event} {details}")

    async def _control(self, environment: Environment, node: Node, name: str) -> None:
        own = NodeContext(
            options=NodeOptions(
                data="/data",
                address=node.control.host,
                cluster_name="sim",
                peers=tuple(each.control.host for each in self.nodes),
                pipeline=PipelineOptions(enabled=False),
            ),
            host=node.host,
            cluster=self.cluster,
            cluster_name="sim",
            report=self._report(name),
            pid=1,
        )
        group0 = replace(group0_config(own), snapshot_entries_max=20, kept_entries=5)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            node.process = ControlProcess(environment, own, group0, SimChildren(*CHILDREN), stop)
            running = tasks.create_task(node.process.run())
            await stop.wait()
            running.cancel()

    async def _child(self, environment: Environment, node: Node, name: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            report = self._report(node.units[name].name)
            context = PeersContext(
                transport=environment.transport,
                rng=environment.rng,
                introduction=self._introduction(node, name),
                report=report,
            )
            control = Peers(tasks, context)
            control.set_address(node.host, SOCKET)
            child = node.children[name] = Child(world=self.world, environment=environment, name=name)
            setup = TopologyFollowerConfig(name=name, pid=1, host=node.host, clock=environment.clock, report=report)
            follower = TopologyFollower(control, setup, child.view, child, child.report_of)
            tasks.create_task(child.route())
            await follower.run()

    # ---- versions and barriers

    async def _drive(self, environment: Environment) -> None:
        async with asyncio.TaskGroup() as tasks:
            context = PeersContext(
                transport=environment.transport,
                rng=environment.rng,
                introduction=self._introduction(self.nodes[0], "driver"),
                report=self._report("driver"),
            )
            own, peers = Peers(tasks, context), Peers(tasks, context)
            own.set_address(self.nodes[0].host, SOCKET)
            for node in self.nodes:
                peers.set_address(node.host, node.control.address(PORT))
                tasks.create_task(self._ask_barriers(peers, node))
            while True:
                try:
                    await self._next_version(own)
                except EblaError:
                    pass
                await asyncio.sleep(environment.rng.random())

    async def _next_version(self, own: Peers) -> None:
        host = self.nodes[0].host
        found = (await own.call(host, GROUP0_READ, Group0ReadRequest(keys=(keys.STATE,)), 2_000)).found
        row = msgspec.msgpack.decode(found[0].value, type=TopologyState)
        row = msgspec.structs.replace(row, version=TopologyVersion(row.version + 1))
        condition = KeyUnchanged(keys.STATE, found[0].revision)
        change = Transaction((condition,), (PutKey(keys.STATE, keys.encode(row)),))
        answer = (await own.call(host, GROUP0_EXECUTE, ExecuteRequest(change), 2_000)).answer
        if isinstance(answer, Done):
            self.newest = max(self.newest, row.version)

    async def _ask_barriers(self, peers: Peers, node: Node) -> None:
        while True:
            if self.newest > node.acknowledged:
                asked = self.newest
                try:
                    await peers.call(node.host, NODE_BARRIER, NodeBarrierRequest(asked), 5_000)
                except EblaError:
                    await asyncio.sleep(0.2)
                    continue
                self.barriers += 1
                node.acknowledged = max(node.acknowledged, asked)
                self.check()
            await asyncio.sleep(0.1)

    def check(self) -> None:
        for node in self.nodes:
            for name, child in node.children.items():
                if node.units[name].down or not child.view.is_known:
                    continue
                version = child.view.current.version
                oldest = child.view.versions.oldest(version)
                if oldest < node.acknowledged:
                    self.world.fail(
                        f"{node.units[name].name} routes by version {oldest}, and its node acknowledged "
                        f"the barrier of {node.acknowledged}"
                    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_a_barrier_said_stays_true(seed: int) -> None:
    async def run(world: World) -> None:
        feed_world = FeedWorld(world)
        for unit in feed_world.units():
            if unit is not feed_world.driver:
                unit.start()
        world.check(await world.wait_for(feed_world.is_formed, CALM_S), "not every node is in the ring")
        feed_world.driver.start()
        async with asyncio.TaskGroup() as tasks:
            checking = tasks.create_task(_check_always(feed_world))
            await harsh(world, feed_world.units(), world.seconds)
            feed_world.driver.kill()
            newest = feed_world.newest
            feed_world.driver.start()
            await asyncio.sleep(CALM_S)
            checking.cancel()
        world.check(feed_world.newest > newest, "no version was committed after all was healed")
        world.check(feed_world.barriers > NODES * 5, f"only {feed_world.barriers} barriers held")
        lag = [int(feed_world.newest - node.acknowledged) for node in feed_world.nodes]
        world.check(max(lag) < 20, f"barriers lag behind by {lag} versions")

    World(seed=seed, seconds=40.0).run(run)


async def _check_always(feed_world: FeedWorld) -> None:
    while True:
        feed_world.check()
        await asyncio.sleep(0.05)
