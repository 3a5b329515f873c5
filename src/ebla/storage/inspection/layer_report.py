"""Inspects layers without a node: what they hold, whether all of it is readable, which rows a key has. Read-only."""

import heapq
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice

import msgspec

from ebla.model.errors import Corruption, InvalidRequest
from ebla.model.token import WHOLE_RING, TokenRange, token_of
from ebla.ports.disk import Disk
from ebla.storage.codec.key_codec import key_spans, partition_prefix, prefix_end
from ebla.storage.inspection.layer_discovery import LayerLocation, LayerRole
from ebla.storage.inspection.row_dump import RowDump, check_stored_row, dump_row
from ebla.storage.inspection.value_text import SchemaNames
from ebla.storage.layers.layer import Item, Layer, LayerEngine
from ebla.storage.layers.layer_facts import NO_FACTS, LayerFacts

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
    if found.role is LayerRole.LIVE and not disk.exists(found.folder):
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
