"""What a scan shows is what the rows say, read one at a time."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.storage.naive_scan import ALL, TIMES, Part, expected, random_conditions
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows, column, layer_facts, stored_key, stored_prefix, table
from tests.unit.storage.rigs import ENGINES, Rig

from ebla.model.errors import InvalidRequest
from ebla.model.rows import Cell, Row, RowMarker
from ebla.model.schema import ColumnKind, TableSchema, with_column, without_column
from ebla.model.selection import ColumnSelector, SelectorKind
from ebla.model.token import TOKEN_MIN, WHOLE_RING, Token, TokenRange
from ebla.storage.codec.key_codec import KeyKind, key_spans, prefix_end, split_key
from ebla.storage.codec.row_codec import encode_row
from ebla.storage.columns import sidecar
from ebla.storage.columns.chunks import KEY, STORED, ChunkShape, chunk_of
from ebla.storage.compaction.compactor import BaseLayerWriter
from ebla.storage.layers.layer import Item, LayerDamaged, build_layer
from ebla.storage.merge.row_merge import merge_streams
from ebla.storage.scan import stack_scan
from ebla.storage.scan.key_filter import ClusteringSlice
from ebla.storage.scan.scan_columns import select_values
from ebla.storage.scan.stack_scan import (
    ALL_KEYS,
    ScanQuery,
    close_scan,
    open_scan,
    output_schema,
    scan_rows,
    scan_stored,
)


@pytest.fixture(params=sorted(ENGINES))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(request.param, tmp_path)
    yield made
    made.close()


async def build(rig: Rig, schema: TableSchema, name: str, part: Part) -> None:
    items, _, with_sidecar = part
    if not with_sidecar:
        await build_layer(rig.engine, rig.path(name), items, layer_facts(schema, items))
        return
    writer = BaseLayerWriter(rig.engine, rig.disk, rig.path(name), schema)
    keys, values = pa.array([key for key, _ in items], pa.binary()), pa.array([one for _, one in items], pa.binary())
    writer.add(chunk_of(ChunkShape(schema), keys, values))
    await writer.finish()


async def scanned(rig: Rig, parts: Sequence[Part], query: ScanQuery) -> list[dict[str, Any]]:
    for number, part in enumerate(parts):
        if not rig.disk.exists(rig.path(f"layer{number}")):
            await build(rig, query.schema, f"layer{number}", part)
    layers = await open_scan(
        rig.engine, rig.disk, [(rig.path(f"layer{number}"), (part[1],)) for number, part in enumerate(parts)]
    )
    assert [one.sidecar is not None for one in layers] == [part[2] for part in parts]
    try:
        found = []
        for batch in scan_rows(layers, query):
            batch.validate(full=True)
            found += batch.to_pylist()
        return found
    finally:
        await close_scan(layers)


@pytest.mark.parametrize("seed", range(24))
def test_a_scan_shows_what_the_rows_say(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig("memory", tmp_path)
    rng = Random(seed)
    if seed % 3:
        # Partitions then go on from chunk to chunk, and so must what their heads say.
        monkeypatch.setattr(stack_scan, "CHUNK_ROWS", rng.randrange(1, 6))
        monkeypatch.setattr(sidecar, "BLOCK_ROWS", rng.randrange(1, 6))
        monkeypatch.setattr(stack_scan, "CHUNK_BYTES", rng.choice([100, 1000, 1 << 20]))
    rows = RandomRows(seed, Mix(plain=rng.choice([0.9, 0.5]), partitions=rng.choice([3, 12]), rows=60))
    ranges = [WHOLE_RING, TokenRange(Token(0), TOKEN_MIN), TokenRange(TOKEN_MIN, Token(1 << 61))]
    parts = [(rows.layer(), rng.choice(ranges), rng.random() < 0.5) for _ in range(rng.choice([1, 1, 2, 3]))]
    some = [rng.choice(items)[0] for items, _, _ in parts if items]
    spans = [ALL_KEYS, key_spans(TokenRange(Token(-(1 << 62)), Token(1 << 62)))]
    if some:
        prefix = split_key(some[0])[0]
        spans.append(((prefix, prefix_end(prefix)),))
        one_row = ClusteringSlice(start=(1 ^ 1 << 31).to_bytes(4), end=(2 ^ 1 << 31).to_bytes(4), is_before_end=True)
        spans.append(tuple(one_row.spans(split_key(some[0])[0])))
    for chosen in spans:
        for columns in (ALL, TIMES, select_values("xp"), select_values("sz"), select_values("s")):
            query = ScanQuery(schema=MIXED, columns=columns, now_s=rng.randrange(20), spans=chosen)
            found = rig.run(scanned(rig, parts, query))
            assert str(found) == str(expected(parts, query))
    rig.close()


@pytest.mark.parametrize("seed", range(24))
def test_conditions_and_partitions_leave_what_meets_them(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig("memory", tmp_path)
    rng = Random(seed)
    if seed % 3:
        monkeypatch.setattr(stack_scan, "CHUNK_ROWS", rng.randrange(1, 6))
        monkeypatch.setattr(sidecar, "BLOCK_ROWS", rng.randrange(1, 6))
        monkeypatch.setattr(stack_scan, "PARTITIONS_BY_COLUMN_MAX", rng.choice([0, 16]))
    rows = RandomRows(seed, Mix(plain=rng.choice([0.9, 0.5]), partitions=5, rows=80))
    parts = [(rows.layer(), WHOLE_RING, rng.random() < 0.5) for _ in range(rng.choice([1, 1, 2, 3]))]
    prefixes = sorted(stored_prefix([f"p{number}".encode()]) for number in range(6))
    spans = [ALL_KEYS, key_spans(TokenRange(Token(-(1 << 62)), Token(1 << 62)))]
    for _ in range(8):
        query = ScanQuery(
            schema=MIXED,
            columns=rng.choice(
                [ALL, TIMES, select_values("xp"), select_values("s"), (ColumnSelector("", SelectorKind.TOKEN, "t"),)]
            ),
            now_s=rng.randrange(20),
            spans=rng.choice(spans),
            conditions=random_conditions(rng),
            partitions=tuple(rng.sample(prefixes, rng.randrange(4))),
        )
        assert str(rig.run(scanned(rig, parts, query))) == str(expected(parts, query)), query
    rig.close()


def test_a_slice_knows_what_its_partitions_head_deletes(rig: Rig) -> None:
    rows = RandomRows(11, Mix(plain=0.5, partitions=2, rows=80))
    layers: list[Part] = [(rows.layer(), WHOLE_RING, True), (rows.layer(), WHOLE_RING, False)]
    heads = [key for items, _, _ in layers for key, _ in items if split_key(key)[1] is KeyKind.PARTITION_HEAD]
    assert heads
    query = ScanQuery(
        schema=MIXED, columns=ALL, now_s=3, spans=tuple(ClusteringSlice(end=b"\xff").spans(split_key(heads[0])[0]))
    )
    assert str(rig.run(scanned(rig, layers, query))) == str(expected(layers, query))


def test_stored_rows_come_whole(rig: Rig) -> None:
    """Between nodes nothing is left out: tombstones, expired cells and heads travel."""
    rows = RandomRows(5, Mix(plain=0.3, partitions=4, rows=80))
    parts: list[Part] = [(rows.layer(), WHOLE_RING, bool(number)) for number in range(2)]

    async def main() -> list[Item]:
        for number, part in enumerate(parts):
            await build(rig, MIXED, f"layer{number}", part)
        layers = await open_scan(
            rig.engine, rig.disk, [(rig.path(f"layer{number}"), (WHOLE_RING,)) for number in (0, 1)]
        )
        found: list[Item] = []
        for chunk in scan_stored(MIXED, layers):
            found += zip(chunk.column(KEY).to_pylist(), chunk.column(STORED).to_pylist())
        await close_scan(layers)
        return found

    assert rig.run(main()) == list(merge_streams([part[0] for part in parts], MIXED))
    assert list(scan_stored(MIXED, [])) == []


def test_a_sidecar_of_an_older_schema_is_read_by_the_newer(tmp_path: Path) -> None:
    rig = Rig("memory", tmp_path)
    first = table(column("p", "int", ColumnKind.PARTITION_KEY), column("gone", "text"), column("kept", "int"))
    newer = without_column(with_column(first, column("new", "text")), "gone")
    gone, kept = first.column("gone").number, first.column("kept").number
    rows = [
        Row(marker=None, deletion=None, cells={gone: Cell(timestamp_us=1, value=b"x")}),
        Row(marker=RowMarker(1), deletion=None, cells={gone: Cell(timestamp_us=1, value=b"x")}),
        Row(marker=None, deletion=None, cells={kept: Cell(timestamp_us=1, value=bytes(4))}),
    ]
    items = sorted(
        (stored_key(first, {"p": number.to_bytes(4)}), encode_row(row, 1, first.layouts[0]))
        for number, row in enumerate(rows)
    )
    rig.run(build(rig, first, "layer0", (items, WHOLE_RING, True)))
    for columns in (select_values(("p", "kept", "new")), select_values("p")):
        query = ScanQuery(schema=newer, columns=columns, now_s=1)
        found = rig.run(scanned(rig, [(items, WHOLE_RING, True)], query))
        assert sorted(row["p"] for row in found) == [1, 2]
        assert found == expected([(items, WHOLE_RING, True)], query)
    rig.close()


def test_a_damaged_block_is_an_error_and_never_a_short_answer(tmp_path: Path) -> None:
    """The engine alone would end in silence there."""
    rig = Rig("rocks", tmp_path)
    rows = RandomRows(1, Mix(plain=1.0, partitions=20_000, rows=9_000))
    items = rows.layer()

    async def main() -> None:
        await build_layer(rig.engine, rig.path("layer0"), items, layer_facts(MIXED, items))
        file = max((tmp_path / "layer0").glob("*.sst"), key=lambda path: path.stat().st_size)
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(bytes(content))
        with pytest.raises(LayerDamaged):
            await scanned(rig, [(items, WHOLE_RING, False)], ScanQuery(schema=MIXED, columns=ALL, now_s=0))

    asyncio.run(main())
    rig.close()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ((), "at least one"),
        (select_values(["nope"]), "no column 'nope'"),
        (select_values("xx"), "called 'x'"),
        ((ColumnSelector("x"), ColumnSelector("w", alias="x")), "called 'x'"),
        ((ColumnSelector("p", SelectorKind.WRITETIME),), "writetime on PRIMARY KEY part p"),
        ((ColumnSelector("c", SelectorKind.TTL),), "ttl on PRIMARY KEY part c"),
        ((ColumnSelector("m", SelectorKind.WRITETIME),), "writetime on non-frozen collection m"),
    ],
)
def test_what_cannot_be_asked(columns: tuple[ColumnSelector, ...], words: str, tmp_path: Path) -> None:
    query = ScanQuery(schema=MIXED, columns=columns, now_s=0)
    for layers in ([], rig_layers(tmp_path)):
        with pytest.raises(InvalidRequest, match=words):
            list(scan_rows(layers, query))
    with pytest.raises(InvalidRequest, match=words):
        output_schema(query)


def test_nothing_is_asked_of_no_layers() -> None:
    assert list(scan_rows([], ScanQuery(schema=MIXED, columns=ALL, now_s=0))) == []


def rig_layers(tmp_path: Path) -> list[Any]:
    rig = Rig("memory", tmp_path)

    async def main() -> list[Any]:
        await build(rig, MIXED, "layer0", (RandomRows(1).layer(), WHOLE_RING, False))
        return list(await open_scan(rig.engine, rig.disk, [(rig.path("layer0"), (WHOLE_RING,))]))

    layers = rig.run(main())
    rig.close()
    return layers
