"""The control process of a node: serves its peers and its children, and watches which peers are up.

Its environment comes from outside: the same code runs on the real and the simulated one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from ebla.control.coordinator.coordinator import Coordinator
from ebla.control.coordinator.coordinator_deps import CoordinatorDeps
from ebla.control.coordinator.stream_orders import StreamOrders
from ebla.control.coordinator.topology_service import TopologyService
from ebla.control.fault_points import SHARD_POINTS, FaultPoint, FaultPoints
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
from ebla.control.liveness.failure_detector import PeerLiveness, PeerState, down_hosts
from ebla.control.liveness.heartbeats import HeartbeatMonitor
from ebla.control.local_stores import LocalStores
from ebla.control.operations.failover import Failover, FailoverDeps
from ebla.control.operations.operation_service import Operations
from ebla.control.operations.runner import MembershipActivity, OperationDeps
from ebla.control.pipeline_placement import (
    NO_PERMIT,
    PIPELINE,
    PipelineChild,
    PipelinePlacement,
    should_run_pipeline,
)
from ebla.control.settings.durable_store import DurableSettings
from ebla.control.settings.service import SettingsService
from ebla.control.settings.settings_node import SettingsDeps, SettingsNode
from ebla.control.topology.barrier_client import BarrierClient
from ebla.control.topology.bulk_sessions import BulkSessionService
from ebla.control.topology.committed_topology import CommittedTopology, topology_of
from ebla.control.topology.deps import TopologyDeps
from ebla.control.topology.exclusions import Exclusions
from ebla.control.topology.feed_service import FeedConfig, TopologyFeedService
from ebla.control.topology.join_service import JoinService
from ebla.control.topology.node_barrier import SHARD_PREFIX, takes_part
from ebla.control.topology.own_row import OwnRow
from ebla.control.topology.schema_service import SchemaService
from ebla.group0.join_handshake import NotAdmitted, rejected
from ebla.journal.segmented_log import LogFailed
from ebla.model.errors import Corruption, EblaError, Refused, leaf_errors
from ebla.model.identity import HostId, ShardNumber
from ebla.model.transaction import Revision
from ebla.node.context import NodeContext
from ebla.node.node_status import TabletCounter, child_warnings, peer_status, topology_status, with_versions
from ebla.ports.environment import Environment
from ebla.ports.transport import Listener
from ebla.settings_store.registry import AUTO_FAILOVER, JANITOR_DELAY_MS, LEASES, TOPOLOGY
from ebla.topology.states import NodeState
from ebla.version import Feature
from ebla.wire.feed_messages import ChildReport, NodeBarrierRequest
from ebla.wire.metrics_messages import MetricsAnswer, MetricsRequest, collect_metrics
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.server import IncomingCall, Server
from ebla.wire.topology_messages import LEFT_AS_REQUESTED, StopNodeRequest
from ebla.wire.verbs import (
    CHILD_BEAT,
    IDENTITY,
    METRICS,
    STATUS,
    STOP,
    STOP_NODE,
    ChildBeatAnswer,
    ChildBeatRequest,
    EmptyAnswer,
    IdentityAnswer,
    IdentityRequest,
    ProcessState,
    ProcessStatus,
    StatusAnswer,
    StatusRequest,
    StopRequest,
    TopologyStatus,
)


class ChildProcesses(PipelineChild, Protocol):
    """The node's other processes, as control sees them."""

    def heard(self, name: str, pid: int) -> None: ...


NAME = "control"
START_REFUSALS = (Corruption, LogFailed, OSError, NotAdmitted)


