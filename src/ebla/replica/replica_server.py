"""The replica side of a shard: the verbs that routers and operations call, over the wire or inside the process.

Nothing is served while the shard has no right to serve, and nothing is acknowledged if the right was lost meanwhile.
A process that was stopped and continues may hold a view that the cluster has left, and the old fence with it.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from ebla.aio.bounded_gather import gather_bounded
from ebla.aio.eager import Suspended, run_eagerly
from ebla.model.errors import EblaError, InternalError, InvalidRequest, Outcome, Refused, Stale, Unavailable
from ebla.model.identity import TableId
from ebla.replica.adoption import ShardAdoptions
from ebla.replica.replica_context import ReplicaContext
from ebla.replica.row_reads import ReplicaReader
from ebla.replica.row_writes import ForwardWrites, ReplicaWriter
from ebla.replica.shard_metrics import ShardMetrics
from ebla.storage.codec.staging_format import checkpoints_folder, is_inside
from ebla.storage.layers.layer import Item, LayerDamaged
from ebla.storage.stack import Stack
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
    CheckpointedStack,
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


CHECKPOINTS_AT_ONCE_MAX = 2
"""Stacks of one checkpoint that are linked in parallel. More would delay requests on the disk."""


class ShardCheckpoints:
    """Checkpoints of a shard's stacks, for the bulk process of its node to serve: hard links, taken of each stack at
    once. They hold no version: reading one for hours delays no barrier. What was written later reaches the target by
    other ways."""

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._folder = checkpoints_folder(context.data_folder)

    async def take(self, request: CheckpointRequest, deadline_ms: int) -> CheckpointAnswer:
        """A checkpoint that fails half way is left on disk: the caller owns the folder and removes it."""
        context = self._context
        if not is_inside(request.folder, self._folder):
            raise InvalidRequest(f"{request.folder} is not below {self._folder}, where checkpoints go")
        await context.wait_version(request.version, deadline_ms)
        if request.session is None:
            # For a reader of the table, without a guard. A guard prevents effects after the end of an operation, and
            # this has none: links are made in a folder whose id was drawn for this one call, no stack changes, nothing
            # is held. If the bulk process has given up the call long ago, it does not know the folder and removes it
            # with its next garbage collection.
            return await self._take_all(request)
        # The guard: no checkpoint may be taken after its session was closed and its folder removed.
        async with context.guards.hold_guard(request.session, deadline_ms):
            return await self._take_all(request)

    async def _take_all(self, request: CheckpointRequest) -> CheckpointAnswer:
        context = self._context
        context.check_table(request.table)
        stacks = context.stacks.overlapping(request.table, request.range)
        taken = await gather_bounded([partial(self._take, stack, request) for stack in stacks], CHECKPOINTS_AT_ONCE_MAX)
        return CheckpointAnswer(tuple(taken), context.view.current.version)

    async def _take(self, stack: Stack, request: CheckpointRequest) -> CheckpointedStack:
        context = self._context
        folder = f"{request.folder}/shard-{context.shard}-{stack.incarnation:016x}"
        if context.disk.exists(folder):
            raise Refused(f"{folder} is there already", advice="take another checkpoint, under an id of its own")
        try:
            # Checkpoints of readers do not outlive the bulk process, and neither do the reads.
            await context.store.checkpoint(stack, folder, durable=request.session is not None)
        except LayerDamaged as failure:
            context.store.note_damage(stack, failure)
            raise
        if context.stacks.covering(stack.entry.table, stack.entry.range) is not stack:
            raise Stale("the replica left this shard while its checkpoint was taken", advice="refresh and retry")
        return CheckpointedStack(folder, stack.entry.range)


class PartialStream(InternalError):
    """Some rows were merged and others not. Send them again under the same session to merge all."""


class RowStreamReceiver:
    """Receives rows that an operation streams into this shard's replicas, under a guard of its session."""

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._store = context.store

    async def stream(self, request: StreamRowsRequest, deadline_ms: int) -> EmptyAnswer:
        """Everything is merged and durable on return, in either mode of the log. Repeating it changes nothing."""
        if not request.items:
            raise InvalidRequest("a stream of rows has at least one item")
        async with self._context.guards.hold_guard(request.session, deadline_ms):
            merged = 0
            try:
                for items in self._by_stack(request.table, request.items).values():
                    await self._merge(request.table, items)
                    merged += 1
                await self._store.sync()
            except EblaError as error:
                if not merged:
                    raise
                raise PartialStream(
                    f"only some of the rows were merged: {error.message}", advice="send them again"
                ) from error
        return EmptyAnswer()

    async def _merge(self, table: TableId, items: Sequence[Item]) -> None:
        # Look it up again: the previous stack may have waited, and this replica may have left meanwhile.
        stack = self._find(table, items[0][0])
        self._store.write_open(stack, await self._store.open_live(stack), items)

    def _by_stack(self, table: TableId, items: Sequence[Item]) -> dict[int, list[Item]]:
        groups: dict[int, list[Item]] = {}
        for item in items:
            groups.setdefault(self._find(table, item[0]).incarnation, []).append(item)
        return groups

    def _find(self, table: TableId, key: bytes) -> Stack:
        stack = self._context.stacks.find(table, key)
        if stack is None:
            raise self._context.not_here(table, key)
        return stack
