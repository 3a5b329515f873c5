"""Layers of staged rows, made in a process of their own on real RocksDB."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from tests.async_tests import runs_in
from tests.unit.storage.store_rig import plain

from ebla.bulk.workers import layer_builder
from ebla.bulk.workers.layer_builder import BuildFailed, LayerBuildPool
from ebla.model.errors import Corruption, InvalidRequest
from ebla.model.token import WHOLE_RING
from ebla.runtime.file_disk import FileDisk
from ebla.sim.workloads.small_table import SMALL
from ebla.storage.codec.row_file import encode_rows, rows_batch
from ebla.storage.columns.sidecar import open_sidecar
from ebla.storage.compaction.layer_build import BuildJob, BuildResult
from ebla.storage.layers.layer import Item
from ebla.storage.layers.rocks_engine import RocksEngine

ITEMS = sorted(plain(partition, 0, 10 + partition % 7) for partition in range(3_000))


def job_of(folder: Path, items: list[Item], cut: int = 0) -> BuildJob:
    records = b"".join(encode_rows(rows_batch(items[start : start + 500])) for start in range(0, len(items), 500))
    rows = folder / "rows"
    brought = records[: len(records) - cut]
    rows.write_bytes(brought)
    return BuildJob(
        rows_files=(str(rows),),
        output_folder=str(folder / "layer"),
        range=WHOLE_RING,
        schema=SMALL,
        checksums=(zlib.crc32(brought),),
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
    builds = LayerBuildPool()
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
def test_what_is_wrong_is_told_as_it_is_and_leaves_nothing(
    tmp_path: Path, items: list[Item], cut: int, failure: type[Exception], words: str
) -> None:
    async def story(_disk: FileDisk) -> None:
        builds = LayerBuildPool()
        with pytest.raises(failure, match=words):
            await builds.build(job_of(tmp_path, items, cut), 60)
        await builds.close()

    on_files(story)
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


async def test_a_build_that_is_late_is_killed(_disk: FileDisk, /, tmp_path: Path) -> None:
    builds = LayerBuildPool()
    with pytest.raises(BuildFailed, match="took longer than"):
        await builds.build(job_of(tmp_path, ITEMS), 0.01)
    assert psutil.Process().children(recursive=True) == psutil.Process().children(), "who forks, and no fork"
    await builds.close()
    assert psutil.Process().children() == []


async def test_builds_take_turns_in_processes_that_stay(_disk: FileDisk, /, tmp_path: Path) -> None:
    """Also after one that failed by its rows; one that was killed is replaced."""
    builds = LayerBuildPool(at_once=2)
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
    result = await _until_one_is_started_anew(builds, again)
    assert result.rows == len(ITEMS)
    await builds.close()
    assert psutil.Process().children() == []


async def _until_one_is_started_anew(builds: LayerBuildPool, job: BuildJob) -> BuildResult:
    """The loop may not have heard yet that those it keeps are gone: each such costs a try."""
    for _ in range(2):
        try:
            return await builds.build(job, 60)
        except BuildFailed:
            continue
    return await builds.build(job, 60)


async def test_processes_without_work_end(_disk: FileDisk, /, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_builder, "IDLE_S", 0.01)
    builds = LayerBuildPool()
    await builds.build(job_of(tmp_path, ITEMS), 60)
    async with asyncio.timeout(60):
        while psutil.Process().children():  # noqa: ASYNC110 # nobody tells this loop
            await asyncio.sleep(0.01)
    await builds.close()
