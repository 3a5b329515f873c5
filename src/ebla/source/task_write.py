"""What a task of a write does with its rows: few of them go along with its message, the others are staged as runs."""

import uuid
from collections.abc import Callable, Iterable, Iterator

import msgspec
import pyarrow as pa

from ebla.model.identity import SessionId, TransferId
from ebla.source.encode_rows import RowForm, encode_rows
from ebla.source.runs import RUN_BYTES, RunBuffer
from ebla.source.small_writes import SMALL_BYTES_MAX, pack_batches
from ebla.source.stage_runs import Sink, Stager
from ebla.storage.kept_memory import keep_freed_buffers
from ebla.wire.table_access import StagedRun, WritePlan

JOINED_ROWS = 100_000
JOINED_BYTES = 16 << 20
"""Spark's batches are of 10,000 rows; what is done once for each costs less in larger ones."""


class TaskRows(msgspec.Struct, frozen=True, array_like=True):
    """What a task has done, as its message says."""

    session: SessionId
    rows: int = 0
    runs: tuple[StagedRun, ...] = ()
    lost: tuple[TransferId, ...] = ()
    """Which lack some of the rows, since their node could not be reached."""
    small: bytes = b""
    """Rows as Spark gave them (`small_writes`); nothing of them is staged."""
    job: str = ""
    batch: int | None = None
    """Of a stream, whose job is known to its tasks first."""

    def of_stream(self, job: str, batch: int) -> "TaskRows":
        return msgspec.structs.replace(self, job=job, batch=batch)


class TaskOrder(msgspec.Struct, frozen=True):
    """What all tasks of a job are told."""

    plan: WritePlan
    session: SessionId
    small_rows: int = 0
    run_bytes: int = RUN_BYTES
    uses_short_cut: bool = True


def write_rows(
    order: TaskOrder, form: RowForm, batches: Iterable[pa.RecordBatch], connect: Callable[[], Sink]
) -> TaskRows:
    keep_freed_buffers()
    pieces = joined_batches(batches)
    few, rest = _first_few(pieces, order.small_rows)
    if rest is None:
        for batch in few:
            encode_rows(form, batch)  # what is wrong with a row is told by the task that has it
        rows = sum(len(batch) for batch in few)
        return TaskRows(order.session, rows, small=pack_batches(few))
    stager = Stager(order.plan.targets, connect, short_cut=order.uses_short_cut)
    try:
        rows = _stage(order, form, _chained(few, rest, pieces), stager)
    finally:
        stager.close()
    staged = stager.staged()
    return TaskRows(order.session, rows, staged.runs, staged.lost)


def _stage(order: TaskOrder, form: RowForm, batches: Iterable[pa.RecordBatch], stager: Stager) -> int:
    buffer = RunBuffer(form.schema, order.plan.routes, order.run_bytes)
    rows = 0
    for batch in batches:
        buffer.add(encode_rows(form, batch))
        rows += len(batch)
        if buffer.is_full:
            stager.stage(buffer.take())
    stager.stage(buffer.take())
    return rows


def _first_few(
    batches: Iterator[pa.RecordBatch], small_rows: int
) -> tuple[list[pa.RecordBatch], pa.RecordBatch | None]:
    """Those that are few together, and the one with which they are not any more; None: there is none."""
    few: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        rows += len(batch)
        size_bytes += batch.nbytes
        if rows > small_rows or size_bytes > SMALL_BYTES_MAX:
            return few, batch
        few.append(batch)
    return few, None


def _chained(
    few: list[pa.RecordBatch], next_one: pa.RecordBatch, rest: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    yield from few
    yield next_one
    yield from rest


def joined_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Larger ones, and none that is larger than is good; without empty ones."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        for piece in _pieces(batch):
            waiting.append(piece)
            rows += len(piece)
            size_bytes += piece.nbytes
            if rows >= JOINED_ROWS or size_bytes >= JOINED_BYTES:
                yield _joined(waiting)
                waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not len(batch):
        return
    count = min(len(batch), -(-batch.nbytes // JOINED_BYTES) or 1)
    rows = -(-len(batch) // count)
    for start in range(0, len(batch), rows):
        yield batch.slice(start, rows)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def draw_session() -> SessionId:
    return SessionId(uuid.uuid4())
