"""Jobs on a separate Spark cluster whose Python lacks the package, and which runs tasks twice."""

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import functions as f
from tests.pipeline.clusters import PipelineCluster
from tests.pipeline.served_nodes import PATIENCE_S
from tests.pipeline.source_jobs import OneSpark, SourceJobs
from tests.pipeline.standalone import LOOPBACK, StandaloneCluster, bare_python

HOSTS = (LOOPBACK, "127.0.0.2")
SLOW = 0
"""The task that is run twice."""
ROWS = 4_000
SETTINGS = {
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.executor.cores": "2",
    "spark.executor.memory": "1g",
    "spark.driver.host": LOOPBACK,
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}


@pytest.fixture(scope="module")
def jobs(
    pipelined: PipelineCluster, one_spark: OneSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SourceJobs]:
    folder = tmp_path_factory.mktemp("executors")
    stranger = bare_python(folder / "stranger", ("ebla", "pyspark_ebla"))
    with StandaloneCluster(folder, HOSTS) as spark_cluster:
        spark = one_spark.user(spark_cluster.master, **SETTINGS)
        spark.sparkContext.pythonExec = str(stranger)
        with SourceJobs(pipelined, spark) as made:
            yield made
        one_spark.clear()
    pipelined.wait_clean()


@pytest.mark.long
def test_a_task_that_runs_twice_counts_once(jobs: SourceJobs, tmp_path: Path) -> None:
    """Both attempts bring different rows; the first does not end before the second has begun."""
    jobs.cql("CREATE TABLE jobs.twice (k int PRIMARY KEY, try int, own text)")
    frame = jobs.spark.range(0, ROWS, 1, 4).selectExpr("CAST(id AS int) AS k")
    slow, second, patience_s = SLOW, str(tmp_path / "second"), PATIENCE_S

    def tried(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        for batch in batches:
            batch["try"] = attempt
            batch["own"] = [str(uuid.uuid4()) for _ in range(len(batch))]
            batch["k"] += 10_000 * attempt
            yield batch
        if context.partitionId() == slow and attempt == 0:
            deadline = time.monotonic() + patience_s
            while not os.path.exists(second):
                assert time.monotonic() < deadline, "there is no second try"
                time.sleep(0.05)
        elif attempt > 0:
            open(second, "w").close()

    jobs.write(frame.mapInPandas(tried, "k int, try int, own string"), "jobs.twice", small_rows="0", run_bytes="4k")
    assert (tmp_path / "second").exists()
    read = jobs.read("jobs.twice", shortcut="false")
    sums = read.agg(f.count("k"), f.count_distinct(f.expr("k % 10000")), f.count_distinct("own")).collect()
    assert [tuple(row) for row in sums] == [(ROWS, ROWS, ROWS)], "no row is there by both tries"
    tries = read.groupBy(f.expr("(k % 10000) DIV 1000")).agg(f.count_distinct("try")).collect()
    assert [row[1] for row in tries] == [1] * 4
    assert dict(jobs.cql("SELECT k, own FROM jobs.twice")) == {row.k: row.own for row in read.collect()}
