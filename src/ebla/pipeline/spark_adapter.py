"""The part of Spark's interface that depends on how Spark runs: cancelling, progress, and whether it is alive.

There is one implementation, for a session with its own Java process (embedded Spark, and a `spark://` cluster). Spark
Connect (`sc://`) is not supported: its client needs packages that nothing else here needs (grpcio-status and
googleapis-common-protos, at versions that this Spark release does not state), and its calls for tags, progress and
cancelling are different. Job code uses only DataFrames, so that only such an adapter is missing.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from ebla.ports.transfer_engine import TaskCounts


class SparkAdapter:
    """Cancels by job tags: tags of the session do not cancel jobs of another thread. Counts progress by job groups: the
    status tracker does not know tags."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: SparkContext = spark.sparkContext
        self._tracker = self._context.statusTracker()

    @contextmanager
    def jobs(self, tag: str, description: str) -> Iterator[None]:
        """Jobs that this thread starts meanwhile get the tag."""
        self._context.setJobGroup(tag, description)
        self._context.addJobTag(tag)
        try:
            yield
        finally:
            # The thread is used for other work; if Spark is gone, there is nothing to clear.
            try:
                self._context.removeJobTag(tag)
                self._context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # removes it
                self._context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]  # likewise
            except (Py4JError, OSError, AttributeError):
                pass

    def cancel(self, tag: str) -> None:
        """Cancels the jobs that run with the tag now; not later ones."""
        self._context.cancelJobsWithTag(tag)

    def counts(self, tag: str) -> TaskCounts:
        stages: dict[int, None] = {}
        for job in self._tracker.getJobIdsForGroup(tag):
            info = self._tracker.getJobInfo(job)
            stages.update(dict.fromkeys(info.stageIds if info is not None else ()))
        known = [found for stage in stages if (found := self._tracker.getStageInfo(stage)) is not None]
        return TaskCounts(
            done=sum(stage.numCompletedTasks for stage in known),
            running=sum(stage.numActiveTasks for stage in known),
            total=sum(stage.numTasks for stage in known),
        )

    def is_alive(self) -> bool:
        try:
            stopped: bool = self._context._jsc.sc().isStopped()  # noqa: SLF001  # Python knows only of its own stops
        except (Py4JError, OSError, AttributeError):
            return False
        return not stopped

    def slots(self) -> int:
        """How many tasks run concurrently."""
        return self._context.defaultParallelism

    def user_interface(self) -> str:
        return self._context.uiWebUrl or ""
