"""A replicated register under every fault, judged by what its clients saw."""

import functools

from ebla.model.identity import Address
from ebla.ports.environment import Environment
from ebla.sim.checkers.history import OperationHistory
from ebla.sim.checkers.linearizability import find_violation
from ebla.sim.checkers.models import RegisterModel
from ebla.sim.example.process import RegisterOptions, register_process
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.workloads.register_client import RegisterClient, RegisterLoad
from ebla.sim.world import World

REPLICAS = ("r1", "r2", "r3")
CLIENTS = ("c1", "c2", "c3", "c4", "c5", "c6")
PORT = 7000
CALM_S = 30.0


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
    """With all faults gone every call must be answered, and some order must explain all answers."""
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
