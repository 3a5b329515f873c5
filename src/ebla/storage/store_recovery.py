"""Opening a shard's store: what the last life left is swept, and what it had not flushed is replayed."""

from collections.abc import Sequence
from functools import partial

import msgspec

from ebla.journal.recovery import make_durable_folder
from ebla.model.errors import Corruption, Overloaded
from ebla.ports.disk import Disk
from ebla.ports.rng import Rng
from ebla.storage.commit_log import CommitLog
from ebla.storage.layers.layer import Item, LayerDamaged, LayerEngine
from ebla.storage.layers.layer_cache import LayerCache
from ebla.storage.manifest import (
    Incarnation,
    ManifestWriter,
    ShardManifest,
    layer_name,
    layers_folder,
    load_manifest,
    save_manifest,
)
from ebla.storage.stack import Stack
from ebla.storage.stack_changes import StoreContext, scratch_folder
from ebla.storage.store import GC_HOLD_AT_START, ShardStore, StoreLimits

REPLAY_BYTES = 4 << 20
"""How much is gathered for one stack before it is put."""


async def open_store(
    disk: Disk, rng: Rng, folder: str, engine: LayerEngine, limits: StoreLimits | None = None
) -> ShardStore:
    """Makes the store where there is none. Raises `Corruption`, or `Refused` for a newer format.

    A damaged live layer does not stop the others: its replica is refused, and set aside once the store runs.
    """
    limits = limits or StoreLimits()
    await make_durable_folder(disk, folder)
    manifest = await _load(disk, folder)
    await _sweep(disk, engine, folder, manifest)
    log = await CommitLog.open(disk, rng, log_folder(folder), limits.log)
    manifest = await _clamp(disk, folder, manifest, log.next_sequence)
    layers = LayerCache(engine, open_max=limits.layers_open_max)
    parts = StoreContext(
        disk=disk,
        rng=rng,
        folder=folder,
        engine=engine,
        layers=layers,
        manifest=ManifestWriter(disk, folder, manifest),
        log=log,
    )
    stacks = [_stack(parts, manifest, number) for number in range(len(manifest.stacks))]
    store = ShardStore(parts, stacks, limits)
    await _Replay(store, log).run()
    return store


def log_folder(folder: str) -> str:
    return f"{folder}/log"


async def _load(disk: Disk, folder: str) -> ShardManifest:
    manifest = await load_manifest(disk, folder)
    if manifest is None:
        if disk.exists(layers_folder(folder)) and disk.list_folder(layers_folder(folder)):
            raise Corruption(
                f"{folder} has layers and no manifest that names them",
                advice="bring the manifest back from a copy, or move the folder away to have its replicas rebuilt",
            )
        manifest = ShardManifest()
        await save_manifest(disk, folder, manifest)
    await make_durable_folder(disk, layers_folder(folder))
    return manifest


async def _sweep(disk: Disk, engine: LayerEngine, folder: str, manifest: ShardManifest) -> None:
    """What no manifest names was never finished, or is no longer used."""
    named = {layer_name(stack.incarnation, layer.id) for stack in manifest.stacks for layer in stack.layers}
    for name in disk.list_folder(layers_folder(folder)):
        if name not in named:
            await engine.drop(f"{layers_folder(folder)}/{name}")
    await disk.run(partial(disk.remove_folder, scratch_folder(folder)))


async def _clamp(disk: Disk, folder: str, manifest: ShardManifest, next_sequence: int) -> ShardManifest:
    """A seal counts records as soon as they are queued. Those that a crash took are in the sealed layer all the same,
    but their sequences are given again, and the records that get them must not be taken for the old ones."""
    stacks = tuple(
        msgspec.structs.replace(one, replay_from=min(one.replay_from, next_sequence)) for one in manifest.stacks
    )
    if stacks != manifest.stacks:
        manifest = msgspec.structs.replace(manifest, stacks=stacks, generation=manifest.generation + 1)
        await save_manifest(disk, folder, manifest)
    return manifest


def _stack(parts: StoreContext, manifest: ShardManifest, number: int) -> Stack:
    entry = manifest.stacks[number]
    schema = manifest.table(entry.table)
    if schema is None:
        raise Corruption(
            f"the manifest of {parts.folder} has a replica of table {entry.table} and not the table itself",
            advice="keep a copy of the folder, and rebuild this shard's replicas from the others",
        )
    stack = Stack(parts.folder, entry, schema, parts.layers)
    stack.gc_holds.add(GC_HOLD_AT_START)
    return stack


class _Replay:
    """Records become puts of their stack again. Merging makes it harmless where a layer has them already."""

    def __init__(self, store: ShardStore, log: CommitLog) -> None:
        self._store = store
        self._log = log
        self._gathered: dict[Incarnation, list[Item]] = {}
        self._bytes = 0
        self._refused: set[Incarnation] = set()

    async def run(self) -> None:
        async for sequence, record in self._log.read():
            stack = self._store.stacks.get(record.incarnation)
            # Rows of another incarnation of the tablet, which left and came back since, are not this one's.
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
