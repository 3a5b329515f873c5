"""Scans stacks as Arrow: merges layers by key and filters by key and token ranges, as users or other nodes see it.

It works on layers that are not written to: a checkpoint, opened in another process. A layer's sidecar is read instead
of the layer where there is one. The engine checks the end of every layer's scan, so a stream that ends is complete.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ebla.model.rows import Cell
from ebla.model.schema import TableSchema
from ebla.model.selection import ColumnSelector, KeyCondition, SelectorKind
from ebla.model.token import WHOLE_RING, TokenRange, intersect_ranges, merge_ranges
from ebla.model.transfers import ScanStack
from ebla.ports.disk import Disk
from ebla.storage.codec.key_codec import KeyKind, KeySpan, clip_span, key_spans, partition_of_head
from ebla.storage.codec.live_rows import VisibleTransform, live_static, static_values
from ebla.storage.codec.row_codec import decode_row
from ebla.storage.codec.row_file import ROWS_SCHEMA
from ebla.storage.columns.chunks import (
    KEY,
    STORED,
    TIMESTAMP,
    ChunkFlag,
    ChunkShape,
    chunk_of,
    concat_chunks,
    field_name,
    flags_of,
    reduced_items,
    whole_shape,
)
from ebla.storage.columns.key_columns import key_kinds, partition_prefixes
from ebla.storage.columns.sidecar import Sidecar, open_sidecar
from ebla.storage.columns.wire_columns import from_wire
from ebla.storage.layers.layer import Layer, LayerEngine
from ebla.storage.merge.chunk_merge import KeyGroups, merge_chunks, same_as_next
from ebla.storage.merge.partition_heads import PartitionHeadPass, PartitionHeadSpan
from ebla.storage.scan.key_filter import KeyFilter, clustering_slice
from ebla.storage.scan.range_hashes import RangeHasher
from ebla.storage.scan.scan_columns import (
    CellTimeIndex,
    ScanColumn,
    arrow_schema_of,
    cell_time,
    resolve_selectors,
    row_column_numbers,
    token_column,
)

CHUNK_ROWS = 16 * 1024
CHUNK_BYTES = 32 << 20
LIST_ROWS = 256
"""Rows converted to Python objects at once: few enough to stay in the processor's cache."""
PARTITIONS_BY_COLUMN_MAX = 16
ALL_KEYS: tuple[KeySpan, ...] = key_spans(WHOLE_RING)


@dataclass(frozen=True, slots=True)
class ScanLayer:
    """A layer of a stack, clipped to the ranges whose rows belong to the stack, which ascend."""

    layer: Layer
    ranges: tuple[TokenRange, ...] = (WHOLE_RING,)
    sidecar: Sidecar | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanQuery:
    """What a user reads of a table. `columns` in output order; `spans` ascending, without overlap."""

    schema: TableSchema
    columns: tuple[ColumnSelector, ...]
    now_s: int
    spans: tuple[KeySpan, ...] = ALL_KEYS
    conditions: tuple[KeyCondition, ...] = ()
    partitions: tuple[bytes, ...] = ()
    """Only these partitions, by prefix, and only within the spans; empty: all."""


async def open_scan(
    engine: LayerEngine, disk: Disk, parts: Sequence[tuple[str, tuple[TokenRange, ...]]]
) -> list[ScanLayer]:
    """Opens the layers of a checkpoint with their sidecars; `close_scan` closes them."""
    opened: list[ScanLayer] = []
    try:
        for folder, ranges in parts:
            layer = await engine.open(folder, writable=False)
            opened.append(ScanLayer(layer, ranges))
            opened[-1] = ScanLayer(layer, ranges, await open_sidecar(disk, folder))
    except BaseException:
        await close_scan(opened)
        raise
    return opened


async def close_scan(layers: Sequence[ScanLayer]) -> None:
    for one in layers:
        if one.sidecar is not None:
            one.sidecar.close()
        await one.layer.close()


