import asyncio
from collections.abc import Iterable, Sequence
from functools import partial

import pytest
from tests.unit.journal.on_disks import Machine

from ebla.control.raft.storage import (
    EntrySequences,
    InconsistentLog,
    LogReplay,
    RaftRecord,
    RaftStorage,
)
from ebla.journal.segmented_log import LogFailed
from ebla.model.errors import Corruption, DiskFull
from ebla.raft.effects import LogWrite
from ebla.raft.messages import Entry, EntryKind, HardState, Membership, PeerId, SnapshotMeta
from ebla.raft.state import RecoveredState
from ebla.sim.disk import ProcessDisk

FOLDER = "/data/group0"
SEGMENT_BYTES = 2048
MEMBERS = Membership(voters=(PeerId(1), PeerId(2), PeerId(3)))


def state(term: int, vote: int = 0, commit: int = 0) -> HardState:
    return HardState(term, PeerId(vote), commit)


def entries(first: int, last: int, term: int, size: int = 100) -> tuple[Entry, ...]:
    return tuple(Entry(index=index, term=term, data=b"%d" % index * size) for index in range(first, last + 1))


def write(
    hard_state: HardState | None = None, new: Iterable[Entry] = (), snapshot: SnapshotMeta | None = None
) -> LogWrite:
    return LogWrite(hard_state=hard_state, entries=tuple(new), snapshot=snapshot, must_sync=True, answers=())


def hint(commit: int, term: int, vote: int = 0) -> LogWrite:
    return LogWrite(hard_state=state(term, vote, commit), entries=(), snapshot=None, must_sync=False, answers=())


def meta(index: int, term: int) -> SnapshotMeta:
    return SnapshotMeta(index, term, MEMBERS)


def persist(machine: Machine, *batches: Sequence[LogWrite]) -> None:
    async def main(disk: ProcessDisk) -> None:
        log, _ = await RaftStorage.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        for batch in batches:
            await log.persist(batch)

    machine.run(main)


def recover(machine: Machine) -> RecoveredState:
    async def main(disk: ProcessDisk) -> RecoveredState:
        return (await RaftStorage.open(disk, machine.rng, FOLDER, SEGMENT_BYTES))[1]

    return machine.run(main)


async def store_and_adopt(log: RaftStorage, snapshot: SnapshotMeta, content: list[bytes]) -> None:
    await log.store_snapshot(snapshot, content)
    await log.adopt_snapshot(snapshot)


def names(machine: Machine, folder: str = FOLDER) -> list[str]:
    async def main(disk: ProcessDisk) -> list[str]:
        return disk.list_folder(folder)

    return machine.run(main)


def test_a_new_log_is_empty() -> None:
    assert recover(Machine(1)) == RecoveredState(HardState(), SnapshotMeta(), ())


def test_hard_state_and_entries_survive_power_loss() -> None:
    machine = Machine(1)
    kinds = (*entries(1, 3, 1), Entry(index=4, term=2, data=b"change", kind=EntryKind.MEMBERS))
    persist(machine, [write(state(1, 2), kinds[:3])], [write(state(2, 3)), write(state(2, 3, 2), kinds[3:])])
    machine.lose_power()
    assert recover(machine) == RecoveredState(state(2, 3, 2), SnapshotMeta(), kinds)


def test_entries_replace_what_stood_at_and_behind_them() -> None:
    machine = Machine(1)
    persist(machine, [write(state(1), entries(1, 9, 1))], [write(state(3), entries(4, 5, 3))])
    assert recover(machine).entries == (*entries(1, 3, 1), *entries(4, 5, 3))


def test_a_commit_index_alone_costs_no_write_and_travels_with_the_next() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log, _ = await RaftStorage.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        await log.persist([write(state(1, 1), entries(1, 5, 1))])
        began = machine.loop.time()
        await log.persist([hint(3, 1, 1)])
        assert machine.loop.time() == began
        await log.persist([write(None, entries(6, 6, 1))])

    machine.run(main)
    assert recover(machine).hard_state == state(1, 1, 3)


def test_an_orderly_close_keeps_the_last_commit_index() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log, _ = await RaftStorage.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        await log.persist([write(state(1, 1), entries(1, 5, 1))])
        await log.persist([hint(4, 1, 1)])
        await log.close()

    machine.run(main)
    machine.lose_power()
    assert recover(machine).hard_state == state(1, 1, 4)


def test_a_snapshot_replaces_what_it_covers_and_frees_the_disk() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log, _ = await RaftStorage.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        for index in range(1, 60):
            await log.persist([write(state(1, 2, index - 1), entries(index, index, 1))])
        assert len(disk.list_folder(f"{FOLDER}/log")) > 3
        await store_and_adopt(log, meta(20, 1), [b"old content"])
        await store_and_adopt(log, meta(50, 1), [b"content ", b"in pieces"])

    machine.run(main)
    machine.lose_power()
    assert recover(machine) == RecoveredState(state(1, 2, 58), meta(50, 1), entries(51, 59, 1))
    assert [name for name in names(machine) if name.startswith("snapshot")] == ["snapshot-00000000000000000050-1"]
    assert len(names(machine, f"{FOLDER}/log")) <= 5
    assert machine.run(partial(read_content, machine, meta(50, 1))) == b"content in pieces"


