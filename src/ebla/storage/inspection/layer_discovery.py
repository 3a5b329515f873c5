"""Finds the layers of a folder that no node uses, with what its manifest says of them.

The folder may be that of a node, a shard, a checkpoint or a single layer.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from ebla.journal.checked_file import parent_folder
from ebla.model.errors import Corruption, InvalidRequest
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.ports.disk import Disk
from ebla.storage.manifest import ShardManifest, layer_folder, layers_folder, manifest_path, read_manifest

LAYER_MARK = "CURRENT"
"""The file that every RocksDB folder has."""
DEPTH_MAX = 6


class LayerRole(enum.StrEnum):
    LIVE = "live"
    BASE = "base"
    STRAY = "stray"
    """No manifest names it: a crash left it, and the next start removes it."""
    LONE = "lone"
    """There is no manifest next to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLocation:
    folder: str
    role: LayerRole
    stack: str = ""
    """The replica's incarnation, as in the names of its folders."""
    tokens: TokenRange | None = None
    schema: TableSchema | None = None
    damage: str = ""
    """Why the node has quarantined it."""


@dataclass(frozen=True, slots=True)
class DiscoveredLayers:
    layers: list[LayerLocation]
    problems: list[str]
    """Manifests that cannot be read; the layers next to them are listed as lone ones."""


async def find_layers(disk: Disk, folder: str) -> DiscoveredLayers:
    """Raises `InvalidRequest` where there is none."""
    folder = folder.rstrip("/") or "/"
    found = DiscoveredLayers([], [])
    for path in _find_folders(disk, folder, DEPTH_MAX):
        if _is_shard(disk, path):
            await _add_shard(disk, path, found)
        else:
            found.layers.append(await _lone_layer(disk, path))
    if not found.layers and not found.problems:
        raise InvalidRequest(
            f"there is no layer in {folder}",
            advice="give the folder of a stopped node, of one of its shards, a checkpoint or a layer",
        )
    return found


def _find_folders(disk: Disk, folder: str, depth: int) -> Iterator[str]:
    """Folders of shards and layers, without descending into them."""
    if _is_shard(disk, folder):
        yield folder
        return
    names = _names_in(disk, folder)
    if LAYER_MARK in names:
        yield folder
    elif depth:
        for name in names:
            yield from _find_folders(disk, f"{folder}/{name}", depth - 1)


def _names_in(disk: Disk, folder: str) -> list[str]:
    try:
        return disk.list_folder(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_shard(disk: Disk, folder: str) -> bool:
    return disk.exists(manifest_path(folder)) and disk.exists(layers_folder(folder))


async def _add_shard(disk: Disk, folder: str, found: DiscoveredLayers) -> None:
    inside = [f"{layers_folder(folder)}/{name}" for name in _names_in(disk, layers_folder(folder))]
    try:
        manifest = await read_manifest(disk, folder)
    except Corruption as damage:
        found.problems.append(damage.message)
        found.layers.extend(LayerLocation(folder=layer, role=LayerRole.LONE) for layer in inside)
        return
    assert manifest is not None, "it was there a moment ago"
    named = list(_named_layers(folder, manifest))
    found.layers.extend(named)
    known = [layer.folder for layer in named]
    found.layers.extend(LayerLocation(folder=layer, role=LayerRole.STRAY) for layer in inside if layer not in known)


def _named_layers(folder: str, manifest: ShardManifest) -> Iterator[LayerLocation]:
    for stack in manifest.stacks:
        schema = manifest.table(stack.table)
        for layer in stack.layers:
            role = LayerRole.LIVE if layer.id == stack.live.id else LayerRole.BASE
            path = layer_folder(folder, stack.incarnation, layer.id)
            yield LayerLocation(
                folder=path,
                role=role,
                stack=f"{stack.incarnation:016x}",
                tokens=layer.range,
                schema=schema,
                damage=layer.damage,
            )


async def _lone_layer(disk: Disk, folder: str) -> LayerLocation:
    """A single layer may still be part of a shard, whose manifest knows its columns."""
    shard = parent_folder(parent_folder(folder))
    if _is_shard(disk, shard):
        around = DiscoveredLayers([], [])
        await _add_shard(disk, shard, around)
        return next(layer for layer in around.layers if layer.folder == folder)
    return LayerLocation(folder=folder, role=LayerRole.LONE)
