import asyncio
from functools import partial

import msgspec
import pytest
from tests.unit.journal.on_disks import Machine
from tests.unit.journal.segmented_log_rig import FOLDER, SEGMENT_BYTES, flat, open_log, read, some

from ebla.journal.frames import LOG_FORMAT, SegmentHeader, encode_segment_header
from ebla.journal.manifest import load_manifest, save_manifest, segment_path, segments_needed
from ebla.journal.segmented_log import BATCH_BYTES_MAX, LogFailed
from ebla.model.errors import Corruption, DiskFull, InvalidRequest, Refused, TooLarge
from ebla.sim.disk import ProcessDisk


def append(machine: Machine, *batches: list[bytes], segment_bytes: int = SEGMENT_BYTES) -> list[int]:
    async def main(disk: ProcessDisk) -> list[int]:
        log = await open_log(machine, disk, segment_bytes)
        return [await log.append(batch) for batch in batches]

    return machine.run(main)


def segment_names(machine: Machine) -> list[str]:
    async def main(disk: ProcessDisk) -> list[str]:
        return [name for name in disk.list_folder(FOLDER) if name.endswith(".log")]

    return machine.run(main)


def test_records_come_back_in_order_over_segments_and_restarts() -> None:
    machine = Machine(1)
    batches = some(20)
    assert append(machine, *batches[:12]) == list(range(1, 13))
    assert append(machine, *batches[12:]) == list(range(13, 21))
    assert len(segment_names(machine)) > 2
    assert read(machine) == flat(batches)


def test_a_batch_is_numbered_through() -> None:
    machine = Machine(1)
    assert append(machine, [b"a", b"b", b"c"], [b"d"]) == [3, 4]


@pytest.mark.parametrize("start", range(1, 12))
def test_reading_may_start_inside_a_batch(start: int) -> None:
    machine = Machine(1)
    records = [b"%d" % number * 200 for number in range(11)]
    append(machine, records[:5], records[5:6], records[6:])
    assert read(machine, start) == records[start - 1 :]


def test_a_batch_larger_than_a_segment_has_one_of_its_own() -> None:
    machine = Machine(1)
    append(machine, [b"small"], [b"x" * 6000], [b"small again"])
    assert read(machine) == [b"small", b"x" * 6000, b"small again"]
    assert len(segment_names(machine)) == 3


def test_too_large_a_batch_is_refused_and_the_log_goes_on() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log = await open_log(machine, disk)
        with pytest.raises(TooLarge):
            await log.append([bytes(BATCH_BYTES_MAX)])
        assert await log.append([b"fits"]) == 1

    machine.run(main)
    assert read(machine) == [b"fits"]


@pytest.mark.parametrize(
    ("sequence", "kept"), [(0, (1, 5, 9)), (4, (1, 5, 9)), (5, (5, 9)), (8, (5, 9)), (9, (9,)), (99, (9,))]
)
def test_segments_are_needed_as_long_as_they_hold_the_sequence(sequence: int, kept: tuple[int, ...]) -> None:
    assert segments_needed((1, 5, 9), sequence) == kept


def test_dropped_segments_are_gone_and_the_rest_is_there() -> None:
    machine = Machine(1)
    batches = some(20)

    async def main(disk: ProcessDisk) -> int:
        log = await open_log(machine, disk)
        for batch in batches:
            await log.append(batch)
        await log.drop_before(15)
        with pytest.raises(InvalidRequest, match="dropped"):
            await anext(log.read(1))
        return log.first_sequence

    first = machine.run(main)
    assert 1 < first <= 15
    assert read(machine) == flat(batches[first - 1 :])
    assert segment_names(machine)[0] == f"{first:020d}.log"


def test_concurrent_appends_take_turns() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> list[int]:
        log = await open_log(machine, disk)
        return await asyncio.gather(*(log.append([b"%d" % number]) for number in range(20)))

    sequences = machine.run(main)
    records = read(machine)
    assert [records[sequence - 1] for sequence in sequences] == [b"%d" % number for number in range(20)]


def test_an_append_cancelled_in_its_sync_is_synced_before_the_next_is_written() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log = await open_log(machine, disk)
        machine.disk.behaviour.sync_ms = 50.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await log.append([b"given up"])
        assert await log.append([b"next"]) == 2

    machine.run(main)
    machine.lose_power()
    assert read(machine) == [b"given up", b"next"]


@pytest.mark.parametrize("seed", range(40))
def test_a_rotation_given_up_anywhere_is_finished_by_the_next_append(seed: int) -> None:
    machine = Machine(seed)
    batches = some(6)

    async def main(disk: ProcessDisk) -> list[bytes]:
        log = await open_log(machine, disk)
        for batch in batches[:5]:
            await log.append(batch)
        written = flat(batches[:5])
        try:
            async with asyncio.timeout(machine.rng.between(0.0, 0.012)):
                await log.append([b"L" * 1500])
                written.append(b"L" * 1500)
        except TimeoutError:
            if log.next_sequence == 7:
                written.append(b"L" * 1500)
        # Would still fit into the segment that the rotation was leaving.
        await log.append([b"short"])
        return [*written, b"short"]

    written = machine.run(main)
    machine.lose_power()
    assert read(machine) == written


