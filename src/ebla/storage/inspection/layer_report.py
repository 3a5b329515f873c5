"""Inspects layers without a node: which there are, what they hold, whether all of it is readable, which rows a key has.
Read-only.

The inspected folder may be that of a node, a shard, a checkpoint or a single layer; no node may use it.
"""

import enum
import heapq
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import islice

import msgspec

from ebla.journal.checked_file import parent_folder
from ebla.model.errors import Corruption, InvalidRequest
from ebla.model.schema import TableSchema
from ebla.model.token import WHOLE_RING, TokenRange, token_of
from ebla.ports.disk import Disk
from ebla.storage.codec.key_codec import key_spans, partition_prefix, prefix_end
from ebla.storage.inspection.row_dump import RowDump, check_stored_row, dump_row
from ebla.storage.inspection.value_text import SchemaNames
from ebla.storage.layers.layer import Item, Layer, LayerEngine
from ebla.storage.layers.layer_facts import NO_FACTS, LayerFacts
from ebla.storage.manifest import ShardManifest, layer_folder, layers_folder, manifest_path, read_manifest
from ebla.storage.store_identity import is_stamp

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
    has_files: bool = True
    """False: a live layer that may not have been flushed yet."""
    store: str = ""
    """The id of its store; empty: of a checkpoint, or of a release without ids."""
    log: str = ""
    """The id of the store's commit log."""


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
    names = [name for name in _names_in(disk, layers_folder(folder)) if not is_stamp(name)]
    inside = [f"{layers_folder(folder)}/{name}" for name in names]
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
                has_files=layer.has_files,
                store="" if manifest.store is None else str(manifest.store),
                log=f"{manifest.log_id:016x}" if manifest.log_id else "",
            )


async def _lone_layer(disk: Disk, folder: str) -> LayerLocation:
    """A single layer may still be part of a shard, whose manifest knows its columns."""
    shard = parent_folder(parent_folder(folder))
    if _is_shard(disk, shard):
        around = DiscoveredLayers([], [])
        await _add_shard(disk, shard, around)
        return next(layer for layer in around.layers if layer.folder == folder)
    return LayerLocation(folder=folder, role=LayerRole.LONE)


# -- reports ---------------------------------------------------------------------------------------------------------


VERIFIED_PARTS = 64


class LayerFactsReport(msgspec.Struct, frozen=True, kw_only=True):
    """`LayerFacts` with field names, for JSON output."""

    least_us: int
    greatest_us: int
    rows: int
    has_heads: bool
    has_tombstones: bool
    has_expiring: bool
    all_plain: bool


