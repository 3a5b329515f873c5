"""Faults and the storms that inject them. `harsh` is the default adversary.

A gentle adversary (one machine down from time to time, frames complete and in order) finds almost nothing: consensus
bugs need a one-way cut, a crash between two syncs and a late frame within the same second.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ebla.sim.faults import devices, links, processes
from ebla.sim.world import Unit, World

Inject = Callable[[World, Sequence[Unit]], Coroutine[Any, Any, None]]
"""Strikes some of the units, lasts for a random time, and undoes its own effect, also when it is cancelled. Only its
own: another fault may affect the same path or device, and must not end with it."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    name: str
    weight: float
    strike: Inject


PROCESS_FAULTS = (
    InjectedFault("crash", 3.0, processes.crash),
    InjectedFault("crash and back", 3.0, processes.crash_and_restart),
    InjectedFault("kill", 1.0, processes.kill),
    InjectedFault("power cut", 1.5, processes.power_cut),
    InjectedFault("crash in sync", 2.0, processes.crash_during_sync),
    InjectedFault("crash while unheard", 2.0, processes.crash_with_lost_frames),
    InjectedFault("pause", 1.5, processes.pause),
    InjectedFault("start the down", 4.0, processes.restart_down),
)
LINK_FAULTS = (
    InjectedFault("cut one way", 3.0, links.cut_one_way),
    InjectedFault("isolate", 2.0, links.isolate),
    InjectedFault("partition", 2.0, links.partition),
    InjectedFault("slow", 1.0, links.slow),
    InjectedFault("clog", 1.5, links.clog_one_way),
    InjectedFault("lossy", 1.0, links.lossy),
    InjectedFault("reset", 1.0, links.reset),
)
DEVICE_FAULTS = (
    InjectedFault("slow sync", 1.5, devices.slow_sync),
    InjectedFault("failing sync", 0.7, devices.failing_sync),
    InjectedFault("full", 0.7, devices.full),
    InjectedFault("clock jump", 1.0, devices.clock_jump),
)
BIT_ROT = InjectedFault("bit rot", 0.5, devices.bit_rot)
FREEZE = InjectedFault("freeze", 2.0, devices.freeze)
HARSH = PROCESS_FAULTS + LINK_FAULTS + DEVICE_FAULTS


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
                    strikes.create_task(fault.strike(world, units), name=fault.name)
    except TimeoutError:
        pass
    heal(world, units)


def heal(world: World, units: Sequence[Unit]) -> None:
    """Ends every fault and starts the units that are down."""
    world.heal()
    for unit in units:
        if unit.down:
            unit.start()
    world.log("faults", "all is healed")


async def harsh(
    world: World, units: Sequence[Unit], seconds: float, faults: Sequence[InjectedFault] = HARSH, pause_s: float = 0.7
) -> None:
    """Frames are lost, repeated and reordered all the time, and a fault strikes about every `pause_s` seconds.

    At the end everything is healed and every unit of `units` runs. Other mixes: `faults=HARSH + (BIT_ROT,)`,
    `faults=LINK_FAULTS`, or a scenario's own faults.
    """
    calm = world.network.conditions
    world.network.conditions = replace(calm, loss=0.02, duplicate=0.03, reorder=0.08, tail=0.03)
    try:
        await storm(world, units, faults, seconds, pause_s)
    finally:
        world.network.conditions = calm
