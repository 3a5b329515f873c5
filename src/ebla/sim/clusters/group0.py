"""Simulated nodes that run only group 0: the real parts on simulated ports."""

import asyncio
import functools
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from ebla.control.fault_points import FaultPoint
from ebla.control.group0.formation import Group0Config
from ebla.control.group0.join_state import JoinStage
from ebla.control.group0.node import Group0Node, RunningGroup0
from ebla.control.group0.pages import PageLimits
from ebla.control.group0.service import Group0Service
from ebla.control.liveness.failure_detector import PeerState
from ebla.control.liveness.heartbeats import HeartbeatMonitor
from ebla.control.operations.operation_service import Operations
from ebla.control.operations.runner import OperationDeps, OperationHandle
from ebla.control.topology.barrier_client import BarrierClient
from ebla.control.topology.committed_topology import CommittedTopology
from ebla.control.topology.deps import TopologyDeps
from ebla.control.topology.join_service import JoinService
from ebla.control.topology.own_row import own_commands
from ebla.group0.join_handshake import NotAdmitted
from ebla.group0.members import Member, MemberRole
from ebla.group0.operations import EndedOperation
from ebla.group0.store import Group0Store
from ebla.journal.segmented_log import LogFailed
from ebla.leadership.quorum import Quorum
from ebla.model.errors import DiskFull, EblaError, Refused, leaf_errors
from ebla.model.identity import Address, ClusterId, HostId, RequestId
from ebla.observe.event_reporter import EventReporter
from ebla.options import DEFAULT_LIMITS
from ebla.ports.environment import Environment
from ebla.sim.checkers.group0 import AcceptedHosts, ClusterFoundings
from ebla.sim.clients import peers_context
from ebla.sim.clusters.group0_joins import Group0Joins
from ebla.sim.world import Unit, World
from ebla.topology.apply.command import Rejection, apply_commands
from ebla.topology.snapshot import Node
from ebla.wire.feed_messages import NodeBarrierRequest
from ebla.wire.frames import Introduction
from ebla.wire.peers import Peers
from ebla.wire.server import Server

PORT = 7000
FOLDER = "/data/group0"
CLUSTER = ClusterId(uuid.UUID(int=0xEB1A))
CLUSTER_NAME = "sim"
JANITOR_DELAY_MS = 3_000
ACCEPTED_CHECK_S = 0.05
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
    accepted: AcceptedHosts = field(default_factory=AcceptedHosts)

    def running(self) -> dict[str, RunningGroup0]:
        groups = {name: node.group0 for name, node in self.nodes.items()}
        return {name: group0.running for name, group0 in groups.items() if group0 is not None and group0.is_running}

    async def check_accepted(self, world: World) -> None:
        """Until cancelled."""
        while True:
            violation = self.accepted.violation(self.nodes[name].host for name in self.running())
            world.check(violation is None, str(violation))
            await asyncio.sleep(ACCEPTED_CHECK_S)

    def stores(self) -> dict[str, Group0Store]:
        return {name: running.store for name, running in self.running().items()}


def add_node(world: World, cluster: Group0Cluster, name: str) -> Unit:
    unit = world.unit(name, functools.partial(run_group0_node, world=world, cluster=cluster, name=name))
    host = HostId(world.rng.uuid())
    cluster.nodes[name] = SimGroup0Node(name=name, host=host, address=unit.address(PORT))
    unit.expected_errors = (DiskFull, OSError, Refused, LogFailed)
    return unit


async def run_group0_node(environment: Environment, world: World, cluster: Group0Cluster, name: str) -> None:
    """A node whose join was rejected (it crashed before it was accepted, or was cut off) can never come back: its
    operator starts another one on an empty folder."""
    while True:
        try:
            await _run_node(environment, world, cluster, name)
        except* Refused as refusals:
            error, group0 = next(leaf_errors(refusals)), cluster.nodes[name].group0
            has_left = group0 is not None and group0.join_state.mark.stage is JoinStage.REMOVED
            if not has_left and not isinstance(error, NotAdmitted):
                raise
            world.log(name, f"is replaced by a new node: {error}")
            for path in (FOLDER, f"{FOLDER}-mark"):
                world.units[name].machine.disk.put_folder(path, None)
            cluster.nodes[name].host = HostId(world.rng.uuid())


