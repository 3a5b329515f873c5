"""The replica side of a shard: the verbs that routers and operations ask of it, over the wire or from within.

Nothing is served while the shard has no right to serve, and nothing is acknowledged if the right was lost meanwhile: a
process that was stopped and goes on may hold a view that the cluster has left, and its own fence with it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ebla.model.errors import DeadlineExceeded, EblaError, Outcome, Unavailable
from ebla.replica.adoption import ShardAdoptions
from ebla.replica.checkpoints import ShardCheckpoints
from ebla.replica.row_reads import ReplicaReader
from ebla.replica.row_streams import RowStreamReceiver
from ebla.replica.row_writes import ReplicaWriter
from ebla.replica.shard_metrics import ShardMetrics
from ebla.wire.row_messages import (
    ReadRowsAnswer,
    ReadRowsRequest,
    StreamRowsRequest,
    WriteRowsAnswer,
    WriteRowsRequest,
)
from ebla.wire.server import Continuation, IncomingCall, Server
from ebla.wire.transfer_messages import (
    AdoptAnswer,
    AdoptRequest,
    CheckpointAnswer,
    CheckpointRequest,
    FindTargetAnswer,
    FindTargetRequest,
)
from ebla.wire.verbs import ADOPT, CHECKPOINT, FIND_TARGET, READ_ROWS, STREAM_ROWS, WRITE_ROWS, A, EmptyAnswer


class ServingRightLost(Unavailable):
    """The shard lost its right to serve while it worked: what it did may not count."""

    outcome = Outcome.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaServerDeps:
    writer: ReplicaWriter
    reader: ReplicaReader
    streams: RowStreamReceiver
    checkpoints: ShardCheckpoints
    adoptions: ShardAdoptions
    metrics: ShardMetrics
    serves: Callable[[], bool]


class ReplicaServer:
    """Shaped as a router's `LocalReplica`: `write`, `read`, `read_now`."""

    def __init__(self, parts: ReplicaServerDeps) -> None:
        self._writer = parts.writer
        self._reader = parts.reader
        self._streams = parts.streams
        self._checkpoints = parts.checkpoints
        self._adoptions = parts.adoptions
        self._metrics = parts.metrics
        self._serves = parts.serves
        self._now = asyncio.get_running_loop().time

    def attach(self, server: Server) -> None:
        server.serve(WRITE_ROWS, self.write_rows)
        server.serve(READ_ROWS, self.read_rows)
        server.serve(STREAM_ROWS, self.stream_rows)
        server.serve(ADOPT, self.adopt)

    def attach_local(self, server: Server) -> None:
        """What only the bulk process of this node may ask for: it names folders."""
        server.serve(CHECKPOINT, self.checkpoint)
        server.serve(FIND_TARGET, self.find_target)

    # -- over the wire -----------------------------------------------------------------------------------------------

    def write_rows(
        self, request: WriteRowsRequest, call: IncomingCall
    ) -> WriteRowsAnswer | Continuation[WriteRowsAnswer]:
        return self._write(request, call.work_ms())

    def read_rows(self, request: ReadRowsRequest, call: IncomingCall) -> ReadRowsAnswer | Continuation[ReadRowsAnswer]:
        return self._read(request, call.work_ms())

    async def stream_rows(self, request: StreamRowsRequest, call: IncomingCall) -> EmptyAnswer:
        self._check_right()
        done = await self._streams.stream(request, call.work_ms())
        self._check_right_after()
        self._metrics.streamed.add(len(request.items))
        return done

    async def checkpoint(self, request: CheckpointRequest, call: IncomingCall) -> CheckpointAnswer:
        self._check_right()
        answer = await self._checkpoints.take(request, call.work_ms())
        self._check_right()
        self._metrics.checkpoints.add(len(answer.stacks))
        return answer

    async def find_target(self, request: FindTargetRequest, call: IncomingCall) -> FindTargetAnswer:
        self._check_right()
        answer = await self._adoptions.find_target(request, call.work_ms())
        self._check_right()
        return answer

    async def adopt(self, request: AdoptRequest, call: IncomingCall) -> AdoptAnswer:
        self._check_right()
        try:
            answer = await self._adoptions.adopt(request, call.work_ms())
            self._check_right_after()
        except EblaError as error:
            self._metrics.adoption_failed(error)
            raise
        self._metrics.adopted(answer)
        return answer

    # -- from within -------------------------------------------------------------------------------------------------

    async def write(self, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer:
        answer = self._write(request, deadline_ms)
        if type(answer) is Continuation:
            return await _within(answer, deadline_ms)
        assert isinstance(answer, WriteRowsAnswer)
        return answer

    async def read(self, request: ReadRowsRequest, deadline_ms: int) -> ReadRowsAnswer:
        answer = self._read(request, deadline_ms)
        if type(answer) is Continuation:
            return await _within(answer, deadline_ms)
        assert isinstance(answer, ReadRowsAnswer)
        return answer

    def read_now(self, request: ReadRowsRequest) -> ReadRowsAnswer | None:
        """At once, or None where it has to wait for something and `read` must be asked."""
        began = self._now()
        self._check_right()
        try:
            answer = self._reader.read_now(request)
        except EblaError as error:
            self._metrics.read_failed(error)
            raise
        if answer is not None:
            self._metrics.read(self._now() - began)
        return answer

    # -- both --------------------------------------------------------------------------------------------------------

    def _write(self, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer | Continuation[WriteRowsAnswer]:
        began = self._now()
        self._check_right()
        answer = self._writer.begin(request, deadline_ms)
        if type(answer) is Continuation:
            return Continuation(partial(self._finish_write, request, answer, began))
        assert isinstance(answer, WriteRowsAnswer)
        self._metrics.wrote(len(request.writes), answer.failures, self._now() - began)
        return answer

    async def _finish_write(
        self, request: WriteRowsRequest, rest: Continuation[WriteRowsAnswer], began: float
    ) -> WriteRowsAnswer:
        answer = await rest.work()
        self._check_right_after()
        self._metrics.wrote(len(request.writes), answer.failures, self._now() - began)
        return answer

    def _read(self, request: ReadRowsRequest, deadline_ms: int) -> ReadRowsAnswer | Continuation[ReadRowsAnswer]:
        began = self._now()
        self._check_right()
        try:
            answer = self._reader.begin(request, deadline_ms)
        except EblaError as error:
            self._metrics.read_failed(error)
            raise
        if type(answer) is Continuation:
            return Continuation(partial(self._finish_read, answer, began))
        assert isinstance(answer, ReadRowsAnswer)
        self._metrics.read(self._now() - began)
        return answer

    async def _finish_read(self, rest: Continuation[ReadRowsAnswer], began: float) -> ReadRowsAnswer:
        try:
            answer = await rest.work()
            self._check_right()
        except EblaError as error:
            self._metrics.read_failed(error)
            raise
        self._metrics.read(self._now() - began)
        return answer

    def _check_right(self) -> None:
        if not self._serves():
            raise Unavailable("this shard does not serve now", advice="ask another replica, or try again in a moment")

    def _check_right_after(self) -> None:
        if not self._serves():
            raise ServingRightLost("this shard lost its right to serve meanwhile", advice="write again")


async def _within(rest: Continuation[A], deadline_ms: int) -> A:
    try:
        async with asyncio.timeout(deadline_ms / 1000):
            return await rest.work()
    except TimeoutError:
        raise DeadlineExceeded(f"this shard's own replica has not answered within {deadline_ms} ms") from None
