"""How the files of one disk are synced: by threads, or on the loop where that is faster; and write-behind of bulk
data."""

import asyncio
import ctypes
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

UNKNOWN_SYNC_S = 0.1
"""The assumed duration of a sync before the first one."""
SHORT_SYNC_S = 0.001
"""A loop that blocks for so long blocks less than many of its own callbacks do."""
SHORT_SYNC_BYTES_MAX = 64 * 1024
NEWEST_WEIGHT = 1 / 8
"""Weight of the newest sync in the moving average."""

SyncCallback = Callable[[BaseException | None], None]
_Sync = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]", Callable[[], None], SyncCallback]


class SyncThreads:
    """Threads that sync, and a queue of pending syncs.

    Not an executor: its two futures, locks and wake-ups took twice the processor time and 20 µs longer per sync, a good
    part of what a fast device needs for the sync itself. Each thread waits on a lock of its own: threads that wait on
    one queue wake each other for every sync, find nothing, and take the GIL for it.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._guard = threading.Lock()
        self._waiting: deque[_Sync] = deque()
        self._idle_threads: list[threading.Lock] = []
        self._closing = False
        self._threads: list[threading.Thread] = []
        self.pending = 0
        """Requested and not ended. Exact only while holding the lock; without it only good for "is it idle"."""

    async def run(self, work: Callable[[], None], ended: SyncCallback) -> None:
        """`ended` is called in the thread, even if the caller was cancelled."""
        if not self._threads:
            self._start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        with self._guard:
            self.pending += 1
            self._waiting.append((loop, done, work, ended))
            wake_lock = self._idle_threads.pop() if self._idle_threads else None
        if wake_lock is not None:
            wake_lock.release()
        await done

    def close(self) -> None:
        """Waits for every pending sync."""
        with self._guard:
            self._closing = True
            wake_locks, self._idle_threads = self._idle_threads, []
        for wake_lock in wake_locks:
            wake_lock.release()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _start(self) -> None:
        self._closing = False
        for number in range(self._count):
            thread = threading.Thread(target=self._work, name=f"disk-sync-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _next(self, wake_lock: threading.Lock) -> _Sync | None:
        with self._guard:
            if self._waiting:
                return self._waiting.popleft()
            if not self._closing:
                self._idle_threads.append(wake_lock)
            return None

    def _work(self) -> None:
        wake_lock = threading.Lock()
        wake_lock.acquire()
        while True:
            sync = self._next(wake_lock)
            if sync is not None:
                self._sync(*sync)
            elif self._closing:
                return
            else:
                wake_lock.acquire()

    def _sync(
        self,
        loop: asyncio.AbstractEventLoop,
        done: "asyncio.Future[None]",
        work: Callable[[], None],
        ended: SyncCallback,
    ) -> None:
        failure: BaseException | None = None
        try:
            work()
        except BaseException as error:  # raised in the caller; the thread continues
            failure = error
        ended(failure)
        with self._guard:
            self.pending -= 1
        try:
            loop.call_soon_threadsafe(_settle, done, failure)
        except RuntimeError:
            pass  # the loop is closed: no caller waits any more


class SyncLatency:
    """How long syncs of this disk took lately, and whether one may run on the loop.

    Handing a sync to a thread and learning of its end takes two wake-ups and the GIL twice: 0.1 to 0.2 ms of a commit
    that waits for nothing else, as much as the whole sync of a fast device. Such a sync runs on the loop if its caller
    is idle, little was written (a small batch shows that little is waiting) and nothing else of this disk is pending.
    Otherwise, and from the first long one on, a thread syncs while the next batch collects writes. A sync of 10 ms is
    forgotten after a handful of short ones, since every device has some now and then; one of a second after forty. A
    slow device is never tried.
    """

    def __init__(self) -> None:
        self._usual_s = UNKNOWN_SYNC_S

    def note(self, took_s: float) -> None:
        self._usual_s += (took_s - self._usual_s) * NEWEST_WEIGHT

    @property
    def is_short(self) -> bool:
        return self._usual_s < SHORT_SYNC_S


class DiskSyncer:
    """How the files of one disk are synced."""

    def __init__(self, threads: int) -> None:
        self.threads = SyncThreads(threads)
        self.work_pending = 0
        self._pace = SyncLatency()

    def can_sync_inline(self) -> bool:
        return self._pace.is_short and not self.threads.pending and not self.work_pending

    def sync_content(self, descriptor: int) -> None:
        began_s = time.perf_counter()
        _sync_content(descriptor)
        self._pace.note(time.perf_counter() - began_s)


def _settle(done: "asyncio.Future[None]", failure: BaseException | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(None)
    else:
        done.set_exception(failure)


def _sync_content(descriptor: int) -> None:
    # fdatasync also writes the size, the only metadata that is needed to read the bytes back.
    if sys.platform == "darwin":
        os.fsync(descriptor)
    else:
        os.fdatasync(descriptor)


# ---- write-behind


_SYNC_FILE_RANGE_WRITE = 2


def _load_begin() -> Callable[[int, int, int], None] | None:
    """Linux only."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    function.restype = ctypes.c_int
    return lambda descriptor, offset, size: function(descriptor, offset, size, _SYNC_FILE_RANGE_WRITE)


_begin = _load_begin()


class WriteBehind:
    """Of one file: starts writing bulk data to the device while more of it comes, instead of all at once at the sync.

    A sync of a gigabyte that is only in the page cache keeps the device busy for half a second, and every commit of a
    shard that syncs meanwhile waits behind it. Nothing here makes anything durable: a sync does, and then has little
    left to do. The kernel is asked to start and its result is ignored, because a failed write is reported once, and the
    sync must be the call that gets it.

    Every `step_bytes` consecutive bytes are started by the thread that wrote the last of them: a device that is slower
    than the writer holds it up."""

    def __init__(self, step_bytes: int, begin: Callable[[int, int, int], None] | None = _begin) -> None:
        assert step_bytes > 0
        self._step_bytes = step_bytes
        self._begin = begin
        self._start = self._end = 0

    def wrote(self, descriptor: int, offset: int, size: int) -> None:
        if offset != self._end:
            self._start = offset
        self._end = offset + size
        if self._end - self._start >= self._step_bytes:
            if self._begin is not None:
                self._begin(descriptor, self._start, self._end - self._start)
            self._start = self._end
