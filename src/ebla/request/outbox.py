"""Copies of writes on their way to one replica shard.

Whatever is written in one turn of the loop leaves as one frame, and while several frames are under way the next one
gathers: the busier a shard, the larger its frames, and the less each write costs on both sides. No task runs per write;
each frame has one, and its end tells every copy in it what became of it, exactly once.

A box is bounded by what waits and what is sent and not answered together. Whoever adds looks at `is_full` first and
waits for room or leaves the copy out.
"""

import asyncio
import math
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ebla.model.errors import ConnectionLost, DeadlineExceeded, EblaError, InternalError
from ebla.model.identity import Replica
from ebla.request.router_types import ReplicaClients, RouterLimits
from ebla.request.write_acks import ReplicaWriteFailure, replica_write_failure
from ebla.wire.row_messages import RowWrite, WriteRowsAnswer, WriteRowsRequest


class ReplicaWriteCallback(Protocol):
    """Told once of each copy."""

    def acknowledged(self, position: int) -> None: ...

    def failed(self, position: int, failure: ReplicaWriteFailure) -> None: ...


ReplicaWrite = tuple[RowWrite, int, ReplicaWriteCallback, int, float]
"""The write, its bytes, whom to tell, which of its copies this is, and until when. A plain tuple: one per copy."""

_Frame = list[ReplicaWrite]


@dataclass(frozen=True, slots=True)
class OutboxDeps:
    clients: ReplicaClients
    tasks: asyncio.TaskGroup
    limits: RouterLimits


class Outbox:
    """The copies for one target."""

    def __init__(self, target: Replica, parts: OutboxDeps, outboxes: "Outboxes") -> None:
        self.target = target
        self.is_full = False
        self._parts = parts
        self._outboxes = outboxes
        self._loop = asyncio.get_running_loop()
        self._queue: deque[ReplicaWrite] = deque()
        self._queue_is_due = False
        self._writes = 0
        self._bytes = 0
        self._frames = 0
        self._heard_at = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_empty(self) -> bool:
        return self._writes == 0

    @property
    def writes(self) -> int:
        """Those that wait and those that are sent and not answered."""
        return self._writes

    def is_stalled(self) -> bool:
        """Whether it has things to answer and has answered nothing for long."""
        silent_s = self._loop.time() - self._heard_at
        return self._writes > 0 and silent_s * 1000 >= self._parts.limits.stalled_ms

    def add(self, copy: ReplicaWrite) -> None:
        if self._writes == 0:
            self._heard_at = self._loop.time()
        self._queue.append(copy)
        self._writes += 1
        self._bytes += copy[1]
        limits = self._parts.limits
        if self._writes >= limits.target_writes_max or self._bytes >= limits.target_bytes_max:
            self.is_full = True
        if not self._queue_is_due:
            self._queue_is_due = True
            self._outboxes.flush_soon(self)

    async def wait_room(self) -> None:
        """Returns when copies have left; others may have taken the room meanwhile. The caller sets the bound."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self._admit(1)  # the turn came together with the cancel: it goes to the next in line
            raise

    def flush(self) -> None:
        """Sends what waits, as far as frames may be under way."""
        self._queue_is_due = False
        while self._queue and self._frames < self._parts.limits.frames_in_flight_max:
            now = self._loop.time()
            frame = self._take(now)
            if frame:
                self._send(frame, now)

    def _take(self, now: float) -> _Frame:
        limits = self._parts.limits
        frame: _Frame = []
        frame_bytes = 0
        queue = self._queue
        while queue and len(frame) < limits.frame_writes_max:
            frame_bytes += queue[0][1]
            if frame and frame_bytes > limits.frame_bytes_max:
                break
            copy = queue.popleft()
            if copy[4] > now:
                frame.append(copy)
            else:
                self._end_unsent(copy)
        return frame

    def _end_unsent(self, copy: ReplicaWrite) -> None:
        self._forget(1, copy[1])
        error = DeadlineExceeded("its time was over before it was sent")
        copy[2].failed(copy[3], replica_write_failure(self.target, error))

    def _send(self, frame: _Frame, now: float) -> None:
        self._frames += 1
        expires_at = max([copy[4] for copy in frame])
        request = WriteRowsRequest(tuple([copy[0] for copy in frame]))
        work = self._deliver(request, math.ceil((expires_at - now) * 1000))
        try:
            task = self._parts.tasks.create_task(work)
        except RuntimeError:  # the group takes no more tasks
            work.close()
            self._ended(frame, ConnectionLost("this shard is stopping"))
        else:
            task.add_done_callback(partial(self._delivered, frame))

    async def _deliver(self, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer | EblaError:
        try:
            return await self._parts.clients.write(self.target, request, deadline_ms)
        except EblaError as error:
            return error
        except Exception as error:  # a defect below must fail these writes, not the shard
            return InternalError(f"writing to shard {self.target.shard} of host {self.target.host} broke: {error!r}")

    def _delivered(self, frame: _Frame, task: "asyncio.Task[WriteRowsAnswer | EblaError]") -> None:
        """A callback, not the end of the task's own code: a task cancelled before its first step has none."""
        self._ended(frame, ConnectionLost("this shard is stopping") if task.cancelled() else task.result())
        self.flush()

    def _ended(self, frame: _Frame, result: WriteRowsAnswer | EblaError) -> None:
        self._frames -= 1
        self._forget(len(frame), sum([copy[1] for copy in frame]))
        if isinstance(result, EblaError):
            if not isinstance(result, DeadlineExceeded):
                self._heard_at = self._loop.time()
            failure = replica_write_failure(self.target, result)
            for copy in frame:
                copy[2].failed(copy[3], failure)
            return
        self._heard_at = self._loop.time()
        if not result.failures:
            for copy in frame:
                copy[2].acknowledged(copy[3])
            return
        failures = {
            told.index: ReplicaWriteFailure(
                target=self.target, error=told.error, message=told.message, advice=told.advice
            )
            for told in result.failures
        }
        for index, copy in enumerate(frame):
            if index in failures:
                copy[2].failed(copy[3], failures[index])
            else:
                copy[2].acknowledged(copy[3])

    def _forget(self, writes: int, size: int) -> None:
        self._writes -= writes
        self._bytes -= size
        limits = self._parts.limits
        self.is_full = self._writes >= limits.target_writes_max or self._bytes >= limits.target_bytes_max
        if self._waiting and not self.is_full:
            self._admit(writes)

    def _admit(self, count: int) -> None:
        """As many as have left: each of them looks for itself whether there is room."""
        while count and self._waiting:
            self._waiting.popleft().set_result(None)
            count -= 1


class Outboxes:
    """One box per target, made when first needed."""

    def __init__(self, parts: OutboxDeps) -> None:
        self._parts = parts
        self._loop = asyncio.get_running_loop()
        self._boxes: dict[Replica, Outbox] = {}
        self._due: list[Outbox] = []

    def of(self, target: Replica) -> Outbox:
        found = self._boxes.get(target)
        if found is None:
            found = self._boxes[target] = Outbox(target, self._parts, self)
        return found

    def flush_soon(self, box: Outbox) -> None:
        """At the end of this turn of the loop."""
        if not self._due:
            self._loop.call_soon(self._flush)
        self._due.append(box)

    def sweep(self) -> None:
        """Forgets the boxes that hold nothing: their targets may have gone for good."""
        self._boxes = {target: box for target, box in self._boxes.items() if not box.is_empty}

    def _flush(self) -> None:
        due, self._due = self._due, []
        for box in due:
            box.flush()
