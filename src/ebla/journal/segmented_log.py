"""A log in segments: batches of records, durable when `append` returns, in order, without gaps.

The owner gives records a meaning; here they are bytes with a sequence number. Nothing is ever removed from the end: an
owner that needs that (Raft replacing a suffix) appends a record that says so, since cutting acknowledged bytes would
look like damage. `drop_before` removes old segments from the front.

A batch is written only after the one before it is synced. Recovery relies on that (`segment_scan.py`).
"""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Self

from ebla.aio.fifo_lock import FifoLock
from ebla.journal.frames import (
    LOG_FORMAT,
    RECORDS_PER_FRAME_MAX,
    SEGMENT_HEADER_BYTES,
    RecordBatch,
    SegmentHeader,
    encode_frame,
    framed_size,
    payload_size,
)
from ebla.journal.manifest import JournalManifest, save_manifest, segment_path, segments_needed
from ebla.journal.recovery import JournalFolder, RecoveredJournal, make_segment, recover_log, reserve
from ebla.journal.segment_scan import LogPosition, read_batches
from ebla.model.errors import DiskFull, InternalError, InvalidRequest, TooLarge
from ebla.ports.disk import Disk
from ebla.ports.rng import Rng

SEGMENT_BYTES = 16 << 20
BATCH_BYTES_MAX = 64 << 20
PREWRITE_BYTES = 256 * 1024
"""Zeros written behind a small batch, over the zeros that are there. Reserved blocks count as unwritten, and the first
sync of each has to update the file's metadata. Doing that once for many blocks keeps it off the path of the following
batches: with 4 KiB each, ext4 synced twice as many per second, and 90 % of them in a quarter of the time."""
SMALL_BATCH_BYTES_MAX = PREWRITE_BYTES // 8
"""A larger one spreads the metadata over its own blocks, and zeros ahead of it would only be more bytes."""


class LogFailed(InternalError):
    """The disk failed. Whether the last write is durable is known only after opening the log again."""


