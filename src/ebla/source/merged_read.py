"""Rows of several replicas made one in a task, and shown as a user sees them: what a consistency level above one needs.

Each replica sends what it has stored, deletions and write times included; who wins is decided here, by the rule by
which layers of one node are merged. Pure over the streams.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.schema import TableSchema
from ebla.storage.columns import Shape, chunk_of
from ebla.storage.key_columns import partition_prefixes
from ebla.storage.scan import CHUNK_BYTES, CHUNK_ROWS, Question, show_rows

StoredRows = Iterable[pa.RecordBatch]
"""Batches of `row_file.ROWS_SCHEMA` in key order, every key once."""


def merged_rows(question: Question, replicas: Sequence[StoredRows]) -> Iterator[pa.RecordBatch]:
    """What all of them together show of the question, in key order. The streams must be of its spans, or of a part of
    them; rows beyond its conditions and partitions may be among them. What a stream raises ends the answer."""
    return show_rows(question, [_chunks(question, replica) for replica in replicas])


def _chunks(question: Question, replica: StoredRows) -> Iterator[pa.RecordBatch]:
    """Batches come as large as the network wants them; many small ones cost more to merge than few large ones."""
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
            yield _chunk(question.schema, waiting)
            waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield _chunk(question.schema, waiting)


def _chunk(schema: TableSchema, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    joined = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    return chunk_of(Shape(schema), joined.column(0), joined.column(1))


def _of_partitions(question: Question, batch: pa.RecordBatch) -> pa.RecordBatch:
    if not question.partitions or not len(batch):
        return batch
    wanted = pa.array(question.partitions, pa.binary())
    return batch.filter(pc.is_in(partition_prefixes(batch.column(0)), value_set=wanted))
