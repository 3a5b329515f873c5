"""Scan workers as processes: what they are told apart by, and that none outlives whoever started it."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.async_tests import real_time, runs_in
from tests.unit.storage.random_rows import MIXED

from ebla.bulk.workers.scan_messages import ScanJob
from ebla.bulk.workers.scan_pool import NICENESS, ScanFailed, ScanPoolLimits, ScanWorkerPool
from ebla.model.errors import Corruption, Overloaded, Unavailable
from ebla.model.token import WHOLE_RING
from ebla.storage.scan.scan_stack import ScanStack
from ebla.wire.transfer_messages import StoredRowsQuery

pytestmark = runs_in(real_time)

PARENT = """
import asyncio
from ebla.bulk.workers.scan_pool import ScanWorkers

async def main():
    workers = ScanWorkers()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(workers.run())
        await workers.start(60)
        print(workers.pids[0], flush=True)

asyncio.run(main())
"""
NOTHING = ScanJob(MIXED, (), StoredRowsQuery(range=WHOLE_RING))


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def wait_gone(pid: int) -> None:
    async with asyncio.timeout(20):
        while is_alive(pid):  # noqa: ASYNC110  # another process ends; nothing here is told of it
            await asyncio.sleep(0.02)


def test_a_worker_dies_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert is_alive(worker)
        parent.kill()
    asyncio.run(wait_gone(worker))


def test_a_worker_is_nicer_than_its_parent_and_ends_with_the_pool() -> None:
    async def main() -> int:
        workers = ScanWorkerPool()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(workers.run())
            stream = await workers.start(60)
            (pid,) = workers.pids
            assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
            schema = await asyncio.to_thread(stream.ask, NOTHING)
            assert await asyncio.to_thread(lambda: list(stream.batches(schema))) == []
            stream.close()
            stream.close()
            running.cancel()
        assert workers.pids == []
        return pid

    assert not is_alive(asyncio.run(main()))


async def test_an_idle_worker_that_died_is_not_given_out() -> None:
    workers = ScanWorkerPool(ScanPoolLimits(workers_max=1))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(workers.run())
        first = await workers.start(60)
        schema = await asyncio.to_thread(first.ask, NOTHING)
        assert await asyncio.to_thread(lambda: list(first.batches(schema))) == []
        first.close()
        (pid,) = workers.pids
        os.kill(pid, 9)
        await wait_gone(pid)
        second = await workers.start(60)
        assert workers.pids[-1] != pid
        await asyncio.to_thread(second.ask, NOTHING)
        second.close()
        running.cancel()


async def test_a_scan_that_is_late_gives_its_place_to_others() -> None:
    """Whoever reads it may be held up by a peer that takes nothing, for any time."""
    workers = ScanWorkerPool(ScanPoolLimits(workers_max=1))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(workers.run())
        late = await workers.start(0.01)
        second = await workers.start(60)
        late.close()
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await workers.start(0.01)  # one place, not two
        second.close()
        running.cancel()


async def test_after_the_pool_ended_there_are_no_workers() -> None:
    workers = ScanWorkerPool()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(workers.run())
        stream = await workers.start(60)
        running.cancel()
    with pytest.raises(ScanFailed, match="died"):
        await asyncio.to_thread(stream.ask, NOTHING)
    with pytest.raises(Unavailable):
        await workers.start(1)
    stream.close()
    # What the close asks of the loop.
    await asyncio.sleep(0)


async def test_a_missing_layer_is_told_and_the_worker_goes_on(tmp_path: Path) -> None:
    workers = ScanWorkerPool()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(workers.run())
        missing = ScanStack(WHOLE_RING, ((str(tmp_path / "none"), WHOLE_RING),))
        for _ in range(2):
            stream = await workers.start(60)
            with pytest.raises(Corruption, match="none"):
                await asyncio.to_thread(stream.ask, ScanJob(MIXED, (missing,), StoredRowsQuery(range=WHOLE_RING)))
            stream.close()
            await asyncio.sleep(0)
        assert len(workers.pids) == 1
        running.cancel()
