"""Clocks beyond every bound: boot clocks that run at very different rates, and machines that stand still with their
clocks. Two leaders may act at once then. A node still has one promise, an old order does nothing, and rows, sessions
and group 0 stay correct, because they do not rely on leases alone."""

import asyncio

from ebla.sim.faults.harsh import FREEZE, HARSH, storm
from ebla.sim.scenario import Scenario
from ebla.sim.scenarios import rows, sessions
from ebla.sim.scenarios.leadership import run_under
from ebla.sim.workloads.leadership_work import ClockBounds
from ebla.sim.world import World

BEYOND_BOUND = ClockBounds(rates=(0.5, 2.0), keeps_effects=False)
FREEZE_PAUSE_S = 6.0


async def run(world: World) -> None:
    other = world.rng.choice((None, None, rows.SCENARIO, sessions.SCENARIO))
    if other is None:
        await run_under(world, BEYOND_BOUND, (*HARSH, FREEZE))
        return
    world.boot_rates = BEYOND_BOUND.rates
    world.seconds = other.seconds
    world.log("scenario", f"{other.name} under such clocks")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_freeze(world))
        await other.run(world)


async def _freeze(world: World) -> None:
    """Begins once the units exist, and ends before the other scenario heals everything and judges."""
    await asyncio.sleep(0.1)
    controls = [unit for unit in world.units.values() if unit.name == unit.machine.name]
    await storm(world, controls, (FREEZE,), world.seconds, FREEZE_PAUSE_S)


SCENARIO = Scenario(
    name="leadership_clocks",
    summary="one promise per node and correct data, whatever the clocks do",
    seconds=60.0,
    run=run,
)
