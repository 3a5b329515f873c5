"""What the clients of a simulated cluster share."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ebla.model.errors import EblaError
from ebla.model.identity import Address
from ebla.observe.event_reporter import EventReporter, discard_event
from ebla.ports.environment import Environment
from ebla.ports.rng import Rng
from ebla.sim.world import Main, World
from ebla.wire.client_connection import ConnectionTarget, RpcClientConnection
from ebla.wire.frames import Introduction, Lane
from ebla.wire.limits import DEFAULT_WIRE_LIMITS, WireLimits
from ebla.wire.peers import PeersContext, connect
from ebla.wire.verbs import A, Q, Verb


@dataclass(slots=True, kw_only=True)
class ClientLoad:
    """Shared by all clients of a run, outside every incarnation. They begin no new call once `stopping` is set."""

    stopping: bool = False
    running: int = 0

    async def keep_calling(self, call: Callable[[], Awaitable[object]], rng: Rng, think_s: float) -> None:
        while not self.stopping:
            self.running += 1
            await call()
            self.running -= 1
            await asyncio.sleep(rng.random() * think_s)
        await asyncio.Event().wait()

    async def stop(self, world: World, seconds: float) -> None:
        """Lets the open calls end. All faults must be healed."""
        self.stopping = True
        ended = await world.wait_for(lambda: not self.running, seconds)
        world.check(ended, f"{self.running} calls are still open {seconds:.0f} s after all was healed")


class SimClient(Protocol):
    def run(self) -> Coroutine[Any, Any, None]: ...


def start_clients(world: World, names: Sequence[str], make: Callable[[Environment, str], SimClient]) -> None:
    """Each on a machine of its own. `make` creates one incarnation."""

    def main(name: str) -> Main:
        return lambda environment: make(environment, name).run()

    for name in names:
        world.unit(name, main(name)).start()


def peers_context(
    environment: Environment,
    introduction: Introduction,
    report: EventReporter = discard_event,
    limits: WireLimits = DEFAULT_WIRE_LIMITS,
) -> PeersContext:
    return PeersContext(
        transport=environment.transport, rng=environment.rng, introduction=introduction, limits=limits, report=report
    )


class NodeConnection:
    """The connection of a client to one of several nodes. After a failure it connects to another one."""

    def __init__(self, context: PeersContext, addresses: Sequence[Address]) -> None:
        self._context = context
        self._addresses = addresses
        self._caller: RpcClientConnection | None = None

    async def call(self, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        try:
            caller = await self.open()
            return await caller.call(verb, request, deadline_ms)
        except EblaError:
            self.leave()
            raise

    async def open(self) -> RpcClientConnection:
        if self._caller is None:
            address = self._context.rng.choice(self._addresses)
            self._caller, _ = await connect(self._context, address, ConnectionTarget(Lane.CONTROL))
        return self._caller

    def leave(self) -> None:
        if self._caller is not None:
            self._caller.close("on to another node")
        self._caller = None
