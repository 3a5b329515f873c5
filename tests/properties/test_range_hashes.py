"""Hashes of ranges are equal for replicas with equal data, whatever their layers, chunks and encodings; one cell that
differs changes the hash of its part of the range and no other."""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.naive_compaction import collected
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows, column

from ebla.model.errors import InvalidRequest
from ebla.model.rows import Cell, Row, RowMarker
from ebla.model.schema import TableSchema, with_column, without_column
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, WHOLE_RING, Token, TokenRange
from ebla.storage.codec.key_codec import decode_token, in_spans, key_spans
from ebla.storage.codec.row_codec import decode_row, encode_row, is_head
from ebla.storage.codec.row_digest import canonical_value
from ebla.storage.columns.chunks import ChunkShape, chunk_of
from ebla.storage.compaction.tombstone_gc import GcRule, GcSpan, TombstoneCollector
from ebla.storage.layers.layer import Item
from ebla.storage.layers.layer_facts import ALWAYS_US
from ebla.storage.merge.chunk_merge import merge_chunks
from ebla.storage.merge.row_merge import merge_streams, merge_values, without_deleted_rows
from ebla.storage.scan.range_hashes import HASH_BYTES, BucketBounds, RangeHasher

SEEDS = st.integers(0, 1 << 32)
EXAMPLES = settings(max_examples=30, deadline=None, derandomize=True, print_blob=False)
Line = tuple[int, bytes, int]


def written(seed: int) -> list[Item]:
    """Writes in any order, of which keys may be there often."""
    rows = RandomRows(seed, Mix(plain=Random(seed).choice([0.9, 0.5, 0.1]), partitions=8, rows=40))
    return [item for _ in range(3) for item in rows.layer()]


def layered(writes: Sequence[Item], schema: TableSchema, rng: Random) -> list[list[Item]]:
    """The same writes, spread over random layers."""
    layers: list[dict[bytes, bytes]] = [{} for _ in range(rng.randrange(1, 5))]
    for key, value in rng.sample(writes, len(writes)):
        layer = rng.choice(layers)
        layer[key] = merge_values(layer[key], value, schema) if key in layer else value
    return [sorted(layer.items()) for layer in layers]


def chunks_of(items: Sequence[Item], schema: TableSchema, rng: Random) -> Iterator[pa.RecordBatch]:
    at = 0
    while at < len(items):
        some = items[at : at + rng.randrange(1, 30)]
        at += len(some)
        keys, values = zip(*some)
        yield chunk_of(ChunkShape(schema), pa.array(keys, pa.binary()), pa.array(values, pa.binary()))


def hashed(
    layers: Sequence[Sequence[Item]], schema: TableSchema, asked: tuple[TokenRange, int, int], rng: Random
) -> list[Line]:
    token_range, buckets, gc_before_s = asked
    spans = key_spans(token_range)
    hashes = RangeHasher(schema, token_range, buckets, gc_before_s)
    for span in spans:
        within = [[item for item in layer if in_spans(item[0], (span,))] for layer in layers]
        for chunk in merge_chunks(ChunkShape(schema), [chunks_of(items, schema, rng) for items in within]):
            hashes.add(chunk)
    found = hashes.result()
    assert found.column("bucket").to_pylist() == list(range(buckets))
    return list(zip(range(buckets), found.column("hash").to_pylist(), found.column("rows").to_pylist()))


def one_by_one(items: Sequence[Item], schema: TableSchema, asked: tuple[TokenRange, int, int]) -> list[Line]:
    """The same, computed row by row."""
    token_range, buckets, gc_before_s = asked
    collector = TombstoneCollector(GcRule((GcSpan(WHOLE_RING, gc_before_s),), ALWAYS_US))
    parts = token_range.split(buckets)
    lines = []
    canonical = [
        (key, said, is_head(value))
        for key, value in without_deleted_rows(items, schema)
        if (said := canonical_value(value, schema, collector)) is not None
    ]
    for number, part in enumerate(parts):
        streams = [sha256() for _ in range(4)]
        rows = 0
        for key, value, head in canonical:
            if decode_token(key) in part:
                for stream, data in zip(
                    streams, (len(key).to_bytes(4, "little"), key, len(value).to_bytes(4, "little"))
                ):
                    stream.update(data)
                streams[3].update(value)
                rows += not head
        digests = b"".join(stream.digest() for stream in streams)
        lines.append((number, sha256(digests).digest()[:HASH_BYTES], rows))
    return lines


def drawn_range(rng: Random) -> TokenRange:
    start, end = (Token(rng.randrange(TOKEN_MIN + 1, TOKEN_MAX)) for _ in range(2))
    return rng.choice([WHOLE_RING, TokenRange(start, end), TokenRange(start, start)])


