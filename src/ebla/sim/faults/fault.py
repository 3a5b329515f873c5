"""The type of a fault, and the storm that injects many of them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ebla.sim.world import Unit, World

Inject = Callable[[World, Sequence[Unit]], Awaitable[None]]
"""Strikes some of the units, lasts for a random time, and undoes its own effect, also when it is cancelled. Only its
own: another fault may affect the same path or device, and must not end with it."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    name: str
    weight: float
    strike: Inject


async def storm(
    world: World, units: Sequence[Unit], faults: Sequence[InjectedFault], seconds: float, pause_s: float
) -> None:
    """Injects a fault about every `pause_s` seconds. Each lasts for its own time, so that several overlap.

    At the end everything is healed and every unit runs.
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
    """Ends every fault and starts the units that are down."""
    world.heal()
    for unit in units:
        if unit.down:
            unit.start()
    world.log("faults", "all is healed")


def choose_some(world: World, units: Sequence[Unit]) -> list[Unit]:
    """At least one of them, rarely all."""
    count = 1
    while count < len(units) and world.rng.happens(0.3):
        count += 1
    return world.rng.sample(units, count)
