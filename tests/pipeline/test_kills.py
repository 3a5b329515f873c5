"""Whatever dies in the middle of files and of rows: both jobs come to their end, and bring what they should, once."""

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.pipeline.clusters import (
    PipelineCluster,
    Replicas,
    large_table,
    signalled,
    slowly,
    workers_of,
)

from ebla.model.identity import JobId
from ebla.wire.jobs import JobState

SOURCE, TARGET, THIRD = 0, 1, 2


@pytest.fixture
def cluster(pipelined: PipelineCluster) -> Iterator[PipelineCluster]:
    """The third node leads, and has the pipeline."""
    pipelined.lead(THIRD)
    yield pipelined
    pipelined.wait_clean()


class TwoMoves:
    """Files of one table and rows of another, side by side, each held in its middle."""

    def __init__(self, cluster: PipelineCluster, name: str) -> None:
        self._cluster = cluster
        self.files, self.rows = large_table(cluster, f"{name}_files"), large_table(cluster, f"{name}_rows")
        files = self.files.copy(SOURCE, TARGET, short_cut=False)
        self.held = cluster.hold_in_the_middle(TARGET, files)
        rows = self.rows.stream([SOURCE], TARGET)
        self.held += cluster.hold_in_the_middle(TARGET, rows)
        self.jobs: tuple[JobId, ...] = (files, rows)

    def let_go(self) -> None:
        signalled(self.held, signal.SIGCONT)

    @property
    def tables(self) -> tuple[Replicas, Replicas]:
        return self.files, self.rows

    def check_done(self) -> None:
        for job in self.jobs:
            self._cluster.done(job)
        for table in self.tables:
            table.brought([SOURCE], TARGET)
            table.check(SOURCE, TARGET)


def kill_workers(cluster: PipelineCluster) -> None:
    signalled(workers_of(cluster.java.pid), signal.SIGKILL)


def kill_java(cluster: PipelineCluster) -> None:
    os.kill(cluster.java.pid, signal.SIGKILL)


def kill_pipeline(cluster: PipelineCluster) -> None:
    os.kill(cluster.pipeline_pid, signal.SIGKILL)


def kill_child(name: str, number: int, cluster: PipelineCluster) -> None:
    cluster.kill_child(name, number)


def kill_node(number: int, cluster: PipelineCluster) -> None:
    cluster.kill_node(number)
    cluster.start_node(number)


Kill = Callable[[PipelineCluster], None]
KILLS: dict[str, Kill] = {
    "workers": kill_workers,
    "bulk_of_source": partial(kill_child, "bulk", SOURCE),
    "bulk_of_target": partial(kill_child, "bulk", TARGET),
    "shard_of_source": partial(kill_child, "shard-0", SOURCE),
    "shard_of_target": partial(kill_child, "shard-0", TARGET),
    "source": partial(kill_node, SOURCE),
    "target": partial(kill_node, TARGET),
    "leader": partial(kill_node, THIRD),
    "pipeline": kill_pipeline,
}


@pytest.mark.parametrize("victim", list(KILLS))
def test_killed_in_the_middle(cluster: PipelineCluster, victim: str) -> None:
    moves = TwoMoves(cluster, victim)
    KILLS[victim](cluster)
    moves.let_go()
    moves.check_done()
    cluster.wait_up()


def test_leadership_moved_in_the_middle(cluster: PipelineCluster) -> None:
    moves = TwoMoves(cluster, "moved")
    before = cluster.pipeline_pid
    cluster.lead(SOURCE)
    moves.let_go()
    moves.check_done()
    assert cluster.pipeline_pid != before


def test_jobs_wait_for_spark_and_say_so(cluster: PipelineCluster) -> None:
    moves = TwoMoves(cluster, "spark")
    kill_java(cluster)
    moves.let_go()

    def waits(job: JobId) -> bool:
        found = cluster.job(job)
        return found.state is JobState.WAITING and "pipeline unavailable: Spark's Java process" in found.cause

    for job in moves.jobs:
        slowly(partial(waits, job), "it waits, and says for what")
    moves.check_done()


def test_a_node_that_does_not_come_back_fails_its_jobs(cluster: PipelineCluster) -> None:
    moves = TwoMoves(cluster, "gone")
    cluster.kill_node(TARGET)
    moves.let_go()
    for job in moves.jobs:
        found = cluster.ended(job)
        assert found.state is JobState.FAILED, found
        assert f"node {cluster.address(TARGET)}" in found.cause
        assert "is down" in found.cause
    cluster.start_node(TARGET)
    cluster.wait_clean()
    for table in moves.tables:
        table.check(SOURCE, TARGET)