class ControlProcess:
    """`stop` is set here on a stop request, and from outside on a signal; `ready` once it listens."""

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
        self.exclusions = Exclusions(node.host, self.topology, node.report)
        self._feed: TopologyFeedService | None = None
        self._own_row: OwnRow | None = None
        self.coordinator: Coordinator | None = None
        self._placement: PipelinePlacement | None = None
        self._beats: dict[str, ChildBeatRequest] = {}
        self._tablets = TabletCounter()
        self._stores: LocalStores | None = None
        self.fault_points = FaultPoints(node.crash, node.report, is_enabled=node.options.fault_points)
        self.settings: SettingsNode | None = None
        self.leadership: LeadershipNode | None = None
        self._leases: LeadershipService | None = None
        self.operations: Operations | None = None
        self.failover: Failover | None = None
        self.streams = StreamOrders(
            lambda pid: self._placement is not None and self._placement.is_acting(pid), self.fault_points
        )
        self.turns = LoopTurns()
        self.end_process: Callable[[str], object] = lambda _reason: node.crash()
        """Ends this process with its children, and starts it again: an activity does not stop."""
        self.restarts = 0
        """How often that has happened since the node was started."""
        self.ready = asyncio.Event()
        self.gave_up: str | None = None
        """Why this node must stop, if its cluster or its own disk requires it."""
        self._has_left = False
        self.was_refused = False
        """Whether that is something in its own folder, or the cluster did not admit it. Otherwise it ran as a member
        and must not continue."""

    async def run(self) -> None:
        """Serves until cancelled. Raises if an address is in use."""
        node, environment = self._node, self._environment
        async with asyncio.TaskGroup() as tasks:
            context = node.peers_context(environment, NAME)
            peers = Peers(tasks, context)
            self._group0 = Group0Node(environment, self._group0_config, context, peers, self.fault_points.reach)
            peers.on_left = self._group0.learn_left
            await self._prepare_stores(self._group0)
            # The wall clock may step back between two starts. The incarnation only has to differ.
            self._liveness = HeartbeatMonitor(
                peers, context, self._group0, environment.clock, node.limits, incarnation=self._started_wall_us
            )
            self.leadership = await self._open_leadership(self._group0, peers)
            self.settings = await self._open_settings(self._group0, self._liveness, peers)
            for_peers, for_own = (Server(tasks, context.introduction, node.report) for _ in range(2))
            self._liveness.serve_on(for_peers)
            self._serve_settings(self.settings, peers, for_peers, for_own)
            self.operations = self._new_operations(self._group0, self.settings, self.leadership, peers)
            self._serve_group0(self._group0, peers, for_peers, for_own)
            self._leases = self._serve_leadership(self.leadership, peers, for_peers, for_own)
            self._feed = self._new_feed(self._group0, for_own, for_peers)
            self._follow_liveness(self._liveness, self.leadership, self._feed)
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
            self._own_row = OwnRow(self._group0_config.node, deps)
            self.failover = self._new_failover(deps, peers, for_peers, for_own)
            self.coordinator, topology = self._new_coordinator(deps, sessions, peers, context, tasks)
            JoinService(deps, self._silent, topology.cause_of, self.fault_points.reach).serve_on(for_peers)
            self.leadership.activities.serve_order(for_peers, STOP_NODE, self._stop_ordered)
            for server in (for_peers, for_own):
                server.serve(IDENTITY, self._identity)
                server.serve(STATUS, self._status)
                schema.serve_on(server)
                sessions.serve_on(server)
                topology.serve_on(server)
            self.fault_points.serve_on(for_own)
            for_own.serve(STOP, self._stop_requested)
            for_own.serve(CHILD_BEAT, self._child_beat)
            listening = await self._listen(for_peers, for_own)
            self.ready.set()
            tasks.create_task(self._liveness.run())
            tasks.create_task(self._feed.run())
            if node.options.pipeline.enabled:
                tasks.create_task(self._run_pipeline(self._group0, self.leadership, for_own))
            tasks.create_task(self._follow_topology(self._group0, self._own_row))
            tasks.create_task(self.coordinator.run())
            tasks.create_task(self._stop_if_failed(self.settings.run()))
            tasks.create_task(self.leadership.run())
            tasks.create_task(self.operations.run())
            tasks.create_task(self.failover.run())
            tasks.create_task(self.turns.run())
            try:
                await self._stop_if_failed(self._run_group0(self._group0, self.settings, self.operations))
            finally:
                await self.leadership.save_for_stop()
                for listener in listening:
                    await listener.close()
                for server in (for_peers, for_own):
                    server.close("the node stops")

    async def _listen(self, for_peers: Server, for_own: Server) -> list[Listener]:
        listen = self._environment.transport.listen
        return [
            await listen(self._node.options.control_address, for_peers.accept),
            # For the node's own children and its operator: a Unix socket that only their user can open.
            await listen(self._node.control_socket, for_own.accept),
        ]

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

    async def wait_first_state(self, timeout_s: float) -> None:
        """Of this node's group 0. A node that is in no cluster yet does not wait: its children are up by the time it is
        accepted, and the barriers of its join do not wait for them."""
        assert self._group0 is not None, "the process runs"
        await self._group0.members_known.wait()
        if self._group0.join_state.mark.stage is JoinStage.MEMBER:
            await self.topology.wait_change(None, timeout_s)

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
        assert self.leadership is not None, "the purge runs under leases"
        durable = await DurableSettings.open(self._environment, str(node.folder.settings.absolute()), node.host)
        return SettingsNode(
            durable,
            SettingsDeps(
                environment=self._environment,
                group0=group0,
                liveness=liveness,
                peers=peers,
                leadership=self.leadership,
                report=node.report,
                why_no_purge=lambda: why_not_in_use(group0.running.store, Feature.SETTINGS_PURGE),
                reach=self.fault_points.reach,
            ),
        )

    async def _open_leadership(self, group0: Group0Node, peers: Peers) -> LeadershipNode:
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
                settings=lambda: LEASES.default if self.settings is None else self.settings.value(LEASES),
                report=node.report,
                end_process=self._end_process,
            )
        )
        if node.options.fault_points:
            leadership.activities.traces_effects = True
            leadership.activities.reach_cancelled = lambda: self.fault_points.reach(FaultPoint.ACTIVITY_CANCELLED)
        leadership.metrics.restarts.add(self.restarts)
        await leadership.load()
        return leadership

    @property
    def lease_period_ms(self) -> int:
        return LEASES.default.period_ms if self.leadership is None else self.leadership.settings().period_ms

    def _new_operations(
        self, group0: Group0Node, settings: SettingsNode, leadership: LeadershipNode, peers: Peers
    ) -> Operations:
        activity = MembershipActivity(leadership)
        deps = OperationDeps(
            group0=group0,
            topology=self.topology,
            run_activity=activity.run,
            quorum_wait_ms=activity.wait_ms,
            rng=self._environment.rng,
            clock=self._environment.clock,
            report=self._node.report,
            reach=self.fault_points.reach,
        )
        return Operations(deps, peers, lambda: settings.value(JANITOR_DELAY_MS))

    def _serve_group0(self, group0: Group0Node, peers: Peers, for_peers: Server, for_own: Server) -> None:
        assert self.operations is not None, "they are served with it"
        service = Group0Service(group0, peers, self._environment.rng)
        service.serve_peers(for_peers)
        service.serve_operator(for_own)
        self.operations.serve_on(for_peers)
        self.operations.serve_on(for_own)

    def _new_failover(self, deps: TopologyDeps, peers: Peers, for_peers: Server, for_own: Server) -> Failover:
        settings, operations, leadership = self.settings, self.operations, self.leadership
        assert settings is not None, "it is opened before"
        assert operations is not None, "failover is an operation"
        assert leadership is not None, "it is opened before"
        failover = Failover(
            FailoverDeps(
                topology=deps,
                operations=operations,
                leadership=leadership,
                peers=peers,
                own=self._node.host,
                liveness=self.peers,
                silence_ms=self._node.limits.peer_silence_ms,
                settings=lambda: settings.value(AUTO_FAILOVER),
                take_longest_pause_ms=self.turns.take_longest_pause_ms,
            )
        )
        failover.serve_on(for_peers)
        failover.serve_on(for_own)
        return failover

    def _new_coordinator(
        self,
        deps: TopologyDeps,
        sessions: BulkSessionService,
        peers: Peers,
        context: PeersContext,
        tasks: asyncio.TaskGroup,
    ) -> tuple[Coordinator, TopologyService]:
        settings, operations, leadership = self.settings, self.operations, self.leadership
        assert settings is not None, "it is opened before"
        assert operations is not None, "members change by operations"
        assert leadership is not None, "it is opened before"
        parts = CoordinatorDeps(
            topology=deps,
            committed=self.topology,
            operations=operations,
            leadership=leadership,
            sessions=sessions,
            streams=self.streams,
            peers=peers,
            context=context,
            silent=self._silent,
            control_port=self._node.options.ports.control,
            settings=lambda: settings.value(TOPOLOGY),
            reach=self.fault_points.reach,
        )
        coordinator = Coordinator(parts)
        return coordinator, TopologyService(parts, coordinator, tasks)

    async def _stop_ordered(self, request: StopNodeRequest, _handle: RunningHandle, _deadline_ms: int) -> EmptyAnswer:
        """This node has left the topology. It learns the same from its row, if the order does not reach it."""
        self._node.report("node.stop_requested", {"by": "the coordinator", "reason": request.reason})
        if request.reason != LEFT_AS_REQUESTED:
            self._refuse(rejected(request.reason))
            return EmptyAnswer()
        assert self._group0 is not None, "its verbs are served"
        self._has_left = True
        await self._group0.mark_left()
        self._stop.set()
        return EmptyAnswer()

    def _follow_liveness(
        self, liveness: HeartbeatMonitor, leadership: LeadershipNode, feed: TopologyFeedService
    ) -> None:
        liveness.on_change = self.exclusions.on_change = feed.down_hosts_changed
        liveness.on_up = leadership.host_came_up
        liveness.excluded_in, liveness.on_excluded = self.exclusions.version_for, self.exclusions.heard

    def _end_process(self, reason: str) -> None:
        if not self._stop.is_set():  # else it ends anyway, in order
            self.end_process(reason)

    def _serve_settings(self, settings: SettingsNode, peers: Peers, for_peers: Server, for_own: Server) -> None:
        settings.serve_on(for_peers)
        service = SettingsService(settings, peers, self._environment.clock)
        service.serve_peers(for_peers)
        service.serve_own(for_own)
        for_own.serve(METRICS, self._metrics)

    def _serve_leadership(
        self, leadership: LeadershipNode, peers: Peers, for_peers: Server, for_own: Server
    ) -> LeadershipService:
        options = self._node.options
        if Feature.LEADER_LEASES in options.features:
            leadership.serve_on(for_peers)
        service = LeadershipService(leadership, peers, str(options.control_address), self.turns)
        service.serve_on(for_peers)
        service.serve_own(for_own)
        return service

    def _metrics(self, _request: MetricsRequest, _call: IncomingCall) -> MetricsAnswer:
        assert self.settings is not None, "the verbs are served after both are opened"
        assert self.leadership is not None, "the verbs are served after both are opened"
        assert self.operations is not None, "the verbs are served after all are opened"
        assert self._group0 is not None, "the verbs are served after all are opened"
        parts = (
            self._group0.formation.metrics,
            self.settings.replication.metrics.metrics,
            self.leadership.metrics.metrics,
            self.operations.runner.metrics.metrics,
        )
        return MetricsAnswer(tuple(family for part in parts for family in collect_metrics(part).metrics))

    async def _run_group0(self, group0: Group0Node, settings: SettingsNode, operations: Operations) -> None:
        try:
            await group0.run(self._is_up, operations)
        finally:
            if group0.removed:
                await settings.leave()

    async def _stop_if_failed(self, work: Awaitable[None]) -> None:
        """A node that was removed, must not run as configured, or has a full or broken disk stops in order and reports
        why."""
        try:
            await work
        except* (EblaError, OSError) as refusals:
            self._refuse(next(leaf_errors(refusals)))
        # The node may be ordered to stop and removed at the same moment: then the error replaces the cancellation.
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError
        await asyncio.Event().wait()

    def _refuse(self, error: BaseException) -> None:
        """Stops the node in order. What fails after the first error is a consequence of it. A node that was ordered to
        stop after its leave may learn of its removal before it has stopped, and that is no failure."""
        if self.gave_up is None and not self._has_left:
            self.gave_up, self.was_refused = str(error), isinstance(error, START_REFUSALS)
        self._stop.set()

    async def _follow_topology(self, group0: Group0Node, own_row: OwnRow) -> None:
        await group0.confirmed.wait()
        if group0.is_running:  # it may have ended in the same step, and reports why itself
            self.topology.attach(group0.running.machine)
            try:
                await own_row.run()
            except* Refused as refusals:
                self._refuse(next(leaf_errors(refusals)))

    async def _run_pipeline(self, group0: Group0Node, leadership: LeadershipNode, for_own: Server) -> None:
        def should_run(runs: bool) -> bool:
            leads = group0.leads
            own = self.topology.snapshot.nodes.get(self._node.host) if leads else None
            return should_run_pipeline(own, self._processes(), leads=leads, runs=runs)

        self._placement = PipelinePlacement(self._children, leadership, should_run, self._node.report)
        self._placement.serve_on(for_own)
        self.streams.serve_on(for_own)
        await self._placement.run()

    async def _own_barrier(self, request: NodeBarrierRequest, deadline_ms: int) -> None:
        await self.feed.node_barrier(request.version, deadline_ms, drain=request.drain)

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

    def _silent(self) -> tuple[HostId, ...]:
        """The hosts that do not answer."""
        store = self.topology.store
        if store is None:
            return ()
        watched_since_ms = self._environment.clock.boot_ms() - self._node.limits.peer_silence_ms
        return down_hosts(store.members.values(), self.peers(), self._node.host, watched_since_ms)

    def _down(self) -> tuple[HostId, ...]:
        """The hosts that serve no rows: silent ones, and excluded ones, this node perhaps among them."""
        if self.topology.store is None:
            return ()
        silent, excluded = self._silent(), self.exclusions.hosts()
        return tuple(sorted({*silent, *excluded})) if excluded else silent

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
        ahead_ms = 0 if self._liveness is None else self._liveness.clock_ahead_ms()
        serving, permit, faults = not self._stop.is_set(), NO_PERMIT, self.fault_points.set_points(SHARD_POINTS)
        if serving and self._placement is not None and request.name == PIPELINE:
            permit = self._placement.permit(request.pid)
        return ChildBeatAnswer(
            serving=serving, clock_ahead_ms=ahead_ms, permit=permit.number, permit_ms=permit.left_ms, faults=faults
        )

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
            peers=tuple(peer_status(peer, now_ms, clocks) for peer in self.peers()),
            uptime_ms=now_ms - self._started_boot_ms,
            release=node.release,
            group0=report_of(self._group0.running) if self._group0 is not None and self._group0.is_running else None,
            waits_for=self._waits_for(),
            topology=self._topology_status(),
            warnings=self._warnings(),
            leases=None if self._leases is None else msgspec.structs.replace(self._leases.report(), ended=()),
        )

    def _warnings(self) -> tuple[str, ...]:
        exposure = self._node.options.cql_exposure
        settings = () if self.settings is None else self.settings.warnings()
        lease = "" if self.leadership is None else self.leadership.warning()
        operations = () if self.operations is None else self.operations.warnings()
        children = child_warnings(self._children.statuses(), self._beats)
        found = (exposure, *children, *settings, lease, *operations, self.exclusions.why_own())
        return tuple(warning for warning in found if warning)

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
        if not waits_for and self._own_row is not None:
            waits_for = self._own_row.waits_for
        snapshot = self.topology.snapshot
        return topology_status(snapshot, waits_for, self._tablets.count(snapshot))
