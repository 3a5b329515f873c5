"""A batch in one step of the loop: where nothing has to be waited for, and as durable as any other."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.async_tests import runs_in

from ebla.control.raft.storage import RaftStorage
from ebla.journal.segmented_log import BATCH_BYTES_MAX, LogFailed, SegmentedLog
from ebla.model.errors import DiskFull, TooLarge
from ebla.raft.effects import LogWrite
from ebla.raft.messages import Entry, HardState, PeerId, SnapshotMeta
from ebla.runtime.file_disk import DiskFile, FileDisk
from ebla.runtime.system_rng import SystemRng

SEGMENT_BYTES = 4096
VOTED = HardState(3, PeerId(2), 0)


def on_a_disk(work: Callable[[FileDisk], Awaitable[None]]) -> None:
    async def run() -> None:
        disk = FileDisk()
        try:
            await work(disk)
        finally:
            disk.close()

    asyncio.run(run())


pytestmark = runs_in(on_a_disk)


@pytest.fixture
def short_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every sync may be made on the loop. What was synced there."""
    synced: list[str] = []
    sync_now = DiskFile.sync_now

    def note(file: DiskFile) -> None:
        synced.append(file.path)
        sync_now(file)

    monkeypatch.setattr(DiskFile, "can_sync_now", lambda _file, _more_bytes: True)
    monkeypatch.setattr(DiskFile, "sync_now", note)
    return synced


async def test_it_is_numbered_and_read_back_as_any_other(
    disk: FileDisk, /, tmp_path: Path, short_syncs: list[str]
) -> None:
    log = await SegmentedLog.open(disk, SystemRng(), f"{tmp_path}/log", SEGMENT_BYTES)
    assert log.append_now([b"one", b"two"]) == 2
    assert await log.append([b"three"]) == 3
    assert log.append_now([b"four"]) == 4
    await log.close()
    log = await SegmentedLog.open(disk, SystemRng(), f"{tmp_path}/log", SEGMENT_BYTES)
    records = [record async for batch in log.read(1) for record in batch.records]
    assert records == [b"one", b"two", b"three", b"four"]
    await log.close()
    assert len(short_syncs) == 2


@pytest.mark.usefixtures("short_syncs")
async def test_nothing_happens_where_there_is_something_to_wait_for(disk: FileDisk, /, tmp_path: Path) -> None:
    log = await SegmentedLog.open(disk, SystemRng(), f"{tmp_path}/log", SEGMENT_BYTES)
    await log.append([b"x" * 3000])
    assert log.append_now([b"y" * 2000]) is None, "another segment would have to be made"
    assert await log.append([b"y" * 2000]) == 2
    under_way = asyncio.create_task(log.append([b"z"]))
    await asyncio.sleep(0)
    assert log.append_now([b"too soon"]) is None
    assert await under_way == 3
    assert log.append_now([b"in time"]) == 4
    with pytest.raises(TooLarge):
        log.append_now([bytes(BATCH_BYTES_MAX)])
    await log.close()


async def test_nothing_happens_where_a_sync_may_take_long(disk: FileDisk, /, tmp_path: Path) -> None:
    log = await SegmentedLog.open(disk, SystemRng(), f"{tmp_path}/log", SEGMENT_BYTES)
    assert log.append_now([b"on a disk without measurements"]) is None
    assert log.next_sequence == 1
    await log.close()


async def test_a_sync_that_fails_ends_the_log(
    disk: FileDisk, /, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_syncs: list[str]
) -> None:
    def fail(_file: DiskFile) -> None:
        raise OSError(5, "input/output error")

    log, _ = await RaftStorage.open(disk, SystemRng(), f"{tmp_path}/raft", SEGMENT_BYTES)
    monkeypatch.setattr(DiskFile, "sync_now", fail)
    write = LogWrite(
        hard_state=VOTED, entries=(Entry(index=1, term=3, data=b"x"),), snapshot=None, must_sync=True, answers=()
    )
    with pytest.raises(LogFailed):
        log.persist_now([write])
    assert not log.persist_now([write])
    with pytest.raises(LogFailed):
        await log.persist([write])
    assert short_syncs == []


async def test_a_vote_and_its_entries_are_there_after_a_restart(
    disk: FileDisk, /, tmp_path: Path, short_syncs: list[str]
) -> None:
    log, _ = await RaftStorage.open(disk, SystemRng(), f"{tmp_path}/raft", SEGMENT_BYTES)
    entries = (Entry(index=1, term=3, data=b"x"), Entry(index=2, term=3, data=b"y"))
    assert log.persist_now([LogWrite(hard_state=VOTED, entries=entries[:1], snapshot=None, must_sync=True, answers=())])
    assert log.persist_now([LogWrite(hard_state=None, entries=entries[1:], snapshot=None, must_sync=True, answers=())])
    hint = HardState(3, PeerId(2), 2)
    assert log.persist_now([LogWrite(hard_state=hint, entries=(), snapshot=None, must_sync=False, answers=())])
    assert len(short_syncs) == 2, "a hint needs none"
    named = LogWrite(hard_state=None, entries=(), snapshot=SnapshotMeta(9, 3), must_sync=True, answers=())
    assert not log.persist_now([named]), "a snapshot's mark has more to do"
    await log.close()
    _, found = await RaftStorage.open(disk, SystemRng(), f"{tmp_path}/raft", SEGMENT_BYTES)
    assert (found.hard_state, found.entries) == (hint, entries)


async def test_a_full_disk_is_left_to_who_can_wait(
    disk: FileDisk, /, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_syncs: list[str]
) -> None:
    def full(_log: SegmentedLog, _records: list[bytes]) -> None:
        raise DiskFull("no room")

    log, _ = await RaftStorage.open(disk, SystemRng(), f"{tmp_path}/raft", SEGMENT_BYTES)
    write = LogWrite(
        hard_state=VOTED, entries=(Entry(index=1, term=3, data=b"x"),), snapshot=None, must_sync=True, answers=()
    )
    with monkeypatch.context() as patched:
        patched.setattr(SegmentedLog, "_write", full)
        assert not log.persist_now([write])
        with pytest.raises(DiskFull):
            await log.persist([write])
    assert log.persist_now([write])
    await log.close()
    assert len(short_syncs) == 1
