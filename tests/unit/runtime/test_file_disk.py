import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.async_tests import real_time, runs_in

from ebla.model.errors import DiskFull
from ebla.ports.disk import File
from ebla.runtime import file_disk
from ebla.runtime.disk_syncs import SHORT_SYNC_BYTES_MAX, SHORT_SYNC_S, SyncLatency
from ebla.runtime.file_disk import DiskConfig, DiskFile, FileDisk
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng


@pytest.fixture
def disk() -> Iterator[FileDisk]:
    disk = FileDisk()
    yield disk
    disk.close()


def test_bytes_written_are_read(disk: FileDisk, tmp_path: Path) -> None:
    file = disk.create(f"{tmp_path}/file")
    file.append(b"hello ")
    file.append(b"world")
    file.write(0, b"J")
    assert (file.size(), file.read(0, 100), file.read(6, 3), file.read(99, 1)) == (11, b"Jello world", b"wor", b"")
    file.write(20, b"x")
    assert file.read(11, 10) == bytes(9) + b"x"
    file.truncate(4)
    assert file.read(0, 100) == b"Jell"
    file.close()
    again = disk.open(f"{tmp_path}/file")
    assert again.read(0, 100) == b"Jell"
    again.close()


@runs_in(real_time)
async def test_what_begins_its_way_early_is_all_there(tmp_path: Path) -> None:
    disk = FileDisk(DiskConfig(step_bytes=4096, work_niceness=1))
    file = disk.create(f"{tmp_path}/file")
    for place in range(32):
        await disk.run(partial(file.write, place * 1000, bytes([place]) * 1000))
    await file.sync()
    assert file.read(0, 1 << 20) == b"".join(bytes([place]) * 1000 for place in range(32))
    file.close()
    disk.close()


def test_names(disk: FileDisk, tmp_path: Path) -> None:
    folder = f"{tmp_path}/deep/er"
    disk.make_folder(folder)
    disk.make_folder(folder)
    disk.create(f"{folder}/b").close()
    with pytest.raises(FileExistsError):
        disk.create(f"{folder}/b")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{folder}/a")
    disk.link(f"{folder}/b", f"{folder}/a")
    with pytest.raises(FileExistsError):
        disk.link(f"{folder}/b", f"{folder}/a")
    assert disk.list_folder(folder) == ["a", "b"]
    disk.rename(f"{folder}/a", f"{folder}/b")
    disk.rename(f"{folder}/b", f"{folder}/c")
    disk.unlink(f"{folder}/a")
    with pytest.raises(FileNotFoundError):
        disk.unlink(f"{folder}/a")
    assert disk.list_folder(folder) == ["c"]
    assert disk.free_bytes(folder) > 0
    disk.remove_folder(f"{tmp_path}/deep")
    disk.remove_folder(f"{tmp_path}/deep")
    assert not disk.exists(folder)


def test_files_belong_to_their_owner_alone(disk: FileDisk, tmp_path: Path) -> None:
    disk.make_folder(f"{tmp_path}/folder")
    disk.create(f"{tmp_path}/folder/file").close()
    assert (tmp_path / "folder").stat().st_mode & 0o077 == 0
    assert (tmp_path / "folder" / "file").stat().st_mode & 0o077 == 0


def test_preallocating_keeps_the_size_and_takes_the_blocks(disk: FileDisk, tmp_path: Path) -> None:
    file = disk.create(f"{tmp_path}/file")
    file.append(b"some")
    file.preallocate(1 << 20)
    assert file.size() == 4
    assert os.stat(file.path).st_blocks * 512 >= 1 << 20
    file.close()