def test_a_rotation_given_up_after_its_rename_is_finished_by_the_next_append() -> None:
    machine = Machine(1)
    batches = some(5)
    append(machine, *batches)

    async def main(disk: ProcessDisk) -> None:
        log = await open_log(machine, disk)
        slow_down_after_rename(machine, disk)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await log.append([b"L" * 1500])
        machine.disk.heal()
        # Would still fit into the segment that the rotation was leaving.
        await log.append([b"short"])

    machine.run(main)
    assert read(machine) == [*flat(batches), b"short"]


def slow_down_after_rename(machine: Machine, disk: ProcessDisk) -> None:
    rename = disk.rename

    def rename_and_slow_down(old: str, new: str) -> None:
        rename(old, new)
        machine.disk.behaviour.sync_ms = 10_000.0

    disk.rename = rename_and_slow_down  # type: ignore[method-assign]  # a slow device at this very call


def test_a_full_disk_refuses_a_batch_wholly_and_takes_the_next_when_there_is_room() -> None:
    for seed in range(40):
        machine = Machine(seed)
        batches = some(30)

        kept = machine.run(partial(append_on_full_disk, machine, batches))
        assert len(kept) < len(batches)
        machine.lose_power()
        assert read(machine) == kept


async def append_on_full_disk(machine: Machine, batches: list[list[bytes]], disk: ProcessDisk) -> list[bytes]:
    log = await open_log(machine, disk)
    kept = []
    for number, batch in enumerate(batches):
        if number % 7 == 3:
            machine.disk.fill(left_bytes=machine.rng.randrange(0, 3000))
        try:
            await log.append(batch)
            kept.append(batch)
        except DiskFull:
            machine.disk.heal()
    return flat(kept)


def test_a_failed_sync_ends_the_log_and_opening_again_finds_a_whole_one() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log = await open_log(machine, disk)
        await log.append([b"kept"])
        machine.disk.behaviour.fail_sync = 1.0
        with pytest.raises(LogFailed, match=FOLDER):
            await log.append([b"unknown"])
        machine.disk.heal()
        with pytest.raises(LogFailed):
            await log.append([b"refused"])
        with pytest.raises(LogFailed):
            await log.drop_before(1)
        await log.close()

    machine.run(main)
    machine.lose_power()
    assert read(machine)[:1] == [b"kept"]
    assert b"refused" not in read(machine)


def test_a_batch_is_never_written_behind_one_that_is_not_synced() -> None:
    """Otherwise the first may be torn and the second whole, which is how damage looks."""
    for seed in range(60):
        machine = Machine(seed)
        append(machine, [b"first"])
        machine.run_until(2.0, partial(give_up_then_append, machine))
        machine.lose_power()
        assert read(machine) in ([b"first"], [b"first", b"second" * 100])


async def give_up_then_append(machine: Machine, disk: ProcessDisk) -> None:
    log = await open_log(machine, disk)
    machine.disk.behaviour.sync_ms = 10_000.0
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await log.append([b"second" * 100])
        await log.append([b"third" * 100])
    finally:
        machine.disk.heal()


def test_opening_makes_durable_what_it_found() -> None:
    """A process writes and is killed in its sync; the next one reads the batch; then the power goes."""
    for seed in range(60):
        machine = Machine(seed)
        append(machine, [b"first"])
        machine.run_until(2.0, partial(append_without_end, machine))
        seen = read(machine)
        assert seen == [b"first", b"second" * 100]
        machine.lose_power()
        assert read(machine) == seen


async def append_without_end(machine: Machine, disk: ProcessDisk) -> None:
    log = await open_log(machine, disk)
    machine.disk.behaviour.sync_ms = 10_000.0
    try:
        await log.append([b"second" * 100])
    finally:
        machine.disk.heal()


def test_names_found_at_opening_are_made_durable() -> None:
    """Killed in a rotation after the manifest's rename, started again, appended to, then the power goes."""
    for seed in range(60):
        machine = Machine(seed)
        batches = some(5)
        append(machine, *batches)
        machine.run_until(2.0, partial(rotate_without_end, machine))
        append(machine, [b"late"])
        machine.lose_power()
        assert read(machine) == [*flat(batches), b"late"]


async def rotate_without_end(machine: Machine, disk: ProcessDisk) -> None:
    log = await open_log(machine, disk)
    slow_down_after_rename(machine, disk)
    try:
        await log.append([b"L" * 1500])
    finally:
        machine.disk.heal()


def test_what_is_acknowledged_survives_power_loss_at_once() -> None:
    for seed in range(60):
        machine = Machine(seed)
        batches = some(1 + seed % 12)
        append(machine, *batches)
        machine.lose_power()
        assert read(machine) == flat(batches)


