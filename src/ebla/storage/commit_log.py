"""One commit log for all live layers of a shard: recovery replays from it what was put and not yet flushed.

A write is put into its layer and queued here in one step, so the order of records is the order of puts, and a record's
sequence is known at once. Syncs are shared: records queued during a sync are written with the next one. In `sync` mode
a write is acknowledged once its record is durable; in `periodic` mode at once, and the log is written every few
milliseconds.

A full disk loses nothing: the records stay queued and are retried until they fit, while new writes are refused.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import NoReturn, Self

import msgspec

from ebla.journal.manifest import segment_sequence
from ebla.journal.segmented_log import LogFailed, SegmentedLog
from ebla.model.errors import Corruption, DiskFull, EblaError, Outcome, Overloaded, TooLarge
from ebla.options import CommitLogMode
from ebla.ports.disk import Disk
from ebla.ports.rng import Rng
from ebla.storage.layers.layer import Item
from ebla.storage.manifest import Incarnation
from ebla.storage.store_limits import StoreLimits

BATCH_BYTES = 4 << 20
RECORD_BYTES_MAX = 32 << 20
WAITING_BYTES_MAX = 64 << 20


class LogRecord(msgspec.Struct, frozen=True, array_like=True):
    incarnation: Incarnation
    items: Sequence[Item]


class NotDurable(EblaError):
    """The write was made, but its record is not on disk yet. The record is kept and retried; a crash would lose it."""

    outcome = Outcome.UNKNOWN


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LogRecord).decode


class CommitLog:
    """`run` must be running in the owner's task group."""

    def __init__(self, disk: Disk, folder: str, log: SegmentedLog, limits: StoreLimits) -> None:
        self._disk = disk
        self._folder = folder
        self._log = log
        self._limits = limits
        self._queued: deque[bytes] = deque()
        self._queued_bytes = 0
        self._next_sequence = log.next_sequence
        self._durable_before = log.next_sequence
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._work = asyncio.Event()
        self._hurry = asyncio.Event()
        self._ended: EblaError | None = None
        self._full: DiskFull | None = None
        self._unlisted_bytes = 0
        self._segments = self._list_segments()

    @classmethod
    async def open(cls, disk: Disk, rng: Rng, folder: str, limits: StoreLimits) -> Self:
        return cls(disk, folder, await SegmentedLog.open(disk, rng, folder, limits.segment_bytes), limits)

    @property
    def next_sequence(self) -> int:
        """The sequence of the next record."""
        return self._next_sequence

    @property
    def segments(self) -> tuple[int, ...]:
        """The first sequence of each segment."""
        return self._segments

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    @property
    def is_long(self) -> bool:
        return len(self._segments) > self._limits.segments_max

    @property
    def is_full(self) -> bool:
        return self._full is not None

    def encode(self, incarnation: Incarnation, items: Sequence[Item]) -> bytes:
        """A record, if it may be queued now. Raises `DiskFull`, `Overloaded`, `TooLarge`, `LogFailed`."""
        if self._ended is not None:
            raise self._ended
        if self._full is not None:
            raise DiskFull(f"the commit log waits for space: {self._full.message}", advice="free space on its disk")
        if self._queued_bytes > WAITING_BYTES_MAX:
            raise Overloaded(f"{self._queued_bytes} bytes wait for the commit log", advice="try again later")
        if len(self._segments) > 2 * self._limits.segments_max:
            raise Overloaded("the commit log is full until layers are flushed", advice="try again in a moment")
        record = _encode(LogRecord(incarnation, items))
        if len(record) > RECORD_BYTES_MAX:
            raise TooLarge(f"a write of {len(record)} bytes is over the limit of {RECORD_BYTES_MAX}")
        return record

    def queue(self, record: bytes) -> int:
        """Returns its sequence. Never fails: the write has already been made."""
        self._queued.append(record)
        self._queued_bytes += len(record)
        sequence = self._next_sequence
        self._next_sequence += 1
        self._work.set()
        if self._limits.mode is CommitLogMode.SYNC or self._queued_bytes >= BATCH_BYTES:
            self._hurry.set()
        return sequence

    async def wait_durable(self, sequence: int) -> None:
        """Raises `NotDurable` where the disk is full, `LogFailed` where it failed; the outcome is unknown in both."""
        assert sequence < self._next_sequence
        if sequence < self._durable_before:
            return
        if self._ended is not None:
            raise self._ended
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((sequence, durable))
        self._hurry.set()
        await durable

    async def read(self) -> AsyncIterator[tuple[int, LogRecord]]:
        """Every record, before the first one is queued."""
        assert self._next_sequence == self._log.next_sequence
        async for batch in self._log.read(self._log.first_sequence):
            for offset, record in enumerate(batch.records):
                try:
                    yield batch.first_sequence + offset, _decode(record)
                except msgspec.DecodeError as failure:
                    raise Corruption(
                        f"record {batch.first_sequence + offset} of {self._folder} cannot be read ({failure})",
                        advice="it was written by another program, or is damaged: keep a copy of the folder, and "
                        "rebuild this shard's replicas from the others",
                    ) from failure

    def can_drop_before(self, sequence: int) -> bool:
        return len(self._segments) > 1 and self._segments[1] <= sequence

    async def drop_before(self, sequence: int) -> None:
        """Removes segments that hold only earlier records."""
        if self.can_drop_before(sequence):
            try:
                await self._log.drop_before(min(sequence, self._durable_before))
            finally:
                self._segments = self._list_segments()

    async def run(self) -> NoReturn:
        try:
            while True:
                await self._work.wait()
                await self._gather()
                await self._append(self._take_batch())
        except EblaError as failure:
            self._end(failure)
            raise
        finally:
            self._end(LogFailed("the commit log accepts no more records", advice="start this process again"))

    async def close(self) -> None:
        """Orderly: everything queued must be durable by now."""
        assert not self._queued
        self._end(LogFailed("the commit log is closed"))
        await self._log.close()

    async def _gather(self) -> None:
        """In periodic mode, waits for more records to share the sync; not while a caller waits for durability."""
        try:
            async with asyncio.timeout(self._limits.period_ms / 1000):
                await self._hurry.wait()
        except TimeoutError:
            pass
        self._hurry.clear()

    def _take_batch(self) -> list[bytes]:
        """The queued records, up to a bound. They stay queued until they are durable."""
        batch: list[bytes] = []
        size_bytes = 0
        for record in self._queued:
            size_bytes += len(record)
            if batch and size_bytes > BATCH_BYTES:
                break
            batch.append(record)
        return batch

    async def _append(self, batch: list[bytes]) -> None:
        try:
            last = await self._log.append(batch)
        except DiskFull as failure:
            self._full = failure
            self._fail_waiters(
                NotDurable(f"a write is not yet durable: {failure.message}", advice="free space on its disk")
            )
            await asyncio.sleep(self._limits.retry_ms / 1000)
            return
        self._full = None
        for record in batch:
            assert self._queued.popleft() is record
            self._queued_bytes -= len(record)
        assert last == self._next_sequence - len(self._queued) - 1, "sequences were promised in the order of queueing"
        self._durable_before = last + 1
        self._answer_waiters()
        if self._queued:
            self._hurry.set()
        else:
            self._work.clear()
        self._unlisted_bytes += sum(len(record) for record in batch)
        if self._unlisted_bytes >= self._limits.segment_bytes // 4:
            self._segments = self._list_segments()

    def _list_segments(self) -> tuple[int, ...]:
        self._unlisted_bytes = 0
        found = [segment_sequence(name) for name in self._disk.list_folder(self._folder)]
        return tuple(sorted(sequence for sequence in found if sequence is not None))

    def _answer_waiters(self) -> None:
        # In the order of the calls, not of sequences: a flush may wait for an old one late.
        waiting = deque[tuple[int, asyncio.Future[None]]]()
        for sequence, durable in self._waiters:
            if sequence >= self._durable_before:
                waiting.append((sequence, durable))
            elif not durable.done():
                durable.set_result(None)
        self._waiters = waiting
        if waiting:
            self._hurry.set()

    def _end(self, failure: EblaError) -> None:
        if self._ended is None:
            self._ended = failure
        self._fail_waiters(failure)

    def _fail_waiters(self, failure: EblaError) -> None:
        for _, durable in self._waiters:
            if not durable.done():
                durable.set_exception(failure)
                # Marks it as retrieved, or asyncio warns where the caller is gone.
                durable.exception()
        self._waiters.clear()
