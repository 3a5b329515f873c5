"""What a task of a write does with its rows: few of them go along with its message, the others are staged as runs."""

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from ebla.source.write.commit_deps import RecordSink
from ebla.source.write.encode_rows import RowEncoding, encode_rows
from ebla.source.write.flight_sink import FlightSink
from ebla.source.write.row_encoding import row_encoding
from ebla.source.write.run_staging import Stager
from ebla.source.write.small_writes import SMALL_BYTES_MAX, pack_batches
from ebla.source.write.sorted_runs import sort_and_route
from ebla.source.write.task_messages import WriteTaskResult, WriteTaskSpec
from ebla.source.write.write_options import WriteOptions
from ebla.storage.layers.malloc import use_malloc_for_arrow

RUN_BYTES_MAX = 400 << 20
"""Whatever is asked for: twice that, and what encoding adds, must fit into columns that count bytes in 31 bits."""
COALESCED_ROWS_MAX = 1_000_000
"""Of one run. Spark's batches are of 10,000 rows; what is done once for each costs less in larger ones."""


def write_task(options: WriteOptions, order: WriteTaskSpec, batches: Iterable[pa.RecordBatch]) -> WriteTaskResult:
    """All that a task does, by the nodes of the order's plan."""
    return write_rows(order, row_encoding(options, order.plan), batches, lambda: FlightSink(order.plan.authority))


def write_rows(
    order: WriteTaskSpec, form: RowEncoding, batches: Iterable[pa.RecordBatch], connect: Callable[[], RecordSink]
) -> WriteTaskResult:
    use_malloc_for_arrow()
    pieces = coalesce_batches(batches, min(order.run_bytes, RUN_BYTES_MAX))
    few, rest = _first_few(pieces, order.small_rows)
    if rest is None:
        for batch in few:
            encode_rows(form, batch)  # what is wrong with a row is told by the task that has it
        rows = sum(len(batch) for batch in few)
        return WriteTaskResult(session=order.session, rows=rows, small=pack_batches(few))
    stager = Stager(order.plan.targets, connect, short_cut=order.uses_local_files)
    try:
        rows = _stage(order, form, _chained(few, rest, pieces), stager)
    finally:
        stager.close()
    staged = stager.staged()
    return WriteTaskResult(session=order.session, rows=rows, runs=staged.runs, lost=staged.lost)


def _stage(order: WriteTaskSpec, form: RowEncoding, batches: Iterable[pa.RecordBatch], stager: Stager) -> int:
    rows = 0
    for batch in batches:
        stager.stage(sort_and_route(form.schema, order.plan.routes, [encode_rows(form, batch)]))
        rows += len(batch)
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


def coalesce_batches(batches: Iterable[pa.RecordBatch], run_bytes: int) -> Iterator[pa.RecordBatch]:
    """As large as a run is to be, and at most twice that; without empty ones."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        for piece, piece_bytes in _pieces(batch, run_bytes):
            waiting.append(piece)
            rows += len(piece)
            size_bytes += piece_bytes
            if rows >= COALESCED_ROWS_MAX or size_bytes >= run_bytes:
                yield _joined(waiting)
                waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _pieces(batch: pa.RecordBatch, run_bytes: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """With about what each holds: asking Arrow is no small matter, once for each of Spark's batches will do."""
    if not len(batch):
        return
    size_bytes = batch.nbytes
    count = min(len(batch), -(-size_bytes // run_bytes) or 1)
    rows = -(-len(batch) // count)
    for start in range(0, len(batch), rows):
        yield batch.slice(start, rows), -(-size_bytes // count)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
