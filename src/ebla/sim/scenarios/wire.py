"""Calls between processes under every fault: none runs twice, none outlives its deadline, no error understates.

Every call carries a token of its own and is never repeated by its caller. Servers note which tokens they ran, on a
list outside their lives. What must hold, whatever the network, the crashes and the pauses do:

    INV-WIRE-1  a request runs at most once
    INV-WIRE-2  an error that says "not applied" is of a request that never ran
    INV-WIRE-3  an answer is the answer to its own request
    INV-WIRE-4  a call ends by its deadline
    INV-WIRE-5  work whose deadline has passed does not go on
"""

import asyncio
import uuid
from dataclasses import dataclass, field

import msgspec

from ebla.model.errors import EblaError, Outcome
from ebla.model.identity import Address, ClusterId, HostId
from ebla.ports.surroundings import Surroundings
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.world import World
from ebla.wire.frames import Introduction, Lane
from ebla.wire.limits import WireLimits
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.report import unreported
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import Verb

SERVERS = 3
PORT = 7000
CALLERS = 16
DEADLINE_MS = 800
LATE_MS = 50
"""How much later than its deadline a call may end: what the slack of the shared timer and a turn of the loop take."""
LIMITS = WireLimits(in_flight_requests_max=4, running_requests_max=6, admission_wait_ms=200, connect_ms=1500)


class Token(msgspec.Struct, frozen=True, array_like=True):
    token: int
    work_ms: int = 0


ACT = Verb(9201, "act", Lane.DATA, Token, Token)


def introduction(number: int) -> Introduction:
    return Introduction(HostId(uuid.UUID(int=number + 1)), ClusterId(uuid.UUID(int=99)), "wire")


@dataclass
class Ledger:
    """What really happened, seen from outside every life."""

    world: World
    ran: dict[int, int] = field(default_factory=dict)
    not_applied: dict[int, str] = field(default_factory=dict)
    answered: int = 0
    unknown: int = 0

    def run(self, token: int) -> None:
        self.ran[token] = self.ran.get(token, 0) + 1
        if self.ran[token] > 1:
            self.world.fail(f"INV-WIRE-1: request {token} ran {self.ran[token]} times")
        if token in self.not_applied:
            self.world.fail(f"INV-WIRE-2: request {token} ran after its caller was told {self.not_applied[token]}")

    def failed(self, token: int, error: EblaError) -> None:
        if error.outcome is not Outcome.NOT_APPLIED:
            self.unknown += 1
            return
        self.not_applied[token] = f"{type(error).__name__}: {error}"
        if token in self.ran:
            self.world.fail(f"INV-WIRE-2: request {token} ran, its caller was told {self.not_applied[token]}")


async def server(around: Surroundings, address: Address, who: Introduction, ledger: Ledger) -> None:
    async def act(request: Token, _call: IncomingCall) -> Token:
        ledger.run(request.token)
        await asyncio.sleep(request.work_ms / 1000)
        if request.work_ms > DEADLINE_MS:
            ledger.world.fail(f"INV-WIRE-5: request {request.token} still ran after its deadline")
        return request

    async with asyncio.TaskGroup() as tasks:
        served = Server(tasks, who, LIMITS, unreported)
        served.serve(ACT, act)
        await around.transport.listen(address, served.accept)
        await asyncio.Event().wait()


async def caller(world: World, peers: Peers, ledger: Ledger, first_token: int, until: float) -> None:
    loop = asyncio.get_running_loop()
    token = first_token
    while world.now() < until:
        token += CALLERS
        target = introduction(world.chance.randrange(0, SERVERS)).host
        work_ms = world.chance.choice((0, 0, 5, 50, 2 * DEADLINE_MS))
        began = loop.time()
        try:
            if world.chance.random() < 0.1:
                await _give_up(peers, target, Token(token, work_ms), world.chance.random())
            else:
                answer = await peers.call(target, ACT, Token(token, work_ms), DEADLINE_MS)
                world.check(answer.token == token, f"INV-WIRE-3: {token} was answered with {answer.token}")
                ledger.answered += 1
        except EblaError as error:
            ledger.failed(token, error)
        took_ms = (loop.time() - began) * 1000
        world.check(took_ms <= DEADLINE_MS + LATE_MS, f"INV-WIRE-4: request {token} took {took_ms:.0f} ms")
        await asyncio.sleep(world.chance.random() * 0.05)


async def _give_up(peers: Peers, target: HostId, request: Token, patience_s: float) -> None:
    """A caller that is cancelled, now and then."""
    try:
        async with asyncio.timeout(patience_s * DEADLINE_MS / 2000):
            await peers.call(target, ACT, request, DEADLINE_MS)
    except TimeoutError:
        return


async def run(world: World) -> None:
    ledger = Ledger(world)
    units = []
    for number in range(SERVERS):
        who = introduction(number)
        name = f"s{number}"
        address = Address(world.machine(name).host, PORT)
        units.append(
            world.unit(
                name,
                lambda around, address=address, who=who: server(around, address, who, ledger),  # type: ignore[misc]
                host_id=who.host,
            )
        )
    for unit in units:
        unit.start()
    ours = introduction(SERVERS)
    around = world.outside("callers", ours.host)
    until = world.now() + world.seconds + 5.0
    async with asyncio.TaskGroup() as tasks:
        peers = Peers(tasks, PeersContext(around.transport, around.chance, ours, LIMITS, unreported))
        for number, unit in enumerate(units):
            peers.set_address(introduction(number).host, unit.address(PORT))
        calls = [tasks.create_task(caller(world, peers, ledger, number, until)) for number in range(CALLERS)]
        await harsh(world, units, world.seconds)
        before = ledger.answered
        await asyncio.wait(calls)
        for call in calls:
            call.result()
        peers.close("the run is over")
    world.check(ledger.answered > before, "no call is answered after all was healed")
    world.tell("scenario", f"answered {ledger.answered}, refused {len(ledger.not_applied)}, unknown {ledger.unknown}")


SCENARIO = Scenario("wire", "calls between processes under every fault", seconds=30.0, run=run)
