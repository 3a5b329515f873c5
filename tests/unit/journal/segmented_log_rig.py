"""A segmented log on a simulated disk, and batches for it."""

from tests.unit.journal.on_disks import Machine

from ebla.journal.segmented_log import SegmentedLog
from ebla.sim.disk import ProcessDisk

FOLDER = "/data/log"

SEGMENT_BYTES = 2048


async def open_log(machine: Machine, disk: ProcessDisk, segment_bytes: int = SEGMENT_BYTES) -> SegmentedLog:
    return await SegmentedLog.open(disk, machine.rng, FOLDER, segment_bytes)


def read(machine: Machine, start: int | None = None) -> list[bytes]:
    async def main(disk: ProcessDisk) -> list[bytes]:
        log = await open_log(machine, disk)
        first = log.first_sequence if start is None else start
        sequence = first
        records: list[bytes] = []
        async for batch in log.read(first):
            assert batch.first_sequence == sequence, "no gap and no repetition"
            sequence = batch.next_sequence
            records += batch.records
        assert sequence == log.next_sequence
        return records

    return machine.run(main)


def some(count: int, size: int = 300) -> list[list[bytes]]:
    return [[b"%05d" % number + b"r" * (size - 5)] for number in range(count)]


def flat(batches: list[list[bytes]]) -> list[bytes]:
    return [record for batch in batches for record in batch]
