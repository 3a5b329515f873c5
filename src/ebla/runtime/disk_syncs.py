"""How the files of one disk are synced: by threads, or on the loop where that is the shorter way."""

import asyncio
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

UNKNOWN_SYNC_S = 0.1
"""What a sync is taken to last before any was made."""
SHORT_SYNC_S = 0.001
"""A loop that is away for so long is away for less than many a turn of its own."""
SHORT_SYNC_BYTES_MAX = 64 * 1024
NEWEST_WEIGHT = 1 / 8
"""Of the newest sync in what is taken for usual."""

SyncCallback = Callable[[BaseException | None], None]
_Sync = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]", Callable[[], None], SyncCallback]


class SyncThreads:
    """Threads that sync, and a queue of what is to be synced.

    Not an executor: its two futures, locks and wake-ups took twice the processor time and 20 µs longer per sync, a good
    part of what a fast device needs for the sync itself. Each thread has a bell of its own, because threads that wait
    at one queue wake each other for every sync, to find nothing and to take the interpreter's lock for it.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._guard = threading.Lock()
        self._waiting: deque[_Sync] = deque()
        self._idle_bells: list[threading.Lock] = []
        self._closing = False
        self._threads: list[threading.Thread] = []
        self.under_way = 0
        """Asked for and not ended. Exact only for whoever has the guard; others see whether it is quiet."""

    async def run(self, work: Callable[[], None], ended: SyncCallback) -> None:
        """`ended` is called in the thread, also if nobody waits any more."""
        if not self._threads:
            self._start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        with self._guard:
            self.under_way += 1
            self._waiting.append((loop, done, work, ended))
            bell = self._idle_bells.pop() if self._idle_bells else None
        if bell is not None:
            bell.release()
        await done

    def close(self) -> None:
        """Waits for every sync that was asked for."""
        with self._guard:
            self._closing = True
            bells, self._idle_bells = self._idle_bells, []
        for bell in bells:
            bell.release()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _start(self) -> None:
        self._closing = False
        for number in range(self._count):
            thread = threading.Thread(target=self._work, name=f"disk-sync-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _next(self, bell: threading.Lock) -> _Sync | None:
        with self._guard:
            if self._waiting:
                return self._waiting.popleft()
            if not self._closing:
                self._idle_bells.append(bell)
            return None

    def _work(self) -> None:
        bell = threading.Lock()
        bell.acquire()
        while True:
            sync = self._next(bell)
            if sync is not None:
                self._sync(*sync)
            elif self._closing:
                return
            else:
                bell.acquire()

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
        except BaseException as error:  # told to whoever waits; the thread goes on
            failure = error
        ended(failure)
        with self._guard:
            self.under_way -= 1
        try:
            loop.call_soon_threadsafe(_settle, done, failure)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more


class SyncLatency:
    """How long syncs of this disk took lately, and whether one may be made on the loop.

    To hand a sync to a thread and to hear of its end takes two wake-ups and the interpreter's lock twice: 0.1 to 0.2 ms
    on the way of a commit that waits for nothing else, as much as the whole sync of a fast device. Such a sync is made
    on the loop, if its caller is idle, little was written (a batch that gathered little shows that little is waiting)
    and nothing else of this disk is under way. Otherwise, and from the first long one on, a thread syncs and the next
    batch gathers meanwhile: one of 10 ms is forgotten after a handful of short ones, since every device has some now
    and then, one of a second after forty, and a slow device is never tried.
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
        self.work_under_way = 0
        self._pace = SyncLatency()

    def can_sync_inline(self) -> bool:
        return self._pace.is_short and not self.threads.under_way and not self.work_under_way

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
    # fdatasync also writes the size, which is all of the metadata that reading the bytes back needs.
    if sys.platform == "darwin":
        os.fsync(descriptor)
    else:
        os.fdatasync(descriptor)
