from tests.unit.journal.on_disks import Machine

from ebla.journal.segmented_log import LogFailed, SegmentedLog
from ebla.sim.disk import ProcessDisk

FOLDER = "/data/log"
SEGMENT_BYTES = 2048


def test_a_frame_whose_sync_failed_does_not_vanish_under_later_ones() -> None:
    """The process ends at the failed sync and starts again on the same page cache, reads the frame, and goes on."""
    machine = Machine(1)

    async def fail(disk: ProcessDisk) -> None:
        log = await SegmentedLog.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        await log.append([b"first"])
        machine.disk.behaviour.fail_sync = 1.0
        try:
            await log.append([b"second"])
        except LogFailed:
            pass
        machine.disk.heal()

    async def go_on(disk: ProcessDisk) -> None:
        log = await SegmentedLog.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        await log.append([b"third"])

    async def read(disk: ProcessDisk) -> list[bytes]:
        log = await SegmentedLog.open(disk, machine.rng, FOLDER, SEGMENT_BYTES)
        return [record async for batch in log.read(1) for record in batch.records]

    machine.run(fail)
    machine.run(go_on)
    machine.lose_power()
    assert machine.run(read) == [b"first", b"second", b"third"]
