"""The manifest of a shard: which stacks and layers there are. Every change of a stack is one write of the manifest.

New folders are durable before a manifest names them, and old ones are removed after a manifest without them is durable.
So a crash at any point leaves a manifest whose folders all exist, and perhaps folders that no manifest names, which the
next start sweeps.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import NewType, NoReturn

import msgspec

from ebla.journal.checked_file import discard_temporary, read_checked_file, replace_file, write_unsynced_file
from ebla.model.errors import Corruption, DiskFull, EblaError, InternalError, Refused
from ebla.model.identity import StoreId, TableId
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange, subtract_ranges
from ebla.model.transaction import Revision
from ebla.ports.disk import Disk
from ebla.storage.layers.layer_facts import NO_FACTS, LayerFacts

MANIFEST_FORMAT = 1
ADOPTED_MAX = 1024
"""Origins of adopted layers that a stack remembers."""

Incarnation = NewType("Incarnation", int)
"""One incarnation of a tablet replica on a shard. A tablet that leaves and comes back gets another number."""
LayerId = NewType("LayerId", int)


class LayerEntry(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    id: LayerId
    range: TokenRange
    """Rows outside of it do not belong to the stack, whatever the layer's files hold."""
    facts: LayerFacts = NO_FACTS
    """Set for a base. Those of the live layer are in its own files."""
    size_bytes: int = 0
    origin: str = ""
    """What brought a layer that was adopted."""
    damage: str = ""
    """Why it was quarantined; empty: it is sound."""
    has_files: bool = False
    """Its files are durable, so a missing folder is damage. False: the commit log has all of its rows."""
    hidden: tuple[TokenRange, ...] = ()
    """Rows there do not belong to the stack either: they are from before the node gained these ranges. INV-NODE-20."""

    @property
    def visible(self) -> tuple[TokenRange, ...]:
        """The ranges whose rows belong to the stack."""
        return subtract_ranges((self.range,), self.hidden) if self.hidden else (self.range,)


class HeldRanges(msgspec.Struct, frozen=True, array_like=True):
    """The ranges of a table on vnodes of which the node was a replica, natural or pending, at a revision."""

    ranges: tuple[TokenRange, ...]
    at: Revision
    operation: str = ""
    """The node operation by which some of them are pending; empty: none are."""

    def is_news_to(self, known: "HeldRanges | None") -> bool:
        """Whether it must be stored. Revisions of another history cannot be compared; that one began later."""
        if known is None:
            return True
        is_older = self.at.history == known.at.history and self.at.index <= known.at.index
        is_same = self.ranges == known.ranges and self.operation in ("", known.operation)
        return not is_older and not is_same


