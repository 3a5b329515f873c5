"""Opening a shard's store: sweep what the previous incarnation left, and replay what it had not flushed."""

from collections.abc import Sequence
from functools import partial

import msgspec

from ebla.journal.recovery import make_durable_folder
from ebla.model.errors import Corruption, Overloaded
from ebla.model.identity import StoreId
from ebla.model.schema import TableSchema
from ebla.ports.disk import Disk
from ebla.ports.rng import Rng
from ebla.storage.commit_log import CommitLog
from ebla.storage.layers.layer import Item, LayerDamaged, LayerEngine
from ebla.storage.layers.layer_cache import LayerCache
from ebla.storage.manifest import (
    Incarnation,
    LayerEntry,
    ManifestWriter,
    ShardManifest,
    StackEntry,
    layer_folder,
    layer_name,
    layers_folder,
    load_manifest,
    save_manifest,
)
from ebla.storage.stack import Stack
from ebla.storage.stack_changes import scratch_folder
from ebla.storage.store import ShardStore
from ebla.storage.store_identity import check_store, is_stamp, log_folder
from ebla.storage.store_limits import StoreLimits

REPLAY_BYTES = 4 << 20
"""How many bytes of records are gathered before they are put."""


async def open_store(
    disk: Disk, rng: Rng, folder: str, engine: LayerEngine, limits: StoreLimits, *, store_id: StoreId
) -> ShardStore:
    """Opens the store of this id, and never creates one. Raises `StoreLost`, `Corruption`, or `Refused` for a newer
    format.

    A damaged live layer does not stop the others: its replica is refused, and quarantined once the store runs.
    """
    await check_store(disk, folder, store_id)
    await make_durable_folder(disk, folder)
    manifest = await load_manifest(disk, folder)
    assert manifest is not None, "it was there a moment ago"
    await make_durable_folder(disk, layers_folder(folder))
    await _sweep(disk, engine, folder, manifest)
    log = await CommitLog.open(disk, rng, log_folder(folder), limits)
    manifest = await _clamp(disk, folder, manifest, log.next_sequence)
    manifest = await _quarantine_missing(disk, folder, manifest)
    store = ShardStore(
        disk=disk,
        rng=rng,
        folder=folder,
        engine=engine,
        layers=LayerCache(engine, open_max=limits.layers_open_max),
        manifest=ManifestWriter(disk, folder, manifest),
        log=log,
        limits=limits,
    )
    for entry in manifest.stacks:
        store.add_stack(entry, _schema_of(folder, manifest, entry))
    await _Replay(store, log).run()
    return store


async def _sweep(disk: Disk, engine: LayerEngine, folder: str, manifest: ShardManifest) -> None:
    """Removes layers that no manifest names: they were never finished, or are no longer used."""
    named = {layer_name(stack.incarnation, layer.id) for stack in manifest.stacks for layer in stack.layers}
    for name in disk.list_folder(layers_folder(folder)):
        if name not in named and not is_stamp(name):
            await engine.drop(f"{layers_folder(folder)}/{name}")
    await disk.run(partial(disk.remove_folder, scratch_folder(folder)))


async def _clamp(disk: Disk, folder: str, manifest: ShardManifest, next_sequence: int) -> ShardManifest:
    """A seal sets `replay_from` past records that are only queued. If a crash loses those records, the sealed layer has
    their rows all the same, but their sequences are assigned again; the new records must not be skipped as old ones."""
    stacks = tuple(
        msgspec.structs.replace(one, replay_from=min(one.replay_from, next_sequence)) for one in manifest.stacks
    )
    if stacks != manifest.stacks:
        manifest = msgspec.structs.replace(manifest, stacks=stacks, generation=manifest.generation + 1)
        await save_manifest(disk, folder, manifest)
    return manifest


async def _quarantine_missing(disk: Disk, folder: str, manifest: ShardManifest) -> ShardManifest:
    """A layer whose files are gone is damaged. Durable before anything is read or replayed: a missing live layer would
    be opened as an empty one, and its replica would serve without the rows that only it had."""
    stacks = []
    for stack in manifest.stacks:
        *bases, live = (_with_missing_noted(disk, folder, stack.incarnation, layer) for layer in stack.layers)
        stacks.append(msgspec.structs.replace(stack, bases=tuple(bases), live=live))
    if tuple(stacks) != manifest.stacks:
        manifest = msgspec.structs.replace(manifest, stacks=tuple(stacks), generation=manifest.generation + 1)
        await save_manifest(disk, folder, manifest)
    return manifest


def _with_missing_noted(disk: Disk, folder: str, incarnation: Incarnation, layer: LayerEntry) -> LayerEntry:
    path = layer_folder(folder, incarnation, layer.id)
    if not layer.has_files or layer.damage or (disk.exists(path) and disk.list_folder(path)):
        return layer
    return msgspec.structs.replace(layer, damage="its files are missing")


def _schema_of(folder: str, manifest: ShardManifest, entry: StackEntry) -> TableSchema:
    schema = manifest.table(entry.table)
    if schema is None:
        raise Corruption(
            f"the manifest of {folder} has a replica of table {entry.table} and not the table itself",
            advice="keep a copy of the folder, and rebuild this shard's replicas from the others",
        )
    return schema


class _Replay:
    """Puts records into their stacks again. Merging makes that harmless where a layer has them already."""

    def __init__(self, store: ShardStore, log: CommitLog) -> None:
        self._store = store
        self._log = log
        self._gathered: dict[Incarnation, list[Item]] = {}
        self._bytes = 0
        self._refused: set[Incarnation] = set()

    async def run(self) -> None:
        async for sequence, record in self._log.read():
            stack = self._store.stacks.get(record.incarnation)
            # Rows of an earlier incarnation of the tablet, which left and came back since, do not belong to this one.
            if stack is None or sequence < stack.replay_from or stack.damage:
                continue
            stack.note_write(sequence)
            self._gathered.setdefault(record.incarnation, []).extend(record.items)
            self._bytes += sum(len(key) + len(value) for key, value in record.items)
            if self._bytes >= REPLAY_BYTES:
                await self._put_gathered()
        await self._put_gathered()

    async def _put_gathered(self) -> None:
        gathered, self._gathered, self._bytes = self._gathered, {}, 0
        for incarnation, items in gathered.items():
            if incarnation not in self._refused:
                try:
                    await self._put(self._store.stacks[incarnation], items)
                except LayerDamaged as failure:
                    self._refused.add(incarnation)
                    self._store.note_damage(self._store.stacks[incarnation], failure)

    async def _put(self, stack: Stack, items: Sequence[Item]) -> None:
        try:
            stack.merge_into(await stack.open_live(), items)
        except Overloaded:
            await self._store.flush(stack)
            stack.merge_into(await stack.open_live(), items)
