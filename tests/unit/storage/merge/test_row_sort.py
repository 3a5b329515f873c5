"""Rows of a run: every key once, in order, merged as all rows are."""

from random import Random

import pyarrow as pa
import pytest
from tests.unit.storage.random_rows import MIXED, column, table

from ebla.model.schema import ColumnKind
from ebla.storage.columns.load_encoding import WriteStamp, encode_row_deletions, encode_upserts
from ebla.storage.merge.chunk_merge import drop_repeats, sort_rows
from ebla.storage.merge.row_merge import merge_all

NARROW = table(column("p", "int", ColumnKind.PARTITION_KEY), column("v", "text"))


@pytest.mark.parametrize("seed", range(20))
def test_keys_come_once_and_in_order(seed: int) -> None:
    rng = Random(seed)
    count = rng.choice([1, 2, 50, 400])
    keys = rng.choice([1, 5, 10_000])
    given = pa.record_batch(
        {
            "p": pa.array([str(rng.randrange(1 + keys // 5)) for _ in range(count)]),
            "c": pa.array([rng.randrange(keys) for _ in range(count)], pa.int32()),
            "d": pa.array(["t"] * count),
            "w": pa.array([rng.choice([None, "v", "w"]) for _ in range(count)]),
            "s": pa.array([rng.choice([None, "s", "u"]) for _ in range(count)]),
        }
    )
    parts = [
        encode_upserts(MIXED, given, WriteStamp(timestamp_us=7, at_s=3, ttl_s=rng.choice([0, 5]))),
        encode_row_deletions(MIXED, given.slice(0, rng.randrange(count + 1)), WriteStamp(timestamp_us=7, at_s=3)),
    ]
    parts = [part for part in parts if len(part[0])]
    all_keys = pa.concat_arrays([one for one, _ in parts])
    all_values = pa.concat_arrays([one for _, one in parts])
    expected: dict[bytes, list[bytes]] = {}
    for one, value in zip(all_keys.to_pylist(), all_values.to_pylist()):
        expected.setdefault(one, []).append(value)
    found = sort_rows(MIXED, all_keys, all_values)
    assert found.column(0).to_pylist() == sorted(expected)
    assert found.column(1).to_pylist() == [merge_all(expected[one], MIXED) for one in sorted(expected)]


def test_the_same_many_times_is_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given = pa.record_batch({"p": pa.array([1, 2] * 50, pa.int32()), "v": pa.array(["v"] * 100)})
    monkeypatch.setattr("ebla.storage.merge.chunk_merge.merge_all", None)
    assert len(sort_rows(NARROW, *encode_upserts(NARROW, given, WriteStamp(timestamp_us=1, at_s=1)))) == 2


def test_repeats_go() -> None:
    keys = pa.array([b"a", b"a", b"b", b"b", b"a"], pa.binary())
    values = pa.array([b"1", b"1", b"1", b"2", b"1"], pa.binary())
    found = drop_repeats(keys, values)
    assert list(zip(*(one.to_pylist() for one in found))) == [(b"a", b"1"), (b"b", b"1"), (b"b", b"2"), (b"a", b"1")]
    alone = drop_repeats(keys.slice(0, 1), values.slice(0, 1))
    assert len(alone[0]) == 1
