"""What of Spark's interface differs between its ways of running: cancelling, progress, and whether it is still there.

There is one implementation, for a session whose Java process is our own (an embedded one, and a `spark://` cluster).
For Spark Connect (`sc://`) there is none: its client needs packages that nothing else here does (grpcio-status and
googleapis-common-protos, at versions that the client of this Spark release does not state), and there tags, progress
and cancelling are other calls altogether, which could not be tested beside this one. Job code keeps to DataFrames, so
that such an implementation is all that is missing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from ebla.ports.transfer_engine import TaskCounts


class SparkAdapter(Protocol):
    @contextmanager
    def jobs(self, tag: str, description: str) -> Iterator[None]:
        """What this thread runs meanwhile goes under the tag."""
        ...

    def cancel(self, tag: str) -> None:
        """What runs under it now; not what is begun later."""
        ...

    def counts(self, tag: str) -> TaskCounts: ...

    def is_alive(self) -> bool: ...

    def slots(self) -> int:
        """How many tasks run at the same time."""
        ...

    def user_interface(self) -> str: ...


class ClassicAdapter:
    """By tags of jobs for cancelling: tags of the session cancel nothing that another thread has begun. By groups of
    jobs for progress: the tracker knows no tags."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: SparkContext = spark.sparkContext
        self._tracker = self._context.statusTracker()

    @contextmanager
    def jobs(self, tag: str, description: str) -> Iterator[None]:
        self._context.setJobGroup(tag, description)
        self._context.addJobTag(tag)
        try:
            yield
        finally:
            # The thread goes on to other work; where Spark is gone there is nothing to clear.
            try:
                self._context.removeJobTag(tag)
                self._context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # takes it away
                self._context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]  # likewise
            except (Py4JError, OSError, AttributeError):
                pass

    def cancel(self, tag: str) -> None:
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
        return self._context.defaultParallelism

    def user_interface(self) -> str:
        return self._context.uiWebUrl or ""
