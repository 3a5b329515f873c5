"""Chunks merge to the same rows as streams that are merged one row at a time."""

import math
import struct
from collections.abc import Iterator, Sequence
from random import Random

import pyarrow as pa
import pytest
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows, column, stored_key, table

from ebla.model.rows import Cell, PartitionHead, Row
from ebla.model.schema import ColumnKind
from ebla.model.values import join_elements
from ebla.storage.codec.row_codec import RowFlag, decode_head, decode_row, encode_row
from ebla.storage.columns.chunks import KEY, ChunkShape, chunk_of, stored_values, whole_shape
from ebla.storage.layers.layer import Item
from ebla.storage.merge import chunk_merge as subject
from ebla.storage.merge.chunk_merge import merge_chunks, merge_duplicates, same_rows
from ebla.storage.merge.row_merge import merge_streams


def chunk(shape: ChunkShape, items: Sequence[Item]) -> pa.RecordBatch:
    keys, values = [key for key, _ in items], [value for _, value in items]
    return chunk_of(shape, pa.array(keys, pa.binary()), pa.array(values, pa.binary()))


def stream(shape: ChunkShape, items: Sequence[Item], rng: Random) -> Iterator[pa.RecordBatch]:
    """In chunks of any size, empty ones among them."""
    start = 0
    while start < len(items):
        size = rng.randrange(8)
        yield chunk(shape, items[start : start + size])
        start += size


def decoded(items: Sequence[Item]) -> list[tuple[bytes, Row | PartitionHead]]:
    return [
        (key, decode_head(value) if value[1] & RowFlag.HEAD else decode_row(value, MIXED.layouts))
        for key, value in items
    ]


def items_of(shape: ChunkShape, chunks: Sequence[pa.RecordBatch]) -> list[Item]:
    found: list[Item] = []
    for one in chunks:
        found += zip(one.column(KEY).to_pylist(), stored_values(shape, one).to_pylist())
    return found


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("raw", [True, False])
def test_chunks_merge_as_rows_do(seed: int, raw: bool) -> None:
    rng = Random(seed)
    shape = ChunkShape(MIXED) if raw else whole_shape(MIXED)
    mix = Mix(plain=rng.choice([1.0, 0.8, 0.3]), partitions=rng.choice([2, 30]), times=rng.choice([3, 40]))
    rows = RandomRows(seed, mix)
    layers = [rows.layer() for _ in range(rng.randrange(1, 5))]
    layers.append(layers[0])
    expected = decoded(list(merge_streams(layers, MIXED)))
    merged = list(merge_chunks(shape, [stream(shape, layer, rng) for layer in layers]))
    assert decoded(items_of(shape, merged)) == expected


@pytest.mark.parametrize("raw", [True, False])
def test_a_newer_whole_row_wins_without_being_looked_at(raw: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs once per row where the newest row has every cell, or where both say the same."""
    monkeypatch.setattr(subject, "merge_all", None)
    shape = ChunkShape(MIXED) if raw else whole_shape(MIXED)
    rows = RandomRows(1, Mix(plain=1.0, partitions=100, times=1_000_000, rows=200))
    numbers = [MIXED.column(name).number for name in "wxyz"]
    whole = [item for item in rows.layer() if set(decode_row(item[1], MIXED.layouts).cells) == set(numbers)]
    assert len(whole) > 10
    older = [(key, value[:1] + bytes((RowFlag.PLAIN,)) + value[2:4] + bytes(8) + value[12:]) for key, value in whole]
    for layers in (
        [older, whole],
        [whole, older, older[:1]],
        [whole, whole],
        [whole, [*whole[:3], *older[3:5], *whole[5:]], whole],
        [whole, whole[1:], whole[:-1]],
    ):
        merged = list(merge_chunks(shape, [iter([chunk(shape, layer)]) for layer in layers]))
        assert items_of(shape, merged) == whole


def test_replicas_that_know_the_same_are_not_even_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "merge_duplicates", None)
    for shape in (ChunkShape(MIXED), whole_shape(MIXED)):
        items = RandomRows(7, Mix(plain=0.5, rows=300)).layer()
        merged = list(merge_chunks(shape, [stream(shape, items, Random(number)) for number in range(3)]))
        assert items_of(shape, merged) == items


def test_rows_are_the_same_by_their_bytes() -> None:
    kinds = ("double", "float", "text", "int", "frozen<list<double>>")
    schema = table(
        column("p", "int", ColumnKind.PARTITION_KEY), *(column(f"v{at}", one) for at, one in enumerate(kinds))
    )
    shape = whole_shape(schema)
    zero, minus, nan, quiet = (struct.pack(">d", one) for one in (0.0, -0.0, math.nan, math.inf))

    def row(value: bytes | None, element: bytes, timestamp_us: int = 1) -> bytes:
        wire = [value, value and value[:4], b"x", bytes(4), join_elements([element], 1)]
        cells = {at + 1: Cell(timestamp_us=timestamp_us, value=one) for at, one in enumerate(wire) if one is not None}
        return encode_row(Row(marker=None, deletion=None, cells=cells), 1, schema.layouts[-1])

    def chunk_with(values: list[bytes]) -> pa.RecordBatch:
        keys = [stored_key(schema, {"p": bytes(4)})] * len(values)
        return chunk_of(shape, pa.array(keys, pa.binary()), pa.array(values, pa.binary()))

    first = [row(zero, zero), row(nan, nan), row(None, zero), row(None, zero), row(nan, zero), row(zero, zero)]
    second = [row(minus, zero), row(nan, nan), row(None, zero), row(zero, zero), row(nan, minus), row(zero, zero, 2)]
    assert same_rows(shape, chunk_with(first), chunk_with(second)).tolist() == [False, True, True, False, False, False]
    assert same_rows(shape, chunk_with([row(quiet, nan)]), chunk_with([row(quiet, nan)])).all()


def test_keys_in_any_order_become_a_chunk() -> None:
    shape = ChunkShape(MIXED)
    items = RandomRows(3, Mix(partitions=3, rows=60)).layer()
    mixed_up = items[:]
    Random(4).shuffle(mixed_up)
    assert items_of(shape, [merge_duplicates(shape, chunk(shape, mixed_up))]) == items
