"""Reads a range of a checkpoint that has several stacks.

Tablets of a table have disjoint ranges, which are read one after another. Stacks of a table on vnodes all have the
whole ring as their range, each with the rows of its shard, and are merged like layers of one stack.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from ebla.model.schema import TableSchema
from ebla.model.selection import KeyCondition
from ebla.model.token import TokenRange
from ebla.model.transfers import ScanStack
from ebla.ports.disk import Disk
from ebla.storage.codec.key_codec import KeySpan, clip_span, key_spans
from ebla.storage.codec.row_file import ROWS_SCHEMA
from ebla.storage.columns.chunks import KEY, STORED, ChunkShape
from ebla.storage.layers.layer import LayerEngine
from ebla.storage.scan.key_filter import KeyFilter
from ebla.storage.scan.range_hashes import RangeHasher
from ebla.storage.scan.stack_scan import (
    ScanLayer,
    ScanQuery,
    close_scan,
    open_scan,
    query_spans,
    scan_columns,
    scan_rows,
    scan_stored,
)


@dataclass(frozen=True, slots=True)
class ScanSegment:
    """A span of keys, and the stacks (by position) that have rows in it."""

    span: KeySpan
    stacks: tuple[int, ...]


LayerLookup = Callable[[str, TokenRange], ScanLayer]


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


def intersect_ranges(one: TokenRange, other: TokenRange) -> list[TokenRange]:
    """The intersection, as ranges that do not wrap."""
    return [
        TokenRange(max(first.start, second.start), min(first.end, second.end))
        for first in one.unwrapped()
        for second in other.unwrapped()
        if max(first.start, second.start) < min(first.end, second.end)
    ]


@dataclass(frozen=True, slots=True)
class CheckpointScan:
    """Open layers of a checkpoint. `opened` finds the layer of a folder."""

    schema: TableSchema
    stacks: tuple[ScanStack, ...]
    opened: LayerLookup

    def stored(
        self, token_range: TokenRange, conditions: tuple[KeyCondition, ...] = (), partitions: tuple[bytes, ...] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Merged rows as they are stored, in the shape in which nodes send them. Includes the heads of partitions with
        rows that meet the conditions, and perhaps others."""
        shape, kept = ChunkShape(self.schema), KeyFilter(self.schema, conditions)
        query = ScanQuery(schema=self.schema, columns=(), now_s=0, conditions=conditions, partitions=partitions)
        for segment in scan_segments(self.stacks, token_range):
            spans = query_spans(replace(query, spans=(segment.span,)))
            for chunk in scan_stored(self.schema, self._layers(segment), spans):
                rows = kept.kept(shape, chunk)
                yield pa.RecordBatch.from_arrays([rows.column(KEY), rows.column(STORED)], schema=ROWS_SCHEMA)

    def has_columns(self) -> bool:
        """Whether some layer has a sidecar."""
        return any(
            self.opened(folder, within).sidecar is not None for stack in self.stacks for folder, within in stack.layers
        )

    def by_column(
        self, token_range: TokenRange, conditions: tuple[KeyCondition, ...] = (), partitions: tuple[bytes, ...] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The same rows as chunks of the whole shape."""
        query = ScanQuery(schema=self.schema, columns=(), now_s=0, conditions=conditions, partitions=partitions)
        for segment in scan_segments(self.stacks, token_range):
            yield from scan_columns(self._layers(segment), replace(query, spans=(segment.span,)))

    def typed(self, token_range: TokenRange, query: ScanQuery) -> Iterator[pa.RecordBatch]:
        """What a user sees; the query's own spans are ignored."""
        for segment in scan_segments(self.stacks, token_range):
            yield from scan_rows(self._layers(segment), replace(query, spans=(segment.span,)))

    def hashes(self, token_range: TokenRange, buckets: int, gc_before_s: int) -> pa.RecordBatch:
        hashes = RangeHasher(self.schema, token_range, buckets, gc_before_s)
        for chunk in self._chunks(token_range):
            hashes.add(chunk)
        return hashes.result()

    def _chunks(self, token_range: TokenRange) -> Iterator[pa.RecordBatch]:
        for segment in scan_segments(self.stacks, token_range):
            yield from scan_stored(self.schema, self._layers(segment), (segment.span,))

    def _layers(self, segment: ScanSegment) -> list[ScanLayer]:
        """A layer may extend beyond its stack; rows there do not belong to it."""
        return [
            self.opened(folder, within)
            for number in segment.stacks
            for folder, layer_range in self.stacks[number].layers
            for within in intersect_ranges(layer_range, self.stacks[number].range)
        ]


@dataclass(frozen=True, slots=True)
class ScanContext:
    """What opens the layers of a checkpoint."""

    engine: LayerEngine
    disk: Disk


@asynccontextmanager
async def open_checkpoint(
    place: ScanContext, schema: TableSchema, stacks: tuple[ScanStack, ...]
) -> AsyncIterator[CheckpointScan]:
    """Every layer is opened once, even if stacks share it. Folders are absolute."""
    folders = {folder: layer_range for stack in stacks for folder, layer_range in stack.layers}
    layers: list[ScanLayer] = []
    try:
        layers = await open_scan(place.engine, place.disk, list(folders.items()))
        by_folder = dict(zip(folders, layers))
        yield CheckpointScan(
            schema,
            stacks,
            lambda folder, within: ScanLayer(by_folder[folder].layer, within, by_folder[folder].sidecar),
        )
    finally:
        await close_scan(layers)
