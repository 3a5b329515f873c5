"""Faults of processes and machines: they crash, are killed, pause, or all lose power at once."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

from ebla.sim.disk import DiskFault
from ebla.sim.network import PathFault
from ebla.sim.world import Unit, World


async def crash(world: World, units: Sequence[Unit]) -> None:
    """Power loss of some machines. They restart one by one."""
    for unit in _choose_some(world, units):
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


# ---- crashes at bad moments. A crash at a random time rarely falls between a decision and its sync, or between two
# frames that should arrive together. So the moment is stretched first, and the crash comes within it.


async def crash_during_sync(world: World, units: Sequence[Unit]) -> None:
    """Some or all machines lose power while every sync takes long. A process that answered before its sync is
    caught."""
    struck = list(units) if world.rng.happens(0.6) else [world.rng.choice(units)]
    sync_ms = world.rng.between(20.0, 250.0)
    world.log("faults", f"syncs of {', '.join(unit.name for unit in struck)} need {sync_ms:.0f} ms until they crash")
    with ExitStack() as faults:
        for unit in struck:
            faults.enter_context(unit.machine.disk.inject(DiskFault(sync_ms=sync_ms)))
        await asyncio.sleep(world.rng.between(0.0, 0.5))
        for unit in struck:
            unit.crash()
    await _start_again(world, struck, world.rng.exponential(0.1))


async def crash_with_lost_frames(world: World, units: Sequence[Unit]) -> None:
    """One unit crashes after a moment in which its peers received only some of its frames."""
    unit = world.rng.choice(units)
    loss = world.rng.between(0.3, 0.8)
    paths = [world.network.path(unit.name, peer.name) for peer in units if peer is not unit]
    world.log("faults", f"{unit.name} loses frames until it crashes")
    with ExitStack() as faults:
        for path in paths:
            faults.enter_context(path.inject(PathFault(extra_loss=loss)))
        await asyncio.sleep(world.rng.between(0.0, 0.4))
        unit.crash()
    await _start_again(world, [unit], world.rng.exponential(0.7))


async def _start_again(world: World, units: Sequence[Unit], delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    for unit in units:
        if unit.down:
            unit.start()
            await asyncio.sleep(world.rng.exponential(0.1))


def _choose_some(world: World, units: Sequence[Unit]) -> list[Unit]:
    """At least one of them, rarely all."""
    count = 1
    while count < len(units) and world.rng.happens(0.3):
        count += 1
    return world.rng.sample(units, count)
