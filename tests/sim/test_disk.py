"""The simulated disk: what a crash keeps, what it may lose, and how a device fails."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.async_tests import runs_in

from ebla.model.errors import DiskFull
from ebla.ports.environment import Environment
from ebla.sim.disk import ProcessDisk
from ebla.sim.world import Unit, World

SEEDS = 60


async def idle(environment: Environment) -> None:
    await asyncio.Event().wait()


def on_disk(work: Callable[[World, Unit, ProcessDisk], Awaitable[None]], seed: int = 1) -> None:
    async def scenario(world: World) -> None:
        unit = world.unit("one", idle)
        unit.start()
        await work(world, unit, unit.machine.disk.of(world._incarnation))

    World(seed, 60.0).run(scenario)


pytestmark = runs_in(on_disk)


def after_crash(work: Callable[[ProcessDisk], Awaitable[None]], path: str) -> list[bytes | None]:
    """The content of a file after a power loss, for many seeds; None if its name is lost."""
    found: list[bytes | None] = []

    async def crash(world: World, unit: Unit, disk: ProcessDisk) -> None:
        await work(disk)
        unit.crash()
        found.append(disk.open(path).read(0, 10_000) if disk.exists(path) else None)

    for seed in range(SEEDS):
        on_disk(crash, seed)
    return found


async def written(disk: ProcessDisk, path: str, content: bytes) -> None:
    file = disk.create(path)
    file.append(content)
    await file.sync()
    await disk.sync_folder("/data")


def test_synced_content_and_names_survive() -> None:
    async def work(disk: ProcessDisk) -> None:
        await written(disk, "/data/a", b"kept")

    assert after_crash(work, "/data/a") == [b"kept"] * SEEDS


def test_unsynced_bytes_survive_vanish_or_are_torn() -> None:
    tail = bytes(range(1, 200)) * 10

    async def work(disk: ProcessDisk) -> None:
        await written(disk, "/data/a", b"kept")
        disk.open("/data/a").append(tail)

    found = after_crash(work, "/data/a")
    assert all(content is not None and content.startswith(b"kept") for content in found)
    assert found.count(b"kept") > 5
    assert found.count(b"kept" + tail) > 5
    torn = [content for content in found if content not in (b"kept", b"kept" + tail)]
    assert len(torn) > 5
    assert any(len(content or b"") == len(tail) + 4 for content in torn), "whole length, wrong bytes"
    assert any(len(content or b"") < len(tail) + 4 for content in torn)


def test_later_writes_may_survive_earlier_ones() -> None:
    async def work(disk: ProcessDisk) -> None:
        await written(disk, "/data/a", b"....")
        file = disk.open("/data/a")
        file.write(0, b"A")
        file.write(2, b"B")

    found = set(after_crash(work, "/data/a"))
    assert {b"....", b"A.B.", b"A...", b"..B."} <= found


def test_a_name_not_synced_may_be_lost_with_its_content() -> None:
    async def work(disk: ProcessDisk) -> None:
        file = disk.create("/data/a")
        file.append(b"x")
        await file.sync()

    found = after_crash(work, "/data/a")
    assert set(found) == {None, b"x"}


def test_a_rename_is_atomic_but_not_durable_by_itself() -> None:
    async def work(disk: ProcessDisk) -> None:
        await written(disk, "/data/a", b"old")
        await written(disk, "/data/b", b"new")
        disk.rename("/data/b", "/data/a")

    assert set(after_crash(work, "/data/a")) == {b"old", b"new"}

    async def synced(disk: ProcessDisk) -> None:
        await work(disk)
        await disk.sync_folder("/data")

    assert set(after_crash(synced, "/data/a")) == {b"new"}


def test_a_folder_is_a_name_too() -> None:
    async def work(disk: ProcessDisk) -> None:
        disk.make_folder("/data/x/y")
        file = disk.create("/data/x/y/a")
        file.append(b"1")
        await file.sync()
        await disk.sync_folder("/data/x/y")
        await disk.sync_folder("/data/x")

    assert set(after_crash(work, "/data/x/y/a")) == {None, b"1"}

    async def all_synced(disk: ProcessDisk) -> None:
        await work(disk)
        await disk.sync_folder("/data")

    assert set(after_crash(all_synced, "/data/x/y/a")) == {b"1"}


def test_an_unlink_not_synced_may_come_back() -> None:
    async def work(disk: ProcessDisk) -> None:
        await written(disk, "/data/a", b"x")
        disk.unlink("/data/a")

    assert set(after_crash(work, "/data/a")) == {None, b"x"}


def test_a_crash_during_a_sync_promises_nothing() -> None:
    outcomes: set[bytes] = set()

    async def work(world: World, unit: Unit, disk: ProcessDisk) -> None:
        await written(disk, "/data/a", b"")
        unit.machine.disk.behaviour.sync_ms = 1000.0

        async def slow() -> None:
            file = disk.open("/data/a")
            file.append(b"x")
            await file.sync()

        task = asyncio.get_running_loop().create_task(slow())
        await asyncio.sleep(0.1)
        unit.machine.disk.lose_power()
        outcomes.add(disk.open("/data/a").read(0, 9))
        task.cancel()

    for seed in range(20):
        on_disk(work, seed)
    assert outcomes >= {b"", b"x"}


def test_a_kill_keeps_the_page_cache() -> None:
    async def work(world: World, unit: Unit, disk: ProcessDisk) -> None:
        disk.create("/data/a").append(b"cached")
        unit.kill()
        assert disk.open("/data/a").read(0, 9) == b"cached"

    for seed in range(10):
        on_disk(work, seed)


async def test_after_a_failed_sync_a_good_one_says_nothing(world: World, unit: Unit, disk: ProcessDisk, /) -> None:
    await written(disk, "/data/a", b"")
    file = disk.open("/data/a")
    file.append(b"lost")
    unit.machine.disk.behaviour.fail_sync = 1.0
    with pytest.raises(OSError, match="sync of /data/a failed"):
        await file.sync()
    with pytest.raises(OSError, match="sync of folder"):
        await disk.sync_folder("/data")
    unit.machine.disk.heal()
    await file.sync()
    assert file.read(0, 9) == b"lost"
    unit.crash()
    assert disk.open("/data/a").read(0, 9) == b""


def test_a_full_disk_takes_at_most_a_part() -> None:
    async def work(world: World, unit: Unit, disk: ProcessDisk) -> None:
        await written(disk, "/data/a", b"12345")
        file = disk.open("/data/a")
        unit.machine.disk.fill(left_bytes=3)
        assert disk.free_bytes("/data") == 3
        with pytest.raises(DiskFull):
            file.append(b"67890")
        assert b"1234567890".startswith(file.read(0, 99))
        assert file.size() < 10
        file.write(0, b"X")
        file.truncate(5)
        with pytest.raises(DiskFull):
            file.preallocate(100)
        file.append(b"678")
        with pytest.raises(DiskFull):
            disk.create("/data/b")
        unit.machine.disk.heal()
        file.append(b"90")
        assert file.read(0, 99) == b"X234567890"
        file.preallocate(1000)
        assert unit.machine.disk.used_bytes() == 1000
        assert file.size() == 10

    for seed in range(10):
        on_disk(work, seed)


async def test_rot_flips_one_bit_of_something_durable(world: World, unit: Unit, disk: ProcessDisk, /) -> None:
    assert unit.machine.disk.rot() is None
    await written(disk, "/data/a", bytes(100))
    where = unit.machine.disk.rot()
    assert where is not None
    path, _, position = where.partition("@")
    assert path == "/data/a"
    content = disk.open("/data/a").read(0, 100)
    assert sum(byte.bit_count() for byte in content) == 1
    assert content[int(position)] != 0
    unit.crash()
    assert disk.open("/data/a").read(0, 100) == content


async def test_files_and_folders_answer_as_real_ones_do(world: World, unit: Unit, disk: ProcessDisk, /) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("/data/none")
    with pytest.raises(FileNotFoundError):
        disk.create("/data/no/such/folder")
    disk.create("/data/a").append(b"abcdef")
    with pytest.raises(FileExistsError):
        disk.create("/data/a")
    with pytest.raises(NotADirectoryError):
        disk.list_folder("/data/a")
    disk.make_folder("/data/sub")
    disk.make_folder("/data/sub")
    for refused in (disk.open, disk.unlink):
        with pytest.raises(IsADirectoryError):
            refused("/data/sub")
    disk.link("/data/a", "/data/sub/b")
    with pytest.raises(FileExistsError):
        disk.link("/data/a", "/data/sub/b")
    disk.unlink("/data/a")
    shared = disk.open("/data/sub/b")
    assert (shared.read(2, 3), shared.read(5, 9), shared.read(9, 1)) == (b"cde", b"f", b"")
    shared.write(8, b"z")
    assert shared.read(0, 99) == b"abcdef\0\0z"
    disk.rename("/data/sub/b", "/data/c")
    assert disk.list_folder("/data") == ["c", "sub"]
    disk.remove_folder("/data/sub")
    disk.remove_folder("/data/sub")
    assert not disk.exists("/data/sub")
    assert await disk.run(lambda: 7) == 7
    shared.close()
    with pytest.raises(AssertionError, match="was closed"):
        shared.read(0, 1)


async def test_clocks_drift_apart_jump_and_start_anew(world: World, unit: Unit, disk: ProcessDisk, /) -> None:
    clock, other = unit.machine.clock, world.machine("other").clock
    assert clock.wall_us() != other.wall_us()
    apart = clock.boot_ms() - other.boot_ms()
    await asyncio.sleep(1000.0)
    assert abs(clock.boot_ms() - other.boot_ms() - apart) > 5, "they drift"
    wall, boot = clock.wall_us(), clock.boot_ms()
    clock.jump(-5_000_000)
    assert clock.wall_us() == wall - 5_000_000
    assert clock.boot_ms() == boot
    unit.crash()
    assert clock.boot_ms() == 0


async def test_a_file_is_open_while_somebody_alive_has_it_under_any_name(
    world: World, unit: Unit, disk: ProcessDisk, /
) -> None:
    theirs = unit.machine.disk.of(unit.incarnation)
    held = theirs.create("/data/a")
    held.append(b"x")
    disk.link("/data/a", "/data/b")
    disk.create("/data/c").close()
    assert disk.inode("/data/a") == disk.inode("/data/b") != disk.inode("/data/c")
    assert [disk.has_no_writer(f"/data/{name}") for name in "abc"] == [False, False, True]
    held.close()
    assert disk.has_no_writer("/data/b")
    theirs.open("/data/b")
    assert not disk.has_no_writer("/data/a")
    unit.kill()
    assert disk.has_no_writer("/data/a")
    with pytest.raises(IsADirectoryError):
        disk.inode("/data")


@runs_in(lambda work: World(1, 60.0).run(work))
async def test_hardware_with_two_addresses_loses_power_as_one(world: World, /) -> None:
    one = world.unit("one", idle)
    world.machine("two", beside="one")
    two, other = world.unit("two", idle), world.unit("other", idle)
    for unit in (one, two, other):
        unit.start()
    assert one.machine.disk is two.machine.disk is not other.machine.disk
    assert one.host != two.host
    two.crash()
    assert (one.running, two.running, other.running) == (False, False, True)
