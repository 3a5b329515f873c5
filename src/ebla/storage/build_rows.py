"""A layer made of files of staged rows: read, checked, merged, written as one base with its sidecar. It reads the files
and writes one new folder, so it runs in any process that has them."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa

from ebla.model.errors import Corruption
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.ports.disk import Disk
from ebla.storage.fold import BaseWriter
from ebla.storage.layer import LayerEngine
from ebla.storage.layer_facts import LayerFacts
from ebla.storage.merge_runs import RunRounds, RunRules, merged_rows
from ebla.storage.row_file import records_of

ROUNDS_SUFFIX = "-rounds"
"""Of a folder beside the output, where many runs are brought down to few."""
CHUNK_ROWS = 32 * 1024
"""Written at once, about."""
MERGED_RECORD_BYTES = 1 << 20


class BuildJob(msgspec.Struct, frozen=True, array_like=True):
    rows_files: tuple[str, ...]
    """Each in key order; a key may be in several."""
    output_folder: str
    """Must not exist, and its parent must."""
    range: TokenRange
    schema: TableSchema
    checksums: tuple[int, ...]
    """Of each file, as whoever brought it has told."""


class BuildResult(msgspec.Struct, frozen=True, array_like=True):
    facts: LayerFacts
    rows: int


def merge_few(disk: Disk, paths: Sequence[str], output: str, rules: RunRules) -> int:
    """Runs of few rows in all become one file of rows. How many there are. Blocks; for a worker thread."""
    rows = 0
    file = disk.create(output)
    try:
        for batch in merged_rows(disk, paths, rules):
            rows += len(batch)
            for record in records_of([batch], MERGED_RECORD_BYTES):
                file.append(record)
    finally:
        file.close()
    return rows


async def run_build(engine: LayerEngine, disk: Disk, job: BuildJob) -> BuildResult:
    """The output folder is durable on return. On any error it is gone, and nothing else has changed."""
    rules = RunRules(job.range, job.schema, dict(zip(job.rows_files, job.checksums, strict=True)))
    rounds = RunRounds(disk, rules, job.output_folder + ROUNDS_SUFFIX)
    writer = BaseWriter(engine, disk, job.output_folder, job.schema)
    try:
        runs = await rounds.few(job.rows_files)
        for batch in evened(merged_rows(disk, runs, rules)):
            writer.add_rows(*batch.columns)
            # The loop of the process that builds must stay able to answer and to be cancelled.
            await asyncio.sleep(0)
        if not writer.rows:
            raise Corruption(f"{job.rows_files[0]} has no rows", advice="cancel the job and start it again")
        await writer.finish()
    finally:
        await rounds.remove()
        await writer.abandon()
    return BuildResult(writer.facts, writer.rows)


def evened(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are neither large nor small, but perhaps the last: runs of one length reach the
    ends of their records together, with a few rows between one and the next, and whatever is written costs a number of
    calls beside its rows."""
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
