"""The short cut of a reading task: on the node's own machine it opens the checkpoint's layers and reads them itself,
without a second process, a socket or TLS in between."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from ebla.source.read_only_disk import ReadOnlyDisk
from ebla.storage.checkpoint_scan import CheckpointScan, ScanPlace, opened_checkpoint
from ebla.storage.columns import whole_shape
from ebla.storage.rocks import RocksEngine, RocksLimits
from ebla.storage.row_file import ROWS_SCHEMA
from ebla.storage.scan import Question, answer_schema
from ebla.wire.table_access import Located
from ebla.wire.transfer_messages import StoredRowsQuestion, TypedRowsQuestion

CACHE_BYTES = 8 << 20
"""Every block is read once, so little is kept."""


@dataclass(frozen=True, slots=True)
class LocalScan:
    """Answers as the node's own workers do."""

    scan: CheckpointScan

    def ask(self, question: StoredRowsQuestion | TypedRowsQuestion) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Batches in key order. Raises `InvalidRequest` at once where the question makes no sense; while it is read
        `LayerDamaged`, or `Stale` where rows are of a newer schema than the one that came with the place."""
        match question:
            case StoredRowsQuestion(range=token_range, conditions=conditions, partitions=partitions):
                if question.by_column and self.scan.has_columns():
                    schema = whole_shape(self.scan.schema).arrow_schema
                    return schema, self.scan.by_column(token_range, conditions, partitions)
                return ROWS_SCHEMA, self.scan.stored(token_range, conditions, partitions)
            case TypedRowsQuestion(range=token_range, columns=columns, now_s=now_s):
                asked = Question(
                    self.scan.schema,
                    columns,
                    now_s,
                    conditions=question.conditions,
                    partitions=question.partitions,
                )
                return answer_schema(asked), self.scan.typed(token_range, asked)


@contextmanager
def opened_located(located: Located) -> Iterator[LocalScan]:
    """Opens what was told by a node. Raises `LayerDamaged` or `OSError` where it is not there (any more) or not to be
    opened: the same rows are then to be had over Flight. No event loop may run in the calling thread."""
    disk = ReadOnlyDisk()
    engine = RocksEngine(disk, RocksLimits(cache_bytes=CACHE_BYTES))
    with asyncio.Runner() as runner:
        opening = opened_checkpoint(ScanPlace(engine, disk), located.schema, located.stacks)
        scan = runner.run(opening.__aenter__())
        try:
            yield LocalScan(scan)
        finally:
            runner.run(opening.__aexit__(None, None, None))
