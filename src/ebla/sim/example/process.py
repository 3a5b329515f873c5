"""The process of one replica: links, disk and time around the pure `RegisterReplica`."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ebla.model.errors import Unreachable
from ebla.model.identity import Address
from ebla.ports.environment import Environment
from ebla.ports.transport import Link
from ebla.sim.example.messages import RegisterEnvelope, RegisterMessage, RegisterRequest
from ebla.sim.example.register import RegisterEffects, RegisterReplica
from ebla.sim.example.store import RegisterStore, open_register_store

TICK_S = 0.05
CONNECT_S = 1.0
RECONNECT_S = 0.1
INBOX_MAX = 1000

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(RegisterEnvelope).decode


@dataclass(frozen=True, slots=True)
class RegisterOptions:
    name: str
    addresses: Mapping[str, Address]


async def register_process(environment: Environment, options: RegisterOptions) -> None:
    """Runs one replica until it is cancelled, killed, or its disk fails."""
    store = await open_register_store(environment.disk)
    replica = RegisterReplica(options.name, sorted(options.addresses), store.held, environment.rng)
    process = _Process(environment, options, replica, store)
    await environment.transport.listen(options.addresses[options.name], process.accept)
    async with asyncio.TaskGroup() as tasks:
        for peer, address in sorted(options.addresses.items()):
            if peer != options.name:
                tasks.create_task(process.keep_link(peer, address))
        tasks.create_task(process.tick())
        tasks.create_task(process.work())


class _Inlet:
    """The owner of one link: hands what comes to the process."""

    def __init__(self, process: "_Process", link: Link) -> None:
        self._process = process
        self.link = link
        self.closed = asyncio.Event()

    def frame_received(self, frame: bytes) -> None:
        self._process.take_in(decode(frame), self.link)

    def link_closed(self, cause: str) -> None:  # noqa: ARG002  # why it ended changes nothing here
        self.closed.set()


class _Process:
    def __init__(
        self, environment: Environment, options: RegisterOptions, replica: RegisterReplica, store: RegisterStore
    ) -> None:
        self._environment = environment
        self._name = options.name
        self._replica = replica
        self._store = store
        self._links: dict[str, Link] = {}
        self._inbox: list[RegisterEnvelope] = []
        self._woken = asyncio.Event()

    def accept(self, link: Link) -> _Inlet:
        return _Inlet(self, link)

    def take_in(self, envelope: RegisterEnvelope, link: Link) -> None:
        if isinstance(envelope.message, RegisterRequest):
            self._links[envelope.sender] = link  # a client is answered where it asked last
        if len(self._inbox) < INBOX_MAX:
            self._inbox.append(envelope)
        self._woken.set()

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._woken.set()

    async def work(self) -> None:
        """One step after another: what a step decided is durable before anybody hears of it."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            inbox, self._inbox = self._inbox, []
            now_ms = self._environment.clock.boot_ms()
            for envelope in inbox:
                self._replica.receive(envelope.sender, envelope.message, now_ms)
            self._replica.tick(now_ms)
            await self._carry_out(self._replica.take())

    async def _carry_out(self, effects: RegisterEffects) -> None:
        if effects.held is not None:
            await self._store.save(effects.held)
        for target, message in effects.sends:
            self._send(target, message)

    def _send(self, target: str, message: RegisterMessage) -> None:
        link = self._links.get(target)
        if link is not None:
            link.send(encode(RegisterEnvelope(self._name, message)))

    async def keep_link(self, peer: str, address: Address) -> None:
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):
                    inlet = await self._connect(address)
            except (Unreachable, TimeoutError):
                await asyncio.sleep(RECONNECT_S)
                continue
            self._links[peer] = inlet.link
            await inlet.closed.wait()

    async def _connect(self, address: Address) -> _Inlet:
        inlets: list[_Inlet] = []

        def on_open(link: Link) -> _Inlet:
            inlets.append(_Inlet(self, link))
            return inlets[0]

        await self._environment.transport.connect(address, on_open)
        return inlets[0]