@EXAMPLES
@given(SEEDS)
def test_hashes_do_not_depend_on_layers_or_chunks(seed: int) -> None:
    rng = Random(seed)
    writes = written(seed)
    asked = (WHOLE_RING, rng.choice([1, 2, 7, 64]), rng.randrange(25))
    first = hashed(layered(writes, MIXED, rng), MIXED, asked, rng)
    assert hashed(layered(writes, MIXED, rng), MIXED, asked, rng) == first
    merged = list(merge_streams(layered(writes, MIXED, rng), MIXED))
    assert one_by_one(merged, MIXED, asked) == first


@EXAMPLES
@given(SEEDS)
def test_parts_of_any_range_are_those_that_it_is_split_into(seed: int) -> None:
    rng = Random(seed)
    token_range, buckets = drawn_range(rng), rng.choice([1, 3, 16])
    asked = (token_range, buckets, 0)
    writes = written(seed)
    rows = [count for _, _, count in hashed(layered(writes, MIXED, rng), MIXED, asked, rng)]
    merged = without_deleted_rows(merge_streams(layered(writes, MIXED, rng), MIXED), MIXED)
    collector = TombstoneCollector(GcRule((GcSpan(WHOLE_RING, 0),), ALWAYS_US))
    said = [key for key, value in merged if not is_head(value) and canonical_value(value, MIXED, collector) is not None]
    assert rows == [sum(decode_token(key) in part for key in said) for part in token_range.split(buckets)]


@EXAMPLES
@given(SEEDS)
def test_a_replica_that_has_collected_says_the_same(seed: int) -> None:
    """Data that a compaction with the same bound has dropped does not count on the other replicas."""
    rng = Random(seed)
    before_s = rng.randrange(25)
    layers = layered(written(seed), MIXED, rng)
    rule = TombstoneCollector(GcRule((GcSpan(WHOLE_RING, before_s),), ALWAYS_US))
    compacted = list(collected(merge_streams(layers, MIXED), MIXED, rule))
    asked = (WHOLE_RING, 4, before_s)
    assert hashed([compacted], MIXED, asked, rng) == hashed(layers, MIXED, asked, rng)


@EXAMPLES
@given(SEEDS)
def test_one_changed_cell_changes_the_hash_of_its_part_alone(seed: int) -> None:
    rng = Random(seed)
    layers = layered(written(seed), MIXED, rng)
    merged = list(merge_streams(layers, MIXED))
    rows = [place for place, (_, value) in enumerate(merged) if not is_head(value)]
    if not rows:
        return
    place = rng.choice(rows)
    key, value = merged[place]
    number = MIXED.column("x").number
    newest = Row(marker=RowMarker(10), deletion=None, cells={number: Cell(timestamp_us=10, value=b"\0\0\0\7")})
    changed = list(merged)
    changed[place] = (key, merge_values(value, encode_row(newest, 1, MIXED.layouts[-1]), MIXED))
    asked = (WHOLE_RING, 8, 0)
    before, after = hashed([merged], MIXED, asked, rng), hashed([changed], MIXED, asked, rng)
    differing = [one[0] for one, other in zip(before, after) if one != other]
    part = int(BucketBounds(WHOLE_RING, 8).numbers(np.array([decode_token(key) - TOKEN_MIN], np.uint64))[0])
    assert decode_token(key) in WHOLE_RING.split(8)[part]
    assert differing == [part]


@EXAMPLES
@given(SEEDS)
def test_rows_of_an_older_version_say_what_they_say_in_todays(seed: int) -> None:
    rng = Random(seed)
    dropped = rng.choice("wxyz")
    schema = without_column(with_column(MIXED, column("n", "text")), dropped)
    writes = written(seed)
    rewritten = [
        (key, value if is_head(value) else encode_row(decode_row(value, schema.layouts), 2, schema.layouts[1]))
        for key, value in writes
    ]
    asked = (WHOLE_RING, 4, 0)
    old = layered(writes, schema, rng)
    assert hashed(old, schema, asked, rng) == hashed(layered(rewritten, schema, rng), schema, asked, rng)
    assert one_by_one(list(merge_streams(old, schema)), schema, asked) == hashed(old, schema, asked, rng)


def test_nothing_has_a_hash_too_and_buckets_are_bounded() -> None:
    found = RangeHasher(MIXED, WHOLE_RING, 3, 0).result()
    assert len(set(found.column("hash").to_pylist())) == 1
    assert found.column("rows").to_pylist() == [0, 0, 0]
    for buckets in (0, 1 << 20):
        with pytest.raises(InvalidRequest, match="buckets"):
            RangeHasher(MIXED, WHOLE_RING, buckets, 0)
