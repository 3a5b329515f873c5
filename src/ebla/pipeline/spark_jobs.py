"""One job on Spark, in a thread of its own: work in, results or an error in words out."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from ebla.model.transfers import FileMove, RangeToCompare, Result, RowMove, Work
from ebla.pipeline import hash_plan
from ebla.pipeline.file_task import MoveFiles, encode_file_moves
from ebla.pipeline.row_task import MoveRows, encode_row_moves
from ebla.pipeline.spark_adapter import SparkAdapter
from ebla.pipeline.spark_session import WarmSession
from ebla.pipeline.task_bundles import bundles, few_bundles, file_bytes, row_bytes
from ebla.pipeline.task_outcome import OUTCOME_SCHEMA, failure_in, results_of, work_failed
from ebla.ports.transfers import PipelineUnavailable


@dataclass(frozen=True, slots=True)
class JobContext:
    session: WarmSession
    adapter: SparkAdapter
    authority: bytes
    task_bytes: int


class GivenUp(Exception):
    """The job was cancelled; nobody waits for it any more."""


def carry_out(context: JobContext, tag: str, work: Sequence[Work], given_up: threading.Event) -> Sequence[Result]:
    """Raises `WorkFailed` and `PipelineUnavailable`."""
    files = [one for one in work if isinstance(one, FileMove)]
    rows = [one for one in work if isinstance(one, RowMove)]
    ranges = [one for one in work if isinstance(one, RangeToCompare)]
    steps: list[tuple[str, Callable[[], Sequence[Result]]]] = []
    if files:
        steps.append((f"copy files: {len(files)} transfers", lambda: _move_files(context, files)))
    if rows:
        steps.append((f"copy rows: {len(rows)} ranges", lambda: _move_rows(context, rows)))
    if ranges:
        steps.append((f"compare replicas: {len(ranges)} ranges", lambda: _compare(context, ranges)))
    results: list[Result] = []
    for description, step in steps:
        if given_up.is_set():
            raise GivenUp
        try:
            with context.adapter.jobs(tag, description):
                results += step()
        except (PySparkException, Py4JError, OSError) as error:
            raise _told(context, error) from error
        except AttributeError as error:
            # PySpark takes what it talks to Java by away from a session that is ended, under whoever uses it.
            if _is_lost(context):
                raise _told(context, error) from error
            raise
    return results


def _move_files(context: JobContext, moves: Sequence[FileMove]) -> Sequence[Result]:
    tasks = bundles([(move, file_bytes(move)) for move in moves], context.task_bytes, context.adapter.slots())
    return _moved(context, MoveFiles(tuple(encode_file_moves(task) for task in tasks), context.authority))


def _move_rows(context: JobContext, moves: Sequence[RowMove]) -> Sequence[Result]:
    tasks = few_bundles([(move, row_bytes(move)) for move in moves], context.task_bytes, context.adapter.slots())
    return _moved(context, MoveRows(tuple(encode_row_moves(task) for task in tasks), context.authority))


def _moved(context: JobContext, function: MoveFiles | MoveRows) -> Sequence[Result]:
    outcomes = _numbered(context, len(function.tasks)).mapInArrow(function, OUTCOME_SCHEMA)
    return results_of([bytes(row.outcome) for row in outcomes.collect()])


def _compare(context: JobContext, ranges: Sequence[RangeToCompare]) -> Sequence[Result]:
    sized = [(order, order.size_bytes) for order in hash_plan.orders(ranges)]
    tasks = few_bundles(sized, context.task_bytes, context.adapter.slots())
    function = hash_plan.ReadHashes(tuple(hash_plan.encode_orders(task) for task in tasks), context.authority)
    # Both questions are asked of what was read once.
    hashes = _numbered(context, len(tasks)).mapInArrow(function, hash_plan.HASHES_SCHEMA).persist()
    try:
        return hash_plan.results(ranges, hash_plan.differing(hashes).collect(), hash_plan.totals(hashes).collect())
    finally:
        hashes.unpersist()


def _numbered(context: JobContext, tasks: int) -> DataFrame:
    """A row for each task, in a partition of its own: only so do tasks get exactly what was bundled for them."""
    return context.session.spark.range(0, tasks, 1, tasks).withColumnRenamed("id", "task")


def _is_lost(context: JobContext) -> bool:
    return context.session.process.exit_code is not None or not context.adapter.is_alive()


def _told(context: JobContext, error: Exception) -> Exception:
    if _is_lost(context):
        return PipelineUnavailable("Spark was lost while the job ran", advice="it is started again by itself")
    return work_failed(failure_in(_text(error)))


def _text(error: Exception) -> str:
    # PySpark asks its Java process for some texts, and that may fail like anything else.
    try:
        return str(error)
    except (Py4JError, OSError):
        return type(error).__name__
