"""One shard's store under every fault of disk and power, judged by what it has answered."""

import asyncio
import functools

from ebla.journal.segmented_log import LogFailed
from ebla.sim.checkers.store import StoreLedger
from ebla.sim.faults import devices, processes, timed_crashes
from ebla.sim.faults.fault import InjectedFault
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.workloads.store_shard import GRACE_S, StoreShardLoad, store_shard
from ebla.sim.world import EXPECTED_ERRORS, World
from ebla.storage.manifest import ManifestFailed

CALM_S = 8.0
START_US = 1_000_000_000

FAULTS = (
    InjectedFault("crash", 3.0, processes.crash),
    InjectedFault("crash and back", 3.0, processes.crash_and_restart),
    InjectedFault("crash in sync", 3.0, timed_crashes.crash_during_sync),
    InjectedFault("kill", 2.0, processes.kill),
    InjectedFault("pause", 0.5, processes.pause),
    InjectedFault("start the down", 4.0, processes.restart_down),
    InjectedFault("slow sync", 1.0, devices.slow_sync),
    InjectedFault("failing sync", 1.0, devices.failing_sync),
    InjectedFault("full", 2.0, devices.full),
)


async def run(world: World) -> None:
    ledger = StoreLedger(grace_s=GRACE_S)
    load = StoreShardLoad(ledger, lambda: START_US + int(world.now() * 1_000_000), world.fail)
    shard = world.unit("shard", functools.partial(store_shard, load=load))
    shard.expected_errors = (*EXPECTED_ERRORS, LogFailed, ManifestFailed)
    shard.start()
    await harsh(world, [shard], world.seconds, FAULTS, pause_s=1.5)
    answers, checks = ledger.answers, ledger.checks
    await asyncio.sleep(CALM_S)
    world.check(shard.running, "the shard ended although its disk works")
    world.check(ledger.answers > answers, "no write is answered although all was healed")
    world.check(ledger.checks > checks, "nothing is read although all was healed")
    world.log("scenario", f"{ledger.answers} answered writes are kept, checked {ledger.checks} times")


SCENARIO = Scenario(
    name="store", summary="a shard's store keeps what it answered and revives nothing", seconds=30.0, run=run
)
