"""The process that carries a fold out, started by `folding.py`."""

import asyncio
import sys

import msgspec

from ebla.model.errors import EblaError
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.folding import FoldOutcome
from ebla.runtime.job_process import take_job, tell_outcome
from ebla.runtime.no_pandas import without_pandas
from ebla.storage.fold import run_fold
from ebla.storage.fold_plan import FoldJob, FoldResult
from ebla.storage.rocks import RocksEngine


def main() -> int:
    without_pandas()
    job = msgspec.msgpack.decode(take_job(), type=FoldJob)
    try:
        outcome = FoldOutcome(asyncio.run(_fold(job)))
    except EblaError as error:
        outcome = FoldOutcome(None, str(error))
    tell_outcome(msgspec.msgpack.encode(outcome))
    return 0


async def _fold(job: FoldJob) -> FoldResult:
    disk = FileDisk()
    try:
        return await run_fold(RocksEngine(disk), disk, job)
    finally:
        disk.close()


if __name__ == "__main__":
    sys.exit(main())
