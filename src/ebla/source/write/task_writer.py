"""A write task: a few rows go along with its message, more are staged as runs."""

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from ebla.source.options import WriteOptions
from ebla.source.write.encode_rows import RowEncoding, encode_rows, row_encoding
from ebla.source.write.run_staging import Stager
from ebla.source.write.small_writes import SMALL_BYTES_MAX, pack_batches
from ebla.source.write.sorted_runs import sort_and_route
from ebla.source.write.write_job import WriteTaskResult, WriteTaskSpec
from ebla.storage.layers.malloc import use_malloc_for_arrow
from ebla.transfers.flight_client import FlightClient

RUN_BYTES_MAX = 400 << 20
"""Whatever the option says: twice that, and what the encoding adds, must fit into columns with 31-bit offsets."""
COALESCED_ROWS_MAX = 1_000_000
"""Of one run. Spark's batches have 10,000 rows; the cost per batch matters less in larger ones."""


def write_task(options: WriteOptions, spec: WriteTaskSpec, batches: Iterable[pa.RecordBatch]) -> WriteTaskResult:
    """The whole task, with Flight connections to the nodes of the plan."""
    return write_rows(spec, row_encoding(options, spec.plan), batches, lambda: FlightClient(spec.plan.authority))


def write_rows(
    spec: WriteTaskSpec, encoding: RowEncoding, batches: Iterable[pa.RecordBatch], connect: Callable[[], FlightClient]
) -> WriteTaskResult:
    use_malloc_for_arrow()
    pieces = coalesce_batches(batches, min(spec.run_bytes, RUN_BYTES_MAX))
    few, rest = _first_few(pieces, spec.small_rows)
    if rest is None:
        for batch in few:
            encode_rows(encoding, batch)  # so that an invalid row fails in the task that has it
        rows = sum(len(batch) for batch in few)
        return WriteTaskResult(job=spec.job, rows=rows, small=pack_batches(few))
    stager = Stager(spec.plan.targets, connect, uses_local_files=spec.uses_local_files)
    try:
        rows = _stage(spec, encoding, _chained(few, rest, pieces), stager)
    finally:
        stager.close()
    return WriteTaskResult(job=spec.job, rows=rows, runs=stager.runs, lost=stager.lost)


def _stage(spec: WriteTaskSpec, encoding: RowEncoding, batches: Iterable[pa.RecordBatch], stager: Stager) -> int:
    rows = 0
    for batch in batches:
        stager.stage(sort_and_route(encoding.schema, spec.plan.routes, [encode_rows(encoding, batch)]))
        rows += len(batch)
    return rows


def _first_few(
    batches: Iterator[pa.RecordBatch], small_rows: int
) -> tuple[list[pa.RecordBatch], pa.RecordBatch | None]:
    """The batches that fit the small-write limit, and the first one that does not (or None)."""
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
    """Batches of about the size of a run, at most twice that; empty ones are dropped."""
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
    """Slices with their approximate size: asking Arrow is expensive, so it is asked once per batch of Spark's."""
    if not len(batch):
        return
    size_bytes = batch.nbytes
    count = min(len(batch), -(-size_bytes // run_bytes) or 1)
    rows = -(-len(batch) // count)
    for start in range(0, len(batch), rows):
        yield batch.slice(start, rows), -(-size_bytes // count)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
