"""The process whose forks make layers of staged rows, started by `layer_building.py`."""

import asyncio
import os
import sys
from typing import NoReturn

import msgspec

from ebla.bulk.workers.fork_server import serve_forks
from ebla.bulk.workers.layer_builder import BuildOutcome
from ebla.model.errors import EblaError
from ebla.runtime.file_disk import DiskFile, FileDisk
from ebla.storage.compaction.layer_build import BuildJob, BuildResult, run_build
from ebla.storage.layers.malloc_buffers import keep_freed_buffers
from ebla.storage.layers.rocks_engine import RocksEngine
from ebla.wire.errors import failure_frame


def main() -> NoReturn:
    serve_forks(int(sys.argv[1]), build)


def build(asked: bytes) -> bytes:
    """In a fork."""
    keep_freed_buffers()
    job = msgspec.msgpack.decode(asked, type=BuildJob)
    try:
        outcome = BuildOutcome(asyncio.run(_build(job)))
    except EblaError as error:
        outcome = BuildOutcome(None, failure_frame(0, error))
    return msgspec.msgpack.encode(outcome)


class _RunsDisk(FileDisk):
    """What is there is only read, and opened for no more: other nodes of this machine have the same runs by links, and
    copy each that somebody has open for writing."""

    def open(self, path: str) -> DiskFile:
        return self._opened(path, os.O_RDONLY)


async def _build(job: BuildJob) -> BuildResult:
    disk = _RunsDisk()
    try:
        return await run_build(RocksEngine(disk), disk, job)
    finally:
        disk.close()


if __name__ == "__main__":
    main()
