"""Local reads: on the node's own machine a task opens the checkpoint's layers itself, without a second process, a
socket or TLS in between."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from ebla.source.read.read_only_disk import ReadOnlyDisk
from ebla.storage.codec.row_file import ROWS_SCHEMA
from ebla.storage.columns.chunks import whole_shape
from ebla.storage.layers.rocks_engine import RocksEngine, RocksLimits
from ebla.storage.scan.checkpoint_scan import CheckpointScan, ScanContext, open_checkpoint
from ebla.storage.scan.stack_scan import ScanQuery, output_schema
from ebla.wire.table_calls import CheckpointFiles
from ebla.wire.transfer_messages import StoredRowsQuery, TypedRowsQuery

CACHE_BYTES = 8 << 20
"""Every block is read once, so a small cache is enough."""


@dataclass(frozen=True, slots=True)
class LocalScan:
    """Answers like the node's own scan workers."""

    scan: CheckpointScan

    def ask(self, query: StoredRowsQuery | TypedRowsQuery) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Batches in key order. Raises `InvalidRequest` at once for an invalid query; while reading `LayerDamaged`, or
        `Stale` where rows have a newer schema than the one that came with the location."""
        match query:
            case StoredRowsQuery(range=token_range, conditions=conditions, partitions=partitions):
                if query.by_column and self.scan.has_columns():
                    schema = whole_shape(self.scan.schema).arrow_schema
                    return schema, self.scan.by_column(token_range, conditions, partitions)
                return ROWS_SCHEMA, self.scan.stored(token_range, conditions, partitions)
            case TypedRowsQuery(range=token_range, columns=columns, now_s=now_s):
                asked = ScanQuery(
                    schema=self.scan.schema,
                    columns=columns,
                    now_s=now_s,
                    conditions=query.conditions,
                    partitions=query.partitions,
                )
                return output_schema(asked), self.scan.typed(token_range, asked)


@contextmanager
def open_located(located: CheckpointFiles) -> Iterator[LocalScan]:
    """Opens the files a node has located. Raises `LayerDamaged` or `OSError` where they are gone or cannot be opened:
    the same rows can then be read over Flight. No event loop may run in the calling thread."""
    disk = ReadOnlyDisk()
    engine = RocksEngine(disk, RocksLimits(cache_bytes=CACHE_BYTES))
    with asyncio.Runner() as runner:
        opening = open_checkpoint(ScanContext(engine, disk), located.schema, located.stacks)
        scan = runner.run(opening.__aenter__())
        try:
            yield LocalScan(scan)
        finally:
            runner.run(opening.__aexit__(None, None, None))
