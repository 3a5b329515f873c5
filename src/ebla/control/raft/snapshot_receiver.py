"""Receives a snapshot from a leader: rebuilds it and writes it to disk while its chunks arrive.

There is one at a time. A snapshot of a later leader, or a later attempt of the same leader, replaces an earlier one,
and what was written of that is removed. What a crash leaves is removed when the log is opened.
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
"""How far ahead of the next one a chunk may arrive."""
UNWRITTEN_BYTES_MAX = 8 * 1024 * 1024
"""Buffered for the disk. Chunks beyond it are not accepted, so the disk sets the pace and memory stays bounded."""
WRITE_BYTES = 4 * 1024 * 1024
"""Per write: switching to a thread and back takes longer than the writing."""
SYNC_BYTES = 8 * 1024 * 1024
"""Synced while writing goes on: little is left for the end, and a slow disk shows progress."""
UNSYNCED_BYTES_MAX = 32 * 1024 * 1024
"""Written ahead of the syncs. A single sync must not take so long that the sender gives up."""
HOLD_MS = 2_000
"""How long a chunk waits for buffer space, or for the end of storing, before it is answered without."""
IDLE_MS_MAX = 60_000
"""After this long without a chunk, the sender is considered gone."""

Content = TypeVar("Content")
Content_co = TypeVar("Content_co", covariant=True)


class SnapshotSink(Protocol[Content_co]):
    """Rebuilds the state machine's content from the chunks of a snapshot."""

    def add(self, data: bytes) -> None: ...

    def finish(self) -> Content_co: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotActions(Generic[Content]):
    """What the peer does at each point of a transfer."""

    new_sink: Callable[[], SnapshotSink[Content]]
    new_file: Callable[[SnapshotMeta, str], Awaitable[AtomicFileWriter]]
    is_wanted: Callable[[InstallSnapshot], bool]
    """Checked before the file is placed: entries may have overtaken the snapshot meanwhile."""
    on_stored: Callable[[InstallSnapshot, Content], Awaitable[None]]
    on_unneeded: Callable[[InstallSnapshot], None]


