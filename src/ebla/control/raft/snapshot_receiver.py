"""A snapshot that a leader sends: rebuilt and written to disk while its chunks arrive.

There is one at a time. A later leader's takes the place of an earlier one's, and so does a later try of the same
leader; what was written of the former is removed. What a crash leaves is swept when the log is opened.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from ebla.journal.checked_file import FILE_CHUNK_BYTES, AtomicFileWriter
from ebla.model.errors import Corruption, EblaError, Refused, Unavailable, leaf_errors
from ebla.ports.clock import Clock
from ebla.ports.disk import Disk
from ebla.raft.messages import InstallSnapshot, SnapshotMeta
from ebla.wire.group0_messages import SnapshotChunk, SnapshotChunkAnswer

CHUNKS_EARLY_MAX = 64
"""How far one may overtake another."""
UNWRITTEN_BYTES_MAX = 8 * 1024 * 1024
"""Held for the disk. Chunks beyond it are not taken, so the disk sets the pace and memory stays bounded."""
WRITE_BYTES = 4 * 1024 * 1024
"""In one go: the way to a thread and back takes longer than the writing."""
SYNC_BYTES = 8 * 1024 * 1024
"""Synced on the way, beside the writing: little is left for the end, and a slow disk shows progress."""
UNSYNCED_BYTES_MAX = 32 * 1024 * 1024
"""Written ahead of the syncs. A single one must not take so long that its sender gives the peer up."""
HOLD_MS = 2_000
"""For room, or for the end of the storing, before a chunk is answered without it."""
IDLE_MS_MAX = 60_000
"""Without a chunk for so long, its sender is gone."""

Content = TypeVar("Content")
Content_co = TypeVar("Content_co", covariant=True)


class SnapshotSink(Protocol[Content_co]):
    """Rebuilds a machine's state from the chunks of a snapshot."""

    def add(self, data: bytes) -> None: ...

    def finish(self) -> Content_co: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotActions(Generic[Content]):
    """What a peer does about a snapshot at the points of its way."""

    new_receiver: Callable[[], SnapshotSink[Content]]
    new_file: Callable[[SnapshotMeta, str], Awaitable[AtomicFileWriter]]
    is_wanted: Callable[[InstallSnapshot], bool]
    """Asked before the file is put in its place: entries may have overtaken the snapshot meanwhile."""
    is_stored: Callable[[InstallSnapshot, Content], Awaitable[None]]
    is_not_needed: Callable[[InstallSnapshot], None]


