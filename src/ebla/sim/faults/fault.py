"""What a fault is, and the storm that lets many of them strike."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ebla.sim.world import Unit, World

Inject = Callable[[World, Sequence[Unit]], Awaitable[None]]
"""Strikes some of the units, holds for a drawn time, and heals what it did, also when it is cancelled. Only that:
another one may hold the same path or device, and must not end with it."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    name: str
    weight: float
    strike: Inject


async def storm(
    world: World, units: Sequence[Unit], faults: Sequence[InjectedFault], seconds: float, pause_s: float
) -> None:
    """Lets a fault strike about every `pause_s` seconds, each for its own time, so that several overlap.

    Ends with everything healed and every unit running.
    """
    rng = world.rng.fork("storm")
    ends_at = world.now() + seconds
    try:
        async with asyncio.timeout(seconds):
            async with asyncio.TaskGroup() as strikes:
                while world.now() < ends_at:
                    await asyncio.sleep(min(rng.exponential(pause_s), pause_s * 4))
                    fault = rng.weighted(faults, [fault.weight for fault in faults])
                    strikes.create_task(_strike(world, units, fault), name=fault.name)
    except TimeoutError:
        pass
    heal(world, units)


async def _strike(world: World, units: Sequence[Unit], fault: InjectedFault) -> None:
    await fault.strike(world, units)


def heal(world: World, units: Sequence[Unit]) -> None:
    """Takes every fault away and starts what is down."""
    world.heal()
    for unit in units:
        if unit.down:
            unit.start()
    world.log("faults", "all is healed")


def choose_some(world: World, units: Sequence[Unit]) -> list[Unit]:
    """At least one of them, seldom all."""
    count = 1
    while count < len(units) and world.rng.happens(0.3):
        count += 1
    return world.rng.sample(units, count)
