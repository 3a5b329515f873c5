"""Checkpoints of a shard's stacks, for the bulk process of its node to serve: hard links, taken of each stack at once.

They hold no version: reading one for hours delays no barrier. What was written later reaches the target by other ways.
"""

from functools import partial

from ebla.aio.bounded_gather import gather_bounded
from ebla.model.errors import InvalidRequest, Refused, Stale
from ebla.replica.replica_context import ReplicaContext
from ebla.storage.codec.staging_format import checkpoints_folder, is_inside
from ebla.storage.layers.layer import LayerDamaged
from ebla.storage.stack import Stack
from ebla.wire.transfer_messages import CheckpointAnswer, CheckpointedStack, CheckpointRequest

CHECKPOINTS_AT_ONCE_MAX = 2
"""Stacks of one checkpoint that are linked in parallel. More would delay requests on the disk."""


class ShardCheckpoints:
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