@dataclass(slots=True, kw_only=True)
class _Arriving(Generic[Content]):
    """One snapshot on its way. Chunks are fed to the receiver and to the disk in their order."""

    message: InstallSnapshot
    sending: int
    receiver: SnapshotSink[Content] | None
    """None once there is nothing more for it to do: it may hold all of a large state."""
    heard_ms: int
    next_number: int = 0
    count: int | None = None
    """Known with the last one."""
    early: dict[int, bytes] = field(default_factory=dict)
    content: Content | None = None
    unwritten: deque[bytes] = field(default_factory=deque)
    unwritten_bytes: int = 0
    written_bytes: int = 0
    synced_bytes: int = 0
    is_placing: bool = False
    is_stored: bool = False
    failure: EblaError | None = None
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Replaced at every change, so that whoever waits misses none."""
    task: "asyncio.Task[None] | None" = None

    @property
    def rank(self) -> tuple[int, int]:
        """A leader is the only one of its term, and counts its tries."""
        return self.message.term, self.sending

    @property
    def is_whole(self) -> bool:
        return self.next_number == self.count

    @property
    def progress(self) -> int:
        """Grows while the disk takes what was sent."""
        return self.written_bytes + self.synced_bytes

    @property
    def unsynced_bytes(self) -> int:
        return self.written_bytes - self.synced_bytes

    @property
    def has_room(self) -> bool:
        return self.unwritten_bytes < UNWRITTEN_BYTES_MAX

    def move(self) -> None:
        moved, self.moved = self.moved, asyncio.Event()
        moved.set()

    def fail(self, failure: EblaError) -> None:
        if isinstance(failure, Corruption):
            # At the sender it would pass for damage of its own disk.
            failure = Refused(f"snapshot {self.message.snapshot.index} as it was sent: {failure.message}")
        self.failure = self.failure or failure
        self._release()
        self.move()

    def end(self) -> None:
        """It is stored."""
        self.is_stored = True
        self._release()
        self.move()

    def _release(self) -> None:
        self.receiver = self.content = None
        self.early.clear()
        self.unwritten.clear()

    def add(self, chunk: SnapshotChunk) -> None:
        """One that is here already changes nothing."""
        ahead = chunk.number - self.next_number
        if chunk.number < 0 or ahead >= CHUNKS_EARLY_MAX:
            raise Refused(f"chunk {chunk.number} of snapshot {chunk.message.snapshot.index} is not among the next ones")
        if ahead < 0:
            return
        if chunk.last:
            self.count = chunk.number + 1
        self.early[chunk.number] = chunk.data
        while (following := self.early.pop(self.next_number, None)) is not None:
            self._feed(following)
        if self.is_whole:
            assert self.receiver is not None
            self.content = self.receiver.finish()
        self.move()

    def _feed(self, data: bytes) -> None:
        assert self.receiver is not None, "nothing follows the last one"
        self.next_number += 1
        self.receiver.add(data)
        for start in range(0, len(data), FILE_CHUNK_BYTES):
            self.unwritten.append(data[start : start + FILE_CHUNK_BYTES])
        self.unwritten_bytes += len(data)

    def take_unwritten(self) -> list[bytes]:
        """Pieces of a file, about as many bytes as are written at once."""
        several: list[bytes] = []
        size = 0
        while self.unwritten and size < WRITE_BYTES:
            several.append(self.unwritten.popleft())
            size += len(several[-1])
        return several

    def wrote(self, size: int) -> None:
        self.unwritten_bytes -= size
        self.written_bytes += size
        self.move()

    def synced(self, written_bytes: int) -> None:
        self.synced_bytes = written_bytes
        self.move()


class SnapshotReceiver(Generic[Content]):
    def __init__(self, disk: Disk, clock: Clock, desk: SnapshotActions[Content]) -> None:
        self._disk = disk
        self._clock = clock
        self._desk = desk
        self._current: _Arriving[Content] | None = None

    async def take(self, chunk: SnapshotChunk, tasks: asyncio.TaskGroup) -> SnapshotChunkAnswer:
        """The work goes on in `tasks`, whether or not the chunk's sender waits for the answer."""
        arriving = await self._arriving_of(chunk, tasks)
        arriving.heard_ms = self._clock.boot_ms()
        if not await self._wait(arriving, lambda: arriving.has_room):
            return SnapshotChunkAnswer(taken=False, progress=arriving.progress)
        try:
            arriving.add(chunk)
        except Corruption as error:
            arriving.fail(error)
        if chunk.last or arriving.failure is not None:
            await self._wait(arriving, lambda: arriving.is_stored)
        return SnapshotChunkAnswer(stored=arriving.is_stored, progress=arriving.progress)

    def drop_idle(self) -> None:
        """What came so far of one whose sender is gone."""
        current = self._current
        if current is not None and self._clock.boot_ms() - current.heard_ms >= IDLE_MS_MAX and not current.is_placing:
            self._stop(current)
            self._current = None

    # ---- which one

    async def _arriving_of(self, chunk: SnapshotChunk, tasks: asyncio.TaskGroup) -> _Arriving[Content]:
        rank = chunk.message.term, chunk.sending
        index = chunk.message.snapshot.index
        if chunk.number == 0:
            await self._give_way(rank)
            if self._current is None:
                self._begin(chunk, tasks)
        current = self._current
        if current is None or current.rank != rank or current.message != chunk.message:
            raise Refused(f"snapshot {index} of term {rank[0]} is not the one that is on its way here")
        return current

    async def _give_way(self, rank: tuple[int, int]) -> None:
        while (current := self._current) is not None and current.rank < rank:
            if current.is_placing and not current.is_stored and current.failure is None:
                raise Refused(f"snapshot {current.message.snapshot.index} is just being put in place; try again")
            self._stop(current)
            # Only then is its file gone, and the next one's may have the same name.
            if current.task is not None:
                await asyncio.wait([current.task])
            if self._current is current:
                self._current = None

    def _begin(self, chunk: SnapshotChunk, tasks: asyncio.TaskGroup) -> None:
        arriving = _Arriving(
            message=chunk.message,
            sending=chunk.sending,
            receiver=self._desk.new_receiver(),
            heard_ms=self._clock.boot_ms(),
        )
        arriving.task = tasks.create_task(self._store(arriving))
        self._current = arriving

    def _stop(self, arriving: _Arriving[Content]) -> None:
        """Its task ends by itself, after the step it is at."""
        arriving.fail(Refused("a later snapshot took its place, or its sender was silent for long"))

    async def _wait(self, arriving: _Arriving[Content], condition: Callable[[], bool]) -> bool:
        """False where it does not come true soon. Raises what became of the snapshot."""
        try:
            async with asyncio.timeout(HOLD_MS / 1000):
                while arriving.failure is None and not condition():
                    await arriving.moved.wait()
        except TimeoutError:
            return False
        if arriving.failure is not None:
            raise arriving.failure
        return True

    # ---- to the disk

    async def _store(self, arriving: _Arriving[Content]) -> None:
        try:
            file = await self._desk.new_file(arriving.message.snapshot, f"from-{arriving.message.sender}")
            try:
                await self._write(arriving, file)
                await self._place(arriving, file)
            except BaseException:
                # Off the loop: to free a hundred megabytes takes a file system tens of milliseconds.
                await self._disk.run(file.discard)
                raise
        except EblaError as error:
            arriving.fail(error)
        except OSError as error:
            arriving.fail(Unavailable(f"the snapshot could not be stored: {error}"))

    async def _write(self, arriving: _Arriving[Content], file: AtomicFileWriter) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                syncing = tasks.create_task(self._sync_behind(arriving, file))
                await self._append_all(arriving, file)
                syncing.cancel()
        except BaseExceptionGroup as group:
            raise next(leaf_errors(group)) from None

    async def _append_all(self, arriving: _Arriving[Content], file: AtomicFileWriter) -> None:
        while True:
            if arriving.failure is not None:
                raise arriving.failure
            moved = arriving.moved
            if arriving.unsynced_bytes < UNSYNCED_BYTES_MAX and (several := arriving.take_unwritten()):
                await file.append(several)
                arriving.wrote(sum(len(piece) for piece in several))
            elif arriving.is_whole and not arriving.unwritten:
                return
            else:
                await moved.wait()

    async def _sync_behind(self, arriving: _Arriving[Content], file: AtomicFileWriter) -> None:
        while True:
            moved = arriving.moved
            if arriving.unsynced_bytes >= SYNC_BYTES:
                written_bytes = arriving.written_bytes
                await file.sync()
                arriving.synced(written_bytes)
            else:
                await moved.wait()

    async def _place(self, arriving: _Arriving[Content], file: AtomicFileWriter) -> None:
        message, content = arriving.message, arriving.content
        assert content is not None, "it is whole"
        arriving.is_placing = True
        if self._desk.is_wanted(message):
            await file.place()
            await self._desk.is_stored(message, content)
        else:
            await self._disk.run(file.discard)
            self._desk.is_not_needed(message)
        arriving.end()
