"""Nodes whose tasks run on a separate Spark cluster: a master and a worker."""

import os
import signal
from collections.abc import Iterator

import pytest
from tests.cluster.conftest import eventually
from tests.pipeline.clusters import (
    EMBEDDED,
    PipelineCluster,
    deleted,
    frozen,
    large_table,
    program_of,
    python_processes,
    signalled,
    some_rows,
)
from tests.pipeline.driver_load import DriverLoad
from tests.pipeline.served_nodes import NODES, slowly
from tests.pipeline.standalone import StandaloneCluster

from ebla.model.identity import JobId
from ebla.pipeline.java_process import is_running

SOURCE, TARGET, THIRD = 0, 1, 2


@pytest.fixture(scope="module")
def cluster(pipelined: PipelineCluster, standalone: StandaloneCluster) -> Iterator[PipelineCluster]:
    pipelined.restart_with_master(THIRD, standalone.master, standalone.secret_file)
    pipelined.lead(THIRD)
    pipelined.tasks_root = standalone.worker_pid
    yield pipelined
    pipelined.wait_clean()
    pipelined.tasks_root = None
    pipelined.restart_with_master(THIRD, EMBEDDED)


def test_files_and_rows_arrive_under_load(cluster: PipelineCluster) -> None:
    files, rows = large_table(cluster, "far_files"), large_table(cluster, "far_rows")
    with DriverLoad([cluster.address(number) for number in range(NODES)], files, rows) as load:
        eventually(lambda: load.acknowledged > 5, "the load runs")
        jobs = files.copy(SOURCE, TARGET, short_cut=False), rows.stream([SOURCE], TARGET)
        for job in jobs:
            cluster.done(job)
    for table in (files, rows):
        table.brought([SOURCE], TARGET)
        table.check(*range(NODES))


def test_a_second_attempt_races_the_first(cluster: PipelineCluster, standalone: StandaloneCluster) -> None:
    """The executor of a frozen worker is killed: Spark runs the task again elsewhere, and then the first attempt
    continues too."""
    table = large_table(cluster, "raced")
    job = table.copy(SOURCE, TARGET, short_cut=False)
    first = cluster.hold_in_the_middle(TARGET, job)
    python = python_processes(standalone.worker_pid)
    with frozen(python):
        for mark in standalone.executors:
            if program_of(mark) == "java":
                os.kill(mark.pid, signal.SIGKILL)
        slowly(lambda: attempts(cluster, job) > 1, "the task is run again")
        signalled(first, signal.SIGCONT)
        cluster.done(job)
    table.brought([SOURCE], TARGET)
    table.check(*range(NODES))
    slowly(lambda: not any(map(is_running, python)), "those whose executor is gone end by themselves")


def attempts(cluster: PipelineCluster, job: JobId) -> int:
    status = cluster.bulk_status(TARGET, cluster.job(job).session)
    return 0 if status is None else sum(one.attempts for one in status.stagings)


@pytest.mark.long
def test_a_frozen_executor_and_its_task_are_given_up(cluster: PipelineCluster, standalone: StandaloneCluster) -> None:
    table = large_table(cluster, "far_zombie")
    job = table.stream([SOURCE], TARGET)
    workers = cluster.hold_in_the_middle(TARGET, job)
    with frozen(standalone.executors):
        before = cluster.refused(SOURCE) + cluster.refused(TARGET)
        cluster.cancelled(job)
        for number in range(NODES):
            table.write(number, some_rows(range(100, 130), 5_000, 9, 100) | deleted(range(130, 160), 5_000))
        signalled(workers, signal.SIGCONT)
        slowly(lambda: cluster.refused(SOURCE) + cluster.refused(TARGET) > before, "it was turned away")
        table.check(*range(NODES))
    cluster.wait_clean()
    table.check(*range(NODES))
