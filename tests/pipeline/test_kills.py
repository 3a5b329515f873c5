"""A process is killed during a copy of files and a stream of rows: both jobs finish, and apply everything once."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.cluster.group0_nodes import stopped
from tests.cluster.lease_records import broken_promises, records
from tests.pipeline.clusters import PipelineCluster, Replicas, large_table, signalled
from tests.pipeline.served_nodes import NODES, slowly

from ebla.model.identity import JobId
from ebla.model.records.jobs import JobState


@pytest.fixture
def cluster(pipelined: PipelineCluster) -> Iterator[PipelineCluster]:
    pipelined.wait_pipeline()
    yield pipelined
    pipelined.wait_clean()


class TwoMoves:
    """A copy of one table's files and a stream of another's rows, both paused half-way."""

    def __init__(self, cluster: PipelineCluster, name: str) -> None:
        self._cluster = cluster
        self.leader = cluster.leader
        """Neither source nor target."""
        self.source, self.target = (number for number in range(NODES) if number != self.leader)
        places = self.source, self.target
        self.files = large_table(cluster, f"{name}_files", places)
        self.rows = large_table(cluster, f"{name}_rows", places)
        files = self.files.copy(*places, short_cut=False)
        self.held = cluster.hold_in_the_middle(self.target, files)
        rows = self.rows.stream([self.source], self.target)
        self.held += cluster.hold_in_the_middle(self.target, rows)
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
            table.brought([self.source], self.target)
            self.check(table)

    def check(self, table: Replicas) -> None:
        table.check(self.source, self.target)


def killed_and_started(cluster: PipelineCluster, number: int) -> None:
    cluster.kill_node(number)
    cluster.start_node(number)


KILLS: dict[str, Callable[[PipelineCluster, TwoMoves], object]] = {
    "workers": lambda cluster, _: signalled(cluster.workers, signal.SIGKILL),
    "bulk_of_source": lambda cluster, moves: cluster.kill_child("bulk", moves.source),
    "bulk_of_target": lambda cluster, moves: cluster.kill_child("bulk", moves.target),
    "shards": lambda cluster, moves: [cluster.kill_child("shard-0", each) for each in (moves.source, moves.target)],
    "children": lambda cluster, moves: [
        cluster.kill_child(name, number) for number in (moves.source, moves.target) for name in ("bulk", "shard-0")
    ],
    "target": lambda cluster, moves: killed_and_started(cluster, moves.target),
    "leader": lambda cluster, moves: killed_and_started(cluster, moves.leader),
    "pipeline": lambda cluster, _: os.kill(cluster.pipeline_pid, signal.SIGKILL),
}


ALONE = ("workers", "bulk_of_source", "bulk_of_target", "shards", "target", "pipeline")
"""Victims that every run covers together with others, as `children` and `leader`; `test_spark_engine` kills workers."""


@pytest.mark.parametrize(
    "victim", [pytest.param(victim, marks=pytest.mark.long if victim in ALONE else ()) for victim in KILLS]
)
def test_killed_in_the_middle(cluster: PipelineCluster, victim: str) -> None:
    moves = TwoMoves(cluster, victim)
    KILLS[victim](cluster, moves)
    moves.let_go()
    moves.check_done()
    cluster.wait_up()


@pytest.mark.long
def test_leadership_moved_in_the_middle(cluster: PipelineCluster) -> None:
    moves = TwoMoves(cluster, "moved")
    before = cluster.pipeline_pid
    cluster.lead(moves.source)
    moves.let_go()
    moves.check_done()
    assert cluster.pipeline_pid != before


@pytest.mark.long
@pytest.mark.parametrize("seconds", [5.0, 12.0, 30.0])
def test_a_leader_that_was_stopped_in_the_middle_does_nothing_after_its_successor(
    cluster: PipelineCluster, seconds: float
) -> None:
    """Less than a lease counts, less than it lasts, and longer."""
    moves = TwoMoves(cluster, f"stopped_{seconds:.0f}")
    with stopped(cluster.processes[moves.leader]):
        time.sleep(seconds)
    moves.let_go()
    moves.check_done()
    cluster.wait_up()
    assert broken_promises(records(cluster.local)) == []


def test_jobs_wait_for_spark_and_say_so(cluster: PipelineCluster) -> None:
    moves = TwoMoves(cluster, "spark")
    os.kill(cluster.java.pid, signal.SIGKILL)
    moves.let_go()

    def waits(job: JobId) -> bool:
        found = cluster.job(job)
        return found.state is JobState.WAITING and "pipeline unavailable: Spark's Java process" in found.cause

    for job in moves.jobs:
        slowly(partial(waits, job), "it waits, and says for what")
    moves.check_done()


def test_a_node_that_does_not_come_back_fails_its_jobs(cluster: PipelineCluster) -> None:
    """The pipeline is killed too, since its tasks would retry the node for a while: the next one knows that the node is
    down, and closes the sessions without it."""
    moves = TwoMoves(cluster, "gone")
    cluster.kill_node(moves.target)
    os.kill(cluster.pipeline_pid, signal.SIGKILL)
    moves.let_go()
    for job in moves.jobs:
        found = cluster.ended(job)
        assert found.state is JobState.FAILED, found
        assert f"node {cluster.address(moves.target)}" in found.cause
        assert "is down" in found.cause
    cluster.start_node(moves.target)
    cluster.wait_clean()
    for table in moves.tables:
        moves.check(table)
