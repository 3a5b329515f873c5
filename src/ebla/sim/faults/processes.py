"""Faults of processes and machines: they crash, are killed, pause, or all lose power at once."""

import asyncio
from collections.abc import Sequence

from ebla.sim.faults.fault import choose_some
from ebla.sim.world import Unit, World


async def crash(world: World, units: Sequence[Unit]) -> None:
    """Power loss of some machines. They restart one by one."""
    for unit in choose_some(world, units):
        unit.crash()
    await _start_again(world, units, world.rng.exponential(1.0))


async def crash_and_restart(world: World, units: Sequence[Unit]) -> None:
    """One machine restarts at once, before its peers can notice: they expect it to remember what it forgot."""
    world.rng.choice(units).crash()
    await _start_again(world, units, world.rng.between(0.0, 0.05))


async def kill(world: World, units: Sequence[Unit]) -> None:
    world.rng.choice(units).kill()
    await _start_again(world, units, world.rng.exponential(0.5))


async def power_cut(world: World, units: Sequence[Unit]) -> None:
    """The whole cluster at one instant: unsynced data is lost everywhere."""
    world.log("faults", "the power fails everywhere")
    for unit in units:
        unit.crash()
    await asyncio.sleep(world.rng.exponential(0.3))
    await _start_again(world, units, 0.0)


async def pause(world: World, units: Sequence[Unit]) -> None:
    unit = world.rng.choice(units)
    unit.pause()
    try:
        await asyncio.sleep(world.rng.exponential(2.0))
    finally:
        unit.resume()


async def restart_down(world: World, units: Sequence[Unit]) -> None:
    """As a supervisor does for processes that exited."""
    await _start_again(world, units, 0.0)


async def _start_again(world: World, units: Sequence[Unit], delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    for unit in units:
        if unit.down:
            unit.start()
            await asyncio.sleep(world.rng.exponential(0.1))
