"""The bulk process of a node: one, long-lived, niced. It keeps in touch with its control, is a part of every barrier,
folds for the shards, and holds the checkpoints and the staging of transfers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ebla.bulk.bulk_transfers import BulkTransfers, TransferConfig
from ebla.bulk.compaction_service import CompactionRunner, CompactionService, CompactionServiceLimits
from ebla.bulk.session_follower import SessionFollower
from ebla.feed.session_guards import SessionGuards
from ebla.feed.topology_follower import TopologyFollower, TopologyFollowerConfig
from ebla.feed.topology_view import TopologyView
from ebla.model.errors import EblaError
from ebla.model.identity import Address
from ebla.observe.event_reporter import EventReporter
from ebla.observe.metrics import Metrics
from ebla.ports.environment import Environment
from ebla.ports.transport import Listener
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.metrics_messages import MetricsAnswer, MetricsRequest, collect_metrics
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import CHILD_BEAT, COMPACT, IDENTITY, METRICS, ChildBeatRequest, IdentityAnswer, IdentityRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkConfig:
    introduction: Introduction
    """Its process name is the one its control knows it by."""
    address: Address
    """For the shards of the node: a Unix socket."""
    control_address: Address
    heartbeat_ms: int
    desk: CompactionServiceLimits
    wire: WireLimits
    report: EventReporter
    pid: int
    transfers: TransferConfig | None = None
    """None: it only folds."""


BARRIER_MS = 5_000
"""For a read barrier of group 0, asked of control before a guard is entered, where no limits of transfers say it."""


class BulkProcess:
    def __init__(self, environment: Environment, setup: BulkConfig, folding: CompactionRunner) -> None:
        self._environment = environment
        self._setup = setup
        self._folding = folding
        self.view = TopologyView()
        self.sessions = SessionFollower(setup.introduction.process, setup.pid, self.view)
        self.transfers: BulkTransfers | None = None
        """Once it runs, where it has any."""

    async def run(self) -> None:
        """Serves until cancelled. Raises where the address is taken."""
        setup, environment = self._setup, self._environment
        async with asyncio.TaskGroup() as tasks:
            context = PeersContext(
                transport=environment.transport,
                rng=environment.rng,
                introduction=setup.introduction,
                limits=setup.wire,
                report=setup.report,
            )
            control = Peers(tasks, context)
            control.set_address(setup.introduction.host, setup.control_address)
            follower = self._following(control)
            barrier_ms = BARRIER_MS if setup.transfers is None else setup.transfers.limits.barrier_ms
            guards = self.sessions.guards = SessionGuards(self.view, follower, environment.clock, barrier_ms)
            tasks.create_task(self._keep_in_touch(control))
            tasks.create_task(follower.run())
            local = Server(tasks, setup.introduction, setup.wire, setup.report)
            local.serve(COMPACT, CompactionService(self._folding, setup.desk, setup.report).serve)
            doors = [(setup.address, local)]
            if setup.transfers is not None:
                peers = Server(tasks, setup.introduction, setup.wire, setup.report)
                doors.append((setup.transfers.peers_address, peers))
                await self._begin_transfers(tasks, context, setup.transfers, guards)
            await self._listen(doors)

    async def _begin_transfers(
        self, tasks: asyncio.TaskGroup, context: PeersContext, wanted: TransferConfig, guards: SessionGuards
    ) -> None:
        transfers = BulkTransfers(self._environment, wanted, self.view, guards, self._setup.report)
        await transfers.begin(tasks, context)
        self.sessions.on_installed = transfers.sessions_changed
        self.transfers = transfers
        tasks.create_task(transfers.run())

    async def _listen(self, doors: Sequence[tuple[Address, Server]]) -> None:
        """Until cancelled."""
        listening: list[Listener] = []
        try:
            for address, server in doors:
                server.serve(IDENTITY, self._identity)
                server.serve(METRICS, self._metrics)
                if self.transfers is not None:
                    self.transfers.attach(server)
                listening.append(await self._environment.transport.listen(address, server.accept))
            await asyncio.Event().wait()
        finally:
            for one in listening:
                await one.close()
            for _, server in doors:
                server.close("the bulk process stops")

    def _following(self, control: Peers) -> TopologyFollower:
        setup = self._setup
        ours = setup.introduction
        clock = self._environment.clock
        following = TopologyFollowerConfig(
            name=ours.process,
            pid=setup.pid,
            host=ours.host,
            clock=clock,
            report=setup.report,
            poll_ms=setup.heartbeat_ms,
        )
        return TopologyFollower(control, following, self.view, self.sessions, self.sessions.report_of)

    async def _keep_in_touch(self, control: Peers) -> None:
        setup = self._setup
        while True:
            beat = ChildBeatRequest(setup.introduction.process, setup.pid, serving=True)
            try:
                await control.call(setup.introduction.host, CHILD_BEAT, beat, setup.heartbeat_ms)
            except EblaError:
                pass  # control counts the silence
            await asyncio.sleep(setup.heartbeat_ms / 1000)

    def _metrics(self, _request: MetricsRequest, _call: IncomingCall) -> MetricsAnswer:
        wanted = self._setup.transfers
        return collect_metrics(Metrics() if wanted is None else wanted.metrics)

    def _identity(self, _request: IdentityRequest, _call: IncomingCall) -> IdentityAnswer:
        ours = self._setup.introduction
        return IdentityAnswer(
            host=ours.host,
            cluster=ours.cluster,
            cluster_name=ours.cluster_name,
            process=ours.process,
            pid=self._setup.pid,
        )
