"""Zeros written ahead of small batches: rarely, over zeros, and never over records."""

from typing import Any

from tests.unit.journal.on_disks import Machine
from tests.unit.journal.segmented_log_rig import flat, open_log, read, some

from ebla.journal.segmented_log import PREWRITE_BYTES, SMALL_BATCH_BYTES_MAX, SegmentedLog
from ebla.model.errors import DiskFull
from ebla.sim.disk import ProcessDisk

LARGE = 4 * PREWRITE_BYTES


class Watched:
    """The newest segment, and what is written to it: where, and whether it is all zeros."""

    def __init__(self, log: SegmentedLog, *, is_full: bool = False) -> None:
        self._file = log._newest
        self._is_full = is_full
        self.writes: list[tuple[int, int, bool]] = []
        log._newest = self  # as much of a file as a log asks for

    def write(self, offset: int, data: bytes) -> None:
        is_zero = not any(data)
        if is_zero and self._is_full:
            raise DiskFull("no room for zeros")
        self.writes.append((offset, len(data), is_zero))
        self._file.write(offset, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    @property
    def zeros(self) -> list[tuple[int, int]]:
        return [(offset, size) for offset, size, is_zero in self.writes if is_zero]


def test_many_small_batches_share_the_zeros_ahead_of_the_first() -> None:
    machine = Machine(1)
    batches = some(50)

    async def main(disk: ProcessDisk) -> None:
        log = await open_log(machine, disk, LARGE)
        file = Watched(log)
        for batch in batches[:-1]:
            await log.append(batch)
        ((offset, size),) = file.zeros
        first_offset, first_size, _ = file.writes[0]
        assert offset == first_offset + first_size, "right behind the first"
        assert size == PREWRITE_BYTES

    machine.run(main)

    async def again(disk: ProcessDisk) -> None:
        log = await open_log(machine, disk, LARGE)
        file = Watched(log)
        await log.append(batches[-1])
        assert len(file.zeros) == 1, "what an earlier life did is not known"

    machine.run(again)
    assert read(machine) == flat(batches)


def test_the_next_ones_come_when_these_are_used_up() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log = await open_log(machine, disk, LARGE)
        file = Watched(log)
        count = PREWRITE_BYTES // SMALL_BATCH_BYTES_MAX + 2
        for number in range(count):
            await log.append([bytes([number + 1]) * (SMALL_BATCH_BYTES_MAX - 200)])
        assert len(file.zeros) == 2

    machine.run(main)


def test_there_are_none_behind_the_end_of_a_segment() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log = await open_log(machine, disk, 4096)
        file = Watched(log)
        for batch in some(10):
            await log.append(batch)
        assert all(offset + size <= 4096 for offset, size in file.zeros)
        assert len(file.zeros) == 1

    machine.run(main)


def test_a_large_batch_needs_none() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log = await open_log(machine, disk, LARGE)
        file = Watched(log)
        await log.append([b"r" * (SMALL_BATCH_BYTES_MAX + 1)])
        assert file.zeros == []

    machine.run(main)


def test_a_batch_does_not_fail_for_the_zeros_ahead_of_it() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        log = await open_log(machine, disk, LARGE)
        Watched(log, is_full=True)
        assert await log.append([b"one"]) == 1
        assert await log.append([b"two"]) == 2

    machine.run(main)
    assert read(machine) == [b"one", b"two"]
