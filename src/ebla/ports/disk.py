"""The disk: files, folders, and what is durable when.

Reading, writing and renaming are synchronous: they touch the page cache. Syncing is asynchronous: a worker thread in
production, a seeded delay in simulation. Nothing is durable before a sync has returned: file content by `File.sync`,
names (create, rename, link, unlink) by `Disk.sync_folder` of their folder.

Paths are absolute POSIX strings. A missing file raises `FileNotFoundError`; a full disk raises
`ebla.model.errors.DiskFull` and leaves at most a part of the bytes of that one write; other failures of the device
raise `OSError`.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class File(Protocol):
    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def append(self, data: bytes) -> None: ...

    def write(self, offset: int, data: bytes) -> None: ...

    def truncate(self, size: int) -> None: ...

    def preallocate(self, size: int) -> None:
        """Reserves blocks up to `size` without changing the visible size, so that appends need no new metadata."""
        ...

    async def sync(self) -> None:
        """Returns once every byte written before the call is durable. After a failed sync the file must not be
        trusted: unsynced bytes may be lost, and a later successful sync does not bring them back."""
        ...

    def can_sync_now(self, more_bytes: int) -> bool:
        """Whether a sync after this many more bytes is short enough to block the loop."""
        ...

    def sync_now(self) -> None:
        """As `sync`, but it blocks the loop. For callers that have nothing else to do meanwhile, and only where
        `can_sync_now` allows it."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str) -> File:
        """An existing file, for reading and writing."""
        ...

    def create(self, path: str) -> File:
        """A new file; `FileExistsError` where the name is taken."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces `new`."""
        ...

    def link(self, existing: str, new: str) -> None:
        """A hard link."""
        ...

    def unlink(self, path: str) -> None: ...

    def make_folder(self, path: str) -> None:
        """With its parents; an existing one is kept."""
        ...

    def remove_folder(self, path: str) -> None:
        """With everything in it; a missing one is no error."""
        ...

    def list_folder(self, path: str) -> list[str]:
        """Names, sorted."""
        ...

    def exists(self, path: str) -> bool: ...

    def free_bytes(self, path: str) -> int: ...

    async def sync_folder(self, path: str) -> None: ...

    async def run(self, work: Callable[[], T]) -> T:
        """Runs blocking disk work off the loop: on a worker thread, or with a seeded delay. A cancelled caller waits
        for
        work that has begun, so that it releases what it holds only after that."""
        ...
