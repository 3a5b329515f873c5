"""Units, machines and incarnations."""

import asyncio

import pytest
from tests.async_tests import runs_in

from ebla.ports.environment import Environment
from ebla.sim.world import RunFailed, UnitState, World


async def idle(environment: Environment) -> None:
    await asyncio.Event().wait()


@runs_in(lambda work: World(1, 10.0).run(work))
async def test_units_of_one_machine_share_its_disk_and_its_power(world: World, /) -> None:
    control = world.unit("control", idle, machine="node")
    shard = world.unit("shard", idle, machine="node")
    other = world.unit("other", idle)
    assert control.machine is shard.machine is world.machine("node")
    assert control.host != other.host
    assert control.address(7) == shard.address(7)
    for unit in (control, shard, other):
        unit.start()
    await asyncio.sleep(1.0)
    shard.kill()
    assert (control.state, shard.state) == (UnitState.RUNNING, UnitState.DOWN)
    shard.start()
    shard.crash()
    assert control.down
    assert shard.down
    assert other.running
    control.start()
    control.pause()
    control.crash()
    control.resume()
    assert control.down
    assert control.start_count == 2


def test_a_failed_check_fails_the_run() -> None:
    async def scenario(world: World) -> None:
        world.check(True, "fine")
        world.check(world.now() > 0.0, "no time has passed")

    with pytest.raises(RunFailed, match="no time has passed"):
        World(1, 10.0).run(scenario)


def test_a_failure_told_from_inside_a_unit_ends_the_run() -> None:
    async def scenario(world: World) -> None:
        async def main(environment: Environment) -> None:
            await asyncio.sleep(1.0)
            world.fail("two leaders in term 4")
            world.fail("only the first counts")
            await asyncio.sleep(1.0)

        world.unit("one", main).start()
        await asyncio.sleep(100.0)

    world = World(1, 10.0)
    with pytest.raises(RunFailed, match="two leaders in term 4"):
        world.run(scenario)
    assert world.now() == 1.0
    assert "FAILS: two leaders" in world.trace.lines[-1]


def test_a_unit_has_new_chance_in_every_life_and_the_same_in_every_run() -> None:
    def drawn() -> list[float]:
        numbers: list[float] = []

        async def main(environment: Environment) -> None:
            numbers.append(environment.rng.random())
            await asyncio.Event().wait()

        async def scenario(world: World) -> None:
            unit = world.unit("one", main)
            for _ in range(3):
                unit.start()
                await asyncio.sleep(1.0)
                unit.crash()

        World(9, 10.0).run(scenario)
        return numbers

    assert len(set(drawn())) == 3
    assert drawn() == drawn()
