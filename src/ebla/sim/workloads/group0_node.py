"""A simulated node that runs group 0 and nothing else: the real parts on simulated ports."""

import asyncio
import functools
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ebla.control.failure_detector import Standing
from ebla.control.formation import FormationLimits
from ebla.control.group0_doors import Group0Doors
from ebla.control.group0_pages import PageLimits
from ebla.control.group0_server import Group0Server, Group0Setup
from ebla.control.liveness import Liveness, LivenessLimits, LivenessSetup
from ebla.group0.members import Member, Role
from ebla.journal.segments import LogFailed
from ebla.model.errors import DiskFull, Refused
from ebla.model.identity import Address, ClusterId, HostId
from ebla.ports.surroundings import Surroundings
from ebla.sim.checkers.formation import Foundings
from ebla.sim.world import Unit, World
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.server import Server

PORT = 7000
CLUSTER = ClusterId(uuid.UUID(int=0xEB1A))
CLUSTER_NAME = "sim"
PAGE_LIMITS = PageLimits(keys_max=2)
"""So small that nothing is read whole at once."""


@dataclass(slots=True)
class SimNode:
    """What outlives the node's crashes, for the scenario to look at."""

    name: str
    host: HostId
    address: Address
    contacts: tuple[Address, ...] = ()
    rack: str = "rack1"
    group0: Group0Server | None = None
    """Of the present life; only to be read."""
    removed: bool = False


@dataclass(slots=True)
class Cluster:
    nodes: dict[str, SimNode] = field(default_factory=dict)
    foundings: Foundings = field(default_factory=Foundings)

    def running(self) -> list[SimNode]:
        return [node for node in self.nodes.values() if node.group0 is not None and node.group0.is_running]


def add_node(world: World, cluster: Cluster, name: str) -> Unit:
    unit = world.unit(name, functools.partial(node_main, world=world, cluster=cluster, name=name))
    host = HostId(world.chance.uuid())
    cluster.nodes[name] = SimNode(name, host, unit.address(PORT))
    unit.may_end = (DiskFull, OSError, Refused, LogFailed)
    return unit


async def node_main(around: Surroundings, world: World, cluster: Cluster, name: str) -> None:
    node = cluster.nodes[name]

    def report(event: str, details: Mapping[str, object]) -> None:
        world.tell(name, f"{event} {' '.join(f'{key}={value}' for key, value in details.items())}")
        if event == "group0.created":
            cluster.foundings.begun(str(details["history"]), name)

    introduction = Introduction(node.host, CLUSTER, CLUSTER_NAME)
    context = PeersContext(around.transport, around.chance, introduction, WireLimits(), report)
    member = Member(node.host, Role.LEARNER, node.address, rack=node.rack)
    setup = Group0Setup(
        member,
        CLUSTER,
        CLUSTER_NAME,
        node.contacts,
        "/data/group0",
        snapshot_entries_max=40,
        kept_entries=10,
        lost_leader_ms=3_000,
        formation=FormationLimits(ask_again_ms=300),
    )
    async with asyncio.TaskGroup() as tasks:
        peers = Peers(tasks, context)
        node.group0 = group0 = Group0Server(around, setup, context, peers)
        liveness = Liveness(
            peers, context, LivenessSetup(around.clock, group0, LivenessLimits(), around.clock.wall_us())
        )
        server = Server(tasks, introduction, WireLimits(), report)
        doors = Group0Doors(group0, peers, around.chance, PAGE_LIMITS)
        doors.serve_peers(server)
        doors.serve_operator(server, shared=True)
        liveness.serve_on(server)
        await around.transport.listen(node.address, server.accept)
        tasks.create_task(liveness.run())
        try:
            await group0.run(_alive(liveness))
        finally:
            node.removed = node.removed or group0.removed.is_set()


def _alive(liveness: Liveness) -> Callable[[HostId], bool]:
    def alive(host: HostId) -> bool:
        return all(one.standing is Standing.UP for one in liveness.opinions() if one.host == host)

    return alive
