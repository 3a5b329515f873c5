"""Rows and hashes of checkpoints, read and combined by the functions that the real tasks use."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ebla.bulk.stream_service import SourceStream
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.model.transfers import BucketDifference, ComparisonResult, ComparisonTask, TransferResult
from ebla.ports.disk import Disk
from ebla.storage.codec.key_codec import in_spans, key_spans
from ebla.storage.columns.chunks import KEY, STORED
from ebla.storage.layers.layer import Item
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.merge.row_merge import merge_streams
from ebla.storage.scan.range_hashes import RangeHasher
from ebla.storage.scan.stack_scan import ScanLayer, close_scan, open_scan, scan_stored


@dataclass(frozen=True, slots=True)
class SimCheckpointScan:
    """A checkpoint that is read in the bulk process of its node."""

    source: SourceStream
    disk: Disk

    async def layers(self) -> list[ScanLayer]:
        folders = [
            (f"{self.source.folder}/{layer.folder}", layer.range) for part in self.source.parts for layer in part.layers
        ]
        return await open_scan(MemoryEngine(self.disk), self.disk, folders)


async def read_rows(scanned: SimCheckpointScan, token_range: TokenRange) -> tuple[list[Item], TableSchema]:
    """As stored, including tombstones and partition heads."""
    chunks = await _chunks(scanned, token_range)
    items = [item for chunk in chunks for item in zip(_bytes(chunk, KEY), _bytes(chunk, STORED), strict=True)]
    return items, scanned.source.schema


async def read_hashes(scanned: SimCheckpointScan, task: ComparisonTask) -> list[tuple[bytes, int]]:
    """A hash and a number of rows for each bucket."""
    hashes = RangeHasher(scanned.source.schema, task.range, task.buckets, task.gc_before_s)
    for chunk in await _chunks(scanned, task.range):
        hashes.add(chunk)
    result = hashes.result()
    return list(zip(result.column("hash").to_pylist(), result.column("rows").to_pylist(), strict=True))


async def _chunks(scanned: SimCheckpointScan, token_range: TokenRange) -> list[pa.RecordBatch]:
    layers = await scanned.layers()
    try:
        return list(scan_stored(scanned.source.schema, layers, key_spans(token_range)))
    finally:
        await close_scan(layers)


def _bytes(chunk: pa.RecordBatch, column: int) -> list[bytes]:
    values: list[bytes] = chunk.column(column).to_pylist()
    return values


def merge_replicas(replicas: Sequence[Sequence[Item]], schema: TableSchema) -> list[Item]:
    return list(merge_streams(replicas, schema))


def missing_rows(rows: Sequence[Item], own: Sequence[Item], token_range: TokenRange) -> list[Item]:
    """The rows of the range that the target does not have in exactly this form."""
    known, spans = dict(own), key_spans(token_range)
    return [(key, value) for key, value in rows if in_spans(key, spans) and known.get(key) != value]


def compare_hashes(task: ComparisonTask, hashes: Sequence[Sequence[tuple[bytes, int]]]) -> list[TransferResult]:
    results: list[TransferResult] = []
    for number, part in enumerate(task.range.split(task.buckets)):
        found = [of_replica[number] for of_replica in hashes]
        if len({hashed for hashed, _ in found}) > 1:
            hashed = tuple((source.host, *one) for source, one in zip(task.sources, found, strict=True))
            results.append(BucketDifference(part, hashed))
    rows = max((sum(rows for _, rows in of_replica) for of_replica in hashes), default=0)
    return [*results, ComparisonResult(task.range, task.buckets, rows)]
