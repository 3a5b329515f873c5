"""A disk on which one call goes wrong: the process dies before it, or there is no space for it."""

import enum
from collections.abc import Callable
from typing import TypeVar

from ebla.model.errors import DiskFull
from ebla.ports.disk import Disk, File

T = TypeVar("T")


class Died(BaseException):
    """The process is no more. From there on the disk takes nothing from it, whatever its clean-up tries."""


class Failure(enum.StrEnum):
    DEATH = "death"
    NO_SPACE = "no_space"


class FailingDisk:
    """`Disk`. Counts the calls by which something changes or becomes durable, from `arm` on, and fails one of them."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._failure = Failure.DEATH
        self._left: int | None = None
        self._is_dead = False
        self.calls: list[str] = []

    def arm(self, failure: Failure, before_call: int) -> None:
        """Numbered from 0; one that is never reached fails nothing."""
        self._failure, self._left = failure, before_call
        self.calls = []

    def changes(self, what: str, *, needs_space: bool = False) -> None:
        if self._is_dead:
            raise Died
        if self._left is None or (self._failure is Failure.NO_SPACE and not needs_space):
            return
        self._left -= 1
        self.calls.append(what)
        if self._left < 0:
            self._left = None
            if self._failure is Failure.NO_SPACE:
                raise DiskFull(f"no space for {what}")
            self._is_dead = True
            raise Died

    def open(self, path: str) -> File:
        return FailingFile(self, self._disk.open(path))

    def create(self, path: str) -> File:
        self.changes("create", needs_space=True)
        return FailingFile(self, self._disk.create(path))

    def rename(self, old: str, new: str) -> None:
        self.changes("rename")
        self._disk.rename(old, new)

    def link(self, existing: str, new: str) -> None:
        self.changes("link", needs_space=True)
        self._disk.link(existing, new)

    def unlink(self, path: str) -> None:
        self.changes("unlink")
        self._disk.unlink(path)

    def make_folder(self, path: str) -> None:
        self.changes("make_folder", needs_space=True)
        self._disk.make_folder(path)

    def remove_folder(self, path: str) -> None:
        self.changes("remove_folder")
        self._disk.remove_folder(path)

    def list_folder(self, path: str) -> list[str]:
        return self._disk.list_folder(path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(path)

    async def sync_folder(self, path: str) -> None:
        self.changes("sync_folder")
        await self._disk.sync_folder(path)

    async def run(self, work: Callable[[], T]) -> T:
        return await self._disk.run(work)


class FailingFile:
    """`File`."""

    def __init__(self, disk: FailingDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    @property
    def path(self) -> str:
        return self._file.path

    def size(self) -> int:
        return self._file.size()

    def read(self, offset: int, length: int) -> bytes:
        return self._file.read(offset, length)

    def append(self, data: bytes) -> None:
        self._disk.changes("append", needs_space=True)
        self._file.append(data)

    def write(self, offset: int, data: bytes) -> None:
        self._disk.changes("write", needs_space=True)
        self._file.write(offset, data)

    def truncate(self, size: int) -> None:
        self._disk.changes("truncate")
        self._file.truncate(size)

    def preallocate(self, size: int) -> None:
        self._file.preallocate(size)

    async def sync(self) -> None:
        self._disk.changes("sync")
        await self._file.sync()

    def can_sync_now(self, more_bytes: int) -> bool:
        return self._file.can_sync_now(more_bytes)

    def sync_now(self) -> None:
        self._disk.changes("sync")
        self._file.sync_now()

    def close(self) -> None:
        self._file.close()
