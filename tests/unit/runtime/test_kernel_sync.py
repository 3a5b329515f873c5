"""Syncs by the kernel: done, failed, given up on, on one loop after another, and where there are none."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ebla.runtime import kernel_sync
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.kernel_sync import UNDER_WAY_MAX, KernelSyncs, open_kernel_syncs

Ends = list[BaseException | None]


def with_syncs(work: Callable[[KernelSyncs], Awaitable[None]]) -> None:
    async def run() -> None:
        syncs = open_kernel_syncs(asyncio.get_running_loop())
        if syncs is None:
            pytest.skip("this system syncs only in threads")
        try:
            await work(syncs)
        finally:
            syncs.close()

    asyncio.run(run())


@pytest.fixture
def descriptor(tmp_path: Path) -> int:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(opened, b"x" * 5_000)
    return opened


def test_many_syncs_at_once_all_end(descriptor: int) -> None:
    ends: Ends = []

    async def work(syncs: KernelSyncs) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(UNDER_WAY_MAX):
                tasks.create_task(syncs.sync(descriptor, ends.append))
        assert syncs.has_room

    with_syncs(work)
    assert ends == [None] * UNDER_WAY_MAX
    os.close(descriptor)


def test_what_cannot_be_synced_is_told_and_ended() -> None:
    ends: Ends = []
    never_opened = 1 << 20

    async def work(syncs: KernelSyncs) -> None:
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)) as told:
            await syncs.sync(never_opened, ends.append)
        assert ends == [told.value]
        assert syncs.has_room

    with_syncs(work)


def test_a_sync_that_nobody_waits_for_any_more_still_ends(descriptor: int) -> None:
    ends: Ends = []

    async def work(syncs: KernelSyncs) -> None:
        waiting = asyncio.ensure_future(syncs.sync(descriptor, ends.append))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with_syncs(work)
    assert ends == [None]
    os.close(descriptor)


def test_a_disk_syncs_on_one_loop_after_another_and_without_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FileDisk(syncs_by_kernel=True)
    file = disk.create(str(tmp_path / "log"))

    async def write() -> None:
        file.append(b"record")
        await file.sync()

    asyncio.run(write())
    asyncio.run(write())
    monkeypatch.setattr(kernel_sync, "_CALLS", {})
    asyncio.run(write())
    file.close()
    disk.close()
    assert (tmp_path / "log").read_bytes() == b"record" * 3