class SegmentedLog:
    def __init__(self, place: JournalFolder, recovered: RecoveredJournal) -> None:
        self._place = place
        self._log_id = recovered.manifest.log_id
        self._segments = recovered.manifest.segments
        self._newest = recovered.newest
        self._end_offset = recovered.tail.offset
        self._next_sequence = recovered.tail.sequence
        self._prewritten_end = 0
        """Zeros were written ahead up to this offset, in the newest segment since it was opened."""
        self._unsynced = False
        self._rotation_begun = False
        self._failure: BaseException | None = None
        self._lock = FifoLock()

    @classmethod
    async def open(cls, disk: Disk, rng: Rng, folder: str, segment_bytes: int = SEGMENT_BYTES) -> Self:
        """Creates the log if there is none. Cuts a torn tail. Raises `Corruption`, or `Refused` for a newer format."""
        place = JournalFolder(disk, folder, segment_bytes)
        return cls(place, await recover_log(place, rng))

    @property
    def first_sequence(self) -> int:
        """The oldest record that can be read."""
        return self._segments[0]

    @property
    def log_id(self) -> int:
        """Drawn when the log was created: a log that was lost and created again has another."""
        return self._log_id

    @property
    def next_sequence(self) -> int:
        """The sequence of the first record of the next batch."""
        return self._next_sequence

    @property
    def size_bytes(self) -> int:
        """About what its records take on disk, without the space that is reserved for more."""
        return (len(self._segments) - 1) * self._place.segment_bytes + self._end_offset

    async def append(self, records: Sequence[bytes]) -> int:
        """One batch: durable on return; after a crash all of it or nothing. Returns the last record's sequence.

        Raises `DiskFull`, and nothing happened, or `LogFailed`, then and for every later call.
        """
        size = self.check_batch(records)
        if not self._lock.try_acquire():
            await self._lock.acquire()
        try:
            self._refuse_after_failure()
            if self._unsynced:
                await self._finish_sync()
            if self._rotation_begun or self._end_offset + size > self._place.segment_bytes:
                await self._rotate_or_grow(size)
            self._write(records)
            await self._finish_sync()
            return self._next_sequence - 1
        finally:
            self._lock.release()

    def append_now(self, records: Sequence[bytes]) -> int | None:
        """The same without waiting, if no other batch is in progress and the file can be synced now. None: nothing
        happened."""
        size = self.check_batch(records)
        waits = self._lock.is_held or self._unsynced or self._rotation_begun
        if waits or self._end_offset + size > self._place.segment_bytes or not self._newest.can_sync_now(size):
            return None
        self._refuse_after_failure()
        self._write(records)
        try:
            self._newest.sync_now()
        except (OSError, DiskFull) as failure:
            raise self._fail(failure) from failure
        self._unsynced = False
        return self._next_sequence - 1

    def check_batch(self, records: Sequence[bytes]) -> int:
        """The size of a batch of these on disk. Raises `TooLarge` if it exceeds the limits."""
        size = framed_size(payload_size(records))
        if size > BATCH_BYTES_MAX or len(records) > RECORDS_PER_FRAME_MAX:
            raise TooLarge(f"a batch of {len(records)} records and {size} bytes is over the log's limit")
        return size

    async def drop_before(self, sequence: int) -> None:
        """Removes the segments that hold only records before `sequence`; some of those records may stay."""
        async with self._lock:
            self._refuse_after_failure()
            await self._finish_sync()
            kept = segments_needed(self._segments, sequence)
            dropped = self._segments[: len(self._segments) - len(kept)]
            if not dropped:
                return
            # The manifest first: a segment it names must exist; one it does not name is removed at the next start.
            await self._save_manifest(kept)
            for first_sequence in dropped:
                self._place.disk.unlink(segment_path(self._place.folder, first_sequence))

    async def read(self, start: int) -> AsyncIterator[RecordBatch]:
        """From `start` to the current end, in order, checked. Raises `Corruption`."""
        if start < self.first_sequence:
            raise InvalidRequest(
                f"record {start} of {self._place.folder} was dropped; {self.first_sequence} is the oldest"
            )
        bounds = [*self._segments, self._next_sequence]
        for first_sequence, end_sequence in itertools.pairwise(bounds):
            if end_sequence <= start:
                continue
            async for batch in self._read_segment(first_sequence, end_sequence):
                if batch.next_sequence <= start:
                    continue
                skipped = max(0, start - batch.first_sequence)
                yield RecordBatch(batch.first_sequence + skipped, batch.records[skipped:]) if skipped else batch

    async def close(self) -> None:
        """Orderly: saves in the manifest how far the log must reach."""
        async with self._lock:
            try:
                if self._failure is None:
                    await self._finish_sync()
                    if not self._rotation_begun:
                        await self._save_manifest(self._segments)
            finally:
                self._newest.close()

    async def _read_segment(self, first_sequence: int, end_sequence: int) -> AsyncIterator[RecordBatch]:
        file = self._place.disk.open(segment_path(self._place.folder, first_sequence))
        try:
            spot = LogPosition(SEGMENT_HEADER_BYTES, first_sequence)
            bytes_max = self._place.segment_bytes // 4  # per step off the loop
            while spot.sequence < end_sequence:
                step = partial(read_batches, file, self._log_id, spot, end_sequence, bytes_max)
                batches, spot = await self._place.disk.run(step)
                for batch in batches:
                    yield batch
        finally:
            file.close()

    async def _rotate_or_grow(self, frame_bytes: int) -> None:
        is_empty = self._end_offset == SEGMENT_HEADER_BYTES
        if self._rotation_begun or not is_empty:
            await self._rotate()
        await self._make_room(self._end_offset + frame_bytes)

    async def _rotate(self) -> None:
        """Everything in the newest segment is synced by now, so the manifest may declare it complete.

        Once started, the rotation must finish before the next write, even after a full disk or a cancelled caller: the
        manifest on disk may already name the new segment, and then another batch in the old one would count as damage.
        """
        self._rotation_begun = True
        first_sequence = self._next_sequence
        try:
            successor = await make_segment(self._place, SegmentHeader(self._log_id, first_sequence))
        except OSError as failure:
            raise self._fail(failure) from failure
        try:
            await self._save_manifest((*self._segments, first_sequence))
        except BaseException:
            successor.close()
            raise
        self._newest.close()
        self._newest = successor
        self._end_offset = SEGMENT_HEADER_BYTES
        self._prewritten_end = 0
        self._rotation_begun = False

    async def _make_room(self, end: int) -> None:
        """For a batch larger than a segment; smaller ones have room. Frames are written only inside the durable size of
        the file: there a torn write leaves zeros, whereas on some file systems a growing file may end in old bytes of
        another file."""
        if end <= self._newest.size():
            return
        try:
            reserve(self._newest, end)
            await self._newest.sync()
        except OSError as failure:
            raise self._fail(failure) from failure

    def _write(self, records: Sequence[bytes]) -> None:
        frame = encode_frame(self._log_id, self._end_offset, self._next_sequence, records)
        try:
            try:
                self._newest.write(self._end_offset, frame)
            except DiskFull:
                self._blank(len(frame))
                raise
            self._end_offset += len(frame)
            if self._end_offset > self._prewritten_end and len(frame) <= SMALL_BATCH_BYTES_MAX:
                self._prewrite()
        except OSError as failure:
            raise self._fail(failure) from failure
        self._next_sequence += len(records)
        self._unsynced = True

    def _prewrite(self) -> None:
        self._prewritten_end = min(self._end_offset + PREWRITE_BYTES, self._newest.size())
        if self._prewritten_end > self._end_offset:
            with suppress(DiskFull):  # the batch itself is written, and there is nothing to undo
                self._newest.write(self._end_offset, bytes(self._prewritten_end - self._end_offset))

    def _blank(self, length: int) -> None:
        """Undoes a write that ran out of space half-way (on a file system that cannot reserve blocks). Its rest would
        be behind the next, shorter batch and look like damage."""
        try:
            self._newest.write(self._end_offset, bytes(length))
        except DiskFull as failure:
            raise self._fail(failure) from failure

    async def _finish_sync(self) -> None:
        """Also after a cancelled caller: its frame is written, and must be synced before the next one is written."""
        if not self._unsynced:
            return
        try:
            await self._newest.sync()
        except (OSError, DiskFull) as failure:
            raise self._fail(failure) from failure
        self._unsynced = False

    async def _save_manifest(self, segments: tuple[int, ...]) -> None:
        assert not self._unsynced
        manifest = JournalManifest(
            format=LOG_FORMAT, log_id=self._log_id, segments=segments, acknowledged=self._next_sequence - 1
        )
        try:
            await save_manifest(self._place.disk, self._place.folder, manifest)
        except OSError as failure:
            raise self._fail(failure) from failure
        self._segments = segments

    def _fail(self, failure: BaseException) -> LogFailed:
        self._failure = failure
        return self._failure_error(failure)

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise self._failure_error(self._failure)

    def _failure_error(self, failure: BaseException) -> LogFailed:
        return LogFailed(
            f"the log in {self._place.folder} failed: {failure}",
            advice="what it last wrote may or may not be durable; check the device and start this process again",
        )
