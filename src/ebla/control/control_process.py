"""The control process of a node: serves its peers and its children, and watches which peers are up.

Its environment comes from outside: the same code runs on the real and the simulated one.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ebla.control.group0.node import Group0Config, Group0Node
from ebla.control.group0.service import Group0Service, report_of
from ebla.control.liveness.failure_detector import PeerLiveness, PeerState, down_hosts
from ebla.control.liveness.heartbeats import HeartbeatConfig, HeartbeatMonitor, LivenessLimits
from ebla.control.topology.barrier_client import BarrierClient
from ebla.control.topology.bulk_sessions import BulkSessionService
from ebla.control.topology.committed_topology import CommittedTopology
from ebla.control.topology.deps import TopologyDeps
from ebla.control.topology.feed_service import FeedConfig, TopologyFeedService
from ebla.control.topology.join_driver import JoinDriver
from ebla.control.topology.node_barrier import SHARD_PREFIX, takes_part
from ebla.control.topology.schema_service import SchemaService
from ebla.model.errors import EblaError, Refused, leaf_errors
from ebla.model.identity import Address, HostId
from ebla.model.transaction import Revision
from ebla.observe.event_reporter import EventReporter
from ebla.options import DEFAULT_LIMITS
from ebla.ports.environment import Environment
from ebla.topology.snapshot import Node, Snapshot
from ebla.topology.states import NodeState
from ebla.wire.feed_messages import ChildReport, NodeBarrierRequest
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import (
    CHILD_BEAT,
    IDENTITY,
    STATUS,
    STOP,
    ChildBeatAnswer,
    ChildBeatRequest,
    EmptyAnswer,
    IdentityAnswer,
    IdentityRequest,
    PeerStatus,
    ProcessState,
    ProcessStatus,
    StatusAnswer,
    StatusRequest,
    StopRequest,
    TopologyStatus,
)


class ChildProcesses(Protocol):
    """The node's other processes, as control sees them."""

    def heard(self, name: str, pid: int) -> None: ...

    def statuses(self) -> tuple[ProcessStatus, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlConfig:
    introduction: Introduction
    address: Address
    """For peers."""
    local_address: Address
    """For the node's own children and its operator: a Unix socket that only their user can open."""
    group0: Group0Config
    liveness: LivenessLimits
    wire: WireLimits
    report: EventReporter
    pid: int
    release: str
    child_names: tuple[str, ...] = ()
    """Children that barriers wait for besides those that `ChildProcesses` names, if they are started elsewhere."""
    shard_count: int = 1
    num_tokens: int = 16
    bulk_job_life_ms: int = DEFAULT_LIMITS.bulk_job_life_ms
    want_pipeline: Callable[[bool], None] | None = None
    """Called when it changes whether the pipeline should run here; None: it never should."""


class ControlProcess:
    """`stop` is set here on a stop request, and from outside on a signal; `ready` once it listens."""

    def __init__(
        self, environment: Environment, config: ControlConfig, children: ChildProcesses, stop: asyncio.Event
    ) -> None:
        self._environment = environment
        self._config = config
        self._children = children
        self._started_boot_ms = environment.clock.boot_ms()
        self._started_wall_us = environment.clock.wall_us()
        self._liveness: HeartbeatMonitor | None = None
        self._group0: Group0Node | None = None
        self._stop = stop
        self.topology = CommittedTopology(config.report)
        self._feed: TopologyFeedService | None = None
        self._joins: JoinDriver | None = None
        self._beats: dict[str, ChildBeatRequest] = {}
        self.ready = asyncio.Event()
        self.gave_up: str | None = None
        """Why this node must stop, if its cluster or its own disk requires it."""

    async def run(self) -> None:
        """Serves until cancelled. Raises if an address is in use."""
        config, environment = self._config, self._environment
        async with asyncio.TaskGroup() as tasks:
            context = PeersContext(
                transport=environment.transport,
                rng=environment.rng,
                introduction=config.introduction,
                limits=config.wire,
                report=config.report,
            )
            peers = Peers(tasks, context)
            self._group0 = Group0Node(environment, config.group0, context, peers)
            # The wall clock may step back between two starts. The incarnation only has to differ.
            liveness = HeartbeatConfig(
                clock=environment.clock, members=self._group0, limits=config.liveness, incarnation=self._started_wall_us
            )
            self._liveness = HeartbeatMonitor(peers, context, liveness)
            for_peers = Server(tasks, config.introduction, config.wire, config.report)
            for_own = Server(tasks, config.introduction, config.wire, config.report)
            self._liveness.serve_on(for_peers)
            group0_service = Group0Service(self._group0, peers, environment.rng)
            group0_service.serve_peers(for_peers)
            group0_service.serve_operator(for_own)
            self._feed = self._new_feed(self._group0, for_own, for_peers)
            self._liveness.on_change = self._feed.down_hosts_changed
            barriers = BarrierClient(config.introduction.host, self._own_barrier, peers, self._down)
            deps = TopologyDeps(
                group0=self._group0,
                topology=self.topology,
                barriers=barriers,
                down=self._down,
                rng=environment.rng,
                clock=environment.clock,
                report=config.report,
            )
            schema = SchemaService(deps)
            sessions = BulkSessionService(deps, config.bulk_job_life_ms)
            self._joins = JoinDriver(self._own_node(), deps)
            for server in (for_peers, for_own):
                server.serve(IDENTITY, self._identity)
                server.serve(STATUS, self._status)
                schema.serve_on(server)
                sessions.serve_on(server)
            for_own.serve(STOP, self._stop_requested)
            for_own.serve(CHILD_BEAT, self._child_beat)
            listening = [
                await environment.transport.listen(config.address, for_peers.accept),
                await environment.transport.listen(config.local_address, for_own.accept),
            ]
            self.ready.set()
            tasks.create_task(self._liveness.run())
            tasks.create_task(self._feed.run())
            tasks.create_task(sessions.enforce())
            if config.want_pipeline is not None:
                tasks.create_task(self._place_pipeline(self._group0, config.want_pipeline))
            tasks.create_task(self._follow_topology(self._group0, self._joins))
            try:
                await self._run_group0(self._group0)
            finally:
                for listener in listening:
                    await listener.close()
                for server in (for_peers, for_own):
                    server.close("the node stops")

    async def _run_group0(self, group0: Group0Node) -> None:
        """A node that was removed, must not run as configured, or has a full or broken disk stops in order and reports
        why."""
        try:
            await group0.run(self._is_up)
        except* (EblaError, OSError) as refusals:
            self.gave_up = str(next(leaf_errors(refusals)))
            self._stop.set()
        await asyncio.Event().wait()

    async def _follow_topology(self, group0: Group0Node, joins: JoinDriver) -> None:
        await group0.started.wait()
        if group0.is_running:  # it may have ended in the same step, and reports why itself
            self.topology.attach(group0.running.machine)
            try:
                await joins.run()
            except* Refused as refusals:
                self.gave_up = str(next(leaf_errors(refusals)))
                self._stop.set()

    async def _place_pipeline(self, group0: Group0Node, want: Callable[[bool], None]) -> None:
        wanted = False
        while True:
            leads = group0.is_running and group0.running.raft.is_leader
            own = self.topology.snapshot.nodes.get(self._config.introduction.host) if leads else None
            before, wanted = wanted, should_run_pipeline(own, self._processes(), leads=leads, runs=wanted)
            if wanted is not before:
                self._config.report("pipeline.wanted" if wanted else "pipeline.not_wanted", {"leader": leads})
                want(wanted)
            await asyncio.sleep(PLACE_MS / 1000)

    async def _own_barrier(self, request: NodeBarrierRequest, deadline_ms: int) -> None:
        await self.feed.node_barrier(request.version, deadline_ms, drain=request.drain)

    def _own_node(self) -> Node:
        config, member = self._config, self._config.group0.member
        return Node(
            host=config.introduction.host,
            datacenter=member.datacenter,
            rack=member.rack,
            shard_count=config.shard_count,
            ignore_msb=0,
            release_version=config.release,
            address=config.address.host,
            num_tokens=config.num_tokens,
            supported_features=member.features,
        )

    def _new_feed(self, group0: Group0Node, for_own: Server, for_peers: Server) -> TopologyFeedService:
        async def read_barrier(deadline_ms: int) -> Revision:
            return await group0.running.client.read_barrier(deadline_ms)

        feed = TopologyFeedService(
            self.topology,
            FeedConfig(
                read_barrier=read_barrier,
                down=self._down,
                expected=self._expected,
                serving=lambda: not self._stop.is_set(),
            ),
        )
        feed.serve_children(for_own)
        feed.serve_peers(for_peers)
        return feed

    @property
    def feed(self) -> TopologyFeedService:
        assert self._feed is not None, "the process does not run yet"
        return self._feed

    def _down(self) -> tuple[HostId, ...]:
        store = self.topology.store
        if store is None:
            return ()
        config = self._config
        watched_since_ms = self._environment.clock.boot_ms() - config.liveness.silence_ms
        return down_hosts(store.members.values(), self.peers(), config.introduction.host, watched_since_ms)

    def _expected(self) -> tuple[str, ...]:
        named = {status.name for status in self._children.statuses()} | set(self._config.child_names)
        return tuple(sorted(name for name in named if takes_part(name)))

    def _is_up(self, host: HostId) -> bool:
        return all(peer.state is PeerState.UP for peer in self.peers() if peer.host == host)

    def peers(self) -> tuple[PeerLiveness, ...]:
        return () if self._liveness is None else self._liveness.peers()

    def _identity(self, _request: IdentityRequest, _call: IncomingCall) -> IdentityAnswer:
        ours = self._config.introduction
        return IdentityAnswer(
            host=ours.host,
            cluster=ours.cluster,
            cluster_name=ours.cluster_name,
            process=ours.process,
            pid=self._config.pid,
        )

    def _stop_requested(self, request: StopRequest, call: IncomingCall) -> EmptyAnswer:
        self._config.report("node.stop_requested", {"by": call.peer.process, "reason": request.reason})
        self._stop.set()
        return EmptyAnswer()

    def _child_beat(self, request: ChildBeatRequest, _call: IncomingCall) -> ChildBeatAnswer:
        self._children.heard(request.name, request.pid)
        self._beats[request.name] = request
        return ChildBeatAnswer(serving=not self._stop.is_set())

    def _status(self, _request: StatusRequest, _call: IncomingCall) -> StatusAnswer:
        config, now_ms = self._config, self._environment.clock.boot_ms()
        own = ProcessStatus(
            name="control", pid=config.pid, started_wall_us=self._started_wall_us, state=ProcessState.RUNNING
        )
        return StatusAnswer(
            host=config.introduction.host,
            cluster=config.introduction.cluster,
            cluster_name=config.introduction.cluster_name,
            address=str(config.address),
            started_wall_us=self._started_wall_us,
            processes=(own, *self._processes()),
            peers=tuple(_as_status(peer, now_ms) for peer in self.peers()),
            uptime_ms=now_ms - self._started_boot_ms,
            release=config.release,
            group0=report_of(self._group0.running) if self._group0 is not None and self._group0.is_running else None,
            waits_for=self._group0.formation.waits_for if self._group0 is not None else "",
            topology=self._topology_status(),
        )

    def _processes(self) -> tuple[ProcessStatus, ...]:
        return with_versions(self._children.statuses(), self._reports(), self._beats)

    def _reports(self) -> Mapping[str, ChildReport]:
        return {} if self._feed is None else self._feed.reports()

    def _topology_status(self) -> TopologyStatus | None:
        if self.topology.revision is None:
            return None
        waits_for = self.topology.trouble
        if not waits_for and self._joins is not None:
            waits_for = self._joins.waits_for
        return topology_status(self.topology.snapshot, waits_for)


def _as_status(peer: PeerLiveness, now_ms: int) -> PeerStatus:
    return PeerStatus(
        host=peer.host,
        address=str(peer.peer),
        up=peer.state is PeerState.UP,
        heard_ms_ago=None if peer.heard_ms is None else now_ms - peer.heard_ms,
        round_trip_us=peer.round_trip_us,
        since_ms_ago=now_ms - peer.since_ms,
    )


def with_versions(
    statuses: Sequence[ProcessStatus], reports: Mapping[str, ChildReport], beats: Mapping[str, ChildBeatRequest]
) -> tuple[ProcessStatus, ...]:
    """A report of an earlier process of the same name does not count for its successor."""
    return tuple(_with_version(one, reports.get(one.name), beats.get(one.name)) for one in statuses)


def _with_version(status: ProcessStatus, report: ChildReport | None, beat: ChildBeatRequest | None) -> ProcessStatus:
    known = report if report is not None and report.pid == status.pid else None
    return msgspec.structs.replace(
        status,
        version=None if known is None else known.version,
        serving=beat is not None and beat.pid == status.pid and beat.serving,
        trouble="" if known is None else known.trouble,
    )


def topology_status(snapshot: Snapshot, waits_for: str) -> TopologyStatus:
    nodes = tuple((node.host, node.state.value) for node in snapshot.members())
    transition = "" if snapshot.transition is None else snapshot.transition.value
    return TopologyStatus(
        version=snapshot.version, fence=snapshot.fence, nodes=nodes, transition=transition, waits_for=waits_for
    )


PLACE_MS = 250

_IN_RING = (NodeState.NORMAL, NodeState.REBUILDING)


def should_run_pipeline(own: Node | None, processes: Sequence[ProcessStatus], *, leads: bool, runs: bool) -> bool:
    """Whether the pipeline should run beside this control process. `own`: this node in the topology.

    The pipeline runs on the leader of group 0. Two may run for a moment, on the leader and on a former one that does
    not know yet. That is safe, since they act by sessions and conditional commits; one is only cheaper. Starting Java
    takes the processor for a while, so it waits until clients are served. A running pipeline is not stopped because a
    shard restarts."""
    if not leads or own is None or own.state not in _IN_RING:
        return False
    return runs or any(process.serving for process in processes if process.name.startswith(SHARD_PREFIX))
