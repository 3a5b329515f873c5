"""Checkpoints of this node's stacks: taken by the shards, listed, kept by session, removed.

<checkpoints>/<checkpoint>/record      what it is, and whose; written last; a checkpoint of a read has none
                           <machine>   lets a task recognise that the folder is on its machine
                           shard-N/…   the stacks of a shard, as it linked them
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import msgspec

from ebla.aio.bounded_gather import gather_bounded
from ebla.bulk.staging import parse_uuid
from ebla.bulk.transfer_context import TransferContext
from ebla.journal.checked_file import read_checked_file, replace_file
from ebla.journal.recovery import make_durable_folder
from ebla.model.errors import Corruption, Overloaded, Refused
from ebla.model.identity import CheckpointId, SessionId, ShardNumber, TableId, TopologyVersion
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.model.transfers import CheckpointFile, CheckpointLayer, CheckpointPart
from ebla.storage.manifest import ShardManifest, StackEntry, layer_folder, read_manifest
from ebla.wire.transfer_messages import CheckpointedStack, CheckpointRequest
from ebla.wire.verbs import CHECKPOINT

RECORD_NAME = "record"
CONCURRENT_CALLS_MAX = 8
"""Shards that are called, and stacks of one shard that are listed, at a time."""
_NOT_MOVED = ("LOCK", "LOG")
"""The engine's own files."""


class CheckpointRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    checkpoint: CheckpointId
    session: SessionId | None
    """None: for a read of the table, which is known in memory only."""
    table: TableId
    parts: tuple[CheckpointPart, ...]
    schema: TableSchema
    machine: str
    version: TopologyVersion = TopologyVersion(0)
    """The newest version that a shard had installed when it was taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """What a checkpoint contains, and whose it is."""

    session: SessionId | None
    table: TableId
    range: TokenRange
    version: TopologyVersion
    """The shards must have installed it first."""
    schema: TableSchema
    shards: tuple[ShardNumber, ...]


class CheckpointStore:
    def __init__(self, context: TransferContext) -> None:
        self._context = context
        self._disk = context.disk
        self._root = context.checkpoints_folder
        self._kept: dict[CheckpointId, CheckpointRecord] = {}
        self._changing: dict[CheckpointId, None] = {}
        """Being made or removed: their folders are not orphans."""

    async def recover(self) -> None:
        """Keeps what is complete on disk. A checkpoint without a record was never answered to a caller, or belongs to a
        read: the next request of the read takes a new one."""
        disk, root = self._disk, self._root
        await make_durable_folder(disk, root)
        for name in disk.list_folder(root):
            record = await self._record_in(f"{root}/{name}")
            if record is not None and parse_uuid(name) == record.checkpoint:
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
            self._context.report("checkpoint.unreadable", {"folder": folder, "cause": str(failure)})
            return None

    async def take(self, spec: CheckpointSpec, deadline_ms: int) -> CheckpointRecord:
        """Runs under a guard where it has a session. After an error nothing of it is left, at the latest after the next
        sweep."""
        if len(self._kept) >= self._context.limits.checkpoints_max:
            raise Overloaded(f"{len(self._kept)} checkpoints are kept on this node already")
        checkpoint = CheckpointId(self._context.rng.uuid())
        folder = self.folder_of(checkpoint)
        self._changing[checkpoint] = None
        try:
            await self._make_folder(folder, spec)
            taken = await gather_bounded(
                [
                    partial(self._take_on_shard, shard, spec, f"{folder}/shard-{shard}", deadline_ms)
                    for shard in spec.shards
                ],
                CONCURRENT_CALLS_MAX,
            )
            parts = tuple(part for of_shard, _ in taken for part in of_shard)
            version = max((spec.version, *(seen for _, seen in taken)))
            machine = self._context.machine
            self._disk.create(f"{folder}/{machine}").close()
            record = CheckpointRecord(
                checkpoint=checkpoint,
                session=spec.session,
                table=spec.table,
                parts=parts,
                schema=spec.schema,
                machine=machine,
                version=version,
            )
            if spec.session is not None:
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
            # The shard may still create files in it. The next sweep removes it; the first error is the one to raise.
            self._context.report("checkpoint.not_removed", {"folder": folder, "cause": str(failure)})

    async def _make_folder(self, folder: str, spec: CheckpointSpec) -> None:
        """The folder of a read is removed at the next start, so it need not survive a crash."""
        if spec.session is None:
            self._disk.make_folder(folder)
        else:
            await make_durable_folder(self._disk, folder)

    async def _take_on_shard(
        self, shard: ShardNumber, spec: CheckpointSpec, folder: str, deadline_ms: int
    ) -> tuple[list[CheckpointPart], TopologyVersion]:
        request = CheckpointRequest(
            session=spec.session, table=spec.table, range=spec.range, version=spec.version, folder=folder
        )
        await self._make_folder(folder, spec)
        answer = await self._context.shards.call(shard, CHECKPOINT, request, deadline_ms)
        listing = [partial(self._list_stack, shard, stack, folder) for stack in answer.stacks]
        return await gather_bounded(listing, CONCURRENT_CALLS_MAX), answer.version

    async def _list_stack(self, shard: ShardNumber, stack: CheckpointedStack, folder: str) -> CheckpointPart:
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
                below = folder.removeprefix(f"{root}/")
                layers.append(CheckpointLayer(folder=below, range=layer.range, files=files, hidden=layer.hidden))
        return layers

    def _files(self, folder: str) -> list[CheckpointFile]:
        isolation = self._context.isolation
        names = [name for name in self._disk.list_folder(folder) if name not in _NOT_MOVED]
        paths = [f"{folder}/{name}" for name in names]
        return [
            CheckpointFile(name, isolation.size_bytes(path), isolation.inode(path))
            for name, path in zip(names, paths, strict=True)
        ]

    # -- later -------------------------------------------------------------------------------------------------------

    def folder_of(self, checkpoint: CheckpointId) -> str:
        return f"{self._root}/{checkpoint}"

    def find(self, checkpoint: CheckpointId) -> CheckpointRecord | None:
        return self._kept.get(checkpoint)

    @property
    def count(self) -> int:
        return len(self._kept)

    @property
    def sessions(self) -> tuple[SessionId, ...]:
        return tuple(dict.fromkeys(one.session for one in self._kept.values() if one.session is not None))

    async def release(self, session: SessionId | None, checkpoints: Iterable[CheckpointId]) -> None:
        """A checkpoint that does not exist, or belongs to another session, is no error."""
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
        """Folders of abandoned checkpoints: a slow shard may have made one afterwards."""
        for name in self._disk.list_folder(self._root):
            found = parse_uuid(name)
            known = found is not None and (found in self._kept or found in self._changing)
            if not known:
                await self._disk.run(partial(self._disk.remove_folder, f"{self._root}/{name}"))

    async def drop_session(self, session: SessionId) -> None:
        """INV-XFER-5."""
        await self.release(session, [one.checkpoint for one in self._kept.values() if one.session == session])


def _only_stack(manifest: ShardManifest, folder: str) -> StackEntry:
    if len(manifest.stacks) != 1:
        raise Corruption(f"the checkpoint {folder} has {len(manifest.stacks)} stacks instead of one")
    return manifest.stacks[0]
