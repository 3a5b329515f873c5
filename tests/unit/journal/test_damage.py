"""Every kind of damage to a small log: an error that names the place, or no effect; never a wrong or missing record."""

import pytest
from tests.unit.journal.on_disks import Machine

from ebla.journal.frames import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES, encode_frame, framed_size
from ebla.journal.manifest import segment_path
from ebla.journal.segmented_log import SMALL_BATCH_BYTES_MAX, SegmentedLog
from ebla.model.errors import Corruption
from ebla.sim.disk import ProcessDisk

FOLDER = "/data/log"
SEGMENT_BYTES = 4096
BATCHES = [[b"first", bytes(700)], [b"second" * 40], [b"third", b"", b"x" * 600], [b"last" * 30, bytes(20)]]
RECORDS = [record for batch in BATCHES for record in batch]
SEGMENT = segment_path(FOLDER, 1)


def written() -> Machine:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log = await SegmentedLog.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        for batch in BATCHES:
            await log.append(batch)

    machine.run(main)
    return machine


def read(machine: Machine) -> list[bytes]:
    async def main(disk: ProcessDisk) -> list[bytes]:
        log = await SegmentedLog.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        return [record async for batch in log.read(log.first_sequence) for record in batch.records]

    return machine.run(main)


def content(machine: Machine, path: str = SEGMENT) -> bytes:
    async def main(disk: ProcessDisk) -> bytes:
        file = disk.open(path)
        return file.read(0, file.size())

    return machine.run(main)


def put(machine: Machine, data: bytes, path: str = SEGMENT) -> None:
    async def main(disk: ProcessDisk) -> None:
        file = disk.open(path)
        file.truncate(0)
        file.append(data)

    machine.run(main)


def frame_bounds() -> list[tuple[int, int]]:
    bounds = []
    start = SEGMENT_HEADER_BYTES
    for batch in BATCHES:
        end = start + framed_size(4 * len(batch) + sum(map(len, batch)))
        bounds.append((start, end))
        start = end
    return bounds


def outcome(machine: Machine, data: bytes) -> list[bytes] | None:
    """The records, or None for an error that names the segment."""
    put(machine, data)
    try:
        return read(machine)
    except Corruption as error:
        message = str(error)
    assert SEGMENT in message
    assert "offset" in message
    assert "ebla group0 remove" in message
    return None


@pytest.mark.parametrize("change", [0x01, 0xFF])
def test_a_flipped_byte_anywhere_before_the_end_is_an_error(change: int) -> None:
    machine = written()
    data = content(machine)
    end = frame_bounds()[-1][1]
    for position in range(end):
        damaged = bytearray(data)
        damaged[position] ^= change
        assert outcome(machine, bytes(damaged)) is None, f"a byte at {position} of {end}"