def test_a_new_segment_is_durable_before_the_manifest_names_it() -> None:
    """The power goes when the manifest is durable and the first batch in the new segment is not."""
    for seed in range(60):
        machine = Machine(seed)
        batches = some(5)
        append(machine, *batches)
        machine.run_until(2.0, partial(rotate_and_hang, machine))
        machine.lose_power()
        assert read(machine) in (flat(batches), [*flat(batches), b"L" * 1500])


async def rotate_and_hang(machine: Machine, disk: ProcessDisk) -> None:
    log = await open_log(machine, disk)
    rename, sync_folder = disk.rename, disk.sync_folder
    renamed: list[str] = []

    def note_rename(old: str, new: str) -> None:
        rename(old, new)
        renamed.append(new)

    async def sync_folder_and_slow_down(path: str) -> None:
        await sync_folder(path)
        if renamed:
            machine.disk.behaviour.sync_ms = 10_000.0

    disk.rename = note_rename  # type: ignore[method-assign]  # a slow device at this very call
    disk.sync_folder = sync_folder_and_slow_down  # type: ignore[method-assign]  # a slow device at this very call
    try:
        await log.append([b"L" * 1500])
    finally:
        machine.disk.heal()


def test_segments_are_removed_only_after_the_manifest_is_durable() -> None:
    machine = Machine(1)
    batches = some(20)
    append(machine, *batches)
    machine.run_until(2.0, partial(drop_without_end, machine))
    assert read(machine) == flat(batches)


async def drop_without_end(machine: Machine, disk: ProcessDisk) -> None:
    log = await open_log(machine, disk)
    machine.disk.behaviour.sync_ms = 10_000.0
    try:
        await log.drop_before(15)
    finally:
        machine.disk.heal()


def test_an_interrupted_beginning_is_begun_again() -> None:
    for seed in range(100):
        machine = Machine(seed)
        machine.run_until(machine.rng.between(0.0, 0.008), partial(open_log, machine))
        machine.lose_power()
        append(machine, [b"works"])
        assert read(machine) == [b"works"]


def change_manifest(machine: Machine, **changes: object) -> None:
    async def main(disk: ProcessDisk) -> None:
        manifest = await load_manifest(disk, FOLDER)
        assert manifest is not None
        await save_manifest(disk, FOLDER, msgspec.structs.replace(manifest, **changes))

    machine.run(main)


def remove(machine: Machine, path: str) -> None:
    async def main(disk: ProcessDisk) -> None:
        disk.unlink(path)

    machine.run(main)


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_missing_segment_is_named(which: int) -> None:
    machine = Machine(1)
    append(machine, *some(20))
    missing = f"{FOLDER}/{segment_names(machine)[which]}"
    remove(machine, missing)
    with pytest.raises(Corruption, match=missing):
        read(machine)


def test_a_missing_manifest_is_an_error_not_a_new_log() -> None:
    machine = Machine(1)
    append(machine, [b"record"])
    remove(machine, f"{FOLDER}/manifest")
    with pytest.raises(Corruption, match="manifest is missing"):
        read(machine)


def test_a_segment_with_records_that_nobody_names_is_an_error() -> None:
    machine = Machine(1)
    append(machine, *some(12))
    names = segment_names(machine)
    firsts = tuple(int(name.removesuffix(".log")) for name in names)
    change_manifest(machine, segments=firsts[:-1], acknowledged=0)
    with pytest.raises(Corruption, match=names[-1]):
        read(machine)


def test_a_log_shorter_than_its_manifest_knows_is_an_error() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log = await open_log(machine, disk)
        await log.append([b"one"])
        await log.append([b"two"])
        await log.close()
        disk.open(segment_path(FOLDER, 1)).truncate(32)

    machine.run(main)
    with pytest.raises(Corruption, match="up to 2 were acknowledged"):
        read(machine)


def test_another_logs_segment_is_an_error() -> None:
    machine = Machine(1)
    append(machine, [b"record"])
    change_manifest(machine, log_id=99)
    with pytest.raises(Corruption, match="another log"):
        read(machine)


def test_a_newer_manifest_is_refused() -> None:
    machine = Machine(1)
    append(machine, [b"record"])
    change_manifest(machine, format=LOG_FORMAT + 1)
    with pytest.raises(Refused, match=f"format {LOG_FORMAT + 1}"):
        read(machine)


def test_a_newer_segment_is_refused() -> None:
    machine = Machine(1)
    append(machine, [b"record"])

    async def main(disk: ProcessDisk) -> None:
        disk.open(segment_path(FOLDER, 1)).write(0, encode_segment_header(SegmentHeader(1, 1, LOG_FORMAT + 1)))

    machine.run(main)
    with pytest.raises(Refused, match=f"format {LOG_FORMAT + 1}"):
        read(machine)
