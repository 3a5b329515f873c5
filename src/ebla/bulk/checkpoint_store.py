"""Checkpoints of this node's stacks, for others to read: taken by the shards, listed, kept by session, removed.

<checkpoints>/<checkpoint>/record      what it is, and whose; comes last; one of a read has none
                           <machine>   by which a task on this machine knows the folder
                           shard-N/…   the stacks of a shard, as it made them
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from ebla.aio.bounded_gather import gather_bounded
from ebla.bulk.staging import Isolation, parse_uuid
from ebla.bulk.transfer_limits import TransferLimits
from ebla.journal.checked_file import read_checked_file, replace_file
from ebla.journal.recovery import make_durable_folder
from ebla.model.errors import Corruption, Overloaded, Refused
from ebla.model.identity import CheckpointId, SessionId, ShardNumber, TableId, TopologyVersion
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.model.transfers import CheckpointFile, CheckpointLayer, CheckpointPart
from ebla.observe.event_reporter import EventReporter
from ebla.ports.disk import Disk
from ebla.ports.rng import Rng
from ebla.storage.manifest import ShardManifest, StackEntry, layer_folder, read_manifest
from ebla.wire.transfer_messages import CheckpointedStack, CheckpointRequest
from ebla.wire.verbs import CHECKPOINT, A, Q, Verb

RECORD_NAME = "record"
CONCURRENT_CALLS_MAX = 8
"""Shards that are asked, and stacks of one that are listed."""
_NOT_MOVED = ("LOCK", "LOG")
"""Of the engine, for itself alone."""


class ShardCaller(Protocol):
    """`wire.local_shards.LocalShards` is one."""

    async def call(self, shard: ShardNumber, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A: ...


class CheckpointRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    checkpoint: CheckpointId
    session: SessionId | None
    """None: for a read of the table, which is in the memory of this process alone."""
    table: TableId
    parts: tuple[CheckpointPart, ...]
    schema: TableSchema
    machine: str
    version: TopologyVersion = TopologyVersion(0)
    """The newest that a shard had installed when it was taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """What is to be in a checkpoint, and whose it is."""

    session: SessionId | None
    table: TableId
    range: TokenRange
    version: TopologyVersion
    """The shards must have installed it."""
    schema: TableSchema
    shards: tuple[ShardNumber, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStoreDeps:
    disk: Disk
    rng: Rng
    folder: str
    machine: str
    isolation: Isolation
    shards: ShardCaller
    limits: TransferLimits
    report: EventReporter


class CheckpointStore:
    def __init__(self, parts: CheckpointStoreDeps) -> None:
        self._parts = parts
        self._disk = parts.disk
        self._kept: dict[CheckpointId, CheckpointRecord] = {}
        self._changing: dict[CheckpointId, None] = {}
        """Being made or removed: their folders are no strangers."""

    async def recover(self) -> None:
        """What is whole on disk. One without a record was not answered to anybody; one of a read nobody here knows any
        more: whoever asks for it gets a new one."""
        disk, root = self._disk, self._parts.folder
        await make_durable_folder(disk, root)
        for name in disk.list_folder(root):
            record = await self._record_in(f"{root}/{name}")
            if record is not None and parse_uuid(name) == record.checkpoint and record.session is not None:
                self._kept[record.checkpoint] = record
            else:
                await disk.run(partial(disk.remove_folder, f"{root}/{name}"))

    async def _record_in(self, folder: str) -> CheckpointRecord | None:
        try:
            data = await read_checked_file(self._disk, f"{folder}/{RECORD_NAME}")
            return msgspec.msgpack.decode(data, type=CheckpointRecord)
        except FileNotFoundError:
            return None
        except (Corruption, Refused, msgspec.DecodeError) as failure:
            self._parts.report("checkpoint.unreadable", {"folder": folder, "cause": str(failure)})
            return None

    async def take(self, wanted: CheckpointSpec, deadline_ms: int) -> CheckpointRecord:
        """Held by a guard, where it has a session. On any error nothing of it is left, or will be after the next
        sweep."""
        if len(self._kept) >= self._parts.limits.checkpoints_max:
            raise Overloaded(f"{len(self._kept)} checkpoints are kept on this node already")
        checkpoint = CheckpointId(self._parts.rng.uuid())
        folder = self.folder_of(checkpoint)
        self._changing[checkpoint] = None
        try:
            await self._make_folder(folder, wanted)
            taken = await gather_bounded(
                [
                    partial(self._of_shard, shard, wanted, f"{folder}/shard-{shard}", deadline_ms)
                    for shard in wanted.shards
                ],
                CONCURRENT_CALLS_MAX,
            )
            parts = tuple(part for found, _ in taken for part in found)
            version = max((wanted.version, *(seen for _, seen in taken)))
            machine = self._parts.machine
            self._disk.create(f"{folder}/{machine}").close()
            record = CheckpointRecord(
                checkpoint=checkpoint,
                session=wanted.session,
                table=wanted.table,
                parts=parts,
                schema=wanted.schema,
                machine=machine,
                version=version,
            )
            if wanted.session is not None:
                await replace_file(self._disk, f"{folder}/{RECORD_NAME}", msgspec.msgpack.encode(record))
            self._kept[checkpoint] = record
            return record
        finally:
            try:
                if checkpoint not in self._kept:
                    await self._remove_failed(folder)
            finally:
                del self._changing[checkpoint]

    async def _remove_failed(self, folder: str) -> None:
        try:
            await self._disk.run(partial(self._disk.remove_folder, folder))
        except OSError as failure:
            # The shard may be making files in it still. It is a stranger from now on; what went wrong is told first.
            self._parts.report("checkpoint.not_removed", {"folder": folder, "cause": str(failure)})

    async def _make_folder(self, folder: str, wanted: CheckpointSpec) -> None:
        """One of a read is removed by the next start, so it need not outlast a crash."""
        if wanted.session is None:
            self._disk.make_folder(folder)
        else:
            await make_durable_folder(self._disk, folder)

    async def _of_shard(
        self, shard: ShardNumber, wanted: CheckpointSpec, folder: str, deadline_ms: int
    ) -> tuple[list[CheckpointPart], TopologyVersion]:
        request = CheckpointRequest(
            session=wanted.session, table=wanted.table, range=wanted.range, version=wanted.version, folder=folder
        )
        await self._make_folder(folder, wanted)
        answer = await self._parts.shards.call(shard, CHECKPOINT, request, deadline_ms)
        listing = [partial(self._listed, shard, stack, folder) for stack in answer.stacks]
        return await gather_bounded(listing, CONCURRENT_CALLS_MAX), answer.version

    async def _listed(self, shard: ShardNumber, stack: CheckpointedStack, folder: str) -> CheckpointPart:
        root = folder.rpartition("/")[0]
        if not f"{stack.folder}/".startswith(f"{folder}/"):
            raise Corruption(f"shard {shard} made its checkpoint in {stack.folder} instead of {folder}")
        manifest = await read_manifest(self._disk, stack.folder)
        if manifest is None:
            raise Corruption(f"the checkpoint {stack.folder} of shard {shard} has no manifest")
        entry = _only_stack(manifest, stack.folder)
        layers = await self._disk.run(partial(self._layers, entry, stack.folder, root))
        rows = sum(layer.facts.rows for layer in entry.layers)
        return CheckpointPart(
            shard=shard, range=stack.range, layers=tuple(layers), rows=rows, incarnation=entry.incarnation
        )

    def _layers(self, entry: StackEntry, stack: str, root: str) -> list[CheckpointLayer]:
        """Blocks. The live layer of a checkpoint is empty and has no folder."""
        layers = []
        for layer in entry.layers:
            folder = layer_folder(stack, entry.incarnation, layer.id)
            if layer.damage:
                raise Corruption(f"layer {folder} is damaged: {layer.damage}", advice="copy from another replica")
            if self._disk.exists(folder):
                files = tuple(self._files(folder))
                layers.append(CheckpointLayer(folder.removeprefix(f"{root}/"), layer.range, files))
        return layers

    def _files(self, folder: str) -> list[CheckpointFile]:
        isolation = self._parts.isolation
        names = [name for name in self._disk.list_folder(folder) if name not in _NOT_MOVED]
        paths = [f"{folder}/{name}" for name in names]
        return [
            CheckpointFile(name, isolation.size_bytes(path), isolation.inode(path))
            for name, path in zip(names, paths, strict=True)
        ]

    # -- later -------------------------------------------------------------------------------------------------------

    def folder_of(self, checkpoint: CheckpointId) -> str:
        return f"{self._parts.folder}/{checkpoint}"

    def find(self, checkpoint: CheckpointId) -> CheckpointRecord | None:
        return self._kept.get(checkpoint)

    @property
    def count(self) -> int:
        return len(self._kept)

    @property
    def sessions(self) -> tuple[SessionId, ...]:
        return tuple(dict.fromkeys(one.session for one in self._kept.values() if one.session is not None))

    async def release(self, session: SessionId | None, checkpoints: Iterable[CheckpointId]) -> None:
        """What is not there is no error, nor what is somebody else's."""
        for checkpoint in checkpoints:
            record = self._kept.get(checkpoint)
            if record is not None and record.session == session:
                del self._kept[checkpoint]
                self._changing[checkpoint] = None
                try:
                    await self._disk.run(partial(self._disk.remove_folder, self.folder_of(checkpoint)))
                finally:
                    del self._changing[checkpoint]

    async def remove_orphans(self) -> None:
        """Folders of checkpoints that were given up: a shard that was slow may have made one after that."""
        for name in self._disk.list_folder(self._parts.folder):
            found = parse_uuid(name)
            known = found is not None and (found in self._kept or found in self._changing)
            if not known:
                await self._disk.run(partial(self._disk.remove_folder, f"{self._parts.folder}/{name}"))

    async def drop_session(self, session: SessionId) -> None:
        """INV-XFER-5."""
        await self.release(session, [one.checkpoint for one in self._kept.values() if one.session == session])


def _only_stack(manifest: ShardManifest, folder: str) -> StackEntry:
    if len(manifest.stacks) != 1:
        raise Corruption(f"the checkpoint {folder} has {len(manifest.stacks)} stacks instead of one")
    return manifest.stacks[0]
