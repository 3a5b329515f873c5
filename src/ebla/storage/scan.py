"""A stack read as Arrow: layers merged by key, filtered by key and token ranges, as users or other nodes see it.

It works on layers that nobody writes to: a checkpoint, opened in another process. A layer's sidecar is read in its
place where it has one. Every layer ends its scan by the end check of the engine, so a stream that ends is complete.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ebla.model.errors import InvalidRequest
from ebla.model.schema import Column, ColumnKind, TableSchema
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.ports.disk import Disk
from ebla.storage.arrow_types import arrow_type
from ebla.storage.columns import (
    KEY,
    STORED,
    ChunkFlag,
    Shape,
    chunk_of,
    field_name,
    flags_of,
    joined_chunks,
    whole_shape,
)
from ebla.storage.key_codec import KeyKind, after_prefix, head_key, row_key
from ebla.storage.key_columns import kinds_of, partition_prefixes
from ebla.storage.layer import SCAN_ROWS_MAX, Layer, LayerEngine
from ebla.storage.merge import KeySpan, clip_span, key_spans
from ebla.storage.merge_chunks import KeyGroups, merge_chunks, same_as_next
from ebla.storage.partition_heads import HeadPass, HeadSpan
from ebla.storage.sidecar import Sidecar, open_sidecar
from ebla.storage.visible_rows import Visible, static_values
from ebla.storage.wire_columns import from_wire

CHUNK_ROWS = 16 * 1024
CHUNK_BYTES = 32 << 20
EVERYTHING: tuple[KeySpan, ...] = key_spans(WHOLE_RING)


@dataclass(frozen=True, slots=True)
class ScanLayer:
    """A layer of a stack, clipped to the range that it has there."""

    layer: Layer
    range: TokenRange = WHOLE_RING
    sidecar: Sidecar | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What a user asks of a table. `columns` by name, in the order wanted; `spans` ascending, without overlap."""

    schema: TableSchema
    columns: tuple[str, ...]
    now_s: int
    spans: tuple[KeySpan, ...] = EVERYTHING


def partition_span(prefix: bytes) -> KeySpan:
    return prefix, after_prefix(prefix)


def slice_spans(prefix: bytes, start: bytes, end: bytes | None) -> tuple[KeySpan, KeySpan]:
    """Rows of a partition from one clustering prefix up to and without another. The head comes along: what it deletes
    is deleted in every slice."""
    head = head_key(prefix)
    last = after_prefix(prefix) if end is None else row_key(prefix, end)
    return (head, head + b"\0"), (row_key(prefix, start), last)


async def open_scan(engine: LayerEngine, disk: Disk, parts: Sequence[tuple[str, TokenRange]]) -> list[ScanLayer]:
    """Opens the layers of a checkpoint with their sidecars; `close_scan` closes them."""
    opened: list[ScanLayer] = []
    try:
        for folder, token_range in parts:
            layer = await engine.open(folder, writable=False)
            opened.append(ScanLayer(layer, token_range))
            opened[-1] = ScanLayer(layer, token_range, await open_sidecar(disk, folder))
    except BaseException:
        await close_scan(opened)
        raise
    return opened


async def close_scan(layers: Sequence[ScanLayer]) -> None:
    for one in layers:
        if one.sidecar is not None:
            one.sidecar.close()
        await one.layer.close()


def layer_chunks(shape: Shape, layer: Layer, spans: Sequence[KeySpan]) -> Iterator[pa.RecordBatch]:
    """The rows of one layer within the spans, in chunks of about `CHUNK_ROWS` and not many more than `CHUNK_BYTES`."""
    rows_max = _list_rows(layer)
    keys: list[pa.Array] = []
    values: list[pa.Array] = []
    count = size_bytes = 0
    for start, end in spans:
        for items in layer.scan_batches(start, end, rows_max):
            some_keys, some_values = zip(*items)
            keys.append(pa.array(some_keys, pa.binary()))
            values.append(pa.array(some_values, pa.binary()))
            count += len(items)
            size_bytes += values[-1].nbytes
            if count >= CHUNK_ROWS or size_bytes >= CHUNK_BYTES:
                yield chunk_of(shape, pa.concat_arrays(keys), pa.concat_arrays(values))
                keys, values = [], []
                count = size_bytes = 0
    if count:
        yield chunk_of(shape, pa.concat_arrays(keys), pa.concat_arrays(values))


