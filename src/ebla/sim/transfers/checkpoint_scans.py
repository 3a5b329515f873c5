"""Rows and hashes of checkpoints, read and combined by the functions that the real tasks use."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa

from ebla.bulk.stream_service import SourceStream, StreamService
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.model.transfers import BucketDifference, ComparisonResult, ComparisonTask, TransferResult
from ebla.ports.disk import Disk
from ebla.sim.transfers.flight import SimFlightServer, SimFlightStream, open_source
from ebla.storage.codec.key_codec import in_spans, key_spans
from ebla.storage.columns.chunks import KEY, STORED
from ebla.storage.layers.layer import Item
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.scan.range_hashes import RangeHasher
from ebla.storage.scan.stack_scan import close_scan, open_scan, scan_stored

T = TypeVar("T")


async def scan_source(
    stream: SimFlightStream,
    find: Callable[[StreamService], Awaitable[SourceStream]],
    scan: Callable[[SourceStream, Disk], Awaitable[T]],
) -> T:
    """Scans a checkpoint in the bulk process at the other end of the stream."""
    source = await stream.call(partial(open_source, stream=stream, find=find))

    async def scanned(server: SimFlightServer) -> T:
        try:
            await server.service.admit_sending(source, 1)
            return await scan(source, server.environment.disk)
        finally:
            server.service.close_source(source)

    return await stream.call(scanned)


async def read_rows(source: SourceStream, disk: Disk, token_range: TokenRange) -> tuple[list[Item], TableSchema]:
    """As stored, including tombstones and partition heads."""
    chunks = await _chunks(source, disk, token_range)
    items = [item for chunk in chunks for item in zip(_bytes(chunk, KEY), _bytes(chunk, STORED), strict=True)]
    return items, source.schema


async def read_hashes(source: SourceStream, disk: Disk, task: ComparisonTask) -> list[tuple[bytes, int]]:
    """A hash and a number of rows for each bucket."""
    hashes = RangeHasher(source.schema, task.range, task.buckets, task.gc_before_s)
    for chunk in await _chunks(source, disk, task.range):
        hashes.add(chunk)
    result = hashes.result()
    return list(zip(result.column("hash").to_pylist(), result.column("rows").to_pylist(), strict=True))


async def _chunks(source: SourceStream, disk: Disk, token_range: TokenRange) -> list[pa.RecordBatch]:
    folders = [(f"{source.folder}/{layer.folder}", layer.visible) for part in source.parts for layer in part.layers]
    layers = await open_scan(MemoryEngine(disk), disk, folders)
    try:
        return list(scan_stored(source.schema, layers, key_spans(token_range)))
    finally:
        await close_scan(layers)


def _bytes(chunk: pa.RecordBatch, column: int) -> list[bytes]:
    values: list[bytes] = chunk.column(column).to_pylist()
    return values


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
