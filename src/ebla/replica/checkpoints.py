"""Checkpoints of a shard's stacks, for the bulk process of its node to serve: by hard links, at one moment of each.

They take no version along: whoever reads one for hours keeps no barrier waiting. What it lacks, because it was written
later, reaches the target by other ways.
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
    """What the shard's part in transfers works with."""

    disk: Disk
    data_folder: str
    """Of the node: staging and checkpoints stand in it, on the file system of the shard's own folder."""
    shard: ShardNumber
    view: TopologyView
    store: ShardStore
    stacks: ReplicaStacks
    guards: SessionGuards
    limits: ReplicaLimits


class ShardCheckpoints:
    def __init__(self, parts: ShardTransferDeps) -> None:
        self._parts = parts
        self._folder = checkpoints_folder(parts.data_folder)

    async def take(self, request: CheckpointRequest, deadline_ms: int) -> CheckpointAnswer:
        """What fails half way stays where it is: the folder is the asker's, to be removed."""
        parts = self._parts
        if not is_inside(request.folder, self._folder):
            raise InvalidRequest(f"{request.folder} is not below {self._folder}, where checkpoints go")
        await wait_version(parts, request.version, deadline_ms)
        if request.session is None:
            # For a reader of the table, without a guard. A guard keeps an effect from coming after the end of its
            # operation, and this has none: links are made in a folder of an id that was drawn for this one call, no
            # stack changes, nothing is held, nobody's tombstones wait. Should the bulk process have given the call up
            # long ago, the folder is a stranger to it and goes with its next sweep.
            return await self._take_all(request)
        # A guard, so that none is made after its session was closed and its folder swept.
        async with parts.guards.hold_guard(request.session, deadline_ms):
            return await self._take_all(request)

    async def _take_all(self, request: CheckpointRequest) -> CheckpointAnswer:
        parts = self._parts
        check_table(parts, request.table)
        stacks = parts.stacks.overlapping(request.table, request.range)
        taken = await gather_bounded(
            [partial(self._take, stack, request) for stack in stacks], parts.limits.checkpoints_at_once_max
        )
        return CheckpointAnswer(tuple(taken), parts.view.current.version)

    async def _take(self, stack: Stack, request: CheckpointRequest) -> CheckpointedStack:
        parts = self._parts
        folder = f"{request.folder}/shard-{parts.shard}-{stack.incarnation:016x}"
        if parts.disk.exists(folder):
            raise Refused(f"{folder} is there already", advice="take another checkpoint, under an id of its own")
        try:
            # A reader's is forgotten with the next start of the bulk process, and so is whoever read by it.
            await parts.store.checkpoint(stack, folder, durable=request.session is not None)
        except LayerDamaged as failure:
            parts.store.note_damage(stack, failure)
            raise
        if parts.stacks.covering(stack.entry.table, stack.entry.range) is not stack:
            raise Stale("the replica left this shard while its checkpoint was taken", advice="refresh and retry")
        return CheckpointedStack(folder, stack.entry.range)


async def wait_version(parts: ShardTransferDeps, version: TopologyVersion, deadline_ms: int) -> None:
    wait_ms = min(deadline_ms, parts.limits.version_wait_ms)
    if not await parts.view.wait_version(version, wait_ms / 1000):
        raise Stale(f"version {version} of the topology has not come here within {wait_ms} ms", advice="try again")


def check_table(parts: ShardTransferDeps, table: TableId) -> None:
    view = parts.view.current
    if table not in view.snapshot.tables:
        raise NotFound(f"there is no table {table} at version {view.version}")
