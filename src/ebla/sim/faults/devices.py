"""Faults of disks and clocks."""

import asyncio
from collections.abc import Sequence

from ebla.sim.disk import DiskFault
from ebla.sim.world import Unit, World

JUMP_US_MAX = 3_600_000_000


async def slow_sync(world: World, units: Sequence[Unit]) -> None:
    """Syncs take so long that an answer before the sync is noticed."""
    unit = world.rng.choice(units)
    extra_latency_ms = world.rng.between(50.0, 1500.0)
    world.log("faults", f"the disk of {unit.name} needs {extra_latency_ms:.0f} ms more for a sync")
    with unit.machine.disk.inject(DiskFault(sync_ms=extra_latency_ms)):
        await asyncio.sleep(world.rng.exponential(3.0))


async def failing_sync(world: World, units: Sequence[Unit]) -> None:
    unit = world.rng.choice(units)
    probability = world.rng.choice((0.05, 0.5, 1.0))
    world.log("faults", f"syncs of {unit.name} fail")
    with unit.machine.disk.inject(DiskFault(fail_sync=probability)):
        await asyncio.sleep(world.rng.exponential(1.0))


async def full(world: World, units: Sequence[Unit]) -> None:
    unit = world.rng.choice(units)
    left_bytes = world.rng.randrange(0, 2000)
    world.log("faults", f"the disk of {unit.name} has {left_bytes} bytes left")
    disk = unit.machine.disk
    with disk.inject(DiskFault(capacity_bytes=disk.used_bytes() + left_bytes)):
        await asyncio.sleep(world.rng.exponential(2.0))


async def bit_rot(world: World, units: Sequence[Unit]) -> None:
    """One bit of one durable file. Never in the default mix: only for a subject that promises to detect it."""
    unit = world.rng.choice(units)
    where = unit.machine.disk.rot()
    if where is not None:
        world.log("faults", f"a bit of {unit.name}:{where} rots")


async def clock_jump(world: World, units: Sequence[Unit]) -> None:
    unit = world.rng.choice(units)
    by_us = world.rng.randrange(-JUMP_US_MAX, JUMP_US_MAX)
    world.log("faults", f"the wall clock of {unit.name} jumps by {by_us / 1e6:+.1f} s")
    unit.machine.clock.jump(by_us)


async def freeze(world: World, units: Sequence[Unit]) -> None:
    """A machine and its clocks pause, like a paused virtual machine. Never in the default mix: it breaks
    every bound on the rates of clocks."""
    machine = world.rng.choice(units).machine
    struck = [unit for unit in world.units.values() if unit.machine is machine and unit.running]
    world.log("faults", f"{machine.name} is frozen with its clocks")
    machine.clock.freeze()
    for unit in struck:
        unit.pause()
    try:
        await asyncio.sleep(world.rng.exponential(8.0))
    finally:
        machine.clock.thaw()
        for unit in struck:
            unit.resume()
