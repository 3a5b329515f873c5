"""Writes on their way to one replica shard.

Everything written in one turn of the loop leaves as one frame, and while several frames are in flight the next one
gathers: the busier a shard, the larger its frames, and the less each write costs on both sides. No task runs per
write. Each frame has one, and when it ends every write in it gets its reply, exactly once.

An outbox bounds what waits and what is sent and not yet answered, together. A caller checks `is_full` before it adds,
and then waits for room or skips this replica.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from functools import partial

from ebla.model.errors import ConnectionLost, DeadlineExceeded, EblaError, InternalError
from ebla.model.identity import Replica
from ebla.request.router_types import ReplicaClients, RouterLimits
from ebla.request.write_call import ReplicaWriteFailure, replica_write_failure
from ebla.wire.row_messages import RowWrite, WriteRowsAnswer, WriteRowsRequest

OnReply = Callable[[int, ReplicaWriteFailure | None], None]
"""Called once for each replica write, with the position of its target; None: it is acknowledged."""


class ReplicaWrite:
    """One write for one replica."""

    __slots__ = ("expires_at", "on_reply", "position", "row", "size")

    def __init__(self, row: RowWrite, size: int, on_reply: OnReply, position: int, expires_at: float) -> None:
        self.row = row
        self.size = size
        self.on_reply = on_reply
        self.position = position
        """Of this replica among the targets of the write."""
        self.expires_at = expires_at


class Outbox:
    """The writes for one target."""

    def __init__(self, target: Replica, outboxes: "Outboxes") -> None:
        self.target = target
        self.is_full = False
        self._outboxes = outboxes
        self._limits = outboxes.limits
        self._loop = asyncio.get_running_loop()
        self._queue: deque[ReplicaWrite] = deque()
        self._queue_is_due = False
        self._writes = 0
        self._bytes = 0
        self._frames = 0
        self._replied_at = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_empty(self) -> bool:
        return self._writes == 0

    @property
    def writes(self) -> int:
        """Those that wait and those that are sent and not answered."""
        return self._writes

    def is_stalled(self) -> bool:
        """Whether the target has something to answer and has answered nothing for `stalled_ms`."""
        silent_s = self._loop.time() - self._replied_at
        return self._writes > 0 and silent_s * 1000 >= self._limits.stalled_ms

    def add(self, write: ReplicaWrite) -> None:
        if self._writes == 0:
            self._replied_at = self._loop.time()
        self._queue.append(write)
        self._writes += 1
        self._bytes += write.size
        limits = self._limits
        if self._writes >= limits.target_writes_max or self._bytes >= limits.target_bytes_max:
            self.is_full = True
        if not self._queue_is_due:
            self._queue_is_due = True
            self._outboxes.flush_soon(self)

    async def wait_room(self) -> None:
        """Returns when writes have left; others may have taken the room meanwhile. The caller sets the deadline."""
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
        """Sends what waits, up to the number of frames that may be in flight."""
        self._queue_is_due = False
        while self._queue and self._frames < self._limits.frames_in_flight_max:
            now = self._loop.time()
            frame = self._take(now)
            if frame:
                self._send(frame, now)

    def _take(self, now: float) -> list[ReplicaWrite]:
        limits = self._limits
        frame: list[ReplicaWrite] = []
        frame_bytes = 0
        queue = self._queue
        while queue and len(frame) < limits.frame_writes_max:
            frame_bytes += queue[0].size
            if frame and frame_bytes > limits.frame_bytes_max:
                break
            write = queue.popleft()
            if write.expires_at > now:
                frame.append(write)
            else:
                self._end_unsent(write)
        return frame

    def _end_unsent(self, write: ReplicaWrite) -> None:
        self._forget(1, write.size)
        error = DeadlineExceeded("its time was over before it was sent")
        write.on_reply(write.position, replica_write_failure(self.target, error))

    def _send(self, frame: list[ReplicaWrite], now: float) -> None:
        self._frames += 1
        expires_at = max([write.expires_at for write in frame])
        request = WriteRowsRequest(tuple([write.row for write in frame]))
        work = self._deliver(request, math.ceil((expires_at - now) * 1000))
        try:
            task = self._outboxes.tasks.create_task(work)
        except RuntimeError:  # the group takes no more tasks
            work.close()
            self._ended(frame, ConnectionLost("this shard is stopping"))
        else:
            task.add_done_callback(partial(self._delivered, frame))

    async def _deliver(self, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer | EblaError:
        try:
            return await self._outboxes.clients.write(self.target, request, deadline_ms)
        except EblaError as error:
            return error
        except Exception as error:  # a defect below must fail these writes, not the shard
            return InternalError(f"writing to shard {self.target.shard} of host {self.target.host} broke: {error!r}")

    def _delivered(self, frame: list[ReplicaWrite], task: "asyncio.Task[WriteRowsAnswer | EblaError]") -> None:
        """A callback, not the end of the task's own code: a task cancelled before its first step has none."""
        self._ended(frame, ConnectionLost("this shard is stopping") if task.cancelled() else task.result())
        self.flush()

    def _ended(self, frame: list[ReplicaWrite], result: WriteRowsAnswer | EblaError) -> None:
        self._frames -= 1
        self._forget(len(frame), sum([write.size for write in frame]))
        if isinstance(result, EblaError):
            if not isinstance(result, DeadlineExceeded):
                self._replied_at = self._loop.time()
            failure = replica_write_failure(self.target, result)
            for write in frame:
                write.on_reply(write.position, failure)
            return
        self._replied_at = self._loop.time()
        if not result.failures:
            for write in frame:
                write.on_reply(write.position, None)
            return
        failures = {
            one.index: ReplicaWriteFailure(target=self.target, error=one.error, message=one.message, advice=one.advice)
            for one in result.failures
        }
        for index, write in enumerate(frame):
            write.on_reply(write.position, failures.get(index))

    def _forget(self, writes: int, size: int) -> None:
        self._writes -= writes
        self._bytes -= size
        limits = self._limits
        self.is_full = self._writes >= limits.target_writes_max or self._bytes >= limits.target_bytes_max
        if self._waiting and not self.is_full:
            self._admit(writes)

    def _admit(self, count: int) -> None:
        """Wakes as many as have left: each checks for itself whether there is room."""
        while count and self._waiting:
            self._waiting.popleft().set_result(None)
            count -= 1


class Outboxes:
    """One outbox per target, made when first needed."""

    def __init__(self, clients: ReplicaClients, tasks: asyncio.TaskGroup, limits: RouterLimits) -> None:
        self.clients = clients
        self.tasks = tasks
        self.limits = limits
        self._loop = asyncio.get_running_loop()
        self._boxes: dict[Replica, Outbox] = {}
        self._due: list[Outbox] = []

    def of(self, target: Replica) -> Outbox:
        box = self._boxes.get(target)
        if box is None:
            box = self._boxes[target] = Outbox(target, self)
        return box

    def flush_soon(self, box: Outbox) -> None:
        """At the end of this turn of the loop."""
        if not self._due:
            self._loop.call_soon(self._flush)
        self._due.append(box)

    def sweep(self) -> None:
        """Drops empty outboxes: their targets may have left for good."""
        self._boxes = {target: box for target, box in self._boxes.items() if not box.is_empty}

    def _flush(self) -> None:
        due, self._due = self._due, []
        for box in due:
            box.flush()
