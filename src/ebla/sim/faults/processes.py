"""Faults of processes and machines: they crash, are killed, stop for a while, all lose power at once."""

import asyncio
from collections.abc import Sequence

from ebla.sim.faults.fault import draw_some
from ebla.sim.world import Unit, World


async def crash(world: World, units: Sequence[Unit]) -> None:
    """Power loss of some machines; they come back one by one."""
    for unit in draw_some(world, units):
        unit.crash()
    await _start_again(world, units, world.chance.exponential(1.0))


async def crash_and_back(world: World, units: Sequence[Unit]) -> None:
    """One machine is back at once, before anybody can have noticed: what it forgot is asked of it again."""
    world.chance.choice(units).crash()
    await _start_again(world, units, world.chance.between(0.0, 0.05))


async def kill(world: World, units: Sequence[Unit]) -> None:
    world.chance.choice(units).kill()
    await _start_again(world, units, world.chance.exponential(0.5))


async def power_cut(world: World, units: Sequence[Unit]) -> None:
    """The whole cluster at one instant: whatever nobody synced is gone everywhere."""
    world.tell("faults", "the power fails everywhere")
    for unit in units:
        unit.crash()
    await asyncio.sleep(world.chance.exponential(0.3))
    await _start_again(world, units, 0.0)


async def pause(world: World, units: Sequence[Unit]) -> None:
    unit = world.chance.choice(units)
    unit.pause()
    try:
        await asyncio.sleep(world.chance.exponential(2.0))
    finally:
        unit.resume()


async def start_the_down(world: World, units: Sequence[Unit]) -> None:
    """What a supervisor does for processes that ended themselves."""
    await _start_again(world, units, 0.0)


async def _start_again(world: World, units: Sequence[Unit], delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    for unit in units:
        if unit.down:
            unit.start()
            await asyncio.sleep(world.chance.exponential(0.1))
