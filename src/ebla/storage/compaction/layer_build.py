"""Builds a layer from files of staged rows: reads, checks and merges them and writes one base with its sidecar. It
reads
the files and writes one new folder, so it runs in any process that can reach them."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa

from ebla.model.errors import Corruption
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.ports.disk import Disk
from ebla.storage.codec.row_file import records_of
from ebla.storage.compaction.compactor import BaseLayerWriter
from ebla.storage.layers.layer import LayerEngine
from ebla.storage.layers.layer_facts import LayerFacts
from ebla.storage.merge.run_merge import MergeRounds, RunRules, merge_run_files

ROUNDS_SUFFIX = "-rounds"
"""Of a folder next to the output, for intermediate merges of many runs."""
CHUNK_ROWS = 32 * 1024
"""About how many are written at once."""
MERGED_RECORD_BYTES = 1 << 20


class BuildJob(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    rows_files: tuple[str, ...]
    """Each in key order; several may have the same key."""
    output_folder: str
    """Must not exist; its parent must."""
    range: TokenRange
    schema: TableSchema
    checksums: tuple[int, ...]
    """Of each file, as its sender reported them."""


class BuildResult(msgspec.Struct, frozen=True, array_like=True):
    facts: LayerFacts
    rows: int


def merge_small_runs(disk: Disk, paths: Sequence[str], output: str, rules: RunRules) -> int:
    """Merges runs with few rows in all into one file of rows. Returns the number of rows. Blocks; for a worker
    thread."""
    rows = 0
    file = disk.create(output)
    try:
        for batch in merge_run_files(disk, paths, rules):
            rows += len(batch)
            for record in records_of([batch], MERGED_RECORD_BYTES):
                file.append(record)
    finally:
        file.close()
    return rows


async def run_build(engine: LayerEngine, disk: Disk, job: BuildJob) -> BuildResult:
    """The output folder is durable on return. On any error it is gone, and nothing else has changed."""
    rules = RunRules(job.range, job.schema, dict(zip(job.rows_files, job.checksums, strict=True)))
    rounds = MergeRounds(disk, rules, job.output_folder + ROUNDS_SUFFIX)
    writer = BaseLayerWriter(engine, disk, job.output_folder, job.schema)
    try:
        runs = await rounds.few(job.rows_files)
        for batch in rebatch(merge_run_files(disk, runs, rules)):
            writer.add_rows(*batch.columns)
            # Yield to the loop, so that the process can answer and be cancelled.
            await asyncio.sleep(0)
        if not writer.rows:
            raise Corruption(f"{job.rows_files[0]} has no rows", advice="cancel the job and start it again")
        await writer.finish()
    finally:
        await rounds.remove()
        await writer.abandon()
    return BuildResult(writer.facts, writer.rows)


def rebatch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of even size, except perhaps the last. Runs of one length reach the ends of their
    records
    together, with a few rows in between, and every written batch has a fixed cost."""
    small: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if len(batch) < CHUNK_ROWS // 2:
            small.append(batch)
            rows += len(batch)
            if rows < CHUNK_ROWS // 2:
                continue
            batch = pa.concat_batches(small)
        elif small:
            yield pa.concat_batches(small)
        small, rows = [], 0
        count = max(1, round(len(batch) / CHUNK_ROWS))
        size = -(-len(batch) // count)
        for start in range(0, len(batch), size):
            yield batch.slice(start, size)
    if small:
        yield pa.concat_batches(small)
