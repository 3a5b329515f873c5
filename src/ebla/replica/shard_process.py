"""A shard process: keeps in touch with its control and answers on its own address while it may serve."""

import asyncio
from dataclasses import dataclass

from ebla.model.errors import EblaError, Unavailable
from ebla.model.identity import Address
from ebla.ports.surroundings import Surroundings
from ebla.replica.serving import ServingRight
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.report import Report
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import CHILD_BEAT, IDENTITY, ChildBeatRequest, IdentityAnswer, IdentityRequest


@dataclass(frozen=True, slots=True)
class ShardSetup:
    introduction: Introduction
    """Its process name is the one its control knows it by."""
    address: Address
    control_address: Address
    heartbeat_ms: int
    feed_silence_ms: int
    wire: WireLimits
    report: Report
    pid: int


class ShardProcess:
    def __init__(self, surroundings: Surroundings, setup: ShardSetup) -> None:
        self._surroundings = surroundings
        self._setup = setup
        self._right = ServingRight(setup.feed_silence_ms)
        self._served = False

    def serves(self) -> bool:
        return self._right.holds(self._surroundings.clock.boot_ms())

    async def run(self) -> None:
        """Serves until cancelled. Raises where the address is taken."""
        setup, surroundings = self._setup, self._surroundings
        async with asyncio.TaskGroup() as tasks:
            server = Server(tasks, setup.introduction, setup.wire, setup.report)
            server.serve(IDENTITY, self._identity)
            listening = await surroundings.transport.listen(setup.address, server.accept)
            context = PeersContext(
                surroundings.transport, surroundings.chance, setup.introduction, setup.wire, setup.report
            )
            control = Peers(tasks, context)
            control.set_address(setup.introduction.host, setup.control_address)
            try:
                await self._keep_in_touch(control)
            finally:
                await listening.close()
                server.close("the shard stops")

    async def _keep_in_touch(self, control: Peers) -> None:
        setup, clock = self._setup, self._surroundings.clock
        while True:
            asked_ms = clock.boot_ms()
            beat = ChildBeatRequest(setup.introduction.process, setup.pid, self._right.holds(asked_ms))
            try:
                answer = await control.call(setup.introduction.host, CHILD_BEAT, beat, setup.heartbeat_ms)
                self._right.heard(asked_ms, allowed=answer.serving)
            except EblaError:
                pass  # silence is counted, not its causes
            self._tell_changes()
            await asyncio.sleep(setup.heartbeat_ms / 1000)

    def _tell_changes(self) -> None:
        serves = self.serves()
        if serves != self._served:
            self._served = serves
            name = "shard.serving" if serves else "shard.stopped_serving"
            self._setup.report(name, {"control_silent_ms": self._right.silent_ms(self._surroundings.clock.boot_ms())})

    def _identity(self, _request: IdentityRequest, _call: IncomingCall) -> IdentityAnswer:
        if not self.serves():
            silent_ms = self._right.silent_ms(self._surroundings.clock.boot_ms())
            raise Unavailable(f"{self._setup.introduction.process} does not serve: control silent for {silent_ms} ms")
        ours = self._setup.introduction
        return IdentityAnswer(ours.host, ours.cluster, ours.cluster_name, ours.process, self._setup.pid)
