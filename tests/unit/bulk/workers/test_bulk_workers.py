"""Scans on worker processes: slots, late scans, dead workers, and that no worker outlives its parent."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.async_tests import real_time, runs_in
from tests.unit.storage.random_rows import MIXED

from ebla.bulk.workers.bulk_workers import SCANS_MAX, BulkWorkers, ScanFailed
from ebla.bulk.workers.messages import ScanJob
from ebla.bulk.workers.pool import NICENESS
from ebla.model.errors import Corruption, Overloaded, Unavailable
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import ScanStack
from ebla.wire.transfer_messages import StoredRowsQuery

pytestmark = runs_in(real_time)

PARENT = """
import asyncio
from ebla.bulk.workers.bulk_workers import BulkWorkers

async def main():
    workers = BulkWorkers()
    await workers.start(60)
    while not workers.pool.pids:
        await asyncio.sleep(0.01)
    print(workers.pool.pids[0], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
EMPTY_SCAN = ScanJob(MIXED, (), StoredRowsQuery(range=WHOLE_RING))


@asynccontextmanager
async def bulk_workers(scans_max: int = SCANS_MAX) -> AsyncIterator[BulkWorkers]:
    workers = BulkWorkers(scans_max=scans_max)
    try:
        yield workers
    finally:
        await workers.close()
    assert workers.pool.pids == []


async def scan_nothing(workers: BulkWorkers) -> int:
    """The pid of the worker, which is idle afterwards."""
    scan = await workers.start(60)
    schema = await asyncio.to_thread(scan.start, EMPTY_SCAN)
    assert await asyncio.to_thread(lambda: list(scan.batches(schema))) == []
    scan.close()
    scan.close()
    await asyncio.sleep(0)  # the close is carried out on the loop
    # The fork server reports births and deaths when its turn comes, which may be after the answer of a worker.
    await wait_for(lambda: len(workers.pool.pids) == 1)
    return workers.pool.pids[0]


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # other processes set no event here
            await asyncio.sleep(0.02)


async def wait_gone(pid: int) -> None:
    await wait_for(lambda: not is_alive(pid))


def test_a_worker_dies_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert is_alive(worker)
        parent.kill()
    asyncio.run(wait_gone(worker))


async def test_a_worker_is_nicer_than_its_parent_and_ends_with_the_pool() -> None:
    async with bulk_workers() as workers:
        pid = await scan_nothing(workers)
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
    assert not is_alive(pid)


async def test_an_idle_worker_that_died_is_not_given_out() -> None:
    async with bulk_workers() as workers:
        pid = await scan_nothing(workers)
        os.kill(pid, 9)
        await wait_gone(pid)
        assert await scan_nothing(workers) != pid


async def test_a_late_scan_frees_its_slot() -> None:
    """The thread that reads it may be held up by its peer for any time."""
    async with bulk_workers(scans_max=1) as workers:
        late = await workers.start(0.01)
        second = await workers.start(60)
        late.close()
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await workers.start(0.01)  # one slot, not two
        second.close()


async def test_after_the_close_there_are_no_workers() -> None:
    async with bulk_workers() as workers:
        scan = await workers.start(60)
    with pytest.raises(ScanFailed, match="died"):
        await asyncio.to_thread(scan.start, EMPTY_SCAN)
    with pytest.raises(Unavailable):
        await workers.start(1)
    scan.close()
    await asyncio.sleep(0)  # the close is carried out on the loop


async def test_a_missing_layer_is_reported_and_the_worker_takes_the_next_job(tmp_path: Path) -> None:
    missing = ScanStack(WHOLE_RING, ((str(tmp_path / "none"), WHOLE_RING),))
    async with bulk_workers() as workers:
        for _ in range(2):
            scan = await workers.start(60)
            with pytest.raises(Corruption, match="none"):
                await asyncio.to_thread(scan.start, ScanJob(MIXED, (missing,), StoredRowsQuery(range=WHOLE_RING)))
            scan.close()
            await asyncio.sleep(0)
        await wait_for(lambda: len(workers.pool.pids) == 1)