def in_loop(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(main())


@runs_in(in_loop)
async def test_syncs_and_work_run_off_the_loop(disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    real = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        threads.append(threading.current_thread().name)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    file = disk.create(f"{tmp_path}/file")
    file.append(b"x")
    await file.sync()
    await disk.sync_folder(str(tmp_path))
    assert (await disk.run(lambda: threading.current_thread().name)).startswith("disk-work")
    with pytest.raises(ZeroDivisionError):
        await disk.run(lambda: 1 // 0)
    file.close()
    assert [name.startswith("disk-sync") for name in threads] == [True]


def test_the_loop_goes_on_during_a_sync(disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda _: let_go.wait(60))

    async def work() -> None:
        file = disk.create(f"{tmp_path}/file")
        async with asyncio.TaskGroup() as tasks:
            syncing = tasks.create_task(file.sync())
            for _ in range(10):
                await asyncio.sleep(0)
            assert not syncing.done()
            let_go.set()
        file.close()

    in_loop(work)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_device_is_told_as_such(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    file = disk.create(f"{tmp_path}/file")

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(DiskFull, match=f"{tmp_path}/file"):
        file.append(b"x")
    monkeypatch.setattr(file_disk, "_fallocate", lambda *_: code)
    with pytest.raises(DiskFull):
        file.preallocate(100)
    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(DiskFull):
        disk.create(f"{tmp_path}/other")
    file.close()


def test_other_failures_stay_what_they_are(disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.create(f"{tmp_path}/file")
    monkeypatch.setattr(file_disk, "_fallocate", lambda *_: errno.EIO)
    with pytest.raises(OSError, match="file") as caught:
        file.preallocate(100)
    assert caught.value.errno == errno.EIO
    file.close()


def test_a_file_system_that_cannot_reserve_is_accepted(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.create(f"{tmp_path}/file")
    monkeypatch.setattr(file_disk, "_fallocate", lambda *_: errno.EOPNOTSUPP)
    file.preallocate(100)
    monkeypatch.setattr(file_disk, "_fallocate", None)
    file.preallocate(100)
    file.append(b"works")
    assert file.read(0, 10) == b"works"
    file.close()


def test_short_writes_are_continued(disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: real(descriptor, data[:3], offset))
    file = disk.create(f"{tmp_path}/file")
    file.append(b"0123456789")
    file.append(b"abcd")
    assert file.read(0, 100) == b"0123456789abcd"
    file.close()


def test_short_reads_are_continued(disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread
    file = disk.create(f"{tmp_path}/file")
    file.append(b"0123456789")
    monkeypatch.setattr(os, "pread", lambda descriptor, length, offset: real(descriptor, min(length, 3), offset))
    assert (file.read(1, 8), file.read(5, 50), file.read(10, 5)) == (b"12345678", b"56789", b"")
    file.close()


def failing_once(code: int) -> Callable[[int], None]:
    failures = [OSError(code, os.strerror(code))]

    def fdatasync(_: int) -> None:
        if failures:
            raise failures.pop()

    return fdatasync


@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, OSError), (errno.ENOSPC, DiskFull)])
@runs_in(in_loop)
async def test_a_failed_sync_poisons_the_file(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    monkeypatch.setattr(os, "fdatasync", failing_once(code))
    file = disk.create(f"{tmp_path}/file")
    file.append(b"x")
    with pytest.raises(kind):
        await file.sync()
    # The kernel would call the next sync a success although the bytes may be gone.
    with pytest.raises(OSError, match="earlier sync failed"):
        await file.sync()
    with pytest.raises(OSError, match="earlier sync failed"):
        file.append(b"y")
    with pytest.raises(OSError, match="earlier sync failed"):
        file.truncate(0)
    assert file.read(0, 10) == b"x"
    file.close()


@runs_in(in_loop)
async def test_a_sync_that_fails_after_its_caller_gave_up_poisons_the_file(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()

    def fdatasync(_: int) -> None:
        let_go.wait(60)
        raise OSError(errno.EIO, "lost")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    file = disk.create(f"{tmp_path}/file")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await file.sync()
    let_go.set()
    disk.close()
    with pytest.raises(OSError, match="earlier sync failed"):
        file.append(b"x")
    file.close()


@runs_in(in_loop)
async def test_closing_waits_for_a_sync_that_runs(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed at once, the thread would sync whatever file got the number next."""
    let_go = threading.Event()
    synced: list[str] = []

    def fdatasync(descriptor: int) -> None:
        let_go.wait(60)
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    file = disk.create(f"{tmp_path}/first")
    async with asyncio.TaskGroup() as tasks:
        syncing = tasks.create_task(file.sync())
        await asyncio.sleep(0)
        file.close()
        other = disk.create(f"{tmp_path}/second")
        let_go.set()
        await syncing
    with pytest.raises(ValueError, match="closed"):
        file.read(0, 1)
    other.close()
    assert synced == [f"{tmp_path}/first"]


def test_every_descriptor_is_closed_once(disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    real = os.close
    file: DiskFile = disk.create(f"{tmp_path}/file")
    in_loop(file.sync)

    def close(descriptor: int) -> None:
        closed.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "close", close)
    file.close()
    file.close()
    assert len(closed) == 1


def test_the_boot_clock_counts_on_and_the_wall_clock_tells_the_year() -> None:
    clock = SystemClock()
    first = clock.boot_ms()
    assert clock.boot_ms() >= first
    assert clock.wall_us() > 1_600_000_000 * 1_000_000


def test_chance_draws_inside_its_bounds() -> None:
    rng = SystemRng()
    assert {rng.randrange(3, 5) for _ in range(200)} == {3, 4}
    assert {rng.choice("ab") for _ in range(200)} == {"a", "b"}
    items = list(range(50))
    rng.shuffle(items)
    assert sorted(items) == list(range(50))
    assert items != list(range(50))
    assert len(rng.bytes(7)) == 7
    assert rng.uuid().version == 4
    assert rng.uuid() != rng.uuid()


@pytest.fixture
def short_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyncLatency, "is_short", True)


def synced_by(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each sync was the main thread's."""
    on_loop: list[bool] = []
    monkeypatch.setattr(
        os, "fdatasync", lambda _: on_loop.append(threading.current_thread() is threading.main_thread())
    )
    return on_loop


async def sync_where_it_may(file: File) -> None:
    if file.can_sync_now(0):
        file.sync_now()
    else:
        await file.sync()


@pytest.mark.usefixtures("short_syncs")
@runs_in(in_loop)
async def test_a_short_sync_is_made_on_the_loop_unless_there_is_else_to_do_or_much_to_write(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop = synced_by(monkeypatch)
    let_go = threading.Event()
    file = disk.create(f"{tmp_path}/file")
    for size in (100, SHORT_SYNC_BYTES_MAX, SHORT_SYNC_BYTES_MAX + 1, 1):
        assert file.can_sync_now(size) is (size <= SHORT_SYNC_BYTES_MAX)
        file.append(bytes(size))
        await sync_where_it_may(file)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(disk.run(lambda: let_go.wait(60)))
        await asyncio.sleep(0)
        await sync_where_it_may(file)
        let_go.set()
    await sync_where_it_may(file)
    await file.sync()
    file.close()
    assert on_loop == [True, True, False, True, False, True, False]


@pytest.mark.usefixtures("short_syncs")
@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, OSError), (errno.ENOSPC, DiskFull)])
@runs_in(in_loop)
async def test_a_sync_that_fails_on_the_loop_poisons_the_file(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    monkeypatch.setattr(os, "fdatasync", failing_once(code))
    file = disk.create(f"{tmp_path}/file")
    file.append(b"x")
    with pytest.raises(kind):
        file.sync_now()
    with pytest.raises(OSError, match="earlier sync failed"):
        file.sync_now()
    file.close()


def test_the_loop_syncs_only_what_was_short_for_long_enough() -> None:
    def syncs_until_short(pace: SyncLatency, took_s: float) -> int:
        for count in range(1000):
            if pace.is_short:
                return count
            pace.note(took_s)
        return 1000

    pace = SyncLatency()
    assert 10 < syncs_until_short(pace, SHORT_SYNC_S / 3) < 100
    pace.note(0.010)
    assert not pace.is_short
    assert 1 < syncs_until_short(pace, SHORT_SYNC_S / 3) < 10
    pace.note(1.0)
    assert 30 < syncs_until_short(pace, SHORT_SYNC_S / 3) < 80
    assert syncs_until_short(SyncLatency(), SHORT_SYNC_S * 1.01) == 1000


@runs_in(in_loop)
async def test_syncs_of_several_files_at_once_all_end(disk: FileDisk, tmp_path: Path) -> None:
    files = [disk.create(f"{tmp_path}/{number}") for number in range(8)]
    for _ in range(20):
        async with asyncio.TaskGroup() as tasks:
            for file in files:
                file.append(bytes(SHORT_SYNC_BYTES_MAX + 1))
                tasks.create_task(file.sync())
    for file in files:
        file.close()


@runs_in(in_loop)
async def test_work_that_has_begun_is_waited_for_by_a_caller_that_is_cancelled(disk: FileDisk) -> None:
    begun, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def slow() -> None:
        begun.set()
        may_end.wait(60)
        order.append("work")

    async def call() -> None:
        try:
            await disk.run(slow)
        finally:
            order.append("caller")

    calling = asyncio.get_running_loop().create_task(call())
    while not begun.is_set():  # noqa: ASYNC110  # a thread tells of it
        await asyncio.sleep(0)
    calling.cancel()
    await asyncio.sleep(0)
    assert order == []
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert order == ["work", "caller"]
