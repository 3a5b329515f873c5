"""Applies partition heads, and a transform of single rows, to merged chunks in order.

A head comes before the rows of its partition, perhaps in an earlier chunk. Only the rows that need it are handled one
by one: those that are not plain, and plain ones that a deletion of their head may cover.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from ebla.model.rows import NEVER_US, Deletion, PartitionHead
from ebla.storage.codec.key_codec import prefix_end, split_key
from ebla.storage.codec.row_codec import decode_head, is_head
from ebla.storage.columns.binary_columns import Mask, Positions
from ebla.storage.columns.chunks import (
    KEY,
    STORED,
    ChunkFlag,
    ChunkShape,
    Flags,
    chunk_of,
    flags_of,
    splice_chunks,
    timestamps_of,
)
from ebla.storage.layers.layer import Item
from ebla.storage.merge.chunk_merge import KeySequence


class RowTransform(Protocol):
    """Maps a head, or a row that is not plain, to its new value; None drops it."""

    def head(self, item: Item) -> bytes | None: ...

    def row(self, item: Item, covering: Deletion | None) -> bytes | None:
        """`covering` is the newest deletion of the partition's head that applies to the row."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHeadSpan:
    """A head and the rows of a chunk that it applies to."""

    prefix: bytes
    head: PartitionHead
    start: int
    end: int


@dataclass(slots=True, kw_only=True)
class PartitionHeadPass:
    """One pass over the chunks of a stream."""

    shape: ChunkShape
    rule: RowTransform
    last: tuple[bytes, PartitionHead] | None = None
    """The head whose partition may continue in the next chunk."""
    spans: list[PartitionHeadSpan] = field(default_factory=list)
    """Of the last chunk, by positions in it before the transform."""

    def apply(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        flags = flags_of(chunk)
        looked_at: Mask = (flags & ChunkFlag.PLAIN) == 0
        if self.last is None and not looked_at.any():
            self.spans = []
            return chunk
        self.spans = list(self._find_spans(chunk, flags))
        self.last = None
        if self.spans and self.spans[-1].end == len(chunk):
            self.last = (self.spans[-1].prefix, self.spans[-1].head)
        dropped = self._covered_plain(chunk)
        positions = np.flatnonzero(looked_at)
        if not len(positions) and not len(dropped):
            return chunk
        untouched = ~looked_at
        untouched[dropped] = False
        return self._replaced(chunk, positions, np.flatnonzero(untouched))

    def _covered_plain(self, chunk: pa.RecordBatch) -> list[int]:
        """Plain rows have one timestamp: they are covered entirely or not at all."""
        flags, timestamps = flags_of(chunk), timestamps_of(chunk)
        keys = KeySequence(chunk.column(KEY))
        covered = []
        for span in self.spans:
            rows = slice(span.start, span.end)
            plain = (flags[rows] & ChunkFlag.PLAIN) != 0
            doubtful = np.flatnonzero(plain & (timestamps[rows] <= newest_deletion_us(span.head))) + span.start
            for position in doubtful.tolist():
                deletion = span.head.deletion_of(split_key(keys[position])[2])
                if deletion is not None and deletion.covers(int(timestamps[position])):
                    covered.append(position)
        return covered

    def _find_spans(self, chunk: pa.RecordBatch, flags: Flags) -> Iterator[PartitionHeadSpan]:
        keys = KeySequence(chunk.column(KEY))
        heads = np.flatnonzero(flags & ChunkFlag.HEAD).tolist()
        bounds = [*heads[1:], len(chunk)]
        if self.last is not None:
            prefix, head = self.last
            end = bisect_left(keys, prefix_end(prefix), 0, heads[0] if heads else len(chunk))
            yield PartitionHeadSpan(prefix=prefix, head=head, start=0, end=end)
        values = chunk.column(STORED).take(pa.array(heads, pa.int64())).to_pylist()
        for position, bound, value in zip(heads, bounds, values):
            prefix = split_key(keys[position])[0]
            end = bisect_left(keys, prefix_end(prefix), position + 1, bound)
            yield PartitionHeadSpan(prefix=prefix, head=decode_head(value), start=position + 1, end=end)

    def _replaced(self, chunk: pa.RecordBatch, positions: Positions, untouched: Positions) -> pa.RecordBatch:
        chosen = chunk.take(pa.array(positions))
        keys = chosen.column(KEY).to_pylist()
        found = self._decided(positions, keys, chosen.column(STORED).to_pylist())
        kept = [position for position, value in enumerate(found) if value is not None]
        replaced = chunk_of(
            self.shape,
            pa.array([keys[position] for position in kept], pa.binary()),
            pa.array([found[position] for position in kept], pa.binary()),
        )
        return splice_chunks([chunk.take(pa.array(untouched)), replaced], [untouched, positions[kept]])

    def _decided(self, positions: Positions, keys: list[bytes], values: list[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = []
        spans = iter(self.spans)
        span = next(spans, None)
        for position, key, value in zip(positions.tolist(), keys, values):
            while span is not None and position >= span.end:
                span = next(spans, None)
            if is_head(value):
                found.append(self.rule.head((key, value)))
                continue
            covering = None
            if span is not None and span.start <= position:
                covering = span.head.deletion_of(split_key(key)[2])
            found.append(self.rule.row((key, value), covering))
        return found


def newest_deletion_us(head: PartitionHead) -> int:
    newest = NEVER_US if head.deletion is None else head.deletion.timestamp_us
    return max((newest, *(one.deletion.timestamp_us for one in head.ranges)))
