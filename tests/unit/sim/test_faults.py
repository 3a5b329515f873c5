"""Every fault strikes, and undoes its effect."""

import asyncio

import pytest
from tests.async_tests import runs_in

from ebla.ports.environment import Environment
from ebla.sim.disk import DiskBehaviour, DiskFault
from ebla.sim.faults.harsh import BIT_ROT, FREEZE, HARSH, InjectedFault, harsh
from ebla.sim.network import NetworkConditions, NetworkPath, PathFault
from ebla.sim.world import Unit, World


async def idle(environment: Environment) -> None:
    file = (
        environment.disk.open("/data/f") if environment.disk.exists("/data/f") else environment.disk.create("/data/f")
    )
    while True:
        await asyncio.sleep(0.05)
        file.append(b"some bytes")
        await file.sync()
        await environment.disk.sync_folder("/data")


def units_of(world: World) -> list[Unit]:
    units = [world.unit(name, idle) for name in ("a", "b", "c")]
    world.unit("client", idle)
    for unit in world.units.values():
        unit.start()
    return units


def assert_healed(world: World, units: list[Unit]) -> None:
    assert all(path == NetworkPath() for path in world.network._paths.values())
    for disk in (unit.machine.disk for unit in units):
        assert disk.behaviour == DiskBehaviour()
        assert (disk.sync_ms, disk.fail_sync, disk.capacity_bytes) == (DiskBehaviour().sync_ms, 0.0, None)
    assert all(unit.running or unit.down for unit in units)


@pytest.mark.parametrize("fault", [*HARSH, BIT_ROT, FREEZE], ids=lambda fault: fault.name)
@runs_in(lambda work: World(1, 100.0).run(work))
async def test_each_fault_heals_what_it_did(world: World, /, fault: InjectedFault) -> None:
    units = units_of(world)
    await asyncio.sleep(1.0)
    lines = world.trace.events
    for _ in range(5):
        await fault.strike(world, units)
    assert_healed(world, units)
    assert world.trace.events > lines or fault.name in ("reset", "start the down"), "a strike is traced"


@runs_in(lambda work: World(1, 100.0).run(work))
async def test_a_frozen_machine_stands_still_with_its_clocks(world: World, /) -> None:
    unit = world.unit("a", idle)
    unit.start()
    clock = unit.machine.clock
    before = clock.boot_ms(), clock.wall_us()
    freezing = asyncio.create_task(FREEZE.strike(world, [unit]))
    await asyncio.sleep(0.2)
    assert not unit.running
    assert (clock.boot_ms(), clock.wall_us()) == before
    await freezing
    await asyncio.sleep(2.0)
    assert 1_990 <= clock.boot_ms() - before[0] <= 2_010


@pytest.mark.parametrize("fault", HARSH, ids=lambda fault: fault.name)
@runs_in(lambda work: World(1, 100.0).run(work))
async def test_a_fault_cut_short_heals_as_well(world: World, /, fault: InjectedFault) -> None:
    units = units_of(world)
    await asyncio.sleep(1.0)
    try:
        async with asyncio.timeout(0.001):
            await fault.strike(world, units)
    except TimeoutError:
        pass
    assert_healed(world, units)


def test_faults_of_one_disk_add_up_and_each_ends_alone() -> None:
    disk = World(1, 1.0).machine("a").disk
    calm_ms = disk.sync_ms
    with disk.inject(DiskFault(capacity_bytes=100)):
        with disk.inject(DiskFault(sync_ms=50.0)), disk.inject(DiskFault(sync_ms=7.0, fail_sync=1.0)):
            with disk.inject(DiskFault(capacity_bytes=20)):
                assert (disk.sync_ms, disk.fail_sync, disk.capacity_bytes) == (calm_ms + 57.0, 1.0, 20)
        assert (disk.sync_ms, disk.fail_sync, disk.capacity_bytes) == (calm_ms, 0.0, 100)
        disk.heal()
        assert disk.capacity_bytes is None
    assert disk.capacity_bytes is None


def test_faults_of_one_path_add_up_and_each_ends_alone() -> None:
    path = NetworkPath()
    with path.inject(PathFault(extra_latency_ms=0.1, extra_loss=0.5, bytes_per_s=1000.0)):
        with (
            path.inject(PathFault(extra_latency_ms=0.7, bytes_per_s=100.0)),
            path.inject(PathFault(extra_latency_ms=0.2)),
        ):
            assert path.extra_latency_ms == pytest.approx(1.0)
            assert (path.extra_loss, path.bytes_per_s) == (0.5, 100.0)
        assert (path.extra_latency_ms, path.extra_loss, path.bytes_per_s) == (0.1, 0.5, 1000.0)
    assert path == NetworkPath()


def test_the_harsh_storm_uses_everything_and_ends_in_calm() -> None:
    async def scenario(world: World) -> None:
        units = units_of(world)
        start_count = sum(unit.start_count for unit in units)
        await harsh(world, units, seconds=120.0)
        assert world.now() == 120.0
        assert_healed(world, units)
        assert all(unit.running for unit in units)
        assert sum(unit.start_count for unit in units) > start_count + 30
        assert world.network.conditions == NetworkConditions()

    trace_lines: list[str] = []
    World(1, 120.0, trace_lines.append).run(scenario)
    story = "\n".join(trace_lines)
    marks = (
        *(
            "crashes",
            "is killed",
            "the power fails",
            "is paused",
            "cut:",
            "slower by",
            "is clogged",
            "loses",
            "jumps by",
        ),
        *("ms more for a sync", "syncs of", "bytes left", "until it crashes", "until they crash"),
    )
    assert [mark for mark in marks if mark not in story] == []
