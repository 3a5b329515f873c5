"""Rows of replicas merged, and what each of them lacks: as one by one."""

from collections.abc import Iterator, Sequence
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows

from ebla.model.errors import InvalidRequest
from ebla.model.token import WHOLE_RING, Token, TokenRange
from ebla.pipeline.row_tasks import ReplicaMerge, clip_rows
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.codec.row_file import rows_batch
from ebla.storage.layers.layer import Item
from ebla.storage.merge.row_merge import merge_streams

SEEDS = st.integers(0, 1 << 32)


def batches(rows: Sequence[Item], rng: Random) -> Iterator[pa.RecordBatch]:
    at = 0
    while at < len(rows):
        some = rows[at : at + rng.randrange(1, 9)]
        at += len(some)
        yield rows_batch(some)


def items(found: Sequence[pa.RecordBatch]) -> list[Item]:
    return [item for batch in found for item in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist())]


@given(SEEDS, st.integers(1, 4))
@settings(max_examples=60, deadline=None, derandomize=True, print_blob=False)
def test_merged_and_lacking_are_as_one_by_one(seed: int, count: int) -> None:
    rng = Random(seed)
    drawn = RandomRows(seed, Mix(plain=0.6, partitions=6, rows=40))
    has = [drawn.layer() for _ in range(count)]
    expected = list(merge_streams(has, MIXED))
    replicas = ReplicaMerge([batches(rows, rng) for rows in has], MIXED, range(count))
    merged: list[pa.RecordBatch] = []
    lacking: list[list[pa.RecordBatch]] = [[] for _ in has]
    for rows in replicas.merged():
        merged.append(rows)
        for place, found in enumerate(lacking):
            found.append(replicas.lacking(place, rows))
    assert items(merged) == expected
    for rows_of_one, found in zip(has, lacking):
        known = dict(rows_of_one)
        assert items(found) == [(key, value) for key, value in expected if known.get(key) != value]


def test_one_replica_needs_no_schema_and_several_do() -> None:
    rows = RandomRows(1).layer()
    assert items(list(ReplicaMerge([batches(rows, Random(1))], None, ()).merged())) == rows
    with pytest.raises(InvalidRequest, match="schema"):
        ReplicaMerge([iter(()), iter(())], None, ())


@given(SEEDS, st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=60, deadline=None, derandomize=True, print_blob=False)
def test_rows_are_clipped_to_a_range(seed: int, start: int, end: int) -> None:
    rows = RandomRows(seed, Mix(plain=0.9, partitions=20, rows=40)).layer()
    if not rows:
        return
    to = TokenRange(Token(start), Token(end))
    assert items(clip_rows(rows_batch(rows), to)) == [item for item in rows if decode_token(item[0]) in to]
    assert items(clip_rows(rows_batch(rows), WHOLE_RING)) == rows