async def read_content(machine: Machine, snapshot: SnapshotMeta, disk: ProcessDisk) -> bytes:
    log, _ = await RaftStorage.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
    return b"".join([piece async for piece in log.read_snapshot(snapshot)])


def test_an_installed_snapshot_takes_a_conflicting_log_away() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log, _ = await RaftStorage.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        await log.persist([write(state(1), entries(1, 30, 1))])
        await log.store_snapshot(meta(20, 3), [b"theirs"])
        await log.persist([write(state(3, 0, 20), entries(21, 22, 3), meta(20, 3))])

    machine.run(main)
    assert recover(machine) == RecoveredState(state(3, 0, 20), meta(20, 3), entries(21, 22, 3))


def test_a_snapshot_of_entries_not_yet_written_here_keeps_what_follows() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log, _ = await RaftStorage.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        await log.persist([write(state(1), entries(1, 3, 1))])
        await store_and_adopt(log, meta(5, 1), [b"ahead"])
        await log.persist([write(state(1, 0, 5), entries(4, 7, 1))])

    machine.run(main)
    assert recover(machine) == RecoveredState(state(1, 0, 5), meta(5, 1), entries(6, 7, 1))


def test_a_stored_snapshot_without_a_mark_is_swept() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log, _ = await RaftStorage.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        await log.persist([write(state(1), entries(1, 3, 1))])
        await log.store_snapshot(meta(2, 1), [b"never adopted"])

    machine.run(main)
    assert recover(machine).entries == entries(1, 3, 1)
    assert names(machine) == ["log"]


def snapshotted() -> tuple[Machine, str]:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log, _ = await RaftStorage.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        await log.persist([write(state(1), entries(1, 5, 1))])
        await store_and_adopt(log, meta(4, 1), [b"content"])

    machine.run(main)
    return machine, f"{FOLDER}/snapshot-{4:020d}-1"


def test_a_missing_snapshot_is_an_error() -> None:
    machine, path = snapshotted()

    async def main(disk: ProcessDisk) -> None:
        disk.unlink(path)

    machine.run(main)
    with pytest.raises(Corruption, match=path):
        recover(machine)


def test_a_snapshot_of_something_else_is_an_error() -> None:
    machine, path = snapshotted()

    async def main(disk: ProcessDisk) -> None:
        log, _ = await RaftStorage.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        await log.store_snapshot(SnapshotMeta(9, 1, MEMBERS), [b"other"])
        disk.rename(f"{FOLDER}/snapshot-{9:020d}-1", path)

    machine.run(main)
    with pytest.raises(Corruption, match="holds snapshot"):
        recover(machine)


def test_a_damaged_snapshot_is_noticed_when_it_is_read() -> None:
    machine, path = snapshotted()

    async def main(disk: ProcessDisk) -> None:
        file = disk.open(path)
        data = file.read(0, file.size())
        file.write(data.index(b"content"), b"K")

    machine.run(main)
    with pytest.raises(Corruption, match=path):
        machine.run(partial(read_content, machine, meta(4, 1)))


def test_a_mark_never_takes_a_concurrent_vote_back() -> None:
    for seed in range(30):
        machine = Machine(seed)

        async def main(disk: ProcessDisk, machine: Machine = machine) -> None:
            log, _ = await RaftStorage.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
            await log.persist([write(state(1), entries(1, 5, 1))])
            await log.store_snapshot(meta(3, 1), [b"content"])
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(log.persist([write(state(2, 3))]))
                tasks.create_task(log.adopt_snapshot(meta(3, 1)))

        machine.run(main)
        assert recover(machine).hard_state == state(2, 3, 3)


def test_a_full_disk_refuses_and_the_same_write_succeeds_later() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log, _ = await RaftStorage.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        await log.persist([write(state(1), entries(1, 5, 1))])
        machine.disk.fill()
        with pytest.raises(DiskFull):
            await log.persist([write(state(2, 1), entries(6, 30, 2))])
        machine.disk.heal()
        await log.persist([write(state(2, 1), entries(6, 30, 2))])

    machine.run(main)
    machine.lose_power()
    assert recover(machine) == RecoveredState(state(2, 1), SnapshotMeta(), (*entries(1, 5, 1), *entries(6, 30, 2)))


def test_a_mark_that_cannot_drop_old_segments_is_durable_all_the_same() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log, _ = await RaftStorage.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        for index in range(1, 40):
            await log.persist([write(state(1), entries(index, index, 1))])
        await log.store_snapshot(meta(35, 1), [b"content"])
        machine.disk.fill()
        await log.adopt_snapshot(meta(35, 1))
        machine.disk.heal()

    machine.run(main)
    machine.lose_power()
    assert recover(machine) == RecoveredState(state(1, 0, 35), meta(35, 1), entries(36, 39, 1))


