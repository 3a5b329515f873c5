"""Hashes of buckets of a token range that replicas can compare: they depend on the content of rows, not on layers or
bytes.

The rows of a bucket are hashed in key order in their canonical form (`row_digest.py`), and nothing else is hashed: not
where one chunk ends and the next begins, nor which layer a row came from. Four streams are hashed in parallel, the
lengths of keys, keys, lengths of values and values, and then their four hashes together. So a run of plain rows, whose
stored bytes are canonical, is hashed as four whole buffers; the others are converted one by one before.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebla.model.errors import InvalidRequest
from ebla.model.rows import EMPTY_ROW, Deletion, without_deleted
from ebla.model.schema import TableSchema
from ebla.model.token import TOKEN_MIN, WHOLE_RING, TokenRange
from ebla.storage.codec.row_codec import decode_row, encode_row
from ebla.storage.codec.row_digest import canonical_value
from ebla.storage.columns.binary_columns import ByteRun, Mask, Positions, byte_run, splice_columns
from ebla.storage.columns.chunks import KEY, STORED, ChunkFlag, ChunkShape, flags_of
from ebla.storage.columns.key_columns import token_words
from ebla.storage.columns.row_columns import plain_headers, upgrade_layout
from ebla.storage.compaction.tombstone_gc import GcRule, GcSpan, TombstoneCollector
from ebla.storage.layers.layer import Item
from ebla.storage.layers.layer_facts import ALWAYS_US
from ebla.storage.merge.partition_heads import PartitionHeadPass

HASH_BYTES = 16
BUCKETS_MAX = 16_384
HASHES_SCHEMA = pa.schema(
    [
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("hash", pa.binary(HASH_BYTES), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class CanonicalTransform:
    """The `RowTransform` to canonical form, for heads and rows that are not plain."""

    schema: TableSchema
    collector: TombstoneCollector

    def head(self, item: Item) -> bytes | None:
        return canonical_value(item[1], self.schema, self.collector)

    def row(self, item: Item, covering: Deletion | None) -> bytes | None:
        value = item[1]
        if covering is not None:
            row = without_deleted(decode_row(value, self.schema.layouts), covering)
            if row == EMPTY_ROW:
                return None
            value = encode_row(row, self.schema.version, self.schema.layouts[-1])
        return canonical_value(value, self.schema, self.collector)


class CanonicalRows:
    """Merged chunks of the raw shape, in order, as keys and canonical values."""

    def __init__(self, schema: TableSchema, gc_before_s: int) -> None:
        self._schema = schema
        collector = TombstoneCollector(GcRule((GcSpan(WHOLE_RING, gc_before_s),), ALWAYS_US))
        self._heads = PartitionHeadPass(shape=ChunkShape(schema), rule=CanonicalTransform(schema, collector))

    def of(self, chunk: pa.RecordBatch) -> tuple[pa.Array, pa.Array, Mask]:
        """Keys, values, and which of them are partition heads."""
        chunk = self._heads.apply(chunk)
        flags = flags_of(chunk)
        # A plain row whose cells all belong to dropped columns is invisible, unless it has a marker.
        silent = (flags & (ChunkFlag.PLAIN | ChunkFlag.BARE | ChunkFlag.MARKED)) == ChunkFlag.PLAIN | ChunkFlag.BARE
        if silent.any():
            chunk = chunk.filter(pa.array(~silent))
            flags = flags[~silent]
        keys, values = chunk.column(KEY), chunk.column(STORED)
        plain = (flags & ChunkFlag.PLAIN) != 0
        return keys, self._in_todays_layout(values, plain), (flags & ChunkFlag.HEAD) != 0

    def _in_todays_layout(self, values: pa.Array, plain: Mask) -> pa.Array:
        if not len(values):
            return values
        _, versions = plain_headers(byte_run(values))
        older = plain & (versions != self._schema.version)
        if not older.any():
            return values
        parts, positions = [values.filter(pa.array(~older))], [np.flatnonzero(~older)]
        for version in np.unique(versions[older]).tolist():
            chosen = np.flatnonzero(older & (versions == version))
            parts.append(upgrade_layout(self._schema, values.take(pa.array(chosen)), version))
            positions.append(chosen)
        return splice_columns(parts, positions)


class _Stream(Protocol):
    """A hash that bytes are added to."""

    def update(self, data: memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


@dataclass(slots=True)
class _Bucket:
    rows: int = 0
    streams: tuple[_Stream, _Stream, _Stream, _Stream] = field(
        default_factory=lambda: (sha256(), sha256(), sha256(), sha256())
    )

    def add(self, keys: ByteRun, values: ByteRun, bounds: tuple[int, int]) -> None:
        key_lengths, key_bytes, value_lengths, value_bytes = self.streams
        _feed(keys, bounds, (key_lengths, key_bytes))
        _feed(values, bounds, (value_lengths, value_bytes))

    def hash(self) -> bytes:
        digests = b"".join(stream.digest() for stream in self.streams)
        return sha256(digests).digest()[:HASH_BYTES]


def _feed(run: ByteRun, bounds: tuple[int, int], streams: tuple[_Stream, _Stream]) -> None:
    start, end = bounds
    starts, ends = run.starts[start:end], run.ends[start:end]
    streams[0].update((ends - starts).astype("<u4").data)
    streams[1].update(run.data[starts[0] : ends[-1]].data)


class RangeHasher:
    """Takes chunks of merged rows in order; returns a hash and a number of rows for each bucket."""

    def __init__(self, schema: TableSchema, token_range: TokenRange, buckets: int, gc_before_s: int) -> None:
        if not 1 <= buckets <= min(BUCKETS_MAX, token_range.width):
            raise InvalidRequest(f"{buckets} buckets of {token_range} are requested; 1 to {BUCKETS_MAX} are possible")
        self._canonical = CanonicalRows(schema, gc_before_s)
        self._parts = BucketBounds(token_range, buckets)
        self._buckets = [_Bucket() for _ in range(buckets)]

    def add(self, chunk: pa.RecordBatch) -> None:
        keys, values, heads = self._canonical.of(chunk)
        if not len(keys):
            return
        key_run, value_run = byte_run(keys), byte_run(values)
        for number, start, end in self._parts.runs(keys):
            bucket = self._buckets[number]
            bucket.add(key_run, value_run, (start, end))
            bucket.rows += end - start - int(heads[start:end].sum())

    def result(self) -> pa.RecordBatch:
        """One row for every bucket, empty ones too: a replica without rows differs from one with rows."""
        return pa.RecordBatch.from_arrays(
            [
                pa.array(range(len(self._buckets)), pa.int32()),
                pa.array([bucket.hash() for bucket in self._buckets], pa.binary(HASH_BYTES)),
                pa.array([bucket.rows for bucket in self._buckets], pa.int64()),
            ],
            schema=HASHES_SCHEMA,
        )


class BucketBounds:
    """Which of the equal parts of a range (as `TokenRange.split` cuts it) contains a token."""

    def __init__(self, token_range: TokenRange, buckets: int) -> None:
        width = token_range.width
        # Distances from the first token of the range, so that a whole ring's fit 64 bits.
        self._first = np.uint64(token_range.start - TOKEN_MIN)
        self._last_of = np.array([width * (part + 1) // buckets - 1 for part in range(buckets - 1)], np.uint64)

    def numbers(self, words: npt.NDArray[np.uint64]) -> Positions:
        """`words` come from `key_columns.token_words`."""
        distances = words - self._first - np.uint64(1)
        return np.searchsorted(self._last_of, distances, side="left").astype(np.int64)

    def runs(self, keys: pa.Array) -> Iterator[tuple[int, int, int]]:
        """For sorted keys: the number of a bucket, and the first and last position in it."""
        numbers = self.numbers(token_words(keys))
        starts = np.concatenate(([0], np.flatnonzero(np.diff(numbers)) + 1)).tolist()
        for start, end in zip(starts, [*starts[1:], len(numbers)]):
            yield int(numbers[start]), start, end
