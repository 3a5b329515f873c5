"""Layers built from staged rows in worker processes, on real RocksDB."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from tests.async_tests import runs_in
from tests.unit.storage.small_table import SMALL
from tests.unit.storage.store_rig import plain

from ebla.bulk.workers.bulk_workers import BuildFailed, BulkWorkers
from ebla.bulk.workers.pool import WorkerPool
from ebla.model.errors import Corruption, InvalidRequest
from ebla.model.token import WHOLE_RING
from ebla.runtime.file_disk import FileDisk
from ebla.storage.codec.row_file import encode_rows, rows_batch
from ebla.storage.columns.sidecar import open_sidecar
from ebla.storage.compaction.layer_build import BuildJob
from ebla.storage.layers.layer import Item
from ebla.storage.layers.rocks_engine import RocksEngine

ITEMS = sorted(plain(partition, 0, 10 + partition % 7) for partition in range(3_000))


def job_of(folder: Path, items: list[Item], cut: int = 0) -> BuildJob:
    records = b"".join(encode_rows(rows_batch(items[start : start + 500])) for start in range(0, len(items), 500))
    rows = folder / "rows"
    staged = records[: len(records) - cut]
    rows.write_bytes(staged)
    return BuildJob(
        rows_files=(str(rows),),
        output_folder=str(folder / "layer"),
        range=WHOLE_RING,
        schema=SMALL,
        checksums=(zlib.crc32(staged),),
    )


def on_files(story: Callable[[FileDisk], Awaitable[None]]) -> None:
    async def main() -> None:
        disk = FileDisk()
        try:
            await story(disk)
        finally:
            disk.close()

    asyncio.run(main())


pytestmark = runs_in(on_files)


async def test_rows_become_a_layer_with_its_facts_and_sidecar(disk: FileDisk, /, tmp_path: Path) -> None:
    job = job_of(tmp_path, ITEMS)
    builds = BulkWorkers()
    result = await builds.build(job, 60)
    await builds.close()
    layer = await RocksEngine(disk).open(job.output_folder, writable=False)
    assert list(layer.scan()) == ITEMS
    assert (layer.facts.rows, layer.facts.least_us, layer.facts.greatest_us) == (3_000, 10, 16)
    assert layer.facts == result.facts
    await layer.close()
    assert await open_sidecar(disk, job.output_folder) is not None
    assert psutil.Process().children() == []


@pytest.mark.parametrize(
    ("items", "cut", "failure", "words"),
    [
        ([*ITEMS[500:1000], *ITEMS[:500]], 0, InvalidRequest, "order"),
        (ITEMS, 3, Corruption, "ends within a record"),
        ([], 0, Corruption, "no rows"),
    ],
)
def test_an_error_of_the_worker_is_raised_here_and_leaves_nothing(
    tmp_path: Path, items: list[Item], cut: int, failure: type[Exception], words: str
) -> None:
    async def story(_disk: FileDisk) -> None:
        builds = BulkWorkers()
        with pytest.raises(failure, match=words):
            await builds.build(job_of(tmp_path, items, cut), 60)
        await builds.close()

    on_files(story)
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


async def test_a_build_that_is_late_is_killed(_disk: FileDisk, /, tmp_path: Path) -> None:
    builds = BulkWorkers()
    with pytest.raises(BuildFailed, match="took longer than"):
        await builds.build(job_of(tmp_path, ITEMS), 0.01)
    assert psutil.Process().children(recursive=True) == psutil.Process().children(), "the fork server, and no worker"
    await builds.close()
    assert psutil.Process().children() == []


async def test_builds_share_workers_that_stay(_disk: FileDisk, /, tmp_path: Path) -> None:
    """Also after a build that failed because of its rows. A worker that was killed is replaced."""
    builds = BulkWorkers(builds_max=2)
    folders = [tmp_path / str(number) for number in range(6)]
    for folder in folders:
        folder.mkdir()
    jobs = [job_of(folder, ITEMS, cut=3 if place == 2 else 0) for place, folder in enumerate(folders)]
    found = await asyncio.gather(*(builds.build(job, 60) for job in jobs), return_exceptions=True)
    assert [isinstance(one, BaseException) for one in found] == [False, False, True, False, False, False]
    (ready,) = psutil.Process().children()
    kept = ready.children()
    assert len(kept) == 2, "six builds, two processes"
    for child in kept:
        child.kill()
    psutil.wait_procs(kept, timeout=60)
    again = job_of(folders[2], ITEMS)
    result = await builds.build(again, 60)
    assert result.rows == len(ITEMS)
    await builds.close()
    assert psutil.Process().children() == []


async def test_the_server_ends_without_work(_disk: FileDisk, /, tmp_path: Path) -> None:
    builds = BulkWorkers(WorkerPool(server_idle_s=0.01))
    await builds.build(job_of(tmp_path, ITEMS), 60)
    async with asyncio.timeout(60):
        while psutil.Process().children():  # noqa: ASYNC110 # other processes set no event here
            await asyncio.sleep(0.01)
    await builds.close()
