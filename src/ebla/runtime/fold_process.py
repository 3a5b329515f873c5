"""The process that carries a fold out, started by `folding.py`: the job comes in on its standard input, the outcome
goes out on its standard output."""

import asyncio
import os
import sys

import msgspec

from ebla.model.errors import EblaError
from ebla.runtime.death_signal import die_with_parent
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.folding import LENGTH, FoldOutcome, framed
from ebla.storage.fold import run_fold
from ebla.storage.fold_plan import FoldJob, FoldResult
from ebla.storage.rocks import RocksEngine

_STANDARD_INPUT = 0


def main() -> int:
    job = msgspec.msgpack.decode(_read_framed(), type=FoldJob)
    die_with_parent(int(sys.argv[1]), _STANDARD_INPUT)
    try:
        outcome = FoldOutcome(asyncio.run(_fold(job)))
    except EblaError as error:
        outcome = FoldOutcome(None, str(error))
    sys.stdout.buffer.write(framed(msgspec.msgpack.encode(outcome)))
    sys.stdout.buffer.flush()
    return 0


async def _fold(job: FoldJob) -> FoldResult:
    disk = FileDisk()
    try:
        return await run_fold(RocksEngine(disk), disk, job)
    finally:
        disk.close()


def _read_framed() -> bytes:
    (size,) = LENGTH.unpack(_read_exactly(LENGTH.size))
    return _read_exactly(size)


def _read_exactly(size: int) -> bytes:
    """From the descriptor itself: a buffered reader would swallow what the watch for the parent's end waits for."""
    data = b""
    while len(data) < size:
        part = os.read(_STANDARD_INPUT, size - len(data))
        if not part:
            raise SystemExit(1)
        data += part
    return data


if __name__ == "__main__":
    sys.exit(main())
