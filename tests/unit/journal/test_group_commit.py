import asyncio

import pytest
from tests.unit.journal.on_disks import Machine

from ebla.journal.group_commit import CommitLimits, GroupCommit
from ebla.journal.recovery import LogLimits
from ebla.journal.segments import LogFailed, SegmentedLog
from ebla.model.errors import DiskFull, Overloaded, TooLarge
from ebla.sim.disk import LifeDisk

FOLDER = "/data/log"
LIMITS = LogLimits(segment_bytes=1 << 16, batch_bytes_max=1 << 15)


async def read_all(log: SegmentedLog) -> list[list[bytes]]:
    return [batch.records async for batch in log.read(log.first_sequence)]


async def open_log(machine: Machine, disk: LifeDisk) -> SegmentedLog:
    return await SegmentedLog.open(disk, machine.chance, FOLDER, LIMITS)


def test_what_gathers_during_a_sync_shares_the_next_one() -> None:
    machine = Machine(1)

    async def main(disk: LifeDisk) -> list[list[bytes]]:
        log = await open_log(machine, disk)
        group = GroupCommit(log, CommitLimits())
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(group.run())
            first = tasks.create_task(group.commit([b"alone"]))
            await asyncio.sleep(0.0001)
            assert not first.done()
            sequences = await asyncio.gather(*(group.commit([b"%d" % number] * 2) for number in range(50)))
            assert sorted(sequences) == list(range(3, 103, 2))
            running.cancel()
        return await read_all(log)

    batches = machine.run(main)
    assert [len(batch) for batch in batches] == [1, 100]


def test_sequences_name_the_records_that_were_committed() -> None:
    machine = Machine(2)

    async def main(disk: LifeDisk) -> None:
        log = await open_log(machine, disk)
        group = GroupCommit(log, CommitLimits(batch_records=7))
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(group.run())
            texts = [b"%03d" % number for number in range(60)]
            sequences = await asyncio.gather(*(group.commit([b"-", text]) for text in texts))
            running.cancel()
        batches = await read_all(log)
        assert max(len(batch) for batch in batches) <= 7
        records = [record for batch in batches for record in batch]
        assert [records[sequence - 1] for sequence in sequences] == texts

    machine.run(main)


def test_a_full_disk_fails_its_batch_and_not_the_writer() -> None:
    machine = Machine(3)

    async def main(disk: LifeDisk) -> list[list[bytes]]:
        log = await open_log(machine, disk)
        group = GroupCommit(log, CommitLimits(batch_bytes=1))
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(group.run())
            await group.commit([b"x" * 30_000])
            await group.commit([b"y" * 30_000])
            machine.disk.fill()
            with pytest.raises(DiskFull):
                await group.commit([b"z" * 30_000])
            machine.disk.heal()
            await group.commit([b"after"])
            running.cancel()
        return await read_all(log)

    assert machine.run(main) == [[b"x" * 30_000], [b"y" * 30_000], [b"after"]]


def test_a_failed_log_fails_everybody_and_whoever_comes_later() -> None:
    machine = Machine(4)

    async def main(disk: LifeDisk) -> None:
        log = await open_log(machine, disk)
        group = GroupCommit(log, CommitLimits(batch_records=1))
        machine.disk.behaviour.fail_sync = 1.0
        with pytest.RaisesGroup(LogFailed):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(group.run())
                outcomes = await asyncio.gather(
                    *(group.commit([b"%d" % number]) for number in range(3)), return_exceptions=True
                )
                assert all(isinstance(outcome, LogFailed) for outcome in outcomes)
        with pytest.raises(LogFailed):
            await group.commit([b"late"])

    machine.run(main)


def test_whoever_waits_when_the_writer_is_cancelled_is_told() -> None:
    machine = Machine(5)

    async def main(disk: LifeDisk) -> None:
        group = GroupCommit(await open_log(machine, disk), CommitLimits())
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(group.run())
            waiting = tasks.create_task(expect_failure(group))
            await asyncio.sleep(0.0001)
            running.cancel()
            await waiting

    async def expect_failure(group: GroupCommit) -> None:
        with pytest.raises(LogFailed, match="writer has ended"):
            await group.commit([b"record"])

    machine.run(main)


def test_a_cancelled_caller_does_not_disturb_the_others() -> None:
    machine = Machine(6)

    async def main(disk: LifeDisk) -> None:
        group = GroupCommit(await open_log(machine, disk), CommitLimits())
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(group.run())
            given_up = tasks.create_task(group.commit([b"given up"]))
            patient = tasks.create_task(group.commit([b"patient"]))
            await asyncio.sleep(0)
            given_up.cancel()
            assert await patient in (1, 2)
            running.cancel()

    machine.run(main)


def test_what_waits_is_bounded_and_too_large_a_commit_is_refused_alone() -> None:
    machine = Machine(7)

    async def main(disk: LifeDisk) -> None:
        group = GroupCommit(await open_log(machine, disk), CommitLimits(waiting_bytes_max=1000))
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(group.run())
            first = tasks.create_task(group.commit([b"x" * 900]))
            await asyncio.sleep(0.0001)
            second = tasks.create_task(group.commit([b"x" * 900]))
            await asyncio.sleep(0.0001)
            with pytest.raises(Overloaded):
                await group.commit([b"x" * 900])
            with pytest.raises(TooLarge):
                await group.commit([b"x" * (1 << 15)])
            assert (await first, await second) == (1, 2)
            assert await group.commit([b"x" * 900]) == 3
            running.cancel()

    machine.run(main)
