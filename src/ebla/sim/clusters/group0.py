"""Simulated nodes that run only group 0: the real parts on simulated ports."""

import asyncio
import functools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from ebla.control.group0.formation import Group0Config
from ebla.control.group0.node import Group0Node, RunningGroup0
from ebla.control.group0.pages import PageLimits
from ebla.control.group0.service import Group0Service
from ebla.control.liveness.failure_detector import PeerState
from ebla.control.liveness.heartbeats import HeartbeatMonitor
from ebla.group0.members import Member, MemberRole
from ebla.group0.store import Group0Store
from ebla.journal.segmented_log import LogFailed
from ebla.model.errors import DiskFull, Refused
from ebla.model.identity import Address, ClusterId, HostId
from ebla.options import DEFAULT_LIMITS
from ebla.ports.environment import Environment
from ebla.sim.checkers.group0 import ClusterFoundings
from ebla.sim.clients import peers_context
from ebla.sim.world import Unit, World
from ebla.wire.frames import Introduction
from ebla.wire.peers import Peers
from ebla.wire.server import Server

PORT = 7000
CLUSTER = ClusterId(uuid.UUID(int=0xEB1A))
CLUSTER_NAME = "sim"
PAGE_LIMITS = PageLimits(keys_max=2)
"""So small that every read takes several pages."""


@dataclass(slots=True, kw_only=True)
class SimGroup0Node:
    """What outlives the node's crashes, for the scenario."""

    name: str
    host: HostId
    address: Address
    contacts: tuple[Address, ...] = ()
    rack: str = "rack1"
    group0: Group0Node | None = None
    """Of the current incarnation; only read it."""


@dataclass(slots=True)
class Group0Cluster:
    nodes: dict[str, SimGroup0Node] = field(default_factory=dict)
    foundings: ClusterFoundings = field(default_factory=ClusterFoundings)

    def running(self) -> dict[str, RunningGroup0]:
        groups = {name: node.group0 for name, node in self.nodes.items()}
        return {name: group0.running for name, group0 in groups.items() if group0 is not None and group0.is_running}

    def stores(self) -> dict[str, Group0Store]:
        return {name: running.store for name, running in self.running().items()}


def add_node(world: World, cluster: Group0Cluster, name: str) -> Unit:
    unit = world.unit(name, functools.partial(run_group0_node, world=world, cluster=cluster, name=name))
    host = HostId(world.rng.uuid())
    cluster.nodes[name] = SimGroup0Node(name=name, host=host, address=unit.address(PORT))
    unit.expected_errors = (DiskFull, OSError, Refused, LogFailed)
    return unit


async def run_group0_node(environment: Environment, world: World, cluster: Group0Cluster, name: str) -> None:
    node = cluster.nodes[name]

    def report(event: str, details: Mapping[str, object]) -> None:
        world.log(name, f"{event} {' '.join(f'{key}={value}' for key, value in details.items())}")
        if event == "group0.created":
            cluster.foundings.begun(str(details["history"]), name)

    introduction = Introduction(host=node.host, cluster=CLUSTER, cluster_name=CLUSTER_NAME)
    context = peers_context(environment, introduction, report)
    member = Member(host=node.host, role=MemberRole.LEARNER, address=node.address, rack=node.rack)
    setup = Group0Config(
        member=member,
        cluster=CLUSTER,
        cluster_name=CLUSTER_NAME,
        contacts=node.contacts,
        folder="/data/group0",
        snapshot_entries_max=40,
        kept_entries=10,
        lost_leader_ms=3_000,
        formation_retry_ms=300,
    )
    async with asyncio.TaskGroup() as tasks:
        peers = Peers(tasks, context)
        node.group0 = group0 = Group0Node(environment, setup, context, peers)
        liveness = HeartbeatMonitor(
            peers,
            context,
            group0,
            environment.clock,
            DEFAULT_LIMITS,
            incarnation=environment.clock.wall_us(),
        )
        server = Server(tasks, introduction, report)
        service = Group0Service(group0, peers, environment.rng, PAGE_LIMITS)
        service.serve_peers(server)
        service.serve_operator(server, shared=True)
        liveness.serve_on(server)
        await environment.transport.listen(node.address, server.accept)
        tasks.create_task(liveness.run())
        await group0.run(
            lambda host: all(one.state is PeerState.UP for one in liveness.peers() if one.host == host),
            lambda _voters, change: change(),  # these nodes have no leases: Raft alone keeps its promises
        )
