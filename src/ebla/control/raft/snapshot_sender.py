"""Sends a snapshot to a peer: reads ahead, keeps several chunks in flight, and continues while the peer's disk makes
progress."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from ebla.model.errors import Unavailable, leaf_errors
from ebla.model.identity import HistoryId
from ebla.raft.messages import InstallSnapshot
from ebla.wire.group0_messages import SnapshotChunk, SnapshotChunkAnswer

CHUNK_BYTES = 1024 * 1024
"""As large as the chunks of the file, which then need not be cut."""
CHUNKS_IN_FLIGHT_MAX = 8
"""8 MiB in flight. With fewer, the two sides wait for each other; with more, the chunks may reach the peer in one step
of its loop and block it."""
CHUNK_DEADLINE_MS = 10_000
"""For one answer. The peer answers soon, even if its disk is slow."""
STALL_MS_MAX = 60_000
"""A peer whose disk makes no progress for this long is given up."""

Send = Callable[[SnapshotChunk], Awaitable[SnapshotChunkAnswer]]


@dataclass(frozen=True, slots=True)
class SnapshotTransfer:
    """Which snapshot, to which peer, and the number of the attempt in this incarnation."""

    history: HistoryId
    message: InstallSnapshot
    number: int


class SnapshotSender:
    """`run` returns once all of it is durable at the peer; raises `EblaError` otherwise."""

    def __init__(self, sending: SnapshotTransfer, send: Send) -> None:
        self._sending = sending
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._progress = 0
        self._progress_at = self._loop.time()
        self._is_stored = False

    async def run(self, content: AsyncIterator[bytes]) -> None:
        ahead: asyncio.Queue[SnapshotChunk] = asyncio.Queue(CHUNKS_IN_FLIGHT_MAX)
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._read(content, ahead))
                await self._send_all(ahead, tasks)
                reading.cancel()
        except BaseExceptionGroup as group:
            raise next(leaf_errors(group)) from None  # one failure is enough

    async def _read(self, content: AsyncIterator[bytes], ahead: "asyncio.Queue[SnapshotChunk]") -> None:
        number, waiting = 0, b""
        async for piece in content:
            for start in range(0, len(piece), CHUNK_BYTES):
                if waiting:
                    await ahead.put(self._chunk(number, waiting, last=False))
                    number += 1
                waiting = piece[start : start + CHUNK_BYTES]
        await ahead.put(self._chunk(number, waiting, last=True))

    def _chunk(self, number: int, data: bytes, *, last: bool) -> SnapshotChunk:
        sending = self._sending
        return SnapshotChunk(
            history=sending.history,
            message=sending.message,
            number=number,
            data=data,
            last=last,
            sending=sending.number,
        )

    async def _send_all(self, ahead: "asyncio.Queue[SnapshotChunk]", tasks: asyncio.TaskGroup) -> None:
        in_flight: deque[asyncio.Task[None]] = deque()
        while not self._is_stored:
            chunk = await ahead.get()
            in_flight.append(tasks.create_task(self._deliver(chunk)))
            # The first is sent alone: it starts the transfer there.
            while in_flight and (chunk.number == 0 or chunk.last or len(in_flight) >= CHUNKS_IN_FLIGHT_MAX):
                await in_flight.popleft()

    async def _deliver(self, chunk: SnapshotChunk) -> None:
        while not self._is_stored:
            answer = await self._send(chunk)
            self._is_stored |= answer.stored
            if answer.progress > self._progress:
                self._progress, self._progress_at = answer.progress, self._loop.time()
            if answer.taken and not chunk.last:
                return
            if not answer.stored and self._loop.time() - self._progress_at >= STALL_MS_MAX / 1000:
                raise Unavailable(
                    f"the peer's disk made no progress with a snapshot for {STALL_MS_MAX} ms",
                    advice="check its disk",
                )
