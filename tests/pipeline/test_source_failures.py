"""Jobs over whole tables while a node dies and comes back, while a tablet is copied, and on a Spark cluster whose
Python lacks the package."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from tests.pipeline.clusters import PipelineCluster, run_command
from tests.pipeline.source_jobs import TASK_TRIES, Beside, Halt, OneSpark, SourceJobs, halting

ROWS, BATCH = 2_000, 100
READ_BYTES, WRITTEN_BYTES = 2_560, 256
"""Bytes per value. Reads exceed the buffers between a node and a task that has stopped reading; writes are small,
because repairing them is slow on these nodes."""
HALT_AFTER = 3
KILLED = 1
SCHEMA = "k int, v binary"


class Held:
    """Jobs paused half-way: reads of a table at two levels, and a write to another."""

    def __init__(self, jobs: SourceJobs, folder: Path, name: str) -> None:
        self._jobs = jobs
        self._halt = Halt(folder / name)
        self.source, self.target = f"jobs.{name}_read", f"jobs.{name}_written"
        for table in (self.source, self.target):
            jobs.cql(f"CREATE TABLE {table} (k int PRIMARY KEY, v blob)")
        jobs.write(some_rows(jobs, READ_BYTES), self.source)
        self._found: dict[str, list[Any]] = {}
        self._beside = Beside(lambda: self._read("ONE"), lambda: self._read("LOCAL_QUORUM"), self._write)

    def __enter__(self) -> "Held":
        self._beside.__enter__()
        try:
            self._beside.wait_until(lambda: self._halt.is_reached("ONE", "LOCAL_QUORUM", "write"), "jobs are under way")
        except BaseException:
            self._halt.let_go()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self._halt.let_go()
        self._beside.__exit__(*failure)

    def _halting(self, frame: DataFrame, name: str) -> DataFrame:
        return frame.mapInArrow(halting(str(self._halt.folder), name, HALT_AFTER), SCHEMA)

    def _read(self, level: str) -> None:
        read = self._jobs.read(self.source, consistency=level, shortcut="false", split_bytes="1g")
        self._found[level] = summed(self._halting(read, level))

    def _write(self) -> None:
        frame = self._halting(some_rows(self._jobs, WRITTEN_BYTES), "write")
        self._jobs.write(frame, self.target, run_bytes="16k", shortcut="false")

    def check(self) -> None:
        wanted = summed(some_rows(self._jobs, READ_BYTES))
        assert self._found == {"ONE": wanted, "LOCAL_QUORUM": wanted}
        assert summed(self._jobs.read(self.target)) == summed(some_rows(self._jobs, WRITTEN_BYTES))
        assert self._jobs.cql(f"SELECT count(*) FROM {self.target}") == [(ROWS,)]


def some_rows(jobs: SourceJobs, value_bytes: int) -> DataFrame:
    """Values that do not compress, the same each time."""
    parts = ", ".join(f"sha2(CAST(id AS string) || '{part}', 512)" for part in range(value_bytes // 128))
    return jobs.spark.range(0, ROWS, 1, 1).selectExpr("CAST(id AS int) AS k", f"CAST(concat({parts}) AS binary) AS v")


def summed(frame: DataFrame) -> list[Any]:
    sums = frame.agg(f.count("k"), f.count_distinct("k"), f.bit_xor(f.xxhash64("k", "v")))
    return [tuple(row) for row in sums.collect()]


@pytest.fixture(scope="module")
def jobs(pipelined: PipelineCluster, one_spark: OneSpark) -> Iterator[SourceJobs]:
    batch = {"spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH)}
    with SourceJobs(pipelined, one_spark.user(f"local[4,{TASK_TRIES}]", **batch)) as made:
        yield made
    pipelined.wait_clean()


@pytest.mark.long
def test_a_tablet_is_copied_in_the_middle(jobs: SourceJobs, pipelined: PipelineCluster, tmp_path: Path) -> None:
    places = ("--from", pipelined.address(0), "--to", pipelined.address(KILLED))
    with Held(jobs, tmp_path, "copied") as held:
        for table in (held.source, held.target):
            ended = run_command(pipelined, "copy-tablet", table, "1", *places)
            assert ended.returncode == 0, ended
    held.check()
    same = run_command(pipelined, "compare", held.target)
    assert same.returncode == 0, same


def test_a_node_is_killed_in_the_middle(jobs: SourceJobs, pipelined: PipelineCluster, tmp_path: Path) -> None:
    with Held(jobs, tmp_path, "killed") as held:
        pipelined.kill_node(KILLED)
    held.check()
    pipelined.start_node(KILLED)
    pipelined.wait_pipeline()
    healed = run_command(pipelined, "compare", held.target, "--heal")
    assert "Traceback" not in healed.stderr, healed
    same = run_command(pipelined, "compare", held.target)
    assert same.returncode == 0, same
