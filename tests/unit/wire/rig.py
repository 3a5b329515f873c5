"""An in-memory transport: links that carry frames in order, one loop turn later, and can be held or cut."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from ebla.model.errors import Unreachable
from ebla.model.identity import Address, ClusterId, HostId
from ebla.ports.transport import LinkEvents, OpenLink
from ebla.sim.rng import SimRng
from ebla.wire.client_connection import ConnectionTarget, RpcClientConnection
from ebla.wire.frames import Introduction, Lane
from ebla.wire.limits import WireLimits
from ebla.wire.peers import PeersContext, connect
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import Notice, Verb

T = TypeVar("T")

CLUSTER = ClusterId(uuid.UUID(int=0xC))


class MemoryLink:
    """`held` keeps frames in the queue, as a peer does that does not read."""

    def __init__(self, address: Address, peer_host: HostId | None) -> None:
        self._address = address
        self._peer_host = peer_host
        self.other: MemoryLink | None = None
        self.events: LinkEvents | None = None
        self.open = True
        self.held = False
        self.queue: list[bytes] = []
        self.sent: list[bytes] = []

    @property
    def peer_address(self) -> Address:
        return self._address

    @property
    def peer_host(self) -> HostId | None:
        return self._peer_host

    @property
    def queued_bytes(self) -> int:
        return sum(map(len, self.queue))

    def send(self, frame: bytes) -> None:
        if self.open:
            self.sent.append(frame)
            self.queue.append(frame)
            asyncio.get_running_loop().call_soon(self.flush)

    def send_now(self, frame: bytes) -> None:
        self.send(frame)

    def flush(self) -> None:
        if self.held:
            return
        queue, self.queue = self.queue, []
        for frame in queue:
            if self.other is not None and self.other.open and self.other.events is not None:
                self.other.events.frame_received(frame)

    async def wait_drained(self) -> None:
        assert not self.held

    def close(self, cause: str) -> None:
        asyncio.get_running_loop().call_soon(self._end, cause)

    def _end(self, cause: str) -> None:
        for side in (self, self.other):
            if side is not None and side.open:
                side.open = False
                if side.events is not None:
                    side.events.link_closed(cause)


class MemoryListening:
    def __init__(self, transport: "MemoryTransport", address: Address) -> None:
        self._transport = transport
        self._address = address

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        self._transport.listeners.pop(self._address, None)


@dataclass(kw_only=True)
class MemoryTransport:
    listeners: dict[Address, OpenLink] = field(default_factory=dict)
    links: list[MemoryLink] = field(default_factory=list)
    attempts: int = 0
    certificate_of_server: HostId | None = None
    certificate_of_client: HostId | None = None

    async def connect(self, address: Address, on_open: OpenLink) -> MemoryLink:
        self.attempts += 1
        await asyncio.sleep(0)
        if address not in self.listeners:
            raise Unreachable(f"{address}: no listener")
        near = MemoryLink(address, self.certificate_of_server)
        far = MemoryLink(Address("client", 1), self.certificate_of_client)
        near.other, far.other = far, near
        self.links += [near, far]
        far.events = self.listeners[address](far)
        near.events = on_open(near)
        return near

    async def listen(self, address: Address, on_open: OpenLink) -> MemoryListening:
        self.listeners[address] = on_open
        return MemoryListening(self, address)


def introduction(number: int, cluster: ClusterId | None = CLUSTER, name: str = "palace") -> Introduction:
    return Introduction(host=HostId(uuid.UUID(int=number)), cluster=cluster, cluster_name=name)


class EchoRequest(msgspec.Struct, frozen=True, array_like=True):
    text: str
    number: int = 0


class EchoAnswer(msgspec.Struct, frozen=True, array_like=True):
    text: str


class Rumour(msgspec.Struct, frozen=True, array_like=True):
    text: str


ECHO = Verb(number=9001, name="echo", lane=Lane.CONTROL, request=EchoRequest, answer=EchoAnswer)
SLOW = Verb(number=9002, name="slow", lane=Lane.CONTROL, request=EchoRequest, answer=EchoAnswer)
DATA_ECHO = Verb(number=9003, name="data_echo", lane=Lane.DATA, request=EchoRequest, answer=EchoAnswer)
RUMOUR = Notice(number=9004, name="rumour", lane=Lane.RAFT, message=Rumour)
SERVER_ADDRESS = Address("memory", 7000)


class Rig:
    """A server and one caller on an in-memory network. `release` lets the slow verb go on."""

    def __init__(self, tasks: asyncio.TaskGroup, limits: WireLimits) -> None:
        self.tasks = tasks
        self.limits = limits
        self.transport = MemoryTransport()
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.server = Server(tasks, introduction(1), self.report, limits)
        self.release = asyncio.Event()
        self.slow_stopped = asyncio.Event()
        self.slow_started: list[str] = []
        self.slow_cancelled: list[str] = []
        self.rumours: list[str] = []
        self.server.serve(ECHO, self.echo)
        self.server.serve(SLOW, self.slow)
        self.server.serve_notice(RUMOUR, self.rumour)

    def report(self, event: str, details: Mapping[str, object]) -> None:
        self.events.append((event, details))

    def causes(self, event: str) -> list[str]:
        return [str(details["cause"]) for name, details in self.events if name == event]

    def echo(self, request: EchoRequest, call: IncomingCall) -> EchoAnswer:
        return EchoAnswer(request.text)

    async def slow(self, request: EchoRequest, call: IncomingCall) -> EchoAnswer:
        self.slow_started.append(request.text)
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.slow_cancelled.append(request.text)
            self.slow_stopped.set()
            raise
        return EchoAnswer(request.text)

    def rumour(self, message: Rumour, call: IncomingCall) -> None:
        self.rumours.append(message.text)

    async def listen(self) -> None:
        await self.transport.listen(SERVER_ADDRESS, self.server.accept)

    def context(self, who: Introduction) -> PeersContext:
        return PeersContext(
            transport=self.transport, rng=SimRng("rig"), introduction=who, limits=self.limits, report=self.report
        )

    async def connect(self, lane: Lane = Lane.CONTROL, number: int = 2) -> RpcClientConnection:
        caller, _ = await connect(self.context(introduction(number)), SERVER_ADDRESS, ConnectionTarget(lane))
        return caller

    @property
    def client_link(self) -> MemoryLink:
        return self.transport.links[-2]

    @property
    def server_link(self) -> MemoryLink:
        return self.transport.links[-1]


@asynccontextmanager
async def running_rig(limits: WireLimits | None = None) -> AsyncIterator[Rig]:
    async with asyncio.timeout(30):
        async with asyncio.TaskGroup() as tasks:
            rig = Rig(tasks, limits or WireLimits())
            await rig.listen()
            yield rig
            rig.release.set()
            rig.server.close("the test is over")
