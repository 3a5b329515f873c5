"""The default adversary, and a gentle one to show why it is not the default.

A gentle adversary (one machine down from time to time, frames complete and in order) finds almost nothing: consensus
bugs need a one-way cut, a crash between two syncs and a late frame within the same second.
"""

import dataclasses
from collections.abc import Sequence

from ebla.sim.faults import devices, links, processes, timed_crashes
from ebla.sim.faults.fault import InjectedFault, storm
from ebla.sim.world import Unit, World

PROCESS_FAULTS = (
    InjectedFault("crash", 3.0, processes.crash),
    InjectedFault("crash and back", 3.0, processes.crash_and_restart),
    InjectedFault("kill", 1.0, processes.kill),
    InjectedFault("power cut", 1.5, processes.power_cut),
    InjectedFault("crash in sync", 2.0, timed_crashes.crash_during_sync),
    InjectedFault("crash while unheard", 2.0, timed_crashes.crash_with_lost_frames),
    InjectedFault("pause", 1.5, processes.pause),
    InjectedFault("start the down", 4.0, processes.restart_down),
)
LINK_FAULTS = (
    InjectedFault("cut one way", 3.0, links.cut_one_way),
    InjectedFault("isolate", 2.0, links.isolate),
    InjectedFault("partition", 2.0, links.partition),
    InjectedFault("slow", 1.0, links.slow),
    InjectedFault("clog", 1.5, links.clog),
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
HARSH = PROCESS_FAULTS + LINK_FAULTS + DEVICE_FAULTS
GENTLE = (InjectedFault("kill", 1.0, processes.kill),)


async def harsh(
    world: World, units: Sequence[Unit], seconds: float, faults: Sequence[InjectedFault] = HARSH, pause_s: float = 0.7
) -> None:
    """Frames are lost, repeated and reordered all the time, and a fault strikes about every `pause_s` seconds.

    At the end everything is healed and every unit of `units` runs. Other mixes: `faults=HARSH + (BIT_ROT,)`,
    `faults=LINK_FAULTS`, or a scenario's own faults.
    """
    calm = world.network.conditions
    world.network.conditions = dataclasses.replace(calm, loss=0.02, duplicate=0.03, reorder=0.08, tail=0.03)
    try:
        await storm(world, units, faults, seconds, pause_s)
    finally:
        world.network.conditions = calm


async def gentle(world: World, units: Sequence[Unit], seconds: float) -> None:
    """One process killed every ten seconds, on a perfect network. For comparison only."""
    await storm(world, units, GENTLE, seconds, pause_s=10.0)
