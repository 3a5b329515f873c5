"""A compaction in one go, for layers that fit in memory. The real one streams, in a worker process."""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import chain

from ebla.storage.codec.key_codec import key_spans
from ebla.storage.compaction.compaction_plan import CompactionInput, CompactionJob, CompactionResult
from ebla.storage.compaction.tombstone_gc import TombstoneCollector, collected
from ebla.storage.layers.layer import Item, Layer, LayerEngine, build_layer
from ebla.storage.merge.row_merge import facts_of, merge_streams


async def compact_in_memory(engine: LayerEngine, job: CompactionJob) -> CompactionResult:
    collector = TombstoneCollector(job.rule)
    async with AsyncExitStack() as opened:
        layers = []
        for one in job.inputs:
            layer = await engine.open(one.folder, writable=False)
            opened.push_async_callback(layer.discard)
            layers.append(layer)
        streams = [_clipped(layer, one) for layer, one in zip(layers, job.inputs)]
        items = list(collected(merge_streams(streams, job.schema), job.schema, collector))
    facts = facts_of([value for _, value in items], job.schema)
    await build_layer(engine, job.output_folder, items, facts)
    return CompactionResult(facts, collector.dropped_greatest_us)


def _clipped(layer: Layer, one: CompactionInput) -> Iterator[Item]:
    return chain.from_iterable(layer.scan(*span) for span in key_spans(one.range))
