"""Looking into layers without a node: what a folder holds, whether all of it can be read, which rows a key has.

Works on the folder of a stopped node, of one shard, on a checkpoint or on a single layer; nothing in it is changed.
"""

import heapq
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice

import msgspec

from ebla.model.errors import Corruption, InvalidRequest
from ebla.model.token import WHOLE_RING, TokenRange, token_of
from ebla.ports.disk import Disk
from ebla.storage.key_codec import after_prefix, encode_token, partition_prefix
from ebla.storage.layer import Item, Layer, LayerEngine
from ebla.storage.layer_facts import NO_FACTS, LayerFacts
from ebla.storage.shown_rows import ShownRow, check_item, show_row

LAYER_MARK = "CURRENT"
"""The file that every folder of the real engine has."""
DEPTH_MAX = 6
VERIFIED_PARTS = 64


class ShownFacts(msgspec.Struct, frozen=True):
    """`LayerFacts` with the names of its fields, for programs."""

    least_us: int
    greatest_us: int
    rows: int
    has_heads: bool
    has_tombstones: bool
    has_expiring: bool
    all_plain: bool


class LayerReport(msgspec.Struct, frozen=True):
    folder: str
    size_bytes: int
    files: int
    facts: ShownFacts
    problem: str = ""
    """Why it cannot be opened; the facts are then unknown."""


class DamagedPart(msgspec.Struct, frozen=True):
    """A token range in which not all rows can be read, or some are not what we write."""

    tokens: TokenRange
    problem: str


class LayerCheck(msgspec.Struct, frozen=True):
    folder: str
    rows: int
    """Those that could be read."""
    facts: ShownFacts
    damaged: tuple[DamagedPart, ...]
    problem: str = ""
    """What is wrong with the layer as a whole."""

    @property
    def is_sound(self) -> bool:
        return not self.damaged and not self.problem


def find_layers(disk: Disk, folder: str) -> list[str]:
    """The layers in a folder, however deep it is in a node's tree. Raises `InvalidRequest` where there is none."""
    found = list(_layers_below(disk, folder.rstrip("/") or "/", DEPTH_MAX))
    if not found:
        raise InvalidRequest(
            f"there is no layer in {folder}",
            advice="name the folder of a stopped node, of one of its shards, a checkpoint or a layer",
        )
    return found


def _layers_below(disk: Disk, folder: str, depth: int) -> Iterator[str]:
    try:
        names = disk.list_folder(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    if LAYER_MARK in names:
        yield folder
    elif depth:
        for name in names:
            yield from _layers_below(disk, f"{folder}/{name}", depth - 1)


async def inspect_layer(engine: LayerEngine, disk: Disk, folder: str) -> LayerReport:
    files = len(disk.list_folder(folder))
    try:
        async with _opened(engine, folder) as layer:
            return LayerReport(folder, layer.size_bytes(), files, _shown(layer.facts))
    except Corruption as damage:
        return LayerReport(folder, 0, files, _shown(NO_FACTS), damage.message)


async def verify_layer(engine: LayerEngine, folder: str) -> LayerCheck:
    """Reads every row. By parts of the ring, so that one bad block does not hide what stands behind it."""
    try:
        async with _opened(engine, folder) as layer:
            return _verify(layer)
    except Corruption as damage:
        return LayerCheck(folder, 0, _shown(NO_FACTS), (), damage.message)


async def dump_rows(
    engine: LayerEngine, folders: Sequence[str], partition_key: bytes | None, rows_max: int
) -> list[ShownRow]:
    """The first rows of all layers together in the order of keys, so that the versions of a row stand one below the
    other; of one partition where a key (in its serialised form) is given."""
    start, end = b"", None
    if partition_key is not None:
        start = partition_prefix(token_of(partition_key), partition_key)
        end = after_prefix(start)
    async with AsyncExitStack() as opened:
        layers = [await opened.enter_async_context(_opened(engine, folder)) for folder in folders]
        scans = [_numbered(place, layer.scan(start, end)) for place, layer in enumerate(layers)]
        merged = heapq.merge(*scans)
        return [show_row(folders[place], (key, value)) for key, place, value in islice(merged, rows_max)]


@asynccontextmanager
async def _opened(engine: LayerEngine, folder: str) -> AsyncIterator[Layer]:
    layer = await engine.open(folder, writable=False)
    try:
        yield layer
    finally:
        await layer.discard()


def _numbered(place: int, rows: Iterator[Item]) -> Iterator[tuple[bytes, int, bytes]]:
    for key, value in rows:
        yield key, place, value


def _shown(facts: LayerFacts) -> ShownFacts:
    return ShownFacts(*msgspec.structs.astuple(facts))


def _verify(layer: Layer) -> LayerCheck:
    rows = 0
    facts = NO_FACTS
    damaged = []
    for tokens in WHOLE_RING.split(VERIFIED_PARTS):
        start = encode_token(tokens.start + 1) if tokens.start != WHOLE_RING.start else b""
        end = encode_token(tokens.end + 1) if tokens.end != WHOLE_RING.end else None
        try:
            for item in layer.scan(start, end):
                facts = facts.widened(check_item(item))
                rows += 1
        except Corruption as damage:
            damaged.append(DamagedPart(tokens, damage.message))
    problem = "" if layer.facts.covers(facts) else f"it tells {layer.facts}, and its rows are {facts}"
    return LayerCheck(layer.folder, rows, _shown(facts), tuple(damaged), problem)