class StackEntry(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    incarnation: Incarnation
    table: TableId
    range: TokenRange
    live: LayerEntry
    bases: tuple[LayerEntry, ...] = ()
    """Oldest first."""
    replay_from: int = 0
    """The commit log's records before this are in the bases. They must not be replayed: a compaction may since have
    dropped the tombstone that covers one of them."""
    adopted: tuple[str, ...] = ()
    """Origins of adopted layers, as long as the adoption may be repeated. The layers alone do not show it: a compaction
    may have replaced them since."""
    held: HeldRanges | None = None
    """None: of a tablet, or not known yet."""

    @property
    def layers(self) -> tuple[LayerEntry, ...]:
        return (*self.bases, self.live)


class ShardManifest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    format: int = MANIFEST_FORMAT
    generation: int = 0
    """Grows with every write of the manifest."""
    tables: tuple[TableSchema, ...] = ()
    """Needed to read stored rows."""
    stacks: tuple[StackEntry, ...] = ()
    store: StoreId | None = None
    """None: of a checkpoint, or written by the previous release."""
    log_id: int = 0
    """Of the store's commit log."""

    def table(self, table: TableId) -> TableSchema | None:
        return next((schema for schema in self.tables if schema.id == table), None)


class ManifestFailed(InternalError):
    """The disk failed while a manifest was written. Only reopening the store shows which one is there."""


ManifestEdit = Callable[[ShardManifest], ShardManifest]


def manifest_path(folder: str) -> str:
    return f"{folder}/manifest"


def layers_folder(folder: str) -> str:
    return f"{folder}/layers"


def layer_name(incarnation: Incarnation, layer: LayerId) -> str:
    return f"{incarnation:016x}-{layer:016x}"


def layer_folder(folder: str, incarnation: Incarnation, layer: LayerId) -> str:
    return f"{layers_folder(folder)}/{layer_name(incarnation, layer)}"


def with_stack(manifest: ShardManifest, entry: StackEntry) -> ShardManifest:
    """Replaces the entry with its incarnation, or adds it."""
    kept = tuple(one for one in manifest.stacks if one.incarnation != entry.incarnation)
    return msgspec.structs.replace(manifest, stacks=(*kept, entry))


def with_live_files(manifest: ShardManifest, incarnations: Collection[Incarnation]) -> ShardManifest:
    """The live layers of these stacks have files."""
    stacks = tuple(
        msgspec.structs.replace(one, live=msgspec.structs.replace(one.live, has_files=True))
        if one.incarnation in incarnations
        else one
        for one in manifest.stacks
    )
    return msgspec.structs.replace(manifest, stacks=stacks)


def without_stack(manifest: ShardManifest, incarnation: Incarnation) -> ShardManifest:
    kept = tuple(one for one in manifest.stacks if one.incarnation != incarnation)
    return msgspec.structs.replace(manifest, stacks=kept)


def with_table(manifest: ShardManifest, schema: TableSchema) -> ShardManifest:
    kept = tuple(one for one in manifest.tables if one.id != schema.id)
    return msgspec.structs.replace(manifest, tables=(*kept, schema))


def without_table(manifest: ShardManifest, table: TableId) -> ShardManifest:
    """With its stacks."""
    tables = tuple(one for one in manifest.tables if one.id != table)
    stacks = tuple(one for one in manifest.stacks if one.table != table)
    return msgspec.structs.replace(manifest, tables=tables, stacks=stacks)


async def save_manifest(disk: Disk, folder: str, manifest: ShardManifest, *, durable: bool = True) -> None:
    """Durable on return if requested. One that is not durable must be the folder's first."""
    path, content = manifest_path(folder), msgspec.msgpack.encode(manifest)
    if durable:
        await replace_file(disk, path, content)
    else:
        await disk.run(partial(write_unsynced_file, disk, path, content))


async def load_manifest(disk: Disk, folder: str) -> ShardManifest | None:
    """None where there is none. Raises `Corruption`, or `Refused` for a newer format.

    The folder is synced first. A killed process may have left a new manifest in the page cache only; sweeping by that
    manifest removes what the old one names, and a power cut would then bring back the old one.
    """
    discard_temporary(disk, manifest_path(folder))
    await disk.sync_folder(folder)
    return await read_manifest(disk, folder)


async def read_manifest(disk: Disk, folder: str) -> ShardManifest | None:
    """The same for readers that change nothing."""
    path = manifest_path(folder)
    try:
        data = await read_checked_file(disk, path)
    except FileNotFoundError:
        return None
    try:
        found_format = msgspec.msgpack.decode(data, type=list[msgspec.Raw])[0]
        stored = msgspec.msgpack.decode(found_format, type=int)
        if stored > MANIFEST_FORMAT:
            raise Refused(
                f"{path} has format {stored}, this program knows formats up to {MANIFEST_FORMAT}",
                advice="run the version that wrote it, or a newer one",
            )
        return msgspec.msgpack.decode(data, type=ShardManifest)
    except (msgspec.DecodeError, IndexError) as failure:
        raise Corruption(
            f"{path} has a good checksum and no manifest in it ({failure})",
            advice="keep a copy of the folder, and rebuild this shard's replicas from the others",
        ) from failure


@dataclass(frozen=True, slots=True)
class _Change:
    edit: ManifestEdit
    then: Callable[[], None]
    done: asyncio.Future[None]


class ManifestWriter:
    """One write at a time; changes that arrive meanwhile share the next one.

    `run` must be running in the owner's task group. It does the writing instead of the caller, who may be cancelled
    between the rename and the folder's sync.
    """

    def __init__(self, disk: Disk, folder: str, manifest: ShardManifest) -> None:
        self._disk = disk
        self._folder = folder
        self._current = manifest
        self._waiting: deque[_Change] = deque()
        self._work = asyncio.Event()
        self._ended = False

    @property
    def current(self) -> ShardManifest:
        return self._current

    async def change(self, edit: ManifestEdit, then: Callable[[], None] = lambda: None) -> None:
        """Durable on return; `then` was called in the same step in which `current` became the new one. Raises
        `DiskFull`, and the old manifest stays. A cancelled caller waits until it is known which manifest holds: the
        next change builds on that."""
        if self._ended:
            raise _failed(self._folder, "its writer has ended")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Change(edit, then, done))
        self._work.set()
        cancelled: asyncio.CancelledError | None = None
        while not done.done():
            try:
                await asyncio.wait((done,))
            except asyncio.CancelledError as failure:
                cancelled = failure
        if cancelled is not None:
            raise cancelled
        done.result()

    async def run(self) -> NoReturn:
        changes: list[_Change] = []
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                changes = list(self._waiting)
                self._waiting.clear()
                await self._write(changes)
        except OSError as failure:
            failed = _failed(self._folder, str(failure))
            self._fail_all(changes, failed)
            raise failed from failure
        finally:
            self._fail_all(changes, _failed(self._folder, "its writer has ended"))

    async def _write(self, changes: list[_Change]) -> None:
        manifest = self._current
        for change in changes:
            manifest = change.edit(manifest)
        manifest = msgspec.structs.replace(manifest, generation=self._current.generation + 1)
        try:
            await save_manifest(self._disk, self._folder, manifest)
        except DiskFull as failure:
            _settle(changes, failure)
            return
        self._current = manifest
        for change in changes:
            change.then()
            if not change.done.done():
                change.done.set_result(None)

    def _fail_all(self, changes: list[_Change], failure: EblaError) -> None:
        self._ended = True
        _settle(changes, failure)
        _settle(list(self._waiting), failure)
        self._waiting.clear()


def _settle(changes: list[_Change], failure: EblaError) -> None:
    for change in changes:
        if not change.done.done():
            change.done.set_exception(failure)
            # Marks it as retrieved, or asyncio warns where the caller is gone.
            change.done.exception()


def _failed(folder: str, why: str) -> ManifestFailed:
    return ManifestFailed(
        f"the manifest of {folder} cannot be written: {why}", advice="check the device and start this process again"
    )
