"""A process that makes layers of staged rows, one after another, started by `layer_building.py`."""

import asyncio
import sys

import msgspec

from ebla.model.errors import EblaError
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.job_process import take_jobs, tell_outcome
from ebla.runtime.layer_building import BuildOutcome
from ebla.storage.build_rows import BuildJob, BuildResult, run_build
from ebla.storage.rocks import RocksEngine
from ebla.wire.failures import failure_of


def main() -> int:
    for asked in take_jobs():
        job = msgspec.msgpack.decode(asked, type=BuildJob)
        try:
            outcome = BuildOutcome(asyncio.run(_build(job)))
        except EblaError as error:
            outcome = BuildOutcome(None, failure_of(0, error))
        tell_outcome(msgspec.msgpack.encode(outcome))
    return 0


async def _build(job: BuildJob) -> BuildResult:
    disk = FileDisk()
    try:
        return await run_build(RocksEngine(disk), disk, job)
    finally:
        disk.close()


if __name__ == "__main__":
    sys.exit(main())