@dataclass(slots=True, kw_only=True)
class _Transfer(Generic[Content]):
    """One snapshot in transfer. Chunks go to the sink and to the disk in their order."""

    message: InstallSnapshot
    attempt: int
    sink: SnapshotSink[Content] | None
    """None once it has nothing more to do: it may hold a large state."""
    active_ms: int
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
    """Replaced at every change, so that no waiter misses one."""
    task: "asyncio.Task[None] | None" = None

    @property
    def rank(self) -> tuple[int, int]:
        """A term has one leader, and the leader counts its attempts."""
        return self.message.term, self.attempt

    @property
    def is_whole(self) -> bool:
        return self.next_number == self.count

    @property
    def progress(self) -> int:
        """Grows while the disk makes progress."""
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
            # The sender would take it for damage on its own disk.
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
        self.sink = self.content = None
        self.early.clear()
        self.unwritten.clear()

    def add(self, chunk: SnapshotChunk) -> None:
        """A duplicate changes nothing."""
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
            assert self.sink is not None
            self.content = self.sink.finish()
        self.move()

    def _feed(self, data: bytes) -> None:
        assert self.sink is not None, "no chunk follows the last one"
        self.next_number += 1
        self.sink.add(data)
        for start in range(0, len(data), FILE_CHUNK_BYTES):
            self.unwritten.append(data[start : start + FILE_CHUNK_BYTES])
        self.unwritten_bytes += len(data)

    def take_unwritten(self) -> list[bytes]:
        """File chunks, about as many bytes as one write takes."""
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
    def __init__(self, disk: Disk, clock: Clock, actions: SnapshotActions[Content]) -> None:
        self._disk = disk
        self._clock = clock
        self._actions = actions
        self._current: _Transfer[Content] | None = None

    async def take(self, chunk: SnapshotChunk, tasks: asyncio.TaskGroup) -> SnapshotChunkAnswer:
        """The work continues in `tasks`, whether or not the sender waits for the answer."""
        transfer = await self._transfer_of(chunk, tasks)
        transfer.active_ms = self._clock.boot_ms()
        if not await self._wait(transfer, lambda: transfer.has_room):
            return SnapshotChunkAnswer(taken=False, progress=transfer.progress)
        try:
            transfer.add(chunk)
        except Corruption as error:
            transfer.fail(error)
        if chunk.last or transfer.failure is not None:
            await self._wait(transfer, lambda: transfer.is_stored)
        return SnapshotChunkAnswer(stored=transfer.is_stored, progress=transfer.progress)

    def drop_idle(self) -> None:
        """Drops a snapshot whose sender is gone."""
        current = self._current
        if current is not None and self._clock.boot_ms() - current.active_ms >= IDLE_MS_MAX and not current.is_placing:
            self._stop(current)
            self._current = None

    # ---- which one

    async def _transfer_of(self, chunk: SnapshotChunk, tasks: asyncio.TaskGroup) -> _Transfer[Content]:
        rank = chunk.message.term, chunk.sending
        index = chunk.message.snapshot.index
        if chunk.number == 0:
            await self._replace_older(rank)
            if self._current is None:
                self._begin(chunk, tasks)
        current = self._current
        if current is None or current.rank != rank or current.message != chunk.message:
            raise Refused(f"snapshot {index} of term {rank[0]} is not the one being received here")
        return current

    async def _replace_older(self, rank: tuple[int, int]) -> None:
        while (current := self._current) is not None and current.rank < rank:
            if current.is_placing and not current.is_stored and current.failure is None:
                raise Refused(f"snapshot {current.message.snapshot.index} is just being placed; try again")
            self._stop(current)
            # Only then its file is removed, and the next one may have the same name.
            if current.task is not None:
                await asyncio.wait([current.task])
            if self._current is current:
                self._current = None

    def _begin(self, chunk: SnapshotChunk, tasks: asyncio.TaskGroup) -> None:
        transfer = _Transfer(
            message=chunk.message,
            attempt=chunk.sending,
            sink=self._actions.new_sink(),
            active_ms=self._clock.boot_ms(),
        )
        transfer.task = tasks.create_task(self._store(transfer))
        self._current = transfer

    def _stop(self, transfer: _Transfer[Content]) -> None:
        """Its task ends after its current step."""
        transfer.fail(Refused("a later snapshot replaced it, or its sender was silent for too long"))

    async def _wait(self, transfer: _Transfer[Content], condition: Callable[[], bool]) -> bool:
        """False if the condition does not hold soon. Raises the failure of the snapshot."""
        try:
            async with asyncio.timeout(HOLD_MS / 1000):
                while transfer.failure is None and not condition():
                    await transfer.moved.wait()
        except TimeoutError:
            return False
        if transfer.failure is not None:
            raise transfer.failure
        return True

    # ---- to the disk

    async def _store(self, transfer: _Transfer[Content]) -> None:
        try:
            file = await self._actions.new_file(transfer.message.snapshot, f"from-{transfer.message.sender}")
            try:
                await self._write(transfer, file)
                await self._place(transfer, file)
            except BaseException:
                # Off the loop: freeing a hundred megabytes takes a file system tens of milliseconds.
                await self._disk.run(file.discard)
                raise
        except EblaError as error:
            transfer.fail(error)
        except OSError as error:
            transfer.fail(Unavailable(f"the snapshot could not be stored: {error}"))

    async def _write(self, transfer: _Transfer[Content], file: AtomicFileWriter) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                syncing = tasks.create_task(self._sync_behind(transfer, file))
                await self._append_all(transfer, file)
                syncing.cancel()
        except BaseExceptionGroup as group:
            raise next(leaf_errors(group)) from None

    async def _append_all(self, transfer: _Transfer[Content], file: AtomicFileWriter) -> None:
        while True:
            if transfer.failure is not None:
                raise transfer.failure
            moved = transfer.moved
            if transfer.unsynced_bytes < UNSYNCED_BYTES_MAX and (several := transfer.take_unwritten()):
                await file.append(several)
                transfer.wrote(sum(len(piece) for piece in several))
            elif transfer.is_whole and not transfer.unwritten:
                return
            else:
                await moved.wait()

    async def _sync_behind(self, transfer: _Transfer[Content], file: AtomicFileWriter) -> None:
        while True:
            moved = transfer.moved
            if transfer.unsynced_bytes >= SYNC_BYTES:
                written_bytes = transfer.written_bytes
                await file.sync()
                transfer.synced(written_bytes)
            else:
                await moved.wait()

    async def _place(self, transfer: _Transfer[Content], file: AtomicFileWriter) -> None:
        message, content = transfer.message, transfer.content
        assert content is not None, "it is whole"
        transfer.is_placing = True
        if self._actions.is_wanted(message):
            await file.place()
            await self._actions.on_stored(message, content)
        else:
            await self._disk.run(file.discard)
            self._actions.on_unneeded(message)
        transfer.end()
