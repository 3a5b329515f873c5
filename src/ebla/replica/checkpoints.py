"""Checkpoints of a shard's stacks, for the bulk process of its node to serve: hard links, taken of each stack at once.

They hold no version: reading one for hours delays no barrier. What was written later reaches the target by other ways.
"""

from dataclasses import dataclass
from functools import partial

from ebla.aio.bounded_gather import gather_bounded
from ebla.feed.session_guards import SessionGuards
from ebla.feed.topology_view import TopologyView
from ebla.model.errors import InvalidRequest, NotFound, Refused, Stale
from ebla.model.identity import ShardNumber, TableId, TopologyVersion
from ebla.ports.disk import Disk
from ebla.replica.replica_limits import ReplicaLimits
from ebla.replica.replica_stacks import ReplicaStacks
from ebla.storage.codec.staging_format import checkpoints_folder, is_inside
from ebla.storage.layers.layer import LayerDamaged
from ebla.storage.stack import Stack
from ebla.storage.store import ShardStore
from ebla.wire.transfer_messages import CheckpointAnswer, CheckpointedStack, CheckpointRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTransferDeps:
    """What checkpoints and adoptions of a shard need."""

    disk: Disk
    data_folder: str
    """Of the node. It holds staging and checkpoints, on the same file system as the shard's folder."""
    shard: ShardNumber
    view: TopologyView
    store: ShardStore
    stacks: ReplicaStacks
    guards: SessionGuards
    limits: ReplicaLimits


class ShardCheckpoints:
    def __init__(self, deps: ShardTransferDeps) -> None:
        self._deps = deps
        self._folder = checkpoints_folder(deps.data_folder)

    async def take(self, request: CheckpointRequest, deadline_ms: int) -> CheckpointAnswer:
        """A checkpoint that fails half way is left on disk: the caller owns the folder and removes it."""
        deps = self._deps
        if not is_inside(request.folder, self._folder):
            raise InvalidRequest(f"{request.folder} is not below {self._folder}, where checkpoints go")
        await wait_version(deps, request.version, deadline_ms)
        if request.session is None:
            # For a reader of the table, without a guard. A guard prevents effects after the end of an operation, and
            # this has none: links are made in a folder whose id was drawn for this one call, no stack changes, nothing
            # is held. If the bulk process has given up the call long ago, it does not know the folder and removes it
            # with its next garbage collection.
            return await self._take_all(request)
        # The guard: no checkpoint may be taken after its session was closed and its folder removed.
        async with deps.guards.hold_guard(request.session, deadline_ms):
            return await self._take_all(request)

    async def _take_all(self, request: CheckpointRequest) -> CheckpointAnswer:
        deps = self._deps
        check_table(deps, request.table)
        stacks = deps.stacks.overlapping(request.table, request.range)
        taken = await gather_bounded(
            [partial(self._take, stack, request) for stack in stacks], deps.limits.checkpoints_at_once_max
        )
        return CheckpointAnswer(tuple(taken), deps.view.current.version)

    async def _take(self, stack: Stack, request: CheckpointRequest) -> CheckpointedStack:
        deps = self._deps
        folder = f"{request.folder}/shard-{deps.shard}-{stack.incarnation:016x}"
        if deps.disk.exists(folder):
            raise Refused(f"{folder} is there already", advice="take another checkpoint, under an id of its own")
        try:
            # Checkpoints of readers do not outlive the bulk process, and neither do the reads.
            await deps.store.checkpoint(stack, folder, durable=request.session is not None)
        except LayerDamaged as failure:
            deps.store.note_damage(stack, failure)
            raise
        if deps.stacks.covering(stack.entry.table, stack.entry.range) is not stack:
            raise Stale("the replica left this shard while its checkpoint was taken", advice="refresh and retry")
        return CheckpointedStack(folder, stack.entry.range)


async def wait_version(deps: ShardTransferDeps, version: TopologyVersion, deadline_ms: int) -> None:
    wait_ms = min(deadline_ms, deps.limits.version_wait_ms)
    if not await deps.view.wait_version(version, wait_ms / 1000):
        raise Stale(f"version {version} of the topology has not come here within {wait_ms} ms", advice="try again")


def check_table(deps: ShardTransferDeps, table: TableId) -> None:
    view = deps.view.current
    if table not in view.snapshot.tables:
        raise NotFound(f"there is no table {table} at version {view.version}")
