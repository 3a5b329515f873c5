"""Local reads: on the node's own machine a task opens the checkpoint's layers itself, without a second process, a
socket or TLS in between."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NoReturn, TypeVar

import pyarrow as pa

from ebla.options import NodeLimits
from ebla.storage.layers.rocks_engine import RocksEngine
from ebla.storage.scan.stack_scan import open_checkpoint
from ebla.transfers.scan_answers import answer_scan
from ebla.wire.table_calls import CheckpointFiles
from ebla.wire.transfer_messages import StoredRowsQuery, TypedRowsQuery

T = TypeVar("T")
LocalScan = Callable[[StoredRowsQuery | TypedRowsQuery], tuple[pa.Schema, Iterator[pa.RecordBatch]]]

CACHE_BYTES = 8 << 20
"""Every block is read once, so a small cache is enough."""


@contextmanager
def open_located(located: CheckpointFiles) -> Iterator[LocalScan]:
    """Opens the files a node has located. Raises `LayerDamaged` or `OSError` where they are gone or cannot be opened:
    the same rows can then be read over Flight. No event loop may run in the calling thread."""
    disk = ReadOnlyDisk()
    engine = RocksEngine(disk, NodeLimits(shard_cache_bytes_max=CACHE_BYTES))
    with asyncio.Runner() as runner:
        opening = open_checkpoint(engine, disk, located.schema, located.stacks)
        scan = runner.run(opening.__aenter__())
        try:
            yield partial(answer_scan, scan)
        finally:
            runner.run(opening.__aexit__(None, None, None))


# ---- The disk port for a task that reads another process's files. They may belong to another user, so they are opened
# read-only. A task has nothing else to do meanwhile, so blocking work runs in the calling thread.


def _refuse(*arguments: object) -> NoReturn:
    raise AssertionError(f"a task that only reads must not change files: {arguments}")


class ReadOnlyFile:
    """`ports.disk.File`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return os.fstat(self._open()).st_size

    def read(self, offset: int, length: int) -> bytes:
        descriptor = self._open()
        pieces: list[bytes] = []
        while length > 0 and (piece := os.pread(descriptor, length, offset)):
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    append = write = truncate = preallocate = staticmethod(_refuse)

    async def sync(self) -> None:
        """Nothing was written."""

    def can_sync_now(self, more_bytes: int) -> bool:
        return more_bytes == 0

    def sync_now(self) -> None:
        """Nothing was written."""

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self._path} is closed")
        return self._descriptor


class ReadOnlyDisk:
    """`ports.disk.Disk`."""

    def open(self, path: str) -> ReadOnlyFile:
        return ReadOnlyFile(path)

    create = rename = link = unlink = make_folder = remove_folder = staticmethod(_refuse)

    def list_folder(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def free_bytes(self, path: str) -> int:
        figures = os.statvfs(path)
        return figures.f_bavail * figures.f_frsize

    async def sync_folder(self, path: str) -> None:
        del path  # nothing was written

    async def run(self, work: Callable[[], T]) -> T:
        return work()
