"""What the processes beside control have in common: heartbeats, the topology feed, reports, two verbs."""

import asyncio

from ebla.feed.session_guards import SessionGuards
from ebla.feed.topology_follower import FeedControlClient, TopologyFollower, TopologyFollowerConfig
from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import EblaError
from ebla.node.context import NodeContext
from ebla.observe.metrics import Metrics
from ebla.ports.environment import Environment
from ebla.wire.feed_messages import ChildReport
from ebla.wire.metrics_messages import MetricsAnswer, MetricsRequest, collect_metrics
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import (
    CHILD_BEAT,
    IDENTITY,
    METRICS,
    ChildBeatAnswer,
    ChildBeatRequest,
    IdentityAnswer,
    IdentityRequest,
)


class ChildProcess:
    """`feed.topology_follower.TopologySubscriber`. Subclasses override what they do more."""

    def __init__(self, environment: Environment, node: NodeContext, name: str, metrics: Metrics) -> None:
        """`name` is the one that control knows this process by."""
        self.environment = environment
        self.node = node
        self.name = name
        self.metrics = metrics
        self.view = TopologyView()
        self.guards: SessionGuards | None = None
        """Of a process that carries out effects under sessions; set before it follows the topology."""

    def peers_context(self) -> PeersContext:
        return self.node.peers_context(self.environment, self.name)

    def control_client(self, tasks: asyncio.TaskGroup, context: PeersContext) -> Peers:
        control = Peers(tasks, context)
        control.set_address(self.node.host, self.node.control_socket)
        return control

    def new_follower(self, control: FeedControlClient) -> TopologyFollower:
        config = TopologyFollowerConfig(
            name=self.name,
            pid=self.node.pid,
            host=self.node.host,
            clock=self.environment.clock,
            report=self.node.report,
            # The poll must not be held for longer than a heartbeat. It would look like silence where that bound is
            # short.
            poll_ms=self.node.limits.child_heartbeat_ms,
        )
        return TopologyFollower(control, config, self.view, self, self.report_of)

    def new_server(self, tasks: asyncio.TaskGroup, context: PeersContext) -> Server:
        server = Server(tasks, context.introduction, context.report)
        server.serve(IDENTITY, self._identity)
        server.serve(METRICS, self._metrics)
        return server

    # ---- heartbeats

    async def send_heartbeats(self, control: FeedControlClient) -> None:
        """Until cancelled."""
        node, clock, heartbeat_ms = self.node, self.environment.clock, self.node.limits.child_heartbeat_ms
        # On a machine short of CPU control answers late, which is not silence. The timeout leaves room for several
        # heartbeats within the silence bound.
        answer_ms = max(heartbeat_ms, node.limits.feed_silence_ms // 3)
        while True:
            sent_ms = clock.boot_ms()
            beat = ChildBeatRequest(
                name=self.name,
                pid=node.pid,
                serving=self.serves(),
                warning=self.warning(),
                load_bytes=self.load_bytes(),
            )
            try:
                answer = await control.call(node.host, CHILD_BEAT, beat, answer_ms)
            except EblaError:
                self.control_silent()
            else:
                # Counted from the request: the answer may have waited in the socket of a stopped process.
                self.control_answered(sent_ms, answer)
            await asyncio.sleep(heartbeat_ms / 1000)

    def serves(self) -> bool:
        """Whether this process does its work now. Heartbeats report it to control."""
        return True

    def warning(self) -> str:
        """What an operator should know of it although it serves. Heartbeats report it, and `ebla status` shows it."""
        return ""

    def load_bytes(self) -> int | None:
        """What it stores; None: nothing, or it is not known yet. Heartbeats report it, and `ebla status` shows it."""
        return None

    def control_answered(self, sent_ms: int, answer: ChildBeatAnswer) -> None:
        """Control answered the heartbeat that was sent then."""

    def control_silent(self) -> None:
        """A heartbeat had no answer. Only the silence counts, not its cause; control acts on it too."""

    # ---- the topology

    async def prepare(self, view: View, before: View | None) -> None:
        """Nothing, where no file of the process belongs to a version."""

    def on_view_installed(self, view: View) -> None:
        if self.guards is not None:
            self.guards.on_view_installed(view)

    def report_of(self, view: View) -> ChildReport:
        return ChildReport(
            name=self.name,
            pid=self.node.pid,
            version=view.version,
            fence=view.fence,
            oldest_running=self.view.versions.oldest(view.version),
            pending_replicas_open=True,
            closing_sessions=() if self.guards is None else self.guards.closing,
        )

    # ---- verbs of every process

    def _identity(self, _request: IdentityRequest, _call: IncomingCall) -> IdentityAnswer:
        return self.node.identity_answer(self.name)

    def _metrics(self, _request: MetricsRequest, _call: IncomingCall) -> MetricsAnswer:
        return collect_metrics(self.metrics)