def test_a_write_given_up_half_way_ends_the_log() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log, _ = await RaftStorage.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        machine.disk.behaviour.sync_ms = 100.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await log.persist([write(state(5, 2))])
        with pytest.raises(LogFailed, match="interrupted"):
            await log.persist([write(None, entries(1, 1, 1))])
        await log.close()

    machine.run(main)
    assert recover(machine).hard_state == state(5, 2)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [RaftRecord(hard_state=state(2), snapshot=None), RaftRecord(hard_state=state(1), snapshot=None)],
            "term 1 after term 2",
        ),
        (
            [RaftRecord(hard_state=state(2, 1), snapshot=None), RaftRecord(hard_state=state(2, 3), snapshot=None)],
            "votes for 1 and for 3",
        ),
        (
            [
                RaftRecord(hard_state=state(1), snapshot=None, entries=entries(1, 2, 1)),
                RaftRecord(hard_state=None, snapshot=None, entries=entries(4, 4, 1)),
            ],
            "entry 4 follows",
        ),
        ([RaftRecord(hard_state=state(1), snapshot=meta(5, 1), entries=entries(7, 7, 1))], "the snapshot ends at 5"),
        ([RaftRecord(hard_state=state(1), snapshot=None, entries=entries(3, 4, 1))], "entries begin at 3"),
        ([RaftRecord(hard_state=state(1, 0, 9), snapshot=None, entries=entries(1, 4, 1))], "they end at 4"),
        ([RaftRecord(hard_state=state(1), snapshot=None, entries=entries(1, 4, 2))], "has only seen term 1"),
        (
            [
                RaftRecord(hard_state=state(1), snapshot=meta(5, 1)),
                RaftRecord(hard_state=state(1), snapshot=meta(4, 1)),
            ],
            "snapshot 4 after snapshot 5",
        ),
    ],
)
def test_records_that_make_no_sense_are_told(records: list[RaftRecord], message: str) -> None:
    with pytest.raises(InconsistentLog, match=message):
        image_of(records)


def image_of(records: list[RaftRecord]) -> RecoveredState:
    image = LogReplay()
    for record in records:
        image.apply(record)
    return image.finish()


def test_an_old_mark_among_what_is_left_does_not_take_entries_away() -> None:
    """Segments up to entry 45 are dropped; the mark of an older snapshot is still there."""
    records = [
        RaftRecord(hard_state=state(1), snapshot=meta(20, 1)),
        RaftRecord(hard_state=None, snapshot=None, entries=entries(46, 48, 1)),
        RaftRecord(hard_state=state(1), snapshot=meta(30, 1)),
        RaftRecord(hard_state=None, snapshot=None, entries=entries(49, 55, 1)),
        RaftRecord(hard_state=state(1), snapshot=meta(50, 1)),
    ]
    assert image_of(records) == RecoveredState(state(1, 0, 50), meta(50, 1), entries(51, 55, 1))


def test_records_that_make_no_sense_are_an_error_of_the_log() -> None:
    machine = Machine(1)
    persist(machine, [write(state(1, 0, 9), entries(1, 3, 1))])
    with pytest.raises(Corruption, match="inconsistent"):
        recover(machine)


def test_the_oldest_record_needed_is_that_of_the_first_entry_behind_the_snapshot() -> None:
    places = EntrySequences()
    places.note(10, RaftRecord(hard_state=None, snapshot=None, entries=entries(1, 5, 1)))
    places.note(11, RaftRecord(hard_state=None, snapshot=None, entries=entries(6, 9, 1)))
    places.note(12, RaftRecord(hard_state=state(2), snapshot=None))
    places.note(13, RaftRecord(hard_state=None, snapshot=None, entries=entries(8, 12, 2)))
    assert places.oldest_needed(7, otherwise=99) == 11
    assert places.oldest_needed(8, otherwise=99) == 13
    assert places.oldest_needed(8, otherwise=12) == 12
    assert EntrySequences().oldest_needed(4, otherwise=7) == 7


def test_a_replacement_makes_older_records_superfluous() -> None:
    places = EntrySequences()
    places.note(1, RaftRecord(hard_state=None, snapshot=None, entries=entries(1, 9, 1)))
    places.note(2, RaftRecord(hard_state=None, snapshot=None, entries=entries(3, 4, 2)))
    places.note(3, RaftRecord(hard_state=None, snapshot=None, entries=entries(2, 2, 3)))
    assert places.oldest_needed(1, otherwise=99) == 1
    assert places.oldest_needed(2, otherwise=99) == 3
    places.note(4, RaftRecord(hard_state=state(4), snapshot=meta(9, 4), entries=entries(10, 11, 4), replaces_log=True))
    assert places.oldest_needed(3, otherwise=99) == 4
