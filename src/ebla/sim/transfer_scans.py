"""Rows and hashes of a checkpoint, and what is made of those of several, by the functions that the real tasks use."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ebla.bulk.data_plane import OpenedSource
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.model.transfers import Compared, Different, RangeToCompare, Result
from ebla.ports.disk import Disk
from ebla.storage.columns import KEY, STORED
from ebla.storage.layer import Item
from ebla.storage.memory import MemoryEngine
from ebla.storage.merge import in_spans, key_spans, merge_streams
from ebla.storage.range_hashes import RangeHashes
from ebla.storage.scan import ScanLayer, close_scan, open_scan, scan_stored


@dataclass(frozen=True, slots=True)
class Scanned:
    """A checkpoint that is read in the bulk process of its node."""

    source: OpenedSource
    disk: Disk

    async def layers(self) -> list[ScanLayer]:
        folders = [
            (f"{self.source.folder}/{layer.folder}", layer.range) for part in self.source.parts for layer in part.layers
        ]
        return await open_scan(MemoryEngine(self.disk), self.disk, folders)


async def read_rows(scanned: Scanned, token_range: TokenRange) -> tuple[list[Item], TableSchema]:
    """As they are stored, tombstones and heads among them."""
    chunks = await _chunks(scanned, token_range)
    items = [item for chunk in chunks for item in zip(_bytes(chunk, KEY), _bytes(chunk, STORED), strict=True)]
    return items, scanned.source.schema


async def read_hashes(scanned: Scanned, asked: RangeToCompare) -> list[tuple[bytes, int]]:
    """A hash and a number of rows for each bucket."""
    hashes = RangeHashes(scanned.source.schema, asked.range, asked.buckets, asked.gc_before_s)
    for chunk in await _chunks(scanned, asked.range):
        hashes.add(chunk)
    result = hashes.result()
    return list(zip(result.column("hash").to_pylist(), result.column("rows").to_pylist(), strict=True))


async def _chunks(scanned: Scanned, token_range: TokenRange) -> list[pa.RecordBatch]:
    layers = await scanned.layers()
    try:
        return list(scan_stored(scanned.source.schema, layers, key_spans(token_range)))
    finally:
        await close_scan(layers)


def _bytes(chunk: pa.RecordBatch, column: int) -> list[bytes]:
    values: list[bytes] = chunk.column(column).to_pylist()
    return values


def merged(replicas: Sequence[Sequence[Item]], schema: TableSchema) -> list[Item]:
    return list(merge_streams(replicas, schema))


def lacking(rows: Sequence[Item], own: Sequence[Item], token_range: TokenRange) -> list[Item]:
    """Of the range, what the target does not have in this very form."""
    known, spans = dict(own), key_spans(token_range)
    return [(key, value) for key, value in rows if in_spans(key, spans) and known.get(key) != value]


def compared(asked: RangeToCompare, hashes: Sequence[Sequence[tuple[bytes, int]]]) -> list[Result]:
    results: list[Result] = []
    for number, part in enumerate(asked.range.split(asked.buckets)):
        found = [of_replica[number] for of_replica in hashes]
        if len({told for told, _ in found}) > 1:
            told = tuple((source.host, *one) for source, one in zip(asked.sources, found, strict=True))
            results.append(Different(part, told))
    rows = max((sum(rows for _, rows in of_replica) for of_replica in hashes), default=0)
    return [*results, Compared(asked.range, asked.buckets, rows)]
