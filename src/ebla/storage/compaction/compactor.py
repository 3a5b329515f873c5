"""Runs a compaction: streams layers of a stack in key order, merges them, drops what may be dropped, and writes one
base
with its sidecar. The decisions are made elsewhere (`compaction_plan.py`, `tombstone_gc.py`). It reads checkpoints and
writes a new folder, so it runs in any process that can reach them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ebla.model.rows import EMPTY_HEAD, EMPTY_ROW, Deletion, without_deleted
from ebla.model.schema import TableSchema
from ebla.ports.disk import Disk
from ebla.storage.codec.key_codec import decode_token, key_spans
from ebla.storage.codec.row_codec import decode_head, decode_row, encode_head, encode_row
from ebla.storage.columns.chunks import KEY, STORED, ChunkShape, chunk_facts, chunk_of, whole_shape
from ebla.storage.columns.sidecar import SidecarWriter
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult
from ebla.storage.compaction.tombstone_gc import TombstoneCollector
from ebla.storage.layers.layer import Item, LayerBuilder, LayerEngine
from ebla.storage.layers.layer_facts import NO_FACTS, LayerFacts
from ebla.storage.merge.partition_heads import PartitionHeadPass
from ebla.storage.scan.stack_scan import ScanLayer, close_scan, scan_stored


@dataclass(frozen=True, slots=True)
class GcTransform:
    """The `RowTransform` of a compaction. Rows lose what the original head covers, even where the head itself is
    dropped: a deletion that is dropped takes what it deleted with it."""

    schema: TableSchema
    collector: TombstoneCollector

    def head(self, item: Item) -> bytes | None:
        key, value = item
        head = decode_head(value)
        kept = self.collector.head(decode_token(key), head)
        if kept == EMPTY_HEAD:
            return None
        return value if kept == head else encode_head(kept, self.schema.version)

    def row(self, item: Item, covering: Deletion | None) -> bytes | None:
        key, value = item
        row = decode_row(value, self.schema.layouts)
        left = row if covering is None else without_deleted(row, covering)
        left = self.collector.row(decode_token(key), left)
        if left == EMPTY_ROW:
            return None
        return value if left == row else encode_row(left, self.schema.version, self.schema.layouts[-1])


class BaseLayerWriter:
    """Writes a new base and its sidecar from chunks of the raw shape in key order. They exist once `finish` has
    returned; `abandon` removes a half-written base, and does nothing after `finish`."""

    def __init__(self, engine: LayerEngine, disk: Disk, folder: str, schema: TableSchema) -> None:
        self._schema = schema
        self._shape = whole_shape(schema)
        self._builder: LayerBuilder = engine.builder(folder)
        self._sidecar = SidecarWriter(disk, folder, schema)
        self.facts: LayerFacts = NO_FACTS
        self.rows = 0

    def add(self, chunk: pa.RecordBatch) -> None:
        self.add_rows(chunk.column(KEY), chunk.column(STORED))

    def add_rows(self, keys: pa.Array, values: pa.Array) -> None:
        """Stored keys and values, in key order. Raises `Corruption` and `Stale` as `chunk_of` does."""
        chunk = chunk_of(self._shape, keys, values)
        self._builder.add(keys.to_pylist(), values.to_pylist())
        self._sidecar.add(chunk)
        self.facts = self.facts.widened(chunk_facts(chunk, self._schema))
        self.rows += len(chunk)

    async def finish(self) -> None:
        await self._sidecar.finish()
        await self._builder.finish(self.facts)

    async def abandon(self) -> None:
        self._sidecar.close()
        await self._builder.abandon()


async def run_compaction(engine: LayerEngine, disk: Disk, job: CompactionJob) -> CompactionResult:
    """The output folder is durable on return. On any error it is gone, and nothing else has changed."""
    inputs: list[ScanLayer] = []
    try:
        for one in job.inputs:
            layer = await engine.open(one.folder, writable=False)
            inputs.append(ScanLayer(layer, one.ranges))
        return await _compact(engine, disk, job, inputs)
    finally:
        await close_scan(inputs)


async def _compact(
    engine: LayerEngine, disk: Disk, job: CompactionJob, inputs: Sequence[ScanLayer]
) -> CompactionResult:
    collector = TombstoneCollector(job.rule)
    heads = PartitionHeadPass(shape=ChunkShape(job.schema), rule=GcTransform(job.schema, collector))
    writer = BaseLayerWriter(engine, disk, job.output_folder, job.schema)
    try:
        kept = (job.range,) if job.kept is None else job.kept
        for chunk in scan_stored(job.schema, inputs, [span for part in kept for span in key_spans(part)]):
            rows = heads.apply(chunk)
            if len(rows):
                writer.add(rows)
            # Yield to the loop, so that the process can answer and be cancelled.
            await asyncio.sleep(0)
        await writer.finish()
    finally:
        await writer.abandon()
    return CompactionResult(writer.facts, collector.dropped_greatest_us)
