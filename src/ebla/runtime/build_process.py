"""The process whose forks make layers of staged rows, started by `layer_building.py`."""

import asyncio
import os
import sys
from typing import NoReturn

import msgspec

from ebla.model.errors import EblaError
from ebla.runtime.file_disk import FileDisk, FileOnDisk
from ebla.runtime.job_forks import serve_jobs
from ebla.runtime.layer_building import BuildOutcome
from ebla.storage.build_rows import BuildJob, BuildResult, run_build
from ebla.storage.kept_memory import keep_freed_buffers
from ebla.storage.rocks import RocksEngine
from ebla.wire.failures import failure_of


def main() -> NoReturn:
    serve_jobs(int(sys.argv[1]), build)


def build(asked: bytes) -> bytes:
    """In a fork."""
    keep_freed_buffers()
    job = msgspec.msgpack.decode(asked, type=BuildJob)
    try:
        outcome = BuildOutcome(asyncio.run(_build(job)))
    except EblaError as error:
        outcome = BuildOutcome(None, failure_of(0, error))
    return msgspec.msgpack.encode(outcome)


class _RunsDisk(FileDisk):
    """What is there is only read, and opened for no more: other nodes of this machine have the same runs by links, and
    copy each that somebody has open for writing."""

    def open(self, path: str) -> FileOnDisk:
        return self._opened(path, os.O_RDONLY)


async def _build(job: BuildJob) -> BuildResult:
    disk = _RunsDisk()
    try:
        return await run_build(RocksEngine(disk), disk, job)
    finally:
        disk.close()


if __name__ == "__main__":
    main()
