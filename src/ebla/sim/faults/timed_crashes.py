"""Crashes at bad moments. A crash at a random time rarely falls between a decision and its sync, or between two frames
that should arrive together. So the moment is stretched first, and the crash comes within it."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

from ebla.sim.disk import DiskFault
from ebla.sim.network import PathFault
from ebla.sim.world import Unit, World


async def crash_during_sync(world: World, units: Sequence[Unit]) -> None:
    """Some or all machines lose power while every sync takes long. A process that answered before its sync is
    caught."""
    struck = list(units) if world.rng.happens(0.6) else [world.rng.choice(units)]
    sync_ms = world.rng.between(20.0, 250.0)
    world.log("faults", f"syncs of {_names(struck)} need {sync_ms:.0f} ms until they crash")
    with ExitStack() as faults:
        for unit in struck:
            faults.enter_context(unit.machine.disk.inject(DiskFault(sync_ms=sync_ms)))
        await asyncio.sleep(world.rng.between(0.0, 0.5))
        for unit in struck:
            unit.crash()
    await _back(world, struck)


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
    await asyncio.sleep(world.rng.exponential(0.7))
    await _back(world, [unit])


async def _back(world: World, units: Sequence[Unit]) -> None:
    for unit in units:
        await asyncio.sleep(world.rng.exponential(0.1))
        if unit.down:
            unit.start()


def _names(units: Sequence[Unit]) -> str:
    return ", ".join(unit.name for unit in units)
