"""The disk: files, folders, and what is durable when.

Reading, writing and naming are synchronous: they touch the page cache. Syncing is asynchronous: a worker thread in
reality, a seeded delay in simulation, and the loop goes on meanwhile. Nothing is durable before a sync returned:
file content by `File.sync`, names (create, rename, link, unlink) by `Disk.sync_folder` of their folder.

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
        """Reserve blocks up to `size` without changing the visible size, so that appends need no new metadata."""
        ...

    async def sync(self) -> None:
        """Returns once every byte written before the call is durable. After a failed sync the file must not be
        trusted: what it had not synced may be gone, and a later sync that succeeds says nothing about it."""
        ...

    def can_sync_now(self, more_bytes: int) -> bool:
        """Whether a sync after so many bytes more is short enough to keep the loop for it."""
        ...

    def sync_now(self) -> None:
        """As `sync`, and it keeps the loop. For callers that have nothing else to do until then, and only where
        `can_sync_now` says so."""
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
        """With its parents; one that is there is kept."""
        ...

    def remove_folder(self, path: str) -> None:
        """With all it holds; a missing one is no error."""
        ...

    def list_folder(self, path: str) -> list[str]:
        """Names, sorted."""
        ...

    def exists(self, path: str) -> bool: ...

    def free_bytes(self, path: str) -> int: ...

    async def sync_folder(self, path: str) -> None: ...

    async def run(self, work: Callable[[], T]) -> T:
        """A blocking piece of disk work off the loop: a worker thread, or a seeded delay. A caller that is cancelled
        waits for work that has begun, so that whatever it held meanwhile is let go only after it."""
        ...
