"""The process that carries a fold out, started by `folding.py`."""

import asyncio
import sys

import msgspec

from ebla.bulk.workers.compaction_runner import CompactionOutcome
from ebla.bulk.workers.no_pandas import disable_pandas
from ebla.bulk.workers.subprocess_job import read_job, write_outcome
from ebla.model.errors import EblaError
from ebla.runtime.file_disk import FileDisk
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult
from ebla.storage.compaction.compactor import run_compaction
from ebla.storage.layers.rocks_engine import RocksEngine


def main() -> int:
    disable_pandas()
    job = msgspec.msgpack.decode(read_job(), type=CompactionJob)
    try:
        outcome = CompactionOutcome(asyncio.run(_fold(job)))
    except EblaError as error:
        outcome = CompactionOutcome(None, str(error))
    write_outcome(msgspec.msgpack.encode(outcome))
    return 0


async def _fold(job: CompactionJob) -> CompactionResult:
    disk = FileDisk()
    try:
        return await run_compaction(RocksEngine(disk), disk, job)
    finally:
        disk.close()


if __name__ == "__main__":
    sys.exit(main())
