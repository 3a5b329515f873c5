"""The disk port on the real file system (POSIX; Linux for reserving blocks)."""

import asyncio
import ctypes
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ebla.model.errors import DiskFull
from ebla.runtime.disk_syncs import SHORT_SYNC_BYTES_MAX, DiskSyncer, WriteBehind
from ebla.runtime.priorities import lower_thread_priority

T = TypeVar("T")

_FULL_CODES = (errno.ENOSPC, errno.EDQUOT)
_NOT_SUPPORTED_CODES = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_FALLOC_FL_KEEP_SIZE = 1
_FILE_MODE = 0o600
_FOLDER_MODE = 0o700


@contextmanager
def _raising_disk_full(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        if failure.errno in _FULL_CODES:
            raise DiskFull(
                f"no space left for {path} ({failure.strerror})",
                advice="free space on its file system or raise its quota",
            ) from failure
        raise


class DiskFile:
    """One open file, used from the loop and, inside `FileDisk.run`, from worker threads.

    The system reuses descriptors: closing one while a thread still writes or syncs would send that thread's bytes into
    another file. So uses are counted, and the last user closes it.
    """

    def __init__(self, path: str, descriptor: int, syncing: DiskSyncer, behind: WriteBehind | None = None) -> None:
        self._path = path
        self._behind = behind
        self._descriptor = descriptor
        self._syncing = syncing
        self._unsynced_bytes = 0
        self._guard = threading.Lock()
        self._users = 0
        self._closing = False
        self._sync_failure: BaseException | None = None

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        descriptor = self._enter()
        try:
            return os.fstat(descriptor).st_size
        finally:
            self._leave()

    def read(self, offset: int, length: int) -> bytes:
        descriptor = self._enter()
        try:
            return _read_fully(descriptor, offset, length)
        finally:
            self._leave()

    def append(self, data: bytes) -> None:
        self.write(self.size(), data)

    def write(self, offset: int, data: bytes) -> None:
        descriptor = self._enter_to_change()
        self._unsynced_bytes += len(data)
        try:
            written = os.pwrite(descriptor, data, offset)
            if written < len(data):
                _write_rest(descriptor, offset, data, written)
            if self._behind is not None:
                self._behind.wrote(descriptor, offset, len(data))
        except OSError as failure:
            # Hot path of a commit: the context manager of the other methods would cost as much as the write itself.
            with _raising_disk_full(self._path):
                raise failure
        finally:
            self._leave()

    def truncate(self, size: int) -> None:
        descriptor = self._enter_to_change()
        try:
            with _raising_disk_full(self._path):
                os.ftruncate(descriptor, size)
        finally:
            self._leave()

    def preallocate(self, size: int) -> None:
        """Where the file system cannot reserve blocks, appends allocate their own."""
        descriptor = self._enter_to_change()
        try:
            code = _reserve_blocks(descriptor, size)
        finally:
            self._leave()
        if code == 0 or code in _NOT_SUPPORTED_CODES:
            return
        with _raising_disk_full(self._path):
            raise OSError(code, os.strerror(code), self._path)

    async def sync(self) -> None:
        descriptor = self._enter_to_change()
        self._unsynced_bytes = 0
        syncing = self._syncing
        with _raising_disk_full(self._path):
            await syncing.threads.run(partial(syncing.sync_content, descriptor), self._note_sync_ended)

    def can_sync_now(self, more_bytes: int) -> bool:
        return self._unsynced_bytes + more_bytes <= SHORT_SYNC_BYTES_MAX and self._syncing.can_sync_inline()

    def sync_now(self) -> None:
        descriptor = self._enter_to_change()
        self._unsynced_bytes = 0
        failure: BaseException | None = None
        try:
            self._syncing.sync_content(descriptor)
        except OSError as error:
            failure = error
            with _raising_disk_full(self._path):
                raise
        finally:
            self._note_sync_ended(failure)

    def close(self) -> None:
        with self._guard:
            if self._closing:
                return
            self._closing = True
            in_use = self._users > 0
        if not in_use:
            os.close(self._descriptor)

    def _note_sync_ended(self, failure: BaseException | None) -> None:
        # In the thread, not after the await: the caller may be cancelled while the thread still syncs, and a failure
        # must poison the file all the same. The kernel reports lost pages once and then marks them clean, so the first
        # failure is kept.
        self._sync_failure = self._sync_failure or failure
        self._leave()

    def _enter(self) -> int:
        with self._guard:
            if self._closing:
                raise ValueError(f"{self._path} is closed")
            self._users += 1
        return self._descriptor

    def _enter_to_change(self) -> int:
        if self._sync_failure is not None:
            raise OSError(
                errno.EIO, f"an earlier sync failed ({self._sync_failure}), so its content is unknown", self._path
            )
        with self._guard:
            if not self._closing:
                self._users += 1
                return self._descriptor
        raise ValueError(f"{self._path} is closed")

    def _leave(self) -> None:
        with self._guard:
            self._users -= 1
            last_one_out = self._closing and self._users == 0
        if last_one_out:
            os.close(self._descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig:
    """How a process uses its disk."""

    sync_threads: int = 2
    work_threads: int = 2
    work_niceness: int = 0
    """Of the threads for blocking work, added to that of the process."""
    step_bytes: int = 0
    """Write-behind starts after so many consecutive bytes; 0: written to the device when synced."""


class FileDisk:
    """Syncs and other blocking work have separate threads, so that a long copy does not delay a commit."""

    def __init__(self, config: DiskConfig | None = None) -> None:
        self._config = config = config or DiskConfig()
        self._syncing = DiskSyncer(config.sync_threads)
        self._work_pool = ThreadPoolExecutor(
            config.work_threads,
            thread_name_prefix="disk-work",
            initializer=partial(lower_thread_priority, config.work_niceness),
        )

    def open(self, path: str) -> DiskFile:
        return self._opened(path, os.O_RDWR)

    def create(self, path: str) -> DiskFile:
        with _raising_disk_full(path):
            return self._opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def _opened(self, path: str, flags: int) -> DiskFile:
        behind = WriteBehind(self._config.step_bytes) if self._config.step_bytes else None
        return DiskFile(path, os.open(path, flags, _FILE_MODE), self._syncing, behind)

    def rename(self, old: str, new: str) -> None:
        with _raising_disk_full(new):
            os.replace(old, new)

    def link(self, existing: str, new: str) -> None:
        with _raising_disk_full(new):
            os.link(existing, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        with _raising_disk_full(path):
            os.makedirs(path, _FOLDER_MODE, exist_ok=True)

    def remove_folder(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            if os.path.lexists(path):
                raise

    def list_folder(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def free_bytes(self, path: str) -> int:
        figures = os.statvfs(path)
        return figures.f_bavail * figures.f_frsize

    async def sync_folder(self, path: str) -> None:
        with _raising_disk_full(path):
            await self._syncing.threads.run(partial(_sync_folder, path), _ignore)

    async def run(self, work: Callable[[], T]) -> T:
        syncing = self._syncing
        syncing.work_pending += 1
        running = self._work_pool.submit(work)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            if not running.cancelled():
                await _wait_ended(running)
            raise
        finally:
            syncing.work_pending -= 1

    def close(self) -> None:
        """Waits for syncs and running work; work that has not started is dropped."""
        self._syncing.threads.close()
        self._work_pool.shutdown(wait=True, cancel_futures=True)


async def _wait_ended(running: Future[T]) -> None:
    """A second cancellation leaves the work running, which may make one sync on the loop slow."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    running.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set))
    await ended.wait()


def _read_fully(descriptor: int, offset: int, length: int) -> bytes:
    pieces: list[bytes] = []
    while length > 0 and (piece := os.pread(descriptor, length, offset)):
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _write_rest(descriptor: int, offset: int, data: bytes, written: int) -> None:
    """A short write means that the device filled up, or a signal came, in the middle: only the next call tells
    which."""
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)


def _load_fallocate() -> Callable[[int, int, int, int], int] | None:
    """From the C library: Python's `posix_fallocate` would change the visible size."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_int

    def call(descriptor: int, mode: int, offset: int, length: int) -> int:
        return 0 if function(descriptor, mode, offset, length) == 0 else ctypes.get_errno()

    return call


_fallocate = _load_fallocate()


def _reserve_blocks(descriptor: int, size: int) -> int:
    """The error code, 0 for success."""
    if _fallocate is None or size <= 0:
        return 0
    while (code := _fallocate(descriptor, _FALLOC_FL_KEEP_SIZE, 0, size)) == errno.EINTR:
        pass
    return code


def _ignore(_failure: BaseException | None) -> None:
    """A cancelled caller does not need the result of a folder's sync."""


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
