"""The disk port for a task that reads another process's files. It never writes.

The files may belong to another user, so they are opened read-only. A task has nothing else to do meanwhile, so blocking
work runs in the calling thread.
"""

import os
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")


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

    def append(self, data: bytes) -> NoReturn:
        _refuse(f"append {len(data)} bytes", self._path)

    def write(self, offset: int, data: bytes) -> NoReturn:
        _refuse(f"write {len(data)} bytes at {offset}", self._path)

    def truncate(self, size: int) -> NoReturn:
        _refuse(f"truncate to {size} bytes", self._path)

    def preallocate(self, size: int) -> NoReturn:
        _refuse(f"reserve {size} bytes", self._path)

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

    def create(self, path: str) -> NoReturn:
        _refuse("create", path)

    def rename(self, old: str, new: str) -> NoReturn:
        _refuse(f"rename to {new}", old)

    def link(self, existing: str, new: str) -> NoReturn:
        _refuse(f"link as {new}", existing)

    def unlink(self, path: str) -> NoReturn:
        _refuse("remove", path)

    def make_folder(self, path: str) -> NoReturn:
        _refuse("make", path)

    def remove_folder(self, path: str) -> NoReturn:
        _refuse("remove", path)

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


def _refuse(what: str, path: str) -> NoReturn:
    raise AssertionError(f"a task that only reads must not {what}: {path}")
