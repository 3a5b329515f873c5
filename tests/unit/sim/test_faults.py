"""Every fault strikes, and heals what it did."""

import asyncio

import pytest

from ebla.ports.surroundings import Surroundings
from ebla.sim.disk import Behaviour
from ebla.sim.faults.fault import Fault
from ebla.sim.faults.harsh import BIT_ROT, GENTLE, HARSH, gentle, harsh
from ebla.sim.network import Conditions, Path
from ebla.sim.world import Unit, World


async def idle(around: Surroundings) -> None:
    file = around.disk.open("/data/f") if around.disk.exists("/data/f") else around.disk.create("/data/f")
    while True:
        await asyncio.sleep(0.05)
        file.append(b"some bytes")
        await file.sync()
        await around.disk.sync_folder("/data")


def units_of(world: World) -> list[Unit]:
    units = [world.unit(name, idle) for name in ("a", "b", "c")]
    world.unit("client", idle)
    for unit in world.units.values():
        unit.start()
    return units


def assert_healed(world: World, units: list[Unit]) -> None:
    assert all(path == Path() for path in world.network._paths.values())
    assert all(unit.machine.disk.behaviour == Behaviour() for unit in units)
    assert all(unit.running or unit.down for unit in units)


@pytest.mark.parametrize("fault", [*HARSH, BIT_ROT], ids=lambda fault: fault.name)
def test_each_fault_heals_what_it_did(fault: Fault) -> None:
    async def scenario(world: World) -> None:
        units = units_of(world)
        await asyncio.sleep(1.0)
        lines = world.narrative.events
        for _ in range(5):
            await fault.strike(world, units)
        assert_healed(world, units)
        assert world.narrative.events > lines or fault.name in ("reset", "start the down"), "a strike is told"

    World(1, 100.0).run(scenario)


@pytest.mark.parametrize("fault", HARSH, ids=lambda fault: fault.name)
def test_a_fault_cut_short_heals_as_well(fault: Fault) -> None:
    async def scenario(world: World) -> None:
        units = units_of(world)
        await asyncio.sleep(1.0)
        try:
            async with asyncio.timeout(0.001):
                await fault.strike(world, units)
        except TimeoutError:
            pass
        assert_healed(world, units)

    World(1, 100.0).run(scenario)


def test_the_harsh_storm_uses_everything_and_ends_in_calm() -> None:
    async def scenario(world: World) -> None:
        units = units_of(world)
        lives = sum(unit.lives for unit in units)
        await harsh(world, units, seconds=120.0)
        assert world.now() == 120.0
        assert_healed(world, units)
        assert all(unit.running for unit in units)
        assert sum(unit.lives for unit in units) > lives + 30
        assert world.network.conditions == Conditions()

    told: list[str] = []
    World(1, 120.0, told.append).run(scenario)
    story = "\n".join(told)
    marks = ("crashes", "is killed", "the power fails", "is paused", "cut:", "slower by", "is clogged", "loses",
             "ms for a sync", "syncs of", "bytes left", "jumps by", "half heard", "until they crash")  # fmt: skip
    assert [mark for mark in marks if mark not in story] == []


def test_the_gentle_one_only_kills() -> None:
    async def scenario(world: World) -> None:
        units = units_of(world)
        await gentle(world, units, seconds=100.0)
        assert sum(unit.lives for unit in units) > 6
        assert all(unit.running for unit in units)

    told: list[str] = []
    World(1, 100.0, told.append).run(scenario)
    assert len(GENTLE) == 1
    assert not any("crashes" in line or "cut" in line for line in told)
