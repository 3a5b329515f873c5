"""A replicated register under every fault, judged by what its clients saw."""

import asyncio
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from ebla.model.errors import Unreachable
from ebla.model.identity import Address
from ebla.ports.environment import Environment
from ebla.ports.transport import Link
from ebla.sim.checkers.history import OperationHistory
from ebla.sim.checkers.linearizability import find_violation
from ebla.sim.checkers.models import RegisterAdd, RegisterCall, RegisterModel, RegisterRead, RegisterWrite
from ebla.sim.faults.harsh import harsh
from ebla.sim.register import (
    NotPrimary,
    RegisterAnswer,
    RegisterEnvelope,
    RegisterOptions,
    RegisterRequest,
    decode,
    encode,
    register_process,
)
from ebla.sim.scenario import Scenario
from ebla.sim.world import World

REPLICAS = ("r1", "r2", "r3")
CLIENTS = ("c1", "c2", "c3", "c4", "c5", "c6")
PORT = 7000
CALM_S = 30.0
CONNECT_S = 0.5
ANSWER_S = 0.4
THINK_S = 0.15
GIVE_UP_SHARE = 0.02
"""How often a client gives up and never learns the outcome of its call."""


@dataclass(slots=True, kw_only=True)
class RegisterLoad:
    """What all clients share. They begin no new call once `stopping` is set."""

    addresses: Mapping[str, Address]
    history: OperationHistory
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: bool = False
    calls_open: int = 0

    def call_ended(self) -> None:
        self.calls_open -= 1
        if self.stopping and not self.calls_open:
            self.idle.set()

    async def stop(self, seconds: float) -> int:
        """Lets the open calls end. Returns how many did not within `seconds`."""
        self.stopping = True
        if self.calls_open:
            try:
                async with asyncio.timeout(seconds):
                    await self.idle.wait()
            except TimeoutError:
                pass
        return self.calls_open


class _Reception:
    """The client's end of a link: accepts the answer to the call it expects, and ignores late ones."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.message: RegisterAnswer | NotPrimary | None = None
        self.open = True
        self._number = 0

    def expect(self, number: int) -> None:
        self._number = number
        self.message = None
        self.arrived.clear()

    def frame_received(self, frame: bytes) -> None:
        message = decode(frame).message
        if isinstance(message, RegisterAnswer | NotPrimary) and message.number == self._number:
            self.message = message
            self.arrived.set()

    def link_closed(self, cause: str) -> None:  # noqa: ARG002  # the cause does not matter here
        self.open = False
        self.arrived.set()


class RegisterClient:
    """One call at a time, repeated under its number until it is answered."""

    def __init__(self, environment: Environment, name: str, load: RegisterLoad) -> None:
        self._environment = environment
        self._name = name
        self._load = load
        self._links: dict[str, tuple[Link, _Reception]] = {}
        self._number = 0
        self._primary = ""

    async def run(self) -> None:
        rng = self._environment.rng
        while not self._load.stopping:
            self._load.calls_open += 1
            await self._call_once()
            self._load.call_ended()
            await asyncio.sleep(rng.random() * THINK_S)
        await asyncio.Event().wait()

    async def _call_once(self) -> None:
        rng, history = self._environment.rng, self._load.history
        call = _draw_call(rng.randrange(0, 100), rng.randrange(1, 1000))
        patience = rng.randrange(1, 6) if rng.random() < GIVE_UP_SHARE else None
        self._number += 1
        operation = history.invoke(self._name, call)
        while patience is None or patience > 0:
            result = await self._attempt(call)
            if result is not None:
                history.complete(operation, result)
                return
            patience = None if patience is None or self._load.stopping else patience - 1

    async def _attempt(self, call: RegisterCall) -> int | None:
        """One request to one replica. None if there was no answer, whatever became of the request."""
        target = self._primary or self._environment.rng.choice(sorted(self._load.addresses))
        self._primary = ""
        connection = await self._connection(target)
        if connection is None:
            return None
        link, reception = connection
        reception.expect(self._number)
        link.send(encode(RegisterEnvelope(self._name, RegisterRequest(self._name, self._number, call))))
        try:
            async with asyncio.timeout(ANSWER_S):
                await reception.arrived.wait()
        except TimeoutError:
            return None
        match reception.message:
            case RegisterAnswer(_, _, result):
                self._primary = target
                return result
            case NotPrimary(_, _, primary):
                self._primary = primary
                await asyncio.sleep(0.02 if primary else 0.1)
        return None

    async def _connection(self, target: str) -> tuple[Link, _Reception] | None:
        found = self._links.get(target)
        if found is not None and found[1].open:
            return found
        reception = _Reception()
        try:
            async with asyncio.timeout(CONNECT_S):
                link = await self._environment.transport.connect(self._load.addresses[target], lambda _: reception)
        except (Unreachable, TimeoutError):
            await asyncio.sleep(0.05)
            return None
        self._links[target] = (link, reception)
        return link, reception


def _draw_call(kind: int, number: int) -> RegisterCall:
    """Amounts differ, so that a value shows which changes it contains: equal ones could be mistaken for each other."""
    if kind < 40:
        return RegisterRead()
    return RegisterWrite(number * 1_000_000) if kind < 50 else RegisterAdd(number)


# ---- the scenario


async def run(world: World) -> None:
    load = await start(world)
    replicas = [world.units[name] for name in REPLICAS]
    await harsh(world, replicas, world.seconds)
    await judge(world, load)


async def start(world: World) -> RegisterLoad:
    addresses: dict[str, Address] = {}
    for name in REPLICAS:
        main = functools.partial(register_process, options=RegisterOptions(name, addresses))
        addresses[name] = world.unit(name, main).address(PORT)
    load = RegisterLoad(addresses=addresses, history=OperationHistory())
    for name in CLIENTS:
        world.unit(name, functools.partial(_client, name=name, load=load))
    for unit in world.units.values():
        unit.start()
    return load


async def _client(environment: Environment, name: str, load: RegisterLoad) -> None:
    await RegisterClient(environment, name, load).run()


async def judge(world: World, load: RegisterLoad) -> None:
    """Without faults every call must be answered, and some order must explain all answers."""
    unanswered = await load.stop(CALM_S)
    world.check(unanswered == 0, f"{unanswered} calls are still unanswered {CALM_S:.0f} s after all was healed")
    operations = load.history.operations()
    violation = find_violation(operations, RegisterModel())
    world.check(violation is None, str(violation))
    known = sum(operation.returned is not None for operation in operations)
    world.log("scenario", f"{known} answered calls of {len(operations)} are linearizable")


SCENARIO = Scenario(
    name="register", summary="a replicated register is linearizable under every fault", seconds=20.0, run=run
)