class LayerReport(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    role: LayerRole
    stack: str
    table: str
    tokens: TokenRange | None
    size_bytes: int
    files: int
    """0: nothing was flushed to it yet."""
    facts: LayerFactsReport
    problem: str = ""
    """Why it was quarantined or cannot be opened; in the second case the facts are unknown."""
    store: str = ""
    log: str = ""
    incarnation: int | None = None
    """How often the node was started; None: the folder is not in one of a node."""


class DamagedRange(msgspec.Struct, frozen=True):
    """A token range in which some rows cannot be read or are malformed."""

    tokens: TokenRange
    problem: str


class LayerCheck(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    rows: int
    """The rows that could be read."""
    facts: LayerFactsReport
    damaged: tuple[DamagedRange, ...]
    problem: str = ""
    """A problem of the layer as a whole."""

    @property
    def is_sound(self) -> bool:
        return not self.damaged and not self.problem


async def inspect_layer(engine: LayerEngine, disk: Disk, found: LayerLocation) -> LayerReport:
    files, size_bytes, facts, problem = 0, 0, NO_FACTS, found.damage
    try:
        async with _opened(engine, disk, found) as layer:
            if layer is not None:
                files, size_bytes, facts = len(disk.list_folder(found.folder)), layer.size_bytes(), layer.facts
    except Corruption as damage:
        problem = problem or damage.message
    table = "" if found.schema is None else found.schema.full_name
    return LayerReport(
        folder=found.folder,
        role=found.role,
        stack=found.stack,
        table=table,
        tokens=found.tokens,
        size_bytes=size_bytes,
        files=files,
        facts=_shown(facts),
        problem=problem,
        store=found.store,
        log=found.log,
    )


async def verify_layer(engine: LayerEngine, disk: Disk, found: LayerLocation) -> LayerCheck:
    """Reads every row, by parts of the ring, so that one bad block does not hide what comes after it."""
    nothing = LayerCheck(folder=found.folder, rows=0, facts=_shown(NO_FACTS), damaged=())
    try:
        async with _opened(engine, disk, found) as layer:
            return nothing if layer is None else _verify(layer)
    except Corruption as damage:
        return msgspec.structs.replace(nothing, problem=damage.message)


async def dump_rows(
    engine: LayerEngine, disk: Disk, layers: Sequence[LayerLocation], key: str | None, rows_max: int
) -> list[RowDump]:
    """The first rows of all layers together in key order, so that the versions of a row are adjacent; of one partition
    if a key is given. Raises `InvalidRequest` where it is not a key of any of the tables."""
    wanted = list(layers) if key is None else _with_such_keys(layers, key)
    async with AsyncExitStack() as opened:
        scans = []
        for place, found in enumerate(wanted):
            layer = await opened.enter_async_context(_opened(engine, disk, found))
            if layer is not None:
                scans.append(_numbered(place, layer.scan(*_span(found, key))))
        rows = islice(heapq.merge(*scans), rows_max)
        return [
            dump_row(wanted[place].folder, SchemaNames(wanted[place].schema), (k, value)) for k, place, value in rows
        ]


def _with_such_keys(layers: Sequence[LayerLocation], key: str) -> list[LayerLocation]:
    """The layers whose table can have the key."""
    wanted: list[LayerLocation] = []
    refusal: InvalidRequest | None = None
    for found in layers:
        try:
            _span(found, key)
            wanted.append(found)
        except InvalidRequest as failure:
            refusal = failure
    if refusal is not None and not wanted:
        raise refusal
    return wanted


def _span(found: LayerLocation, key: str | None) -> tuple[bytes, bytes | None]:
    if key is None:
        return b"", None
    serialised = SchemaNames(found.schema).parse_key(key)
    start = partition_prefix(token_of(serialised), serialised)
    return start, prefix_end(start)


@asynccontextmanager
async def _opened(engine: LayerEngine, disk: Disk, found: LayerLocation) -> AsyncIterator[Layer | None]:
    """None for a live layer that was never flushed."""
    if found.role is LayerRole.LIVE and not found.has_files and not disk.exists(found.folder):
        yield None
        return
    layer = await engine.open(found.folder, writable=False)
    try:
        yield layer
    finally:
        await layer.discard()


def _numbered(place: int, rows: Iterator[Item]) -> Iterator[tuple[bytes, int, bytes]]:
    for key, value in rows:
        yield key, place, value


def _shown(facts: LayerFacts) -> LayerFactsReport:
    return LayerFactsReport(**msgspec.structs.asdict(facts))


def _verify(layer: Layer) -> LayerCheck:
    rows = 0
    facts = NO_FACTS
    damaged = []
    for tokens in WHOLE_RING.split(VERIFIED_PARTS):
        try:
            ((start, end),) = key_spans(tokens)
            # The first part also includes what sorts below every token that a key can have.
            for item in layer.scan(b"" if tokens.start == WHOLE_RING.start else start, end):
                facts = facts.widened(check_stored_row(item))
                rows += 1
        except Corruption as damage:
            damaged.append(DamagedRange(tokens, damage.message))
    problem = "" if layer.facts.covers(facts) else f"its facts are {layer.facts}, and those of its rows {facts}"
    return LayerCheck(folder=layer.folder, rows=rows, facts=_shown(facts), damaged=tuple(damaged), problem=problem)
