"""One shard's store under everything a disk and a power supply can do, judged by what it had answered."""

import asyncio
import functools

from ebla.journal.segments import LogFailed
from ebla.sim.checkers.store import Ledger
from ebla.sim.faults import devices, distress, processes
from ebla.sim.faults.fault import Fault
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.workloads.store_shard import GRACE_S, ShardLoad, store_shard
from ebla.sim.world import MAY_END, World
from ebla.storage.manifest import ManifestFailed

CALM_S = 8.0
START_US = 1_000_000_000

FAULTS = (
    Fault("crash", 3.0, processes.crash),
    Fault("crash and back", 3.0, processes.crash_and_back),
    Fault("crash in sync", 3.0, distress.crash_in_sync),
    Fault("kill", 2.0, processes.kill),
    Fault("pause", 0.5, processes.pause),
    Fault("start the down", 4.0, processes.start_the_down),
    Fault("slow sync", 1.0, devices.slow_sync),
    Fault("failing sync", 1.0, devices.failing_sync),
    Fault("full", 2.0, devices.full),
)


async def run(world: World) -> None:
    ledger = Ledger(GRACE_S)
    load = ShardLoad(ledger, lambda: START_US + int(world.now() * 1_000_000), world.fail)
    shard = world.unit("shard", functools.partial(store_shard, load=load))
    shard.may_end = (*MAY_END, LogFailed, ManifestFailed)
    shard.start()
    await harsh(world, [shard], world.seconds, FAULTS, pause_s=1.5)
    answers, checks = ledger.answers, ledger.checks
    await asyncio.sleep(CALM_S)
    world.check(shard.running, "the shard ended although its disk is well")
    world.check(ledger.answers > answers, "no write is answered although all was healed")
    world.check(ledger.checks > checks, "nothing is read although all was healed")
    world.tell("scenario", f"{ledger.answers} answered writes are kept, looked at {ledger.checks} times")


SCENARIO = Scenario("store", "a shard's store keeps what it answered and revives nothing", seconds=30.0, run=run)
