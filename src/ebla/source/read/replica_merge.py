"""Merges the rows of several replicas in a task, for consistency levels above ONE.

Each replica sends its stored rows with deletions and write times. Conflicts are resolved here by the rule that merges
the layers of one node. Pure over the streams.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from ebla.storage.codec.row_file import ROWS_SCHEMA
from ebla.storage.columns.chunks import KEY, ChunkShape, chunk_of, whole_shape, with_completeness
from ebla.storage.columns.key_columns import partition_prefixes
from ebla.storage.scan.stack_scan import CHUNK_BYTES, CHUNK_ROWS, ScanQuery, output_schema, show_rows

StoredBatches = Iterable[pa.RecordBatch]
"""The answer to a `StoredRowsQuery`, by column or not: in key order, every key once."""


def merge_replicas(question: ScanQuery, replicas: Sequence[StoredBatches]) -> Iterator[pa.RecordBatch]:
    """The merged rows that match the query, in key order. The streams must cover its spans, or a part of them; they may
    contain rows that do not match its conditions and partitions. An error of a stream ends the answer. An invalid query
    raises `InvalidRequest` before any stream is read."""
    output_schema(question)
    streams = [_nonempty(replica) for replica in replicas]
    firsts = [next(stream, None) for stream in streams]
    by_column = any(first is not None and _is_by_column(first) for first in firsts)
    shape = whole_shape(question.schema) if by_column else ChunkShape(question.schema)
    chunks = [
        _chunks(question, shape, chain((first,), stream)) for first, stream in zip(firsts, streams) if first is not None
    ]
    yield from show_rows(question, shape, chunks)


def _nonempty(replica: StoredBatches) -> Iterator[pa.RecordBatch]:
    return (batch for batch in replica if len(batch))


def _is_by_column(batch: pa.RecordBatch) -> bool:
    return len(batch.schema) > len(ROWS_SCHEMA)


def _chunks(question: ScanQuery, shape: ChunkShape, replica: StoredBatches) -> Iterator[pa.RecordBatch]:
    """Batches have the size of the network's messages; merging many small ones costs more than merging few large
    ones."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in replica:
        chosen = _of_partitions(question, batch)
        if not len(chosen):
            continue
        waiting.append(chosen)
        rows += len(chosen)
        size_bytes += chosen.nbytes
        if rows >= CHUNK_ROWS or size_bytes >= CHUNK_BYTES:
            yield _chunk(shape, waiting)
            waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield _chunk(shape, waiting)


def _chunk(shape: ChunkShape, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    joined = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    if not _is_by_column(joined):
        return chunk_of(shape, joined.column(0), joined.column(1))
    wanted = shape.arrow_schema
    if joined.schema.equals(wanted):
        return joined
    # The node and this task know different versions of the schema: columns were added or dropped.
    names = joined.schema.names
    columns = [joined.column(one.name) if one.name in names else pa.nulls(len(joined), one.type) for one in wanted]
    return with_completeness(shape, pa.RecordBatch.from_arrays(columns, schema=wanted))


def _of_partitions(question: ScanQuery, batch: pa.RecordBatch) -> pa.RecordBatch:
    if not question.partitions:
        return batch
    wanted = pa.array(question.partitions, pa.binary())
    return batch.filter(pc.is_in(partition_prefixes(batch.column(KEY)), value_set=wanted))
