"""The identity of a shard's store: created once, checked at every start, never made up by the shard itself.

A store has an id, which stands in its manifest beside the id of its commit log. The node's mark and group 0 name the
same id. So a folder that is empty, that belongs to another store, or whose log was lost is noticed before it serves:
without the ids it would look like a store that has no rows yet.

An id does not show that a folder is an older copy. So each start of the node stamps the folders of the log and of the
layers with its incarnation, and then notes in its mark that it did. A folder whose stamp is below the mark's was put
back from a copy of an earlier start.
"""

import msgspec

from ebla.journal.checked_file import TEMPORARY_SUFFIX, read_checked_file, replace_file
from ebla.journal.manifest import load_manifest as load_log_manifest
from ebla.journal.recovery import make_durable_folder
from ebla.journal.segmented_log import SegmentedLog
from ebla.model.errors import Refused
from ebla.model.identity import StoreId
from ebla.ports.disk import Disk
from ebla.ports.rng import Rng
from ebla.storage.manifest import (
    ShardManifest,
    StackEntry,
    layer_folder,
    layers_folder,
    load_manifest,
    read_manifest,
    save_manifest,
)

FIRST_SEGMENT_BYTES = 4096
"""Reserved for the first segment of a new log. The shard reserves more when it opens the log."""

STAMP_NAME = "start"


class StoreLost(Refused):
    """The folder does not hold the store that it must hold. Nothing was changed."""

    def __init__(self, folder: str, store: StoreId, what: str) -> None:
        super().__init__(what, advice="is its disk mounted?")
        self.folder = folder
        self.store = store
        self.what = what


def log_folder(folder: str) -> str:
    return f"{folder}/log"


async def create_store(disk: Disk, rng: Rng, folder: str, store: StoreId) -> None:
    """An empty store of this id. After a crash at any point, the same call finishes the creation. Raises `StoreLost` if
    the folder has something else in it."""
    manifest = await read_manifest(disk, folder)
    if manifest is not None and manifest.store == store:
        return
    if manifest is not None:
        raise StoreLost(folder, store, f"store {store} cannot be created: {folder} holds store {manifest.store}")
    layers = layers_folder(folder)
    if disk.exists(layers) and disk.list_folder(layers):
        raise StoreLost(folder, store, f"store {store} cannot be created: {folder} holds layers without a manifest")
    await make_durable_folder(disk, folder)
    await make_durable_folder(disk, layers)
    # The manifest comes last: a store with a manifest has a log.
    log_id = await _open_log_id(disk, rng, folder)
    await save_manifest(disk, folder, ShardManifest(store=store, log_id=log_id))


async def adopt_store(disk: Disk, rng: Rng, folder: str, store: StoreId) -> None:
    """Gives a store of the previous release its id. After a crash at any point, the same call finishes it."""
    manifest = await load_manifest(disk, folder) if disk.exists(folder) else None
    if manifest is None:
        raise StoreLost(folder, store, f"the manifest of a store is missing in {folder}")
    if manifest.store == store:
        return
    if manifest.store is not None:
        raise StoreLost(folder, store, f"store {store} cannot be adopted: {folder} holds store {manifest.store}")
    # The previous release wrote the first manifest before it created the log. Without stacks nothing can be in it.
    if manifest.stacks and await load_log_manifest(disk, log_folder(folder)) is None:
        raise StoreLost(folder, store, f"the commit log is missing in {folder}")
    log_id = await _open_log_id(disk, rng, folder)
    # A folder that only the page cache has would be missed after a power failure, although the log has its rows.
    if disk.exists(layers_folder(folder)):
        await disk.sync_folder(layers_folder(folder))
    for stack in manifest.stacks:
        if _has_files(disk, folder, stack):
            await disk.sync_folder(layer_folder(folder, stack.incarnation, stack.live.id))
    stacks = tuple(
        msgspec.structs.replace(
            stack,
            # The previous release made a folder for each base; that of a live layer may not be there yet.
            bases=tuple(msgspec.structs.replace(base, has_files=True) for base in stack.bases),
            live=msgspec.structs.replace(stack.live, has_files=_has_files(disk, folder, stack)),
        )
        for stack in manifest.stacks
    )
    named = msgspec.structs.replace(
        manifest, stacks=stacks, store=store, log_id=log_id, generation=manifest.generation + 1
    )
    await save_manifest(disk, folder, named)


async def stamp_store(disk: Disk, folder: str, incarnation: int) -> None:
    """The log and the layers were here at this start of the node. Durable on return."""
    for part in (log_folder(folder), layers_folder(folder)):
        await make_durable_folder(disk, part)
        await replace_file(disk, _stamp_path(part), str(incarnation).encode())


async def check_store(disk: Disk, folder: str, store: StoreId, stamped: int = 0) -> None:
    """Raises `StoreLost` unless the folder holds this store and its commit log, and all of it was there at the start
    with the incarnation `stamped`. Changes nothing."""
    manifest = await read_manifest(disk, folder)
    if manifest is None:
        raise StoreLost(folder, store, f"store {store} is missing in {folder}")
    if manifest.store != store:
        raise StoreLost(folder, store, f"{folder} holds store {manifest.store or 'without an id'} instead of {store}")
    log = await load_log_manifest(disk, log_folder(folder))
    if log is None:
        raise StoreLost(folder, store, f"the commit log of store {store} is missing in {folder}")
    if log.log_id != manifest.log_id:
        raise StoreLost(
            folder, store, f"{folder} holds commit log {log.log_id:x} instead of {manifest.log_id:x} of store {store}"
        )
    for part in (log_folder(folder), layers_folder(folder)):
        found = await _read_stamp(disk, part)
        # An empty folder is no older copy: missing layers are damage, and the shard quarantines them.
        if found < stamped and disk.exists(part) and disk.list_folder(part):
            raise StoreLost(
                folder,
                store,
                f"{part} is an older copy: it ends at incarnation {found}, the node's mark has {stamped} for "
                f"store {store}",
            )


def is_stamp(name: str) -> bool:
    """Whether a name in the folder of the layers is that of the stamp, and of no layer."""
    return name in (STAMP_NAME, STAMP_NAME + TEMPORARY_SUFFIX)


def _stamp_path(part: str) -> str:
    return f"{part}/{STAMP_NAME}"


async def _read_stamp(disk: Disk, part: str) -> int:
    """0 where there is none."""
    try:
        return int(await read_checked_file(disk, _stamp_path(part)))
    except FileNotFoundError:
        return 0


def _has_files(disk: Disk, folder: str, stack: StackEntry) -> bool:
    path = layer_folder(folder, stack.incarnation, stack.live.id)
    return disk.exists(path) and bool(disk.list_folder(path))


async def _open_log_id(disk: Disk, rng: Rng, folder: str) -> int:
    """Of the log, which is created if there is none."""
    log = await SegmentedLog.open(disk, rng, log_folder(folder), FIRST_SEGMENT_BYTES)
    await log.close()
    return log.log_id