def _list_rows(layer: Layer) -> int:
    """How many rows to ask for at once: few where they are large."""
    row_bytes = layer.size_bytes() // max(layer.facts.rows, 1) + 1
    return max(1, min(CHUNK_ROWS, SCAN_ROWS_MAX, CHUNK_BYTES // row_bytes))


def scan_stored(
    schema: TableSchema, layers: Sequence[ScanLayer], spans: Sequence[KeySpan] = EVERYTHING
) -> Iterator[pa.RecordBatch]:
    """Merged rows as they are stored, heads and tombstones included, in chunks of the raw shape: what nodes send one
    another, and what folds read."""
    shape = Shape(schema)
    if not layers:
        return iter(())
    return merge_chunks(shape, [layer_chunks(shape, one.layer, _clipped(one, spans)) for one in layers])


def scan_rows(layers: Sequence[ScanLayer], question: Question) -> Iterator[pa.RecordBatch]:
    """What a user sees, as batches of typed columns under their names, in key order."""
    if not question.columns:
        raise InvalidRequest("a scan asks for at least one column")
    if not layers:
        return
    shape, chunks = _merged(layers, question)
    view = _View(question, shape)
    for chunk in chunks:
        yield from view.batches(chunk)
    yield from view.last_batch()


def _merged(layers: Sequence[ScanLayer], question: Question) -> tuple[Shape, Iterator[pa.RecordBatch]]:
    """Merging needs whole rows: columns where some sidecar is read, else stored values, of which only those that win
    are decoded. One layer alone is decoded straight to what is asked for."""
    schema = question.schema
    if len(layers) == 1:
        shape = Shape(schema, _numbers(question))
    else:
        shape = whole_shape(schema) if any(one.sidecar is not None for one in layers) else Shape(schema)
    streams: list[Iterator[pa.RecordBatch]] = []
    for one in layers:
        spans = _clipped(one, question.spans)
        if one.sidecar is None or shape.is_raw:
            streams.append(layer_chunks(shape, one.layer, spans))
        else:
            streams.append(one.sidecar.chunks(shape, spans))
    return shape, merge_chunks(shape, streams)


def _clipped(one: ScanLayer, spans: Sequence[KeySpan]) -> list[KeySpan]:
    within = key_spans(one.range)
    return [part for span in spans for part in clip_span(span, within)]


def _numbers(question: Question) -> tuple[int, ...]:
    """Of the wanted columns that rows have."""
    columns = [question.schema.column(name) for name in question.columns]
    return tuple(column.number for column in columns if column.kind is not ColumnKind.STATIC)


class _View:
    """Merged chunks as a user sees them."""

    def __init__(self, question: Question, shape: Shape) -> None:
        self._question = question
        self._shape = shape
        self._columns = [question.schema.column(name) for name in question.columns]
        self._shows_static = any(column.kind is ColumnKind.STATIC for column in self._columns)
        rule = Visible(question.schema, question.now_s, self._shows_static)
        self._heads = HeadPass(shape, rule)
        self._statics: dict[bytes, dict[int, bytes]] = {}
        self._held: pa.RecordBatch | None = None
        """The row of a head at the end of a chunk: it shows only if no row of its partition follows."""

    def batches(self, chunk: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        shown = _without_bare(self._heads.treated(chunk))
        if self._shows_static:
            self._note_statics(self._heads.spans)
            shown = self._settled(shown)
        if len(shown):
            yield self._named(shown)

    def last_batch(self) -> Iterator[pa.RecordBatch]:
        if self._held is not None:
            yield self._named(self._held)

    def _note_statics(self, spans: Sequence[HeadSpan]) -> None:
        last = max(self._statics, default=None)
        self._statics = {} if last is None else {last: self._statics[last]}
        for span in spans:
            self._statics[span.prefix] = static_values(self._question.schema, span.head, self._question.now_s)

    def _settled(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        if self._held is not None:
            chunk = joined_chunks([self._held, chunk])
            self._held = None
        keys = chunk.column(KEY)
        is_head = kinds_of(keys) == KeyKind.PARTITION_HEAD
        if not is_head.any():
            return chunk
        if is_head[-1]:
            self._held = chunk.slice(len(chunk) - 1)
        shown = ~is_head
        shown[:-1] |= ~same_as_next(partition_prefixes(keys))
        return chunk.filter(pa.array(shown))

    def _named(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """The asked columns of plain rows."""
        keys = chunk.column(KEY)
        numbers = _numbers(self._question)
        if self._shape.is_raw and numbers:
            chunk = chunk_of(Shape(self._question.schema, numbers), keys, chunk.column(STORED))
        arrays = [
            self._static_column(column, keys)
            if column.kind is ColumnKind.STATIC
            else chunk.column(field_name(column.number))
            for column in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=answer_schema(self._question))

    def _static_column(self, column: Column, keys: pa.Array) -> pa.Array:
        prefixes = partition_prefixes(keys)
        groups = KeyGroups.of(same_as_next(prefixes))
        of_partitions = [
            self._statics.get(prefix, {}).get(column.number)
            for prefix in prefixes.take(pa.array(groups.starts)).to_pylist()
        ]
        values = from_wire(column.type, pa.array(of_partitions, pa.binary()))
        return values.take(pa.array(np.repeat(np.arange(len(groups.starts)), groups.sizes)))


def answer_schema(question: Question) -> pa.Schema:
    """What the batches of an answer look like."""
    columns = [question.schema.column(name) for name in question.columns]
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])


def _without_bare(chunk: pa.RecordBatch) -> pa.RecordBatch:
    flags = flags_of(chunk)
    hidden = (flags & (ChunkFlag.BARE | ChunkFlag.MARKED)) == ChunkFlag.BARE
    return chunk.filter(pa.array(~hidden)) if hidden.any() else chunk