async def _run_node(environment: Environment, world: World, cluster: Group0Cluster, name: str) -> None:
    node = cluster.nodes[name]

    def report(event: str, details: Mapping[str, object]) -> None:
        world.log(name, f"{event} {' '.join(f'{key}={value}' for key, value in details.items())}")
        if event == "group0.created":
            cluster.foundings.record_founder(str(details["history"]), name)
        cluster.accepted.reported(event, node.host)

    introduction = Introduction(host=node.host, cluster=CLUSTER, cluster_name=CLUSTER_NAME)
    context = peers_context(environment, introduction, report)
    member = Member(host=node.host, role=MemberRole.LEARNER, address=node.address, rack=node.rack)
    setup = Group0Config(
        member=member,
        node=Node(
            host=node.host,
            datacenter=member.datacenter,
            rack=node.rack,
            shard_count=1,
            ignore_msb=0,
            release_version="",
            address=node.address.host,
            num_tokens=1,
        ),
        cluster=CLUSTER,
        cluster_name=CLUSTER_NAME,
        contacts=node.contacts,
        folder=FOLDER,
        snapshot_entries_max=40,
        kept_entries=10,
        lost_leader_ms=3_000,
        formation_retry_ms=300,
    )
    async with asyncio.TaskGroup() as tasks:
        peers = Peers(tasks, context)
        node.group0 = group0 = Group0Node(environment, setup, context, peers, _no_fault)
        liveness = HeartbeatMonitor(
            peers,
            context,
            group0,
            environment.clock,
            DEFAULT_LIMITS,
            incarnation=environment.clock.wall_us(),
        )
        server = Server(tasks, introduction, report)
        topology = CommittedTopology(report)
        operations = Operations(_operation_deps(environment, group0, topology, report), peers, lambda: JANITOR_DELAY_MS)
        operations.serve_on(server)
        deps = _topology_deps(environment, group0, topology, peers, report)
        JoinService(deps, deps.down, _waits_for, _no_fault).serve_on(server)
        service = Group0Service(group0, peers, environment.rng, PAGE_LIMITS)
        service.serve_peers(server)
        service.serve_operator(server, shared=True)
        liveness.serve_on(server)
        listener = await environment.transport.listen(node.address, server.accept)
        tasks.create_task(liveness.run())
        tasks.create_task(operations.run())
        tasks.create_task(_create_topology(environment, group0, topology))
        tasks.create_task(Group0Joins(environment, group0, topology, operations, peers).run())
        try:
            await group0.run(
                lambda host: all(one.state is PeerState.UP for one in liveness.peers() if one.host == host),
                operations,
            )
        finally:
            await listener.close()
            server.close("the node stops")


class _NoLeases:
    """These nodes have no leases: Raft alone keeps its promises."""

    def check_effect(self) -> None:
        pass

    async def switch_quorum(self, quorum: Quorum, wait_ms: int) -> None:
        pass


async def _no_fault(_point: FaultPoint) -> None:
    pass


async def _waits_for(_request: RequestId) -> str:
    return "the leader of group 0 adds one node after another"


def _topology_deps(
    environment: Environment, group0: Group0Node, topology: CommittedTopology, peers: Peers, report: EventReporter
) -> TopologyDeps:
    async def own_barrier(_request: NodeBarrierRequest, _deadline_ms: int) -> None:
        pass

    return TopologyDeps(
        group0=group0,
        topology=topology,
        barriers=BarrierClient(group0.config.member.host, own_barrier, peers, lambda: ()),
        down=lambda: (),
        rng=environment.rng,
        clock=environment.clock,
        report=report,
    )


def _operation_deps(
    environment: Environment, group0: Group0Node, topology: CommittedTopology, report: EventReporter
) -> OperationDeps:
    one_at_a_time = asyncio.Lock()

    async def run_activity(
        _name: str, body: Callable[[OperationHandle], Awaitable[EndedOperation | None]]
    ) -> EndedOperation | None:
        async with one_at_a_time:
            return await body(_NoLeases())

    return OperationDeps(
        group0=group0,
        topology=topology,
        run_activity=run_activity,
        quorum_wait_ms=lambda: 0,
        rng=environment.rng,
        clock=environment.clock,
        report=report,
        reach=_no_fault,
    )


async def _create_topology(environment: Environment, group0: Group0Node, topology: CommittedTopology) -> None:
    """The first node's, without which no other can join."""
    await group0.confirmed.wait()
    if not group0.is_running:
        return
    topology.attach(group0.running.machine)
    own, rng = group0.config.node, environment.rng
    assert own is not None, "these nodes have a row"
    while not topology.snapshot.nodes:
        commands = own_commands(topology.snapshot, own, environment.clock.wall_us() // 1000, rng)
        applied = apply_commands(topology.snapshot, commands)
        assert not isinstance(applied, Rejection), applied
        try:
            await group0.running.client.transact(applied.transaction, 2_000)
        except EblaError:
            await asyncio.sleep(0.1)
