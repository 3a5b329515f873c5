"""What a worker does: compactions, builds of layers from staged rows, scans of checkpoints. `pool.py` starts it."""

import asyncio
import os
import socket
from collections.abc import Iterator
from typing import NoReturn

import msgspec
import pyarrow as pa

from ebla.bulk.workers.fork_server import serve_forks
from ebla.bulk.workers.messages import ScanJob, WorkerFrameKind, receive_frame, send_frame
from ebla.model.errors import EblaError, InternalError
from ebla.runtime.file_disk import DiskFile, FileDisk
from ebla.storage.compaction.compaction_plan import CompactionJob
from ebla.storage.compaction.compactor import run_compaction
from ebla.storage.compaction.layer_build import BuildJob, run_build
from ebla.storage.layers.malloc import keep_freed_buffers
from ebla.storage.layers.rocks_engine import RocksEngine
from ebla.storage.scan.stack_scan import open_checkpoint
from ebla.transfers.scan_answers import answer_scan
from ebla.wire.flight_format import encode_failure

BATCH_BYTES = 4 << 20
"""Sent at a time; a single row may be larger."""


def main() -> NoReturn:
    serve_forks(serve_worker)


def serve_worker(channel: socket.socket) -> None:
    """Until the bulk process closes the channel. An error that no job expects ends the worker."""
    while True:
        try:
            kind, body = receive_frame(channel)
        except EOFError:
            return
        try:
            asyncio.run(_run(kind, body, channel))
        except (BrokenPipeError, ConnectionResetError):
            return  # the reader gave up
        except EblaError as error:
            send_frame(channel, WorkerFrameKind.FAILURE, encode_failure(error))


async def _run(kind: WorkerFrameKind, body: bytearray, channel: socket.socket) -> None:
    match kind:
        case WorkerFrameKind.COMPACT:
            await _compact(msgspec.msgpack.decode(body, type=CompactionJob), channel)
        case WorkerFrameKind.BUILD:
            await _build(msgspec.msgpack.decode(body, type=BuildJob), channel)
        case WorkerFrameKind.SCAN:
            await _scan(msgspec.msgpack.decode(body, type=ScanJob), channel)
        case _:
            raise AssertionError(f"{kind.name} is not a job")


async def _compact(job: CompactionJob, channel: socket.socket) -> None:
    disk = FileDisk()
    try:
        result = await run_compaction(RocksEngine(disk), disk, job)
    finally:
        disk.close()
    send_frame(channel, WorkerFrameKind.RESULT, msgspec.msgpack.encode(result))


class _RunsDisk(FileDisk):
    """Opens existing files read-only. Other nodes of this machine share the same runs by hard links, and copy every
    file that is open for writing."""

    def open(self, path: str) -> DiskFile:
        return self._opened(path, os.O_RDONLY)


async def _build(job: BuildJob, channel: socket.socket) -> None:
    keep_freed_buffers()
    disk = _RunsDisk()
    try:
        result = await run_build(RocksEngine(disk), disk, job)
    finally:
        disk.close()
    send_frame(channel, WorkerFrameKind.RESULT, msgspec.msgpack.encode(result))


# ---- scans


async def _scan(job: ScanJob, channel: socket.socket) -> None:
    disk = FileDisk()
    try:
        async with open_checkpoint(RocksEngine(disk), disk, job.schema, job.stacks) as scan:
            schema, batches = answer_scan(scan, job.query)
            send_frame(channel, WorkerFrameKind.SCHEMA, schema.serialize())
            for batch in batches:
                for piece in slices_of(batch):
                    send_frame(channel, WorkerFrameKind.BATCH, piece.serialize())
    except (BrokenPipeError, ConnectionResetError):
        raise
    except (OSError, pa.ArrowException) as error:
        raise InternalError(f"the scan failed: {error}") from error
    finally:
        disk.close()
    send_frame(channel, WorkerFrameKind.END, b"")


def slices_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of about `BATCH_BYTES`, without a copy."""
    count = max(1, -(-batch.nbytes // BATCH_BYTES))
    rows = max(1, -(-len(batch) // count))
    for start in range(0, len(batch), rows):
        yield batch.slice(start, rows)


if __name__ == "__main__":
    main()
