"""The replica side of a shard: the verbs that routers and operations call, over the wire or inside the process.

Nothing is served while the shard has no right to serve, and nothing is acknowledged if the right was lost meanwhile.
A process that was stopped and continues may hold a view that the cluster has left, and the old fence with it.
"""

import asyncio
from collections.abc import Callable

from ebla.aio.eager import Suspended, run_eagerly
from ebla.model.errors import EblaError, Outcome, Unavailable
from ebla.replica.adoption import ShardAdoptions
from ebla.replica.checkpoints import ShardCheckpoints
from ebla.replica.replica_context import ReplicaContext
from ebla.replica.row_reads import ReplicaReader
from ebla.replica.row_streams import RowStreamReceiver
from ebla.replica.row_writes import ForwardWrites, ReplicaWriter
from ebla.replica.shard_metrics import ShardMetrics
from ebla.wire.row_messages import (
    ReadRowsAnswer,
    ReadRowsRequest,
    StreamRowsRequest,
    WriteRowsAnswer,
    WriteRowsRequest,
)
from ebla.wire.server import IncomingCall, Server
from ebla.wire.transfer_messages import (
    AdoptAnswer,
    AdoptRequest,
    CheckpointAnswer,
    CheckpointRequest,
    FindTargetAnswer,
    FindTargetRequest,
)
from ebla.wire.verbs import ADOPT, CHECKPOINT, FIND_TARGET, READ_ROWS, STREAM_ROWS, WRITE_ROWS, EmptyAnswer


class ServingRightLost(Unavailable):
    """The shard lost its right to serve while it worked: what it did may not count."""

    outcome = Outcome.UNKNOWN


class ReplicaServer:
    """Also the `LocalReplica` of the router in the same process."""

    def __init__(
        self, context: ReplicaContext, forward: ForwardWrites, metrics: ShardMetrics, serves: Callable[[], bool]
    ) -> None:
        self.context = context
        self.writer = ReplicaWriter(context, forward)
        self.reader = ReplicaReader(context)
        self.streams = RowStreamReceiver(context)
        self.checkpoints = ShardCheckpoints(context)
        self.adoptions = ShardAdoptions(context)
        self._metrics = metrics
        self._serves = serves
        self._now = asyncio.get_running_loop().time

    def attach(self, server: Server) -> None:
        server.serve_eagerly(WRITE_ROWS, lambda request, call: self.write(request, call.work_ms()))
        server.serve_eagerly(READ_ROWS, lambda request, call: self.read(request, call.work_ms()))
        server.serve(STREAM_ROWS, self.stream_rows)
        server.serve(ADOPT, self.adopt)

    def attach_local(self, server: Server) -> None:
        """Verbs that only the bulk process of this node may call: they name folders."""
        server.serve(CHECKPOINT, self.checkpoint)
        server.serve(FIND_TARGET, self.find_target)

    async def write(self, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer:
        began = self._now()
        self._check_right()
        answer = run_eagerly(self.writer.write(request, deadline_ms))
        if type(answer) is Suspended:
            answer = await answer
            self._check_right_after()
        self._metrics.wrote(len(request.writes), answer.failures, self._now() - began)
        return answer

    async def read(self, request: ReadRowsRequest, deadline_ms: int) -> ReadRowsAnswer:
        began = self._now()
        self._check_right()
        try:
            answer = self.reader.read_now(request)
            if answer is None:
                answer = await self.reader.read(request, deadline_ms)
                self._check_right()
        except EblaError as error:
            self._metrics.read_failed(error)
            raise
        self._metrics.read(self._now() - began)
        return answer

    async def stream_rows(self, request: StreamRowsRequest, call: IncomingCall) -> EmptyAnswer:
        self._check_right()
        done = await self.streams.stream(request, call.work_ms())
        self._check_right_after()
        self._metrics.streamed.add(len(request.items))
        return done

    async def checkpoint(self, request: CheckpointRequest, call: IncomingCall) -> CheckpointAnswer:
        self._check_right()
        answer = await self.checkpoints.take(request, call.work_ms())
        self._check_right()
        self._metrics.checkpoints.add(len(answer.stacks))
        return answer

    async def find_target(self, request: FindTargetRequest, call: IncomingCall) -> FindTargetAnswer:
        self._check_right()
        answer = await self.adoptions.find_target(request, call.work_ms())
        self._check_right()
        return answer

    async def adopt(self, request: AdoptRequest, call: IncomingCall) -> AdoptAnswer:
        self._check_right()
        try:
            answer = await self.adoptions.adopt(request, call.work_ms())
            self._check_right_after()
        except EblaError as error:
            self._metrics.adoption_failed(error)
            raise
        self._metrics.adopted(answer)
        return answer

    def _check_right(self) -> None:
        if not self._serves():
            raise Unavailable("this shard does not serve now", advice="ask another replica, or try again in a moment")

    def _check_right_after(self) -> None:
        if not self._serves():
            raise ServingRightLost("this shard lost its right to serve meanwhile", advice="write again")
