"""The control process of a node: serves its peers and its children, and watches which peers are up.

Its environment comes from outside: the same code runs on the real and the simulated one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from ebla.control.fault_points import FaultPoints
from ebla.control.group0.formation import Group0Config
from ebla.control.group0.join_state import JoinStage
from ebla.control.group0.member_features import why_not_in_use
from ebla.control.group0.node import Group0Node, read_committed_store
from ebla.control.group0.service import Group0Service, report_of
from ebla.control.leadership.activity_tasks import RunningHandle
from ebla.control.leadership.leadership_node import LeadershipDeps, LeadershipNode
from ebla.control.leadership.leadership_report import LeadershipService
from ebla.control.leadership.lease_file import LeaseFile
from ebla.control.leadership.loop_turns import LoopTurns
from ebla.control.liveness.clock_skew import PeerClock
from ebla.control.liveness.failure_detector import PeerLiveness, PeerState, down_hosts
from ebla.control.liveness.heartbeats import HeartbeatMonitor
from ebla.control.local_stores import LocalStores
from ebla.control.settings.durable_store import DurableSettings
from ebla.control.settings.service import SettingsService
from ebla.control.settings.settings_node import SettingsDeps, SettingsNode
from ebla.control.topology.barrier_client import BarrierClient
from ebla.control.topology.bulk_sessions import BulkSessionService
from ebla.control.topology.committed_topology import CommittedTopology, topology_of
from ebla.control.topology.deps import TopologyDeps
from ebla.control.topology.feed_service import FeedConfig, TopologyFeedService
from ebla.control.topology.join_driver import JoinDriver
from ebla.control.topology.node_barrier import SHARD_PREFIX, takes_part
from ebla.control.topology.schema_service import SchemaService
from ebla.group0.members import Member, MemberRole
from ebla.journal.segmented_log import LogFailed
from ebla.leadership.activities import ActivitySpec
from ebla.leadership.quorum import MAJORITY, MajorityOf
from ebla.model.errors import Corruption, EblaError, Refused, leaf_errors
from ebla.model.identity import HostId, ShardNumber
from ebla.model.transaction import Revision
from ebla.node.context import NodeContext
from ebla.ports.environment import Environment
from ebla.settings_store.registry import LEASES
from ebla.topology.snapshot import Node, Snapshot
from ebla.topology.states import NodeState
from ebla.version import Feature
from ebla.wire.feed_messages import ChildReport, NodeBarrierRequest
from ebla.wire.metrics_messages import MetricsAnswer, MetricsRequest, collect_metrics
from ebla.wire.peers import Peers
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import (
    CHILD_BEAT,
    IDENTITY,
    METRICS,
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

    def want(self, name: str, wanted: bool) -> None: ...


NAME = "control"
PIPELINE = "pipeline"


def group0_config(node: NodeContext) -> Group0Config:
    options = node.options
    return Group0Config(
        member=Member(
            host=node.host,
            role=MemberRole.LEARNER,
            address=options.control_address,
            datacenter=options.datacenter,
            rack=options.rack,
            features=options.features,
            release=node.release,
        ),
        cluster=node.cluster,
        cluster_name=node.cluster_name,
        contacts=options.peer_addresses,
        folder=str(node.folder.group0.absolute()),
        limits=node.limits,
    )


class ControlProcess:
    """`stop` is set here on a stop request, and from outside on a signal; `ready` once it listens."""

    num_tokens = 16

    def __init__(
        self,
        environment: Environment,
        node: NodeContext,
        group0: Group0Config,
        children: ChildProcesses,
        stop: asyncio.Event,
    ) -> None:
        self._environment = environment
        self._node = node
        self._group0_config = group0
        self._children = children
        self._started_boot_ms = environment.clock.boot_ms()
        self._started_wall_us = environment.clock.wall_us()
        self._liveness: HeartbeatMonitor | None = None
        self._group0: Group0Node | None = None
        self._stop = stop
        self.topology = CommittedTopology(node.report)
        self._feed: TopologyFeedService | None = None
        self._joins: JoinDriver | None = None
        self._beats: dict[str, ChildBeatRequest] = {}
        self._stores: LocalStores | None = None
        self.fault_points = FaultPoints(node.crash, node.report, is_enabled=node.options.fault_points)
        self.settings: SettingsNode | None = None
        self.leadership: LeadershipNode | None = None
        self.turns = LoopTurns()
        self.end_process: Callable[[str], object] = lambda _reason: node.crash()
        """Ends this process with its children, and starts it again: an activity does not stop."""
        self.ready = asyncio.Event()
        self.gave_up: str | None = None
        """Why this node must stop, if its cluster or its own disk requires it."""
        self.failed_here = False
        """Whether that is something in its own folder, and not what the cluster says."""

    async def run(self) -> None:
        """Serves until cancelled. Raises if an address is in use."""
        node, environment = self._node, self._environment
        async with asyncio.TaskGroup() as tasks:
            context = node.peers_context(environment, NAME)
            peers = Peers(tasks, context)
            self._group0 = Group0Node(environment, self._group0_config, context, peers)
            await self._prepare_stores(self._group0)
            # The wall clock may step back between two starts. The incarnation only has to differ.
            self._liveness = HeartbeatMonitor(
                peers, context, self._group0, environment.clock, node.limits, incarnation=self._started_wall_us
            )
            self.settings = await self._open_settings(self._group0, self._liveness, peers)
            for_peers, for_own = (Server(tasks, context.introduction, node.report) for _ in range(2))
            self._liveness.serve_on(for_peers)
            group0_service = Group0Service(self._group0, peers, environment.rng)
            group0_service.serve_peers(for_peers)
            group0_service.serve_operator(for_own)
            self._serve_settings(self.settings, peers, for_peers, for_own)
            self.leadership = await self._open_leadership(self._group0, self.settings, peers)
            self.leadership.serve_on(for_peers)
            service = LeadershipService(self.leadership, peers, str(node.options.control_address), self.turns)
            service.serve_on(for_peers)
            service.serve_own(for_own)
            self._feed = self._new_feed(self._group0, for_own, for_peers)
            self._liveness.on_change = self._feed.down_hosts_changed
            self._liveness.on_up = self.leadership.host_came_up
            deps = TopologyDeps(
                group0=self._group0,
                topology=self.topology,
                barriers=BarrierClient(node.host, self._own_barrier, peers, self._down),
                down=self._down,
                rng=environment.rng,
                clock=environment.clock,
                report=node.report,
            )
            schema = SchemaService(deps)
            sessions = BulkSessionService(deps, node.limits.bulk_job_life_ms)
            self._joins = JoinDriver(self._own_node(), deps, self.leadership)
            for server in (for_peers, for_own):
                server.serve(IDENTITY, self._identity)
                server.serve(STATUS, self._status)
                schema.serve_on(server)
                sessions.serve_on(server)
            self.fault_points.serve_on(for_own)
            for_own.serve(STOP, self._stop_requested)
            for_own.serve(CHILD_BEAT, self._child_beat)
            listening = [
                await environment.transport.listen(node.options.control_address, for_peers.accept),
                # For the node's own children and its operator: a Unix socket that only their user can open.
                await environment.transport.listen(node.control_socket, for_own.accept),
            ]
            self.ready.set()
            tasks.create_task(self._liveness.run())
            tasks.create_task(self._feed.run())
            tasks.create_task(sessions.enforce())
            if node.options.pipeline.enabled:
                tasks.create_task(self._place_pipeline(self._group0))
            tasks.create_task(self._follow_topology(self._group0, self._joins))
            tasks.create_task(self._stop_if_failed(self.settings.run()))
            tasks.create_task(self.leadership.run())
            tasks.create_task(self.turns.run())
            try:
                await self._stop_if_failed(self._run_group0(self._group0, self.settings))
            finally:
                await self.leadership.save_for_stop()
                for listener in listening:
                    await listener.close()
                for server in (for_peers, for_own):
                    server.close("the node stops")

    async def _prepare_stores(self, group0: Group0Node) -> None:
        """Before the node listens: a node that lost a store must not answer anyone."""
        node, environment = self._node, self._environment
        stores = LocalStores(environment, str(node.folder.path.absolute()), node.host, group0.join_state, node.report)

        async def is_past_none() -> bool:
            if group0.join_state.mark.stage is not JoinStage.MEMBER:
                return False
            store = await read_committed_store(environment, group0.config.folder)
            known = topology_of(store).nodes.get(node.host)
            return known is not None and known.state is not NodeState.NONE

        await stores.prepare(node.options.shards, is_past_none)
        self._stores = stores

    async def before_spawn(self, child: str) -> tuple[str, ...]:
        """The further arguments of a child that is about to be started. Raises `Refused` if a shard's store is gone."""
        if not child.startswith(SHARD_PREFIX):
            return ()
        assert self._stores is not None, "children are started after the stores are there"
        shard = ShardNumber(int(child.removeprefix(SHARD_PREFIX)))
        await self._stores.check(shard)
        return "--store", str(self._stores.id_of(shard))

    async def _open_settings(self, group0: Group0Node, liveness: HeartbeatMonitor, peers: Peers) -> SettingsNode:
        """Before the node listens: one whose settings cannot be read must not take part in a purge."""
        node = self._node
        durable = await DurableSettings.open(self._environment, str(node.folder.settings.absolute()), node.host)
        return SettingsNode(
            durable,
            SettingsDeps(
                environment=self._environment,
                group0=group0,
                liveness=liveness,
                peers=peers,
                report=node.report,
                why_no_purge=lambda: why_not_in_use(group0.running.store, Feature.SETTINGS_PURGE),
                reach=self.fault_points.reach,
            ),
        )

    async def _open_leadership(self, group0: Group0Node, settings: SettingsNode, peers: Peers) -> LeadershipNode:
        """Before the node listens: it must know what it has promised."""
        node, environment = self._node, self._environment
        path = str((node.folder.path / "lease").absolute())
        leadership = LeadershipNode(
            LeadershipDeps(
                environment=environment,
                group0=group0,
                peers=peers,
                own=node.host,
                file=LeaseFile(environment.disk, path, node.report),
                settings=lambda: settings.value(LEASES),
                report=node.report,
                end_process=self._end_process,
            )
        )
        await leadership.load()
        return leadership

    @property
    def lease_period_ms(self) -> int:
        return LEASES.default.period_ms if self.leadership is None else self.leadership.settings().period_ms

    async def _change_voters(self, voters: tuple[HostId, ...], change: Callable[[], Awaitable[None]]) -> None:
        """One short activity per change: under the majorities of the voters before and after it."""
        leadership = self.leadership
        assert leadership is not None, "it is opened before group 0 runs"

        async def body(handle: RunningHandle) -> None:
            await handle.switch_quorum((MajorityOf(), MajorityOf(voters)), leadership.settings().period_ms)
            handle.check_effect()
            await change()

        spec = ActivitySpec(
            name="voters", domain="membership", quorum=MAJORITY, wait_ms=leadership.settings().period_ms
        )
        await leadership.activities.run(spec, body)

    def _end_process(self, reason: str) -> None:
        if not self._stop.is_set():  # else it ends anyway, in order
            self.end_process(reason)

    def _serve_settings(self, settings: SettingsNode, peers: Peers, for_peers: Server, for_own: Server) -> None:
        settings.serve_on(for_peers)
        service = SettingsService(settings, peers, self._environment.clock)
        service.serve_peers(for_peers)
        service.serve_own(for_own)
        for_own.serve(METRICS, self._metrics)

    def _metrics(self, _request: MetricsRequest, _call: IncomingCall) -> MetricsAnswer:
        assert self.settings is not None, "the verbs are served after both are opened"
        assert self.leadership is not None, "the verbs are served after both are opened"
        parts = (self.settings.replication.metrics.metrics, self.leadership.metrics.metrics)
        return MetricsAnswer(tuple(family for part in parts for family in collect_metrics(part).metrics))

    async def _run_group0(self, group0: Group0Node, settings: SettingsNode) -> None:
        try:
            await group0.run(self._is_up, self._change_voters)
        finally:
            if group0.removed:
                await settings.leave()

    async def _stop_if_failed(self, work: Awaitable[None]) -> None:
        """A node that was removed, must not run as configured, or has a full or broken disk stops in order and reports
        why."""
        try:
            await work
        except* (EblaError, OSError) as refusals:
            error = next(leaf_errors(refusals))
            self.gave_up = self.gave_up or str(error)
            self.failed_here = isinstance(error, Corruption | LogFailed | OSError)
            self._stop.set()
        await asyncio.Event().wait()

    async def _follow_topology(self, group0: Group0Node, joins: JoinDriver) -> None:
        await group0.confirmed.wait()
        if group0.is_running:  # it may have ended in the same step, and reports why itself
            self.topology.attach(group0.running.machine)
            try:
                await joins.run()
            except* Refused as refusals:
                self.gave_up = str(next(leaf_errors(refusals)))
                self._stop.set()

    async def _place_pipeline(self, group0: Group0Node) -> None:
        wanted = False
        while True:
            leads = group0.leads
            own = self.topology.snapshot.nodes.get(self._node.host) if leads else None
            before, wanted = wanted, should_run_pipeline(own, self._processes(), leads=leads, runs=wanted)
            if wanted is not before:
                self._node.report("pipeline.wanted" if wanted else "pipeline.not_wanted", {"leader": leads})
                self._children.want(PIPELINE, wanted)
            await asyncio.sleep(PLACE_MS / 1000)

    async def _own_barrier(self, request: NodeBarrierRequest, deadline_ms: int) -> None:
        await self.feed.node_barrier(request.version, deadline_ms, drain=request.drain)

    def _own_node(self) -> Node:
        node, member = self._node, self._group0_config.member
        return Node(
            host=node.host,
            datacenter=member.datacenter,
            rack=member.rack,
            shard_count=node.options.shards,
            ignore_msb=0,
            release_version=node.release,
            address=node.options.address,
            num_tokens=self.num_tokens,
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
        watched_since_ms = self._environment.clock.boot_ms() - self._node.limits.peer_silence_ms
        return down_hosts(store.members.values(), self.peers(), self._node.host, watched_since_ms)

    def _expected(self) -> tuple[str, ...]:
        return tuple(sorted(status.name for status in self._children.statuses() if takes_part(status.name)))

    def _is_up(self, host: HostId) -> bool:
        return all(peer.state is PeerState.UP for peer in self.peers() if peer.host == host)

    def peers(self) -> tuple[PeerLiveness, ...]:
        return () if self._liveness is None else self._liveness.peers()

    def _identity(self, _request: IdentityRequest, _call: IncomingCall) -> IdentityAnswer:
        return self._node.identity_answer(NAME)

    def _stop_requested(self, request: StopRequest, call: IncomingCall) -> EmptyAnswer:
        self._node.report("node.stop_requested", {"by": call.peer.process, "reason": request.reason})
        self._stop.set()
        return EmptyAnswer()

    def _child_beat(self, request: ChildBeatRequest, _call: IncomingCall) -> ChildBeatAnswer:
        self._children.heard(request.name, request.pid)
        self._beats[request.name] = request
        clock_ahead_ms = 0 if self._liveness is None else self._liveness.clock_ahead_ms()
        return ChildBeatAnswer(not self._stop.is_set(), clock_ahead_ms)

    def _status(self, _request: StatusRequest, _call: IncomingCall) -> StatusAnswer:
        node, now_ms = self._node, self._environment.clock.boot_ms()
        clocks = {} if self._liveness is None else self._liveness.clocks()
        own = ProcessStatus(name=NAME, pid=node.pid, started_wall_us=self._started_wall_us, state=ProcessState.RUNNING)
        return StatusAnswer(
            host=node.host,
            cluster=node.cluster,
            cluster_name=node.cluster_name,
            address=str(node.options.control_address),
            started_wall_us=self._started_wall_us,
            processes=(own, *self._processes()),
            peers=tuple(_as_status(peer, now_ms, clocks) for peer in self.peers()),
            uptime_ms=now_ms - self._started_boot_ms,
            release=node.release,
            group0=report_of(self._group0.running) if self._group0 is not None and self._group0.is_running else None,
            waits_for=self._waits_for(),
            topology=self._topology_status(),
            warnings=self._warnings(),
        )

    def _warnings(self) -> tuple[str, ...]:
        exposure = self._node.options.cql_exposure
        settings = () if self.settings is None else self.settings.warnings()
        lease = "" if self.leadership is None else self.leadership.warning()
        children = child_warnings(self._children.statuses(), self._beats)
        return tuple(warning for warning in (exposure, *children, *settings, lease) if warning)

    def _waits_for(self) -> str:
        words = "" if self._group0 is None else self._group0.waits_for
        silent = [peer.peer.host for peer in self.peers() if peer.state is not PeerState.UP]
        return f"{words}, no answer from {', '.join(silent)}" if words and silent else words

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


def _as_status(peer: PeerLiveness, now_ms: int, clocks: Mapping[HostId, PeerClock]) -> PeerStatus:
    clock = None if peer.host is None else clocks.get(peer.host)
    return PeerStatus(
        host=peer.host,
        address=str(peer.peer),
        up=peer.state is PeerState.UP,
        heard_ms_ago=None if peer.heard_ms is None else now_ms - peer.heard_ms,
        round_trip_us=peer.round_trip_us,
        since_ms_ago=now_ms - peer.since_ms,
        clock_offset_ms=None if clock is None else clock.offset_ms,
        is_clock_skewed=clock is not None and clock.is_skewed,
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


def child_warnings(statuses: Sequence[ProcessStatus], beats: Mapping[str, ChildBeatRequest]) -> tuple[str, ...]:
    """What children that run now warn of, each sentence once with the names of those that say it."""
    said: dict[str, list[str]] = {}
    for one in statuses:
        beat = beats.get(one.name)
        if beat is not None and beat.pid == one.pid and beat.warning:
            said.setdefault(beat.warning, []).append(one.name)
    return tuple(f"{', '.join(names)}: {warning}" for warning, names in said.items())


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
