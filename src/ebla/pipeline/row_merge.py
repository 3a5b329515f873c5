"""Rows of several replicas become one stream, of which each target takes what it lacks. By vector operations.

Batches have the columns `key` and `value`, as rows are stored: with write times, tombstones and heads.
"""

from collections import deque
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.errors import InvalidRequest
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.storage.codec.key_codec import key_spans
from ebla.storage.codec.row_file import ROWS_SCHEMA
from ebla.storage.columns.chunks import KEY, STORED, ChunkShape, chunk_of
from ebla.storage.merge.chunk_merge import merge_chunks, rows_before, rows_through


class ReplicaMerge:
    """The streams of all sources, each in key order, merged by cells. What a source had of the rows that were merged
    last is kept until it is asked for, for those sources that are named."""

    def __init__(
        self, streams: Sequence[Iterator[pa.RecordBatch]], schema: TableSchema | None, kept: Sequence[int]
    ) -> None:
        if schema is None and len(streams) > 1:
            raise InvalidRequest("rows of several replicas are merged by the table's schema, and none is given")
        self._schema = schema
        self._had: dict[int, deque[pa.RecordBatch]] = {place: deque() for place in kept}
        self._streams = [self._kept(place, stream) for place, stream in enumerate(streams)]

    def merged(self) -> Iterator[pa.RecordBatch]:
        if len(self._streams) == 1:
            yield from self._streams[0]
            return
        assert self._schema is not None
        shape = ChunkShape(self._schema)
        chunks = [(chunk_of(shape, *batch.columns) for batch in stream) for stream in self._streams]
        for chunk in merge_chunks(shape, chunks):
            yield pa.RecordBatch.from_arrays([chunk.column(KEY), chunk.column(STORED)], schema=ROWS_SCHEMA)

    def lacking(self, source: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Of rows that were merged, those that this source does not have in this very form. To be asked once for each
        batch, in order."""
        own = self._had_through(source, rows.column(0)[-1].as_py())
        if not len(own):
            return rows
        places = pc.index_in(rows.column(0), value_set=own.column(0))
        same = pc.equal(rows.column(1), own.column(1).take(places))
        return rows.filter(pc.invert(pc.fill_null(same, False)))

    def _kept(self, place: int, stream: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in stream:
            if place in self._had and len(batch):
                self._had[place].append(batch)
            yield batch

    def _had_through(self, source: int, end: bytes) -> pa.Table:
        """Everything up to that key: whatever is merged has been read before."""
        waiting = self._had[source]
        taken = []
        while waiting:
            batch = waiting.popleft()
            count = rows_through(batch.column(0), end)
            taken.append(batch.slice(0, count))
            if count < len(batch):
                waiting.appendleft(batch.slice(count))
                break
        return pa.Table.from_batches(taken, schema=ROWS_SCHEMA).combine_chunks()


def clip_rows(rows: pa.RecordBatch, to: TokenRange) -> list[pa.RecordBatch]:
    """The rows of a batch, in key order, whose tokens are in the range."""
    parts = []
    for start, end in key_spans(to):
        first = rows_before(rows.column(0), start)
        last = len(rows) if end is None else rows_before(rows.column(0), end)
        if first < last:
            parts.append(rows.slice(first, last - first))
    return parts
