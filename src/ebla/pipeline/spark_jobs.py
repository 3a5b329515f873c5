"""One job on Spark, in a thread of its own: work in, results or an error in words out."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from ebla.model.transfers import ComparisonTask, FileMove, RowMove, TransferResult, TransferTask
from ebla.pipeline import hash_tasks
from ebla.pipeline.file_tasks import FileMoveTask, encode_file_moves
from ebla.pipeline.row_tasks import RowMoveTask, encode_row_moves
from ebla.pipeline.spark_adapter import SparkAdapter
from ebla.pipeline.spark_session import SparkRuntime
from ebla.pipeline.task_outcome import OUTCOME_SCHEMA, parse_failure, results_of, work_failed
from ebla.ports.transfer_engine import PipelineUnavailable
from ebla.transfers.task_bundles import file_move_bytes, pack_row_tasks, pack_tasks, row_move_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJobContext:
    session: SparkRuntime
    adapter: SparkAdapter
    authority: bytes
    task_bytes: int


class JobAbandoned(Exception):
    """The job was cancelled; nobody waits for it any more."""


def run_spark_job(
    context: SparkJobContext, tag: str, work: Sequence[TransferTask], given_up: threading.Event
) -> Sequence[TransferResult]:
    """Raises `WorkFailed` and `PipelineUnavailable`."""
    files = [one for one in work if isinstance(one, FileMove)]
    rows = [one for one in work if isinstance(one, RowMove)]
    ranges = [one for one in work if isinstance(one, ComparisonTask)]
    steps: list[tuple[str, Callable[[], Sequence[TransferResult]]]] = []
    if files:
        steps.append((f"copy files: {len(files)} transfers", lambda: _move_files(context, files)))
    if rows:
        steps.append((f"copy rows: {len(rows)} ranges", lambda: _move_rows(context, rows)))
    if ranges:
        steps.append((f"compare replicas: {len(ranges)} ranges", lambda: _compare(context, ranges)))
    results: list[TransferResult] = []
    for description, step in steps:
        if given_up.is_set():
            raise JobAbandoned
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


def _move_files(context: SparkJobContext, moves: Sequence[FileMove]) -> Sequence[TransferResult]:
    tasks = pack_tasks([(move, file_move_bytes(move)) for move in moves], context.task_bytes, context.adapter.slots())
    return _moved(context, FileMoveTask(tuple(encode_file_moves(task) for task in tasks), context.authority))


def _move_rows(context: SparkJobContext, moves: Sequence[RowMove]) -> Sequence[TransferResult]:
    tasks = pack_row_tasks(
        [(move, row_move_bytes(move)) for move in moves], context.task_bytes, context.adapter.slots()
    )
    return _moved(context, RowMoveTask(tuple(encode_row_moves(task) for task in tasks), context.authority))


def _moved(context: SparkJobContext, function: FileMoveTask | RowMoveTask) -> Sequence[TransferResult]:
    outcomes = _numbered(context, len(function.tasks)).mapInArrow(function, OUTCOME_SCHEMA)
    return results_of([bytes(row.outcome) for row in outcomes.collect()])


def _compare(context: SparkJobContext, ranges: Sequence[ComparisonTask]) -> Sequence[TransferResult]:
    sized = [(order, order.size_bytes) for order in hash_tasks.hash_reads(ranges)]
    tasks = pack_row_tasks(sized, context.task_bytes, context.adapter.slots())
    function = hash_tasks.HashTask(tuple(hash_tasks.encode_hash_reads(task) for task in tasks), context.authority)
    # Both questions are asked of what was read once.
    hashes = _numbered(context, len(tasks)).mapInArrow(function, hash_tasks.HASHES_SCHEMA).persist()
    try:
        return hash_tasks.compare_results(
            ranges, hash_tasks.differing_buckets(hashes).collect(), hash_tasks.range_totals(hashes).collect()
        )
    finally:
        hashes.unpersist()


def _numbered(context: SparkJobContext, tasks: int) -> DataFrame:
    """A row for each task, in a partition of its own: only so do tasks get exactly what was bundled for them."""
    return context.session.spark.range(0, tasks, 1, tasks).withColumnRenamed("id", "task")


def _is_lost(context: SparkJobContext) -> bool:
    return context.session.process.exit_code is not None or not context.adapter.is_alive()


def _told(context: SparkJobContext, error: Exception) -> Exception:
    if _is_lost(context):
        return PipelineUnavailable("Spark was lost while the job ran", advice="it is started again by itself")
    return work_failed(parse_failure(_text(error)))


def _text(error: Exception) -> str:
    # PySpark asks its Java process for some texts, and that may fail like anything else.
    try:
        return str(error)
    except (Py4JError, OSError):
        return type(error).__name__
