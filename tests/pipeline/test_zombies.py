"""Tasks that are frozen, abandoned, and continue later: nothing they do has an effect."""

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil
import pytest
from tests.pipeline.clusters import (
    PipelineCluster,
    Replicas,
    deleted,
    frozen,
    large_table,
    python_processes,
    signalled,
    some_rows,
    workers_of,
)
from tests.pipeline.served_nodes import NODES, slowly

from ebla.model.identity import JobId

SOURCE, TARGET = 0, 1
COPYING = "copying files"


@pytest.fixture
def cluster(pipelined: PipelineCluster) -> Iterator[PipelineCluster]:
    pipelined.wait_pipeline()
    yield pipelined
    pipelined.wait_clean()


def changed(table: Replicas) -> None:
    """Overwrites some rows and deletes others on every replica, after the session was closed."""
    for number in range(NODES):
        table.write(number, some_rows(range(100, 130), 5_000, 9, 100) | deleted(range(130, 160), 5_000))


def refused(cluster: PipelineCluster, places: Sequence[int]) -> int:
    return sum(cluster.refused(number) for number in places)


@dataclass(frozen=True, slots=True)
class Undead:
    job: JobId
    workers: tuple[psutil.Process, ...]
    turned_away_at: tuple[int, ...]
    """A task in the middle of a stream requests more from the source, or sends more to the target."""


def given_up_and_released(cluster: PipelineCluster, table: Replicas, undead: Undead) -> None:
    """Everything that could end the tasks is frozen too."""
    job, workers, places = undead.job, undead.workers, undead.turned_away_at
    before = refused(cluster, places)
    cluster.cancelled(job)
    cluster.wait_clean(with_streams=False)
    changed(table)
    signalled(workers, signal.SIGCONT)
    slowly(lambda: refused(cluster, places) > before, "the undead task was turned away")
    cluster.wait_clean(with_streams=False)
    table.check(*range(NODES))


def works_as_before(cluster: PipelineCluster, table: Replicas) -> None:
    cluster.done(table.copy(SOURCE, TARGET))
    table.brought([SOURCE], TARGET)
    table.check(*range(NODES))


@pytest.mark.parametrize("kind", [pytest.param("files", marks=pytest.mark.long), "rows"])
def test_a_task_frozen_in_the_middle_of_a_stream(cluster: PipelineCluster, kind: str) -> None:
    """For rows the executor is frozen too: Spark's Java process."""
    table = large_table(cluster, f"zombie_{kind}")
    is_files, java = kind == "files", cluster.java
    job = table.copy(SOURCE, TARGET, short_cut=False) if is_files else table.stream([SOURCE], TARGET)
    workers = cluster.hold_in_the_middle(TARGET, job)
    python = python_processes(java.pid)
    with frozen(python if is_files else (*python, java)):
        given_up_and_released(cluster, table, Undead(job, workers, (SOURCE, TARGET)))
    works_as_before(cluster, table)


def test_a_task_frozen_before_it_takes_the_short_cut(cluster: PipelineCluster) -> None:
    table, java = large_table(cluster, "zombie_links"), cluster.java
    # A worker that has run a task waits for the next.
    cluster.done(table.copy(TARGET, SOURCE))
    table.brought([TARGET], SOURCE)
    python = python_processes(java.pid)
    workers = workers_of(java.pid)
    assert workers
    with frozen(python):
        job = table.copy(SOURCE, TARGET)
        slowly(lambda: cluster.job(job).progress.tasks_total > 0, "Spark has given the task to its worker")
        assert cluster.job(job).progress.step == COPYING
        given_up_and_released(cluster, table, Undead(job, workers, (TARGET,)))
    works_as_before(cluster, table)
