"""Calls between processes under every fault: none runs twice, none outlives its deadline, no error hides an effect.

Every call carries a unique token and is never repeated by its caller. `sim/checkers/calls.py` has the invariants, which
hold whatever the network, crashes and pauses do.
"""

import asyncio
import functools
import uuid

import msgspec

from ebla.model.errors import EblaError
from ebla.model.identity import Address, ClusterId, HostId
from ebla.observe.event_reporter import discard_event
from ebla.ports.environment import Environment
from ebla.sim.checkers.calls import CallLedger
from ebla.sim.clients import peers_context
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.world import World
from ebla.wire.frames import Introduction, Lane
from ebla.wire.limits import WireLimits
from ebla.wire.peers import Peers
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import Verb

SERVERS = 3
PORT = 7000
CALLERS = 16
DEADLINE_MS = 800
LATE_MS = 50
LIMITS = WireLimits(in_flight_requests_max=4, running_requests_max=6, admission_wait_ms=200, connect_ms=1500)


class CallToken(msgspec.Struct, frozen=True, array_like=True):
    token: int
    work_ms: int = 0


ACT = Verb(number=9201, name="act", lane=Lane.DATA, request=CallToken, answer=CallToken)


def introduction(number: int) -> Introduction:
    return Introduction(
        host=HostId(uuid.UUID(int=number + 1)), cluster=ClusterId(uuid.UUID(int=99)), cluster_name="wire"
    )


async def server(environment: Environment, address: Address, who: Introduction, ledger: CallLedger) -> None:
    async def act(request: CallToken, _call: IncomingCall) -> CallToken:
        ledger.ran(request.token)
        await asyncio.sleep(request.work_ms / 1000)
        if request.work_ms > DEADLINE_MS:
            ledger.outlived(request.token)
        return request

    async with asyncio.TaskGroup() as tasks:
        served = Server(tasks, who, discard_event, LIMITS)
        served.serve(ACT, act)
        await environment.transport.listen(address, served.accept)
        await asyncio.Event().wait()


async def caller(world: World, peers: Peers, ledger: CallLedger, first_token: int, until: float) -> None:
    loop = asyncio.get_running_loop()
    token = first_token
    while world.now() < until:
        token += CALLERS
        target = introduction(world.rng.randrange(0, SERVERS)).host
        work_ms = world.rng.choice((0, 0, 5, 50, 2 * DEADLINE_MS))
        began = loop.time()
        try:
            if world.rng.random() < 0.1:
                await _give_up(peers, target, CallToken(token, work_ms), world.rng.random())
            else:
                answer = await peers.call(target, ACT, CallToken(token, work_ms), DEADLINE_MS)
                ledger.was_answered(token, answer.token)
        except EblaError as error:
            ledger.failed(token, error)
        ledger.ended(token, (loop.time() - began) * 1000, DEADLINE_MS)
        await asyncio.sleep(world.rng.random() * 0.05)


async def _give_up(peers: Peers, target: HostId, request: CallToken, patience_s: float) -> None:
    """A caller that is cancelled."""
    try:
        async with asyncio.timeout(patience_s * DEADLINE_MS / 2000):
            await peers.call(target, ACT, request, DEADLINE_MS)
    except TimeoutError:
        return


async def run(world: World) -> None:
    ledger = CallLedger(world.fail, LATE_MS)
    units = []
    for number in range(SERVERS):
        who = introduction(number)
        name = f"s{number}"
        address = Address(world.machine(name).host, PORT)
        main = functools.partial(server, address=address, who=who, ledger=ledger)
        units.append(world.unit(name, main, host_id=who.host))
    for unit in units:
        unit.start()
    ours = introduction(SERVERS)
    environment = world.scenario_environment("callers", ours.host)
    until = world.now() + world.seconds + 5.0
    async with asyncio.TaskGroup() as tasks:
        peers = Peers(tasks, peers_context(environment, ours, limits=LIMITS))
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
    world.log("scenario", f"answered {ledger.answered}, refused {ledger.refused}, unknown {ledger.unknown}")


SCENARIO = Scenario(name="wire", summary="calls between processes under every fault", seconds=30.0, run=run)
