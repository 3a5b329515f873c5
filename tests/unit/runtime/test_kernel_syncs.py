"""Syncs by the kernel: each one is told, on the loop that asked or at the close, and its failure is the file's."""

import asyncio
import ctypes
import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from ebla.model.errors import DiskFull
from ebla.runtime import kernel_syncs
from ebla.runtime.disk_syncs import Syncing
from ebla.runtime.event_loop import new_event_loop
from ebla.runtime.file_disk import DiskWays, FileDisk
from ebla.runtime.kernel_syncs import SLOTS, KernelSyncs


@pytest.fixture
def syncs() -> Iterator[KernelSyncs]:
    opened = KernelSyncs.open()
    if opened is None:
        pytest.skip("this kernel makes no syncs by itself")
    yield opened
    opened.close()


@pytest.fixture
def disk(syncs: KernelSyncs) -> Iterator[FileDisk]:
    del syncs  # it can be had
    disk = FileDisk(DiskWays(sync_by_kernel=True))
    yield disk
    disk.close()


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"content")
    yield descriptor
    os.close(descriptor)


def in_loop(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(bounded())


def test_syncs_of_several_files_at_once_all_end_on_any_loop(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_others: list[int] = []
    monkeypatch.setattr(os, "fdatasync", by_others.append)
    files = [disk.create(f"{tmp_path}/{number}") for number in range(8)]

    async def work() -> None:
        for _ in range(20):
            async with asyncio.TaskGroup() as tasks:
                for file in files:
                    file.append(b"some bytes")
                    tasks.create_task(file.sync())

    in_loop(work)
    in_loop(work)
    assert by_others == []
    for file in files:
        file.close()


def test_what_the_kernel_does_not_take_a_thread_is_given(descriptor: int) -> None:
    syncing = Syncing(1, by_kernel=True)
    ended: list[BaseException | None] = []
    reader, writer = os.pipe()

    async def work() -> None:
        await syncing.sync(descriptor, ended.append)
        with pytest.raises(OSError, match="Invalid argument"):
            await syncing.sync(writer, ended.append)

    in_loop(work)
    syncing.close()
    assert ended[0] is None
    assert isinstance(ended[1], OSError)
    os.close(reader)
    os.close(writer)


def test_there_is_a_bound_and_the_close_waits_for_all(descriptor: int) -> None:
    syncs = KernelSyncs.open()
    if syncs is None:
        pytest.skip("this kernel makes no syncs by itself")
    ended: list[BaseException | None] = []

    async def work() -> None:
        taken = [syncs.submit(descriptor, ended.append) for _ in range(SLOTS + 1)]
        assert taken == [True] * SLOTS + [False]
        assert syncs.under_way == SLOTS

    in_loop(work)
    syncs.close()
    assert ended == [None] * SLOTS


def test_another_loop_waits_until_the_first_has_been_told(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.uname().machine not in kernel_syncs._CALLS:
        pytest.skip("not known here")
    kernel = FailingKernel(errno.EIO, tells=False)
    monkeypatch.setattr(kernel_syncs, "_call", kernel)
    monkeypatch.setattr(kernel_syncs, "_call_and_let_others_run", kernel)
    syncs = KernelSyncs.open()
    assert syncs is not None
    ended: list[BaseException | None] = []

    async def ask(*, expected: bool) -> None:
        assert syncs.submit(0, ended.append) is expected

    in_loop(lambda: ask(expected=True))
    in_loop(lambda: ask(expected=False))
    assert ended == []
    syncs.close()
    assert len(ended) == 1


def test_a_file_is_closed_once_the_sync_of_a_caller_that_gave_up_has_ended(disk: FileDisk, tmp_path: Path) -> None:
    file = disk.create(f"{tmp_path}/file")

    async def work() -> None:
        file.append(b"some bytes")
        syncing = asyncio.ensure_future(file.sync())
        await asyncio.sleep(0)
        syncing.cancel()
        file.close()
        with pytest.raises(asyncio.CancelledError):
            await syncing

    in_loop(work)
    disk.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file._descriptor)


class FailingKernel:
    """Takes every order and tells of each that it failed, at once or when it is asked."""

    def __init__(self, code: int, *, tells: bool = True) -> None:
        self._code = code
        self._tells = tells
        self._orders: list[bytes] = []

    def __call__(self, number: int, *arguments: object) -> int:
        calls = kernel_syncs._CALLS[os.uname().machine]
        if number == calls.submit:
            _, _, orders = arguments
            place = orders[0]  # type: ignore[index]  # an array of one address
            self._orders.append(ctypes.string_at(place, kernel_syncs._ORDER.size))
            if self._tells:
                os.eventfd_write(kernel_syncs._ORDER.unpack(self._orders[-1])[-1], 1)
            return 1
        if number == calls.get_events:
            events = arguments[3]
            for place, order in enumerate(self._orders):
                event = kernel_syncs._EVENT.pack(kernel_syncs._ORDER.unpack(order)[0], 0, -self._code, 0)
                ctypes.memmove(ctypes.addressof(events) + place * len(event), event, len(event))  # type: ignore[arg-type]  # a buffer
            count, self._orders = len(self._orders), []
            return count
        return 0


@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, OSError), (errno.ENOSPC, DiskFull)])
def test_a_sync_that_fails_poisons_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    if os.uname().machine not in kernel_syncs._CALLS:
        pytest.skip("not known here")
    monkeypatch.setattr(kernel_syncs, "_call", FailingKernel(code))
    disk = FileDisk(DiskWays(sync_by_kernel=True))

    async def work() -> None:
        file = disk.create(f"{tmp_path}/file")
        file.append(b"x")
        with pytest.raises(kind):
            await file.sync()
        with pytest.raises(OSError, match="earlier sync failed"):
            await file.sync()
        file.close()

    in_loop(work)
    disk.close()


def test_where_the_kernel_has_none_threads_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_syncs, "_call", lambda *_: -1)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    disk = FileDisk(DiskWays(sync_by_kernel=True))

    async def work() -> None:
        file = disk.create(f"{tmp_path}/file")
        await file.sync()
        file.close()

    in_loop(work)
    disk.close()
    assert len(synced) == 1
