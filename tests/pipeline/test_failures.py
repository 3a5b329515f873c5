"""Full disks and damaged bytes: nothing damaged is adopted, and the job reports the cause."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.small_disks import fill
from tests.pipeline.clusters import PipelineCluster, Replicas, large_table, small_disk_of
from tests.pipeline.served_nodes import slowly

SOURCE, TARGET, SMALL = 0, 1, 2


@pytest.fixture
def cluster(pipelined: PipelineCluster) -> Iterator[PipelineCluster]:
    """The leader must have free disk space."""
    if pipelined.leader == SMALL:
        pipelined.lead(SOURCE)
    pipelined.wait_pipeline()
    yield pipelined
    pipelined.wait_clean()


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        found = file.read(1)
        file.seek(place)
        file.write(bytes((found[0] ^ 0xFF,)))


@pytest.mark.parametrize("kind", ["files", pytest.param("rows", marks=pytest.mark.long)])
def test_bytes_that_change_in_staging_are_not_adopted(cluster: PipelineCluster, kind: str) -> None:
    table = large_table(cluster, f"flipped_{kind}")
    job = table.copy(SOURCE, TARGET, short_cut=False) if kind == "files" else table.stream([SOURCE], TARGET)
    with cluster.held_in_the_middle(TARGET, job):
        staging = cluster.node(TARGET).folder.staging
        staged = max(
            (path for path in staging.glob("*/*/*/**/*") if path.is_file()), key=lambda path: path.stat().st_size
        )
        flip(staged, staged.stat().st_size // 2)
    assert cluster.done(job).runs == 2, "what was damaged was brought again"
    table.brought([SOURCE], TARGET)
    table.check(SOURCE, TARGET)


def test_rows_of_a_damaged_file_are_not_spread(cluster: PipelineCluster) -> None:
    """Its blocks have checksums, which every read verifies."""
    layers = cluster.node(SOURCE).folder.shard(0) / "layers"
    before = set(layers.iterdir())
    table = large_table(cluster, "damaged")
    cluster.done(table.stream([SOURCE], SMALL))  # flushes what was only in memory
    flushed = [path for layer in layers.iterdir() if layer not in before for path in layer.glob("*.sst")]
    largest = max(flushed, key=lambda path: path.stat().st_size)
    flip(largest, largest.stat().st_size // 2)
    job = table.stream([SOURCE], TARGET)
    slowly(lambda: "is damaged" in cluster.job(job).cause, "it says that a file is damaged")
    cluster.cancelled(job)
    table.check(TARGET)


def test_a_full_disk_is_told_of_and_waited_out(cluster: PipelineCluster) -> None:
    disk = small_disk_of(cluster)
    if disk is None:
        pytest.skip("a full disk needs a file system of its own, and only root may mount one")
    table = large_table(cluster, "full")
    job = table.copy(SOURCE, SMALL, short_cut=False)
    filler = disk / "filler"
    with cluster.held_in_the_middle(SMALL, job):
        fill(filler)
    try:
        slowly(lambda: "does not fit" in cluster.job(job).cause, "it says that the disk is full")
        table.check(SOURCE)
    finally:
        filler.unlink()
    cluster.done(job)
    table.brought([SOURCE], SMALL)
    table.check(SOURCE, SMALL)


def test_the_short_cut_between_file_systems_copies(cluster: PipelineCluster) -> None:
    if small_disk_of(cluster) is None:
        pytest.skip("only root may mount a file system")
    table: Replicas = large_table(cluster, "other_disk")
    found = cluster.done(table.copy(SOURCE, SMALL))
    assert found.result is not None
    assert found.result.short_cut
    table.brought([SOURCE], SMALL)
    table.check(SOURCE, SMALL)