def layer_chunks(shape: ChunkShape, layer: Layer, spans: Sequence[KeySpan]) -> Iterator[pa.RecordBatch]:
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
    """How many rows to read at once: few where they are large."""
    row_bytes = layer.size_bytes() // max(layer.facts.rows, 1) + 1
    return max(1, min(CHUNK_ROWS, LIST_ROWS, CHUNK_BYTES // row_bytes))


def scan_stored(
    schema: TableSchema, layers: Sequence[ScanLayer], spans: Sequence[KeySpan] = ALL_KEYS
) -> Iterator[pa.RecordBatch]:
    """Merged rows as they are stored, heads and tombstones included, in chunks of the raw shape: for streams between
    nodes and for compactions."""
    shape = ChunkShape(schema)
    if not layers:
        return iter(())
    return merge_chunks(shape, [layer_chunks(shape, one.layer, _clipped(one, spans)) for one in layers])


def scan_rows(layers: Sequence[ScanLayer], query: ScanQuery) -> Iterator[pa.RecordBatch]:
    """What a user sees, as batches of typed columns under their names, in key order."""
    view = _View(query)
    if layers:
        shape, chunks = _merged(layers, query, view.numbers)
        yield from view.shown(shape, chunks)


def scan_columns(layers: Sequence[ScanLayer], query: ScanQuery) -> Iterator[pa.RecordBatch]:
    """Merged rows with everything stored, as chunks of the whole shape, to be merged with other replicas' rows.
    Conditions on rows keep the heads of their partitions."""
    shape, kept = whole_shape(query.schema), KeyFilter(query.schema, query.conditions)
    if layers:
        for chunk in merge_chunks(shape, _streams(shape, layers, query)):
            yield kept.kept(shape, chunk)


def show_rows(
    query: ScanQuery, shape: ChunkShape, streams: Sequence[Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """What a user sees of rows from other sources, given as streams of chunks of the raw or the whole shape. They must
    not contain rows outside of the query's spans and partitions."""
    view = _View(query)
    if streams:
        yield from view.shown(shape, merge_chunks(shape, streams))


def query_spans(query: ScanQuery) -> list[KeySpan]:
    """The key spans a query reads: of its partitions only the part that can meet its conditions."""
    if not query.partitions:
        return list(query.spans)
    part = clustering_slice(query.schema, query.conditions)
    return [
        clipped
        for prefix in sorted(set(query.partitions))
        for span in part.spans(prefix)
        for clipped in clip_span(span, query.spans)
    ]


def _merged(
    layers: Sequence[ScanLayer], query: ScanQuery, numbers: tuple[int, ...]
) -> tuple[ChunkShape, Iterator[pa.RecordBatch]]:
    """Merging needs whole rows: columns where a sidecar is read, else stored values, of which only the winners are
    decoded. A single layer is decoded straight to the selected columns."""
    schema = query.schema
    if len(layers) == 1:
        shape = ChunkShape(schema, numbers)
    else:
        has_columns = _reads_columns(query) and any(one.sidecar is not None for one in layers)
        shape = whole_shape(schema) if has_columns else ChunkShape(schema)
    return shape, merge_chunks(shape, _streams(shape, layers, query))


def _streams(shape: ChunkShape, layers: Sequence[ScanLayer], query: ScanQuery) -> list[Iterator[pa.RecordBatch]]:
    spans_read = query_spans(query)
    streams: list[Iterator[pa.RecordBatch]] = []
    for one in layers:
        spans = _clipped(one, spans_read)
        if one.sidecar is None or shape.is_raw or not _reads_columns(query):
            streams.append(layer_chunks(shape, one.layer, spans))
        else:
            streams.append(one.sidecar.chunks(shape, spans))
    return streams


def _reads_columns(query: ScanQuery) -> bool:
    """A sidecar is read a block at a time: for many partitions, finding the rows one by one is cheaper."""
    return len(query.partitions) <= PARTITIONS_BY_COLUMN_MAX


def _clipped(one: ScanLayer, spans: Sequence[KeySpan]) -> list[KeySpan]:
    within = [span for part in one.ranges for span in key_spans(part)]
    return [part for span in spans for part in clip_span(span, within)]


@dataclass(frozen=True, slots=True)
class _Static:
    """The visible static columns of a partition, by number."""

    values: Mapping[int, bytes]
    cells: Mapping[int, Cell]


_NO_STATIC = _Static({}, {})


class _View:
    """Merged chunks as a user sees them. Raises `InvalidRequest` where the query is not possible."""

    def __init__(self, query: ScanQuery) -> None:
        self._query = query
        self._columns = resolve_selectors(query.schema, query.columns)
        self._arrow_schema = arrow_schema_of(self._columns)
        self._filter = KeyFilter(query.schema, query.conditions)
        self._shows_static = any(column.is_static for column in self._columns)
        self._shows_heads = self._shows_static and not self._filter.needs_rows
        self._notes_times = any(column.is_time and not column.is_static for column in self._columns)
        self._noted = CellTimeIndex(query.now_s)
        self._statics: dict[bytes, _Static] = {}
        self._held: pa.RecordBatch | None = None
        """The row of a head at the end of a chunk: it is visible only if no row of its partition follows."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The columns that chunks must include. At least one: without any they would contain whole rows."""
        needed = tuple(dict.fromkeys((*row_column_numbers(self._columns), *self._filter.numbers)))
        return needed or (self._query.schema.partition_key[0].number,)

    def shown(self, shape: ChunkShape, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        query = self._query
        rule = VisibleTransform(
            schema=query.schema,
            now_s=query.now_s,
            shows_static=self._shows_heads,
            note=self._noted.note if self._notes_times else None,
        )
        heads = PartitionHeadPass(shape=shape, rule=rule)
        for chunk in chunks:
            self._noted.clear()
            shown = _without_bare(heads.apply(self._filter.kept(shape, chunk)))
            if self._shows_static:
                self._note_statics(heads.spans)
            if self._shows_heads:
                shown = self._settled(shown)
            if len(shown):
                yield self._named(shape, shown)
        if self._held is not None:
            yield self._named(shape, self._held)

    def _note_statics(self, spans: Sequence[PartitionHeadSpan]) -> None:
        # Rows of the last partition may follow. A held row may be older: between it and them, a head can have been read
        # of which nothing is visible.
        kept = {max(self._statics, default=b"")}
        if self._held is not None:
            kept.add(partition_of_head(self._held.column(KEY)[0].as_py()))
        self._statics = {prefix: found for prefix, found in self._statics.items() if prefix in kept}
        schema, now_s = self._query.schema, self._query.now_s
        for span in spans:
            cells = live_static(span.head).cells
            self._statics[span.prefix] = _Static(static_values(schema, span.head, now_s), cells)

    def _settled(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        if self._held is not None:
            chunk = concat_chunks([self._held, chunk])
            self._held = None
        keys = chunk.column(KEY)
        is_head = key_kinds(keys) == KeyKind.PARTITION_HEAD
        if not is_head.any():
            return chunk
        if is_head[-1]:
            self._held = chunk.slice(len(chunk) - 1)
        shown = ~is_head
        shown[:-1] |= ~same_as_next(partition_prefixes(keys))
        return chunk.filter(pa.array(shown))

    def _named(self, shape: ChunkShape, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """The selected columns of plain rows."""
        numbers = row_column_numbers(self._columns)
        if shape.is_raw and numbers:
            chunk = chunk_of(ChunkShape(self._query.schema, numbers), chunk.column(KEY), chunk.column(STORED))
        if self._notes_times:
            for key, value in reduced_items(chunk):
                self._noted.note(key, decode_row(value, self._query.schema.layouts))
        arrays = [self._array(column, chunk) for column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)

    def _array(self, output: ScanColumn, chunk: pa.RecordBatch) -> pa.Array:
        keys = chunk.column(KEY)
        if output.kind is SelectorKind.TOKEN:
            return token_column(keys)
        if output.is_static:
            return self._static_column(output, keys)
        values = chunk.column(field_name(output.number))
        return self._noted.times(output, (keys, chunk.column(TIMESTAMP)), values) if output.is_time else values

    def _static_column(self, output: ScanColumn, keys: pa.Array) -> pa.Array:
        prefixes = partition_prefixes(keys)
        groups = KeyGroups.of(same_as_next(prefixes))
        firsts = prefixes.take(pa.array(groups.starts)).to_pylist()
        of_partitions = [self._statics.get(prefix, _NO_STATIC) for prefix in firsts]
        number, now_s = output.number, self._query.now_s
        if output.is_time:
            times = [cell_time(output.kind, one.cells.get(number), now_s) for one in of_partitions]
            values = pa.array(times, output.arrow_type)
        else:
            assert output.column is not None
            wire = pa.array([one.values.get(number) for one in of_partitions], pa.binary())
            values = from_wire(output.column.type, wire)
        return values.take(pa.array(np.repeat(np.arange(len(groups.starts)), groups.sizes)))


def output_schema(query: ScanQuery) -> pa.Schema:
    """The schema of a query's batches. Raises `InvalidRequest` where the query is not possible."""
    KeyFilter(query.schema, query.conditions)
    return arrow_schema_of(resolve_selectors(query.schema, query.columns))


def _without_bare(chunk: pa.RecordBatch) -> pa.RecordBatch:
    flags = flags_of(chunk)
    hidden = (flags & (ChunkFlag.BARE | ChunkFlag.MARKED)) == ChunkFlag.BARE
    return chunk.filter(pa.array(~hidden)) if hidden.any() else chunk


# -- checkpoints of several stacks -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScanSegment:
    """A span of keys, and the stacks (by position) that have rows in it."""

    span: KeySpan
    stacks: tuple[int, ...]


def scan_segments(stacks: Sequence[ScanStack], token_range: TokenRange) -> list[ScanSegment]:
    """In key order and without overlap; all keys of the range that some stack covers."""
    found = [
        (part, number)
        for span in key_spans(token_range)
        for number, stack in enumerate(stacks)
        for part in clip_span(span, key_spans(stack.range))
    ]
    segments: list[ScanSegment] = []
    for span, number in sorted(found, key=lambda one: one[0][0]):
        if segments and _reaches(segments[-1].span[1], span[0]):
            last = segments.pop()
            span = (last.span[0], _later(last.span[1], span[1]))
            segments.append(ScanSegment(span, (*last.stacks, number)))
        else:
            segments.append(ScanSegment(span, (number,)))
    return segments


def _reaches(end: bytes | None, start: bytes) -> bool:
    return end is None or end > start


def _later(one: bytes | None, other: bytes | None) -> bytes | None:
    return None if one is None or other is None else max(one, other)


@dataclass(frozen=True, slots=True)
class CheckpointScan:
    """Open layers of a checkpoint, by folder."""

    schema: TableSchema
    stacks: tuple[ScanStack, ...]
    layers: Mapping[str, ScanLayer]

    def stored(
        self, token_range: TokenRange, conditions: tuple[KeyCondition, ...] = (), partitions: tuple[bytes, ...] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Merged rows as they are stored, in the shape in which nodes send them. Includes the heads of partitions with
        rows that meet the conditions, and perhaps others."""
        shape, kept = ChunkShape(self.schema), KeyFilter(self.schema, conditions)
        for query, layers in self._parts(token_range, self._whole_rows(conditions, partitions)):
            for chunk in scan_stored(self.schema, layers, query_spans(query)):
                rows = kept.kept(shape, chunk)
                yield pa.RecordBatch.from_arrays([rows.column(KEY), rows.column(STORED)], schema=ROWS_SCHEMA)

    def has_columns(self) -> bool:
        """Whether some layer has a sidecar."""
        return any(layer.sidecar is not None for layer in self.layers.values())

    def by_column(
        self, token_range: TokenRange, conditions: tuple[KeyCondition, ...] = (), partitions: tuple[bytes, ...] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The same rows as chunks of the whole shape."""
        for query, layers in self._parts(token_range, self._whole_rows(conditions, partitions)):
            yield from scan_columns(layers, query)

    def typed(self, token_range: TokenRange, query: ScanQuery) -> Iterator[pa.RecordBatch]:
        """What a user sees; the query's own spans are ignored."""
        for part, layers in self._parts(token_range, query):
            yield from scan_rows(layers, part)

    def hashes(self, token_range: TokenRange, buckets: int, gc_before_s: int) -> pa.RecordBatch:
        hashes = RangeHasher(self.schema, token_range, buckets, gc_before_s)
        for query, layers in self._parts(token_range, self._whole_rows((), ())):
            for chunk in scan_stored(self.schema, layers, query.spans):
                hashes.add(chunk)
        return hashes.result()

    def _whole_rows(self, conditions: tuple[KeyCondition, ...], partitions: tuple[bytes, ...]) -> ScanQuery:
        return ScanQuery(schema=self.schema, columns=(), now_s=0, conditions=conditions, partitions=partitions)

    def _parts(self, token_range: TokenRange, query: ScanQuery) -> Iterator[tuple[ScanQuery, list[ScanLayer]]]:
        """The query for each segment, and the layers that it reads. A layer may extend beyond its stack; rows there do
        not belong to it."""
        for segment in scan_segments(self.stacks, token_range):
            stacks = [self.stacks[number] for number in segment.stacks]
            layers = [
                replace(self.layers[folder], ranges=merge_ranges(within))
                for stack in stacks
                for folder, within in _ranges_by_layer(stack).items()
            ]
            yield replace(query, spans=(segment.span,)), layers


def _ranges_by_layer(stack: ScanStack) -> dict[str, list[TokenRange]]:
    found: dict[str, list[TokenRange]] = {}
    for folder, layer_range in stack.layers:
        found.setdefault(folder, []).extend(intersect_ranges(layer_range, stack.range))
    return found


@asynccontextmanager
async def open_checkpoint(
    engine: LayerEngine, disk: Disk, schema: TableSchema, stacks: tuple[ScanStack, ...]
) -> AsyncIterator[CheckpointScan]:
    """Every layer is opened once, even if stacks share it. Folders are absolute."""
    folders = dict.fromkeys(folder for stack in stacks for folder, _ in stack.layers)
    layers: list[ScanLayer] = []
    try:
        layers = await open_scan(engine, disk, [(folder, ()) for folder in folders])
        yield CheckpointScan(schema, stacks, dict(zip(folders, layers)))
    finally:
        await close_scan(layers)