def test_a_flipped_byte_behind_the_end_takes_no_record_away() -> None:
    machine = written()
    data = content(machine)
    end = frame_bounds()[-1][1]
    for position in range(end, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x20
        found = outcome(machine, bytes(damaged))
        assert found is None or found == RECORDS, f"a byte at {position}, {end} is the end"


def test_every_lost_sector_before_the_last_frame_is_an_error() -> None:
    machine = written()
    data = content(machine)
    last_start, _ = frame_bounds()[-1]
    for start in range(0, last_start - last_start % 512, 512):
        damaged = bytearray(data)
        damaged[start : start + 512] = bytes(512)
        assert outcome(machine, bytes(damaged)) is None, f"the sector at {start}"


def test_every_cut_of_the_last_write_is_a_torn_tail() -> None:
    """Whatever prefix of the unacknowledged last frame arrived, in a grown file or a preallocated one."""
    machine = written()
    data = content(machine)
    start, end = frame_bounds()[-1]
    acknowledged = RECORDS[: -len(BATCHES[-1])]
    for cut in range(start, end):
        assert outcome(machine, data[:cut]) == acknowledged, f"a file that ends at {cut}"
        assert outcome(machine, data[:cut].ljust(len(data), b"\0")) == acknowledged, f"zeros from {cut}"


@pytest.mark.parametrize("offset", [32, 480, 512, 1504])
def test_every_choice_of_sectors_of_the_last_write_is_a_torn_tail(offset: int) -> None:
    machine = Machine(1)
    record = b"R" * 900 + bytes(1100) + b"S" * 200

    async def main(disk: ProcessDisk) -> None:
        log = await SegmentedLog.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        if offset > 32:
            await log.append([b"f" * (offset - 32 - FRAME_HEADER_BYTES - 4 - 1)])
        before.append(content_of(disk))
        await log.append([record])
        after.append(content_of(disk))

    before: list[bytes] = []
    after: list[bytes] = []
    machine.run(main)
    kept = read(machine)[:-1]
    end = offset + framed_size(4 + len(record))
    sectors = range(offset - offset % 512, end, 512)
    for choice in range(2 ** len(sectors)):
        data = bytearray(before[0])
        for number, start in enumerate(sectors):
            if choice >> number & 1:
                data[start : start + 512] = after[0][start : start + 512]
        whole = choice == 2 ** len(sectors) - 1
        assert outcome(machine, bytes(data)) == ([*kept, record] if whole else kept), f"sectors {choice:b}"


def content_of(disk: ProcessDisk) -> bytes:
    file = disk.open(SEGMENT)
    return file.read(0, file.size())


def test_a_cut_tail_is_overwritten_and_does_not_come_back() -> None:
    machine = written()
    data = content(machine)
    start, end = frame_bounds()[-1]
    put(machine, data[: end - 100].ljust(len(data), b"\0"))

    async def main(disk: ProcessDisk) -> None:
        log = await SegmentedLog.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        await log.append([b"new"])

    machine.run(main)
    machine.lose_power()
    assert read(machine) == [*RECORDS[: -len(BATCHES[-1])], b"new"]
    blank = content(machine)[start + framed_size(4 + 3) :]
    assert blank.count(0) == len(blank)


def test_nothing_of_a_torn_batch_follows_a_shorter_one() -> None:
    """Neither is small, so no zeros are written behind the second: only the cut removes the rest of the first."""
    machine = Machine(1)
    torn, shorter = b"t" * 3 * SMALL_BATCH_BYTES_MAX, b"s" * (SMALL_BATCH_BYTES_MAX + 1)

    async def append(disk: ProcessDisk, record: bytes) -> None:
        log = await SegmentedLog.open(disk, machine.rng, FOLDER, 8 * SMALL_BATCH_BYTES_MAX)
        await log.append([record])

    machine.run(lambda disk: append(disk, torn))
    data = content(machine)
    put(machine, data[: 2 * SMALL_BATCH_BYTES_MAX].ljust(len(data), b"\0"))
    machine.run(lambda disk: append(disk, shorter))
    assert read(machine) == [shorter]


def test_a_frame_inside_a_record_is_not_taken_for_a_later_one() -> None:
    """A torn last write whose record holds, at the right places, frames of another log."""
    machine = Machine(1)
    start = SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES + 4
    skew = -start % 32
    record = bytearray(b"r" * skew)
    while len(record) < 1500:
        record += encode_frame(4711, start + len(record), 50 + len(record), [b"inside"])

    async def main(disk: ProcessDisk) -> None:
        log = await SegmentedLog.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        await log.append([bytes(record)])

    machine.run(main)
    assert read(machine) == [bytes(record)]
    data = content(machine)
    assert outcome(machine, data[:1024].ljust(len(data), b"\0")) == []


def test_damage_in_an_older_segment_is_an_error_also_at_its_end() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log = await SegmentedLog.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        for number in range(8):
            await log.append([b"%d" % number * 1000])

    machine.run(main)
    records = read(machine)
    data = content(machine)
    used = len(data.rstrip(b"\0"))
    for position in range(SEGMENT_HEADER_BYTES, used, 37):
        damaged = bytearray(data)
        damaged[position] ^= 0x08
        assert outcome(machine, bytes(damaged)) is None
    for cut in (SEGMENT_HEADER_BYTES, used - 600, used - 40):
        assert outcome(machine, data[:cut]) is None
        assert outcome(machine, data[:cut].ljust(len(data), b"\0")) is None
    put(machine, data)
    assert read(machine) == records
