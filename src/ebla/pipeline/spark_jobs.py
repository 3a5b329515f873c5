"""One job on Spark, in its own thread: packs work into tasks, runs them, returns results or raises a clear error."""

import heapq
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from ebla.model.transfers import ComparisonTask, FileMove, RowMove, TransferResult, TransferTask
from ebla.pipeline import hash_tasks
from ebla.pipeline.file_tasks import file_move_outcome, trim_file_move
from ebla.pipeline.row_tasks import row_move_outcome, trim_row_move
from ebla.pipeline.spark_adapter import SparkAdapter
from ebla.pipeline.spark_session import SparkRuntime
from ebla.pipeline.task_outcome import OUTCOME_SCHEMA, SparkTask, parse_failure, results_of, work_failed
from ebla.ports.transfer_engine import PipelineUnavailable
from ebla.transfers.flight_client import FlightClient

S = TypeVar("S", bound=msgspec.Struct)
W = TypeVar("W")

ROW_TASKS_MAX = 8
"""Of one job at a time. Two such jobs use no more streams of a node than it allows by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJobContext:
    session: SparkRuntime
    adapter: SparkAdapter
    authority: bytes
    task_bytes: int


class JobAbandoned(Exception):
    """The job was cancelled; no caller waits for it any more."""


def run_spark_job(
    context: SparkJobContext, tag: str, work: Sequence[TransferTask], is_abandoned: threading.Event
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
        if is_abandoned.is_set():
            raise JobAbandoned
        try:
            with context.adapter.jobs(tag, description):
                results += step()
        except (PySparkException, Py4JError, OSError) as error:
            raise _translated(context, error) from error
        except AttributeError as error:
            # PySpark tears down the Py4J gateway of a stopped session while other threads still use it.
            if _is_lost(context):
                raise _translated(context, error) from error
            raise
    return results


def _move_files(context: SparkJobContext, moves: Sequence[FileMove]) -> Sequence[TransferResult]:
    sized = [(trim_file_move(move), move.size_bytes) for move in moves]
    tasks = pack_tasks(sized, context.task_bytes, context.adapter.slots())
    return _moved(_run_tasks(context, FileMove, file_move_outcome, tasks, OUTCOME_SCHEMA))


def _move_rows(context: SparkJobContext, moves: Sequence[RowMove]) -> Sequence[TransferResult]:
    sized = [(trim_row_move(move), move.estimated_bytes) for move in moves]
    tasks = pack_row_tasks(sized, context.task_bytes, context.adapter.slots())
    return _moved(_run_tasks(context, RowMove, row_move_outcome, tasks, OUTCOME_SCHEMA))


def pack_tasks(sized: Sequence[tuple[W, int]], task_bytes: int, slots: int) -> tuple[tuple[W, ...], ...]:
    """Tasks of about `task_bytes` at most and of about the same size; a multiple of `slots`, if there is work for them
    all: the job waits for its last task.

    The largest items go first, each to the task with the least: with known sizes the last task ends not much later than
    in the best packing.
    """
    assert task_bytes > 0
    if not sized:
        return ()
    total = sum(size for _, size in sized)
    rounds = max(1, -(-total // (task_bytes * slots)))
    count = min(len(sized), rounds * slots)
    loads = [(0, task) for task in range(count)]
    packed: list[list[int]] = [[] for _ in range(count)]
    for item in sorted(range(len(sized)), key=lambda item: (-sized[item][1], item)):
        load, task = heapq.heappop(loads)
        packed[task].append(item)
        # An empty item still opens a stream.
        heapq.heappush(loads, (load + max(1, sized[item][1]), task))
    return tuple(tuple(sized[item][0] for item in sorted(items)) for items in packed)


def pack_row_tasks(sized: Sequence[tuple[W, int]], task_bytes: int, slots: int) -> tuple[tuple[W, ...], ...]:
    """Fewer and larger tasks if there are many slots. A row task holds a stream at every replica that it reads while it
    waits to write; many of them, at several nodes, would wait for each other."""
    if slots <= ROW_TASKS_MAX:
        return pack_tasks(sized, task_bytes, slots)
    total = sum(size for _, size in sized)
    return pack_tasks(sized, max(task_bytes, -(-total // ROW_TASKS_MAX)), ROW_TASKS_MAX)


def _moved(outcomes: DataFrame) -> Sequence[TransferResult]:
    return results_of([bytes(row.outcome) for row in outcomes.collect()])


def _compare(context: SparkJobContext, ranges: Sequence[ComparisonTask]) -> Sequence[TransferResult]:
    sized = [(order, order.size_bytes) for order in hash_tasks.hash_reads(ranges)]
    tasks = pack_row_tasks(sized, context.task_bytes, context.adapter.slots())
    # Both queries use the hashes, which are read once.
    hashes = _run_tasks(context, hash_tasks.HashRead, hash_tasks.read_hashes, tasks, hash_tasks.HASHES_SCHEMA).persist()
    try:
        return hash_tasks.compare_results(
            ranges, hash_tasks.differing_buckets(hashes).collect(), hash_tasks.range_totals(hashes).collect()
        )
    finally:
        hashes.unpersist()


def _run_tasks(
    context: SparkJobContext,
    kind: type[S],
    work: Callable[[FlightClient, S], pa.RecordBatch],
    tasks: Sequence[Sequence[S]],
    schema: str,
) -> DataFrame:
    """One row and one partition for each task: only so does each task get exactly what was packed for it."""
    encoded = tuple(tuple(msgspec.msgpack.encode(item) for item in task) for task in tasks)
    function = SparkTask(kind=kind, work=work, tasks=encoded, authority=context.authority)
    numbers = context.session.spark.range(0, len(tasks), 1, len(tasks)).withColumnRenamed("id", "task")
    return numbers.mapInArrow(function, schema)


def _is_lost(context: SparkJobContext) -> bool:
    return context.session.process.exit_code is not None or not context.adapter.is_alive()


def _translated(context: SparkJobContext, error: Exception) -> Exception:
    if _is_lost(context):
        return PipelineUnavailable("Spark was lost while the job ran", advice="it is restarted automatically")
    return work_failed(parse_failure(_text(error)))


def _text(error: Exception) -> str:
    # PySpark fetches some texts from its Java process, and that may fail too.
    try:
        return str(error)
    except (Py4JError, OSError):
        return type(error).__name__
