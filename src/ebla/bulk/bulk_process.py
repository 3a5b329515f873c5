"""The bulk process of a node: one, long-lived, at low priority. It sends heartbeats to its control process, takes part
in every barrier, runs compactions for the shards, and holds the checkpoints and the staging of transfers."""

import asyncio
from dataclasses import dataclass

from ebla.bulk.bulk_transfers import BulkTransfers, TransferConfig
from ebla.bulk.compaction_service import CompactionRunner, CompactionService, CompactionServiceLimits
from ebla.feed.session_guards import SessionGuards
from ebla.feed.topology_follower import TopologyFollower, TopologyFollowerConfig
from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import EblaError
from ebla.model.identity import Address
from ebla.observe.event_reporter import EventReporter
from ebla.observe.metrics import Metrics
from ebla.ports.environment import Environment
from ebla.ports.transport import Listener
from ebla.wire.feed_messages import ChildReport
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.metrics_messages import MetricsAnswer, MetricsRequest, collect_metrics
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import CHILD_BEAT, COMPACT, IDENTITY, METRICS, ChildBeatRequest, IdentityAnswer, IdentityRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkConfig:
    introduction: Introduction
    """Its control process knows it by the process name in it."""
    address: Address
    """For the shards of the node: a Unix socket."""
    control_address: Address
    heartbeat_ms: int
    compactions: CompactionServiceLimits
    wire: WireLimits
    report: EventReporter
    pid: int
    transfers: TransferConfig | None = None
    """None: it only runs compactions."""


BARRIER_MS = 5_000
"""For a read barrier of group 0 before a guard is entered, where there are no limits of transfers."""


class BulkProcess:
    """Follows the topology, with no replicas to prepare. It takes part in every barrier all the same: part of an
    operation that is over may still run here under a guard, and the barrier waits until the guard is released."""

    def __init__(self, environment: Environment, config: BulkConfig, compactions: CompactionRunner) -> None:
        self._environment = environment
        self._config = config
        self._compactions = compactions
        self.view = TopologyView()
        self.guards: SessionGuards | None = None
        """Set before the first version is installed."""
        self.transfers: BulkTransfers | None = None
        """Set once it runs, if it has any."""

    async def run(self) -> None:
        """Serves until cancelled. Raises where the address is taken."""
        config, environment = self._config, self._environment
        async with asyncio.TaskGroup() as tasks:
            context = PeersContext(
                transport=environment.transport,
                rng=environment.rng,
                introduction=config.introduction,
                limits=config.wire,
                report=config.report,
            )
            control = Peers(tasks, context)
            control.set_address(config.introduction.host, config.control_address)
            follower = self._follower(control)
            barrier_ms = BARRIER_MS if config.transfers is None else config.transfers.limits.barrier_ms
            guards = self.guards = SessionGuards(self.view, follower, environment.clock, barrier_ms)
            tasks.create_task(self._send_heartbeats(control))
            tasks.create_task(follower.run())
            local = Server(tasks, config.introduction, config.wire, config.report)
            local.serve(COMPACT, CompactionService(self._compactions, config.compactions, config.report).serve)
            servers = {config.address: local}
            if config.transfers is not None:
                peers = Server(tasks, config.introduction, config.wire, config.report)
                servers[config.transfers.peers_address] = peers
                transfers = BulkTransfers(environment, config.transfers, self.view, guards, config.report)
                await transfers.begin(tasks, context)
                self.transfers = transfers
                tasks.create_task(transfers.run())
            await self._listen(servers)

    async def _listen(self, servers: dict[Address, Server]) -> None:
        """Until cancelled."""
        listeners: list[Listener] = []
        try:
            for address, server in servers.items():
                server.serve(IDENTITY, self._identity)
                server.serve(METRICS, self._metrics)
                if self.transfers is not None:
                    self.transfers.attach(server)
                listeners.append(await self._environment.transport.listen(address, server.accept))
            await asyncio.Event().wait()
        finally:
            for listener in listeners:
                await listener.close()
            for server in servers.values():
                server.close("the bulk process stops")

    async def _send_heartbeats(self, control: Peers) -> None:
        config = self._config
        while True:
            beat = ChildBeatRequest(config.introduction.process, config.pid, serving=True)
            try:
                await control.call(config.introduction.host, CHILD_BEAT, beat, config.heartbeat_ms)
            except EblaError:
                pass  # the control process acts on the silence
            await asyncio.sleep(config.heartbeat_ms / 1000)

    # ---- the topology

    def _follower(self, control: Peers) -> TopologyFollower:
        config = self._config
        follower = TopologyFollowerConfig(
            name=config.introduction.process,
            pid=config.pid,
            host=config.introduction.host,
            clock=self._environment.clock,
            report=config.report,
            poll_ms=config.heartbeat_ms,
        )
        return TopologyFollower(control, follower, self.view, self, self._child_report)

    async def prepare(self, view: View, before: View | None) -> None:
        """Nothing: no file here belongs to a version."""

    def on_view_installed(self, view: View) -> None:
        assert self.guards is not None
        self.guards.on_view_installed(view)
        if self.transfers is not None:
            self.transfers.sessions_changed()

    def _child_report(self, view: View) -> ChildReport:
        assert self.guards is not None, "only an installed version is reported"
        return ChildReport(
            name=self._config.introduction.process,
            pid=self._config.pid,
            version=view.version,
            fence=view.fence,
            oldest_running=self.view.versions.oldest(view.version),
            pending_replicas_open=True,
            closing_sessions=self.guards.closing,
        )

    # ---- verbs of every process

    def _metrics(self, _request: MetricsRequest, _call: IncomingCall) -> MetricsAnswer:
        transfers = self._config.transfers
        return collect_metrics(Metrics() if transfers is None else transfers.metrics)

    def _identity(self, _request: IdentityRequest, _call: IncomingCall) -> IdentityAnswer:
        introduction = self._config.introduction
        return IdentityAnswer(
            host=introduction.host,
            cluster=introduction.cluster,
            cluster_name=introduction.cluster_name,
            process=introduction.process,
            pid=self._config.pid,
        )
