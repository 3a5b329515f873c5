"""The bulk process of a node: one, long-lived, niced. It keeps in touch with its control, is a part of every barrier,
and folds for the shards."""

import asyncio
from dataclasses import dataclass

from ebla.bulk.fold_desk import DeskLimits, FoldDesk, Folding
from ebla.bulk.sessions_followed import SessionsFollowed
from ebla.model.errors import EblaError
from ebla.model.identity import Address
from ebla.ports.surroundings import Surroundings
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.report import Report
from ebla.wire.server import IncomingCall, Server
from ebla.wire.topology_feed import FollowerSetup, TopologyFollower
from ebla.wire.topology_view import TopologyView
from ebla.wire.verbs import CHILD_BEAT, FOLD, IDENTITY, ChildBeatRequest, IdentityAnswer, IdentityRequest


@dataclass(frozen=True, slots=True)
class BulkSetup:
    introduction: Introduction
    """Its process name is the one its control knows it by."""
    address: Address
    """For the shards of the node: a Unix socket."""
    control_address: Address
    heartbeat_ms: int
    desk: DeskLimits
    wire: WireLimits
    report: Report
    pid: int


class BulkProcess:
    def __init__(self, surroundings: Surroundings, setup: BulkSetup, folding: Folding) -> None:
        self._surroundings = surroundings
        self._setup = setup
        self._folding = folding
        self.view = TopologyView()
        self.sessions = SessionsFollowed(setup.introduction.process, setup.pid, self.view)
        self._follower: TopologyFollower | None = None

    async def run(self) -> None:
        """Serves until cancelled. Raises where the address is taken."""
        setup, surroundings = self._setup, self._surroundings
        async with asyncio.TaskGroup() as tasks:
            server = Server(tasks, setup.introduction, setup.wire, setup.report)
            server.serve(IDENTITY, self._identity)
            server.serve(FOLD, FoldDesk(self._folding, setup.desk, setup.report).serve)
            listening = await surroundings.transport.listen(setup.address, server.accept)
            context = PeersContext(
                surroundings.transport, surroundings.chance, setup.introduction, setup.wire, setup.report
            )
            control = Peers(tasks, context)
            control.set_address(setup.introduction.host, setup.control_address)
            self._follower = self._following(control)
            tasks.create_task(self._follower.run())
            try:
                await self._keep_in_touch(control)
            finally:
                await listening.close()
                server.close("the bulk process stops")

    def guards_changed(self) -> None:
        """To be called after each change of `sessions.book`: a barrier may be waiting to hear of it."""
        if self._follower is not None:
            self._follower.changed()

    def _following(self, control: Peers) -> TopologyFollower:
        setup = self._setup
        ours = setup.introduction
        clock = self._surroundings.clock
        following = FollowerSetup(ours.process, setup.pid, ours.host, clock, setup.report, poll_ms=setup.heartbeat_ms)
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

    def _identity(self, _request: IdentityRequest, _call: IncomingCall) -> IdentityAnswer:
        ours = self._setup.introduction
        return IdentityAnswer(ours.host, ours.cluster, ours.cluster_name, ours.process, self._setup.pid)
