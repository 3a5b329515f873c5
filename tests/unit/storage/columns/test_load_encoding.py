"""Batches of columns as the rows that CQL would have written."""

import datetime
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.storage.random_rows import MIXED, column, stored_key, stored_prefix, table

from ebla.model.cql_types import parse_type
from ebla.model.errors import InvalidRequest
from ebla.model.rows import Cell, CollectionCells, Deletion, PartitionHead, Row, RowMarker, list_path
from ebla.model.schema import TTL_S_MAX, ColumnKind, TableSchema
from ebla.model.values import encode
from ebla.storage.codec.key_codec import head_key
from ebla.storage.codec.row_codec import RowFlag, decode_head, decode_row, encode_head, encode_row, is_plain
from ebla.storage.columns import load_encoding
from ebla.storage.columns.load_encoding import (
    WriteStamp,
    encode_partition_deletions,
    encode_row_deletions,
    encode_upserts,
)
from ebla.storage.layers.layer import Item
from ebla.storage.merge.chunk_merge import sort_rows

NUMBER = {one.name: one.number for one in MIXED.columns}


def batch(**columns: Any) -> pa.RecordBatch:
    arrays = {}
    for name, values in columns.items():
        kind = {"c": pa.int32(), "x": pa.int64(), "z": pa.binary()}.get(name)
        if name == "m":
            kind = pa.map_(pa.string(), pa.int32())
        arrays[name] = pa.array(values, kind)
    return pa.record_batch(arrays)


def encode_batch(schema: TableSchema, rows: pa.RecordBatch, stamp: WriteStamp) -> pa.RecordBatch:
    return sort_rows(schema, *encode_upserts(schema, rows, stamp))


def items(rows: pa.RecordBatch) -> list[Item]:
    return list(zip(*(column.to_pylist() for column in rows.columns)))


def key(partition: str, clustering: int, text: str = "t") -> bytes:
    return stored_key(MIXED, {"p": partition.encode(), "c": clustering.to_bytes(4, signed=True), "d": text.encode()})


def test_rows_come_sorted_and_a_null_is_no_cell() -> None:
    given = batch(p=["b", "a", "a"], c=[1, 2, -2], d=["t", "t", "t"], w=["one", None, ""], x=[1, 2, None])
    found = items(encode_batch(MIXED, given, WriteStamp(timestamp_us=7, at_s=1)))
    assert [one for one, _ in found] == sorted([key("b", 1), key("a", 2), key("a", -2)])
    rows = {one: decode_row(value, MIXED.layouts) for one, value in found}
    assert all(is_plain(value) for _, value in found)
    assert rows[key("b", 1)] == Row(
        marker=RowMarker(7),
        deletion=None,
        cells={
            NUMBER["w"]: Cell(timestamp_us=7, value=b"one"),
            NUMBER["x"]: Cell(timestamp_us=7, value=(1).to_bytes(4)),
        },
    )
    assert rows[key("a", 2)].cells == {NUMBER["x"]: Cell(timestamp_us=7, value=(2).to_bytes(4))}
    assert rows[key("a", -2)].cells == {NUMBER["w"]: Cell(timestamp_us=7, value=b"")}


def test_a_null_that_deletes() -> None:
    given = batch(p=["a", "b"], c=[1, 1], d=["t", "t"], w=[None, "v"])
    found = dict(items(encode_batch(MIXED, given, WriteStamp(timestamp_us=7, at_s=3, nulls_delete=True))))
    deleted = decode_row(found[key("a", 1)], MIXED.layouts)
    assert deleted == Row(
        marker=RowMarker(7), deletion=None, cells={NUMBER["w"]: Cell(timestamp_us=7, value=None, ttl_s=0, at_s=3)}
    )
    assert is_plain(found[key("b", 1)])


def test_a_key_given_twice_is_merged() -> None:
    given = batch(p=["a", "a", "a"], c=[1, 1, 1], d=["t", "t", "t"], w=["b", "c", None], x=[5, None, 4])
    found = items(encode_batch(MIXED, given, WriteStamp(timestamp_us=7, at_s=1)))
    assert [one for one, _ in found] == [key("a", 1)]
    cells = decode_row(found[0][1], MIXED.layouts).cells
    assert cells == {
        NUMBER["w"]: Cell(timestamp_us=7, value=b"c"),
        NUMBER["x"]: Cell(timestamp_us=7, value=(5).to_bytes(4)),
    }


def test_collections_are_cells_of_their_own() -> None:
    given = batch(p=["a", "b"], c=[1, 1], d=["t", "t"], m=[[("k", 3)], None], l=[[9, 8], None])
    found = dict(items(encode_batch(MIXED, given, WriteStamp(timestamp_us=7, at_s=3))))
    row = decode_row(found[key("a", 1)], MIXED.layouts)
    nine, eight = (Cell(timestamp_us=7, value=number.to_bytes(4)) for number in (9, 8))
    assert row.collections == {
        NUMBER["m"]: CollectionCells(Deletion(6, 3), {b"k": Cell(timestamp_us=7, value=(3).to_bytes(4))}),
        NUMBER["l"]: CollectionCells(Deletion(6, 3), {list_path(7, 0): nine, list_path(7, 1): eight}),
    }
    assert is_plain(found[key("b", 1)])
    deleting = dict(items(encode_batch(MIXED, given, WriteStamp(timestamp_us=7, at_s=3, nulls_delete=True))))
    assert decode_row(deleting[key("b", 1)], MIXED.layouts).collections[NUMBER["m"]] == CollectionCells(Deletion(7, 3))


def test_static_cells_go_to_the_head() -> None:
    given = batch(p=["a", "a", "b"], c=[1, 2, 1], d=["t", "t", "t"], s=["x", "y", None])
    found = dict(items(encode_batch(MIXED, given, WriteStamp(timestamp_us=7, at_s=3))))
    heads = {one: decode_head(value) for one, value in found.items() if value[1] & RowFlag.HEAD}
    assert heads == {
        head_key(stored_prefix([b"a"])): PartitionHead(
            static=Row(cells={NUMBER["s"]: Cell(timestamp_us=7, value=b"y")})
        )
    }
    assert len(found) == 4


def test_list_elements_stand_in_the_order_of_writes() -> None:
    paths = [list_path(-5, 1), list_path(3, 0), list_path(3, 1), list_path(3, 256), list_path(4, 0)]
    assert paths == sorted(paths)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"p": ["a"], "c": [1], "d": ["t"], "nope": [1]}, "no column 'nope'"),
        ({"p": ["a"], "c": [1]}, "'d' of ks.t is missing"),
        ({"p": [None], "c": [1], "d": ["t"]}, "null in 1"),
        ({"p": ["a"], "c": [1], "d": ["t"], "x": [1 << 40]}, "cannot be written as int"),
        ({"p": ["a"], "c": [1], "d": ["t"], "y": ["word"]}, "cannot be written as double"),
    ],
)
def test_what_does_not_fit_is_refused(columns: dict[str, Any], reason: str) -> None:
    given = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    with pytest.raises(InvalidRequest, match=reason):
        encode_batch(MIXED, given, WriteStamp(timestamp_us=1, at_s=1))


@pytest.mark.parametrize(
    ("kind", "bad", "good"),
    [
        ("time", pa.array([86_400_000_000_000]).view(pa.time64("ns")), datetime.time(1)),
        ("timeuuid", pa.array([uuid.UUID(int=0, version=4).bytes], pa.binary(16)), uuid.UUID(int=0, version=1).bytes),
        ("ascii", pa.array(["ž"]), "z"),
    ],
)
def test_values_that_arrow_allows_and_cql_does_not(kind: str, bad: pa.Array, good: Any) -> None:
    schema = table(column("p", "int", ColumnKind.PARTITION_KEY), column("v", kind))
    with pytest.raises(InvalidRequest, match=f"not a valid {kind}"):
        encode_batch(
            schema, pa.record_batch({"p": pa.array([1], pa.int32()), "v": bad}), WriteStamp(timestamp_us=1, at_s=1)
        )
    values = pa.array([None, good], bad.type)
    assert (
        len(
            encode_batch(
                schema,
                pa.record_batch({"p": pa.array([1, 2], pa.int32()), "v": values}),
                WriteStamp(timestamp_us=1, at_s=1),
            )
        )
        == 2
    )


def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_encoding, "BATCH_BYTES_MAX", 10)
    with pytest.raises(InvalidRequest, match="at most 10"):
        encode_batch(MIXED, batch(p=["aaaaaa"], c=[1], d=["tttttt"]), WriteStamp(timestamp_us=1, at_s=1))


def test_frozen_collections_are_canonical() -> None:
    schema = table(column("p", "int", ColumnKind.PARTITION_KEY), column("v", "frozen<set<text>>"))
    given = pa.record_batch({"p": pa.array([1], pa.int32()), "v": pa.array([["b", "a", "b"]])})
    (item,) = items(encode_batch(schema, given, WriteStamp(timestamp_us=1, at_s=1)))
    expected = encode(parse_type("frozen<set<text>>"), ["a", "b"])
    assert decode_row(item[1], schema.layouts).cells == {
        schema.column("v").number: Cell(timestamp_us=1, value=expected)
    }


# ---- TTLs, deletions, static cells: against rows made one by one


def rows_of(encoded: tuple[pa.Array, pa.Array]) -> dict[bytes, Row]:
    """Of keys that are there once each."""
    keys, values = (column.to_pylist() for column in encoded)
    assert len(set(keys)) == len(keys)
    return {one: decode_row(value, MIXED.layouts) for one, value in zip(keys, values)}


def test_a_ttl_is_of_the_marker_and_of_every_cell() -> None:
    given = batch(p=["a", "b"], c=[1, 1], d=["t", "t"], w=["v", None], m=[[("k", 3)], None])
    found = rows_of(encode_upserts(MIXED, given, WriteStamp(timestamp_us=7, at_s=100, ttl_s=50)))
    marker = RowMarker(7, 50, 150)
    elements = CollectionCells(
        Deletion(6, 100), {b"k": Cell(timestamp_us=7, value=(3).to_bytes(4), ttl_s=50, at_s=150)}
    )
    assert found[key("a", 1)] == Row(
        marker=marker,
        deletion=None,
        cells={NUMBER["w"]: Cell(timestamp_us=7, value=b"v", ttl_s=50, at_s=150)},
        collections={NUMBER["m"]: elements},
    )
    assert found[key("b", 1)] == Row(marker=marker)


def test_each_row_may_have_a_ttl_of_its_own() -> None:
    given = batch(p=["a", "b", "c"], c=[1, 1, 1], d=["t", "t", "t"], w=["v", "v", "v"])
    encoded = encode_upserts(MIXED, given, WriteStamp(timestamp_us=7, at_s=100, ttl_s=9), np.array([5, 0, 70_000]))
    found = rows_of(encoded)
    assert found[key("a", 1)] == Row(
        marker=RowMarker(7, 5, 105),
        deletion=None,
        cells={NUMBER["w"]: Cell(timestamp_us=7, value=b"v", ttl_s=5, at_s=105)},
    )
    assert found[key("c", 1)].marker == RowMarker(7, 70_000, 70_100)
    plain = dict(zip(*(column.to_pylist() for column in encoded)))[key("b", 1)]
    assert is_plain(plain), "without a TTL it is as plain as any"


@pytest.mark.parametrize("ttl_s", [-1, TTL_S_MAX + 1])
def test_ttls_are_bounded(ttl_s: int) -> None:
    given = batch(p=["a"], c=[1], d=["t"])
    with pytest.raises(InvalidRequest, match=f"TTL of {ttl_s} s"):
        encode_upserts(MIXED, given, WriteStamp(timestamp_us=7, at_s=100, ttl_s=ttl_s))


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("timestamp_us", [-5, 0, 200, 1 << 40, 1_700_000_000_000_000])
def test_rows_by_vectors_are_byte_for_byte_what_the_codec_writes(size: int, timestamp_us: int) -> None:
    given = batch(p=["a", "b", "c"], c=[1, 1, 1], d=["t", "t", "t"], w=["x" * size, None, "y"], x=[1, 2, None],
                  z=[None, None, b"z"])  # fmt: skip
    stamp = WriteStamp(timestamp_us=timestamp_us, at_s=1_700_000_000, nulls_delete=True, ttl_s=1_000)
    for value in encode_upserts(MIXED, given, stamp)[1].to_pylist():
        row = decode_row(value, MIXED.layouts)
        assert value == encode_row(row, MIXED.version, MIXED.layouts[-1])
        assert row.cells[NUMBER["z"]] in (
            Cell(timestamp_us=timestamp_us, value=None, ttl_s=0, at_s=stamp.at_s),
            Cell(timestamp_us=timestamp_us, value=b"z", ttl_s=1_000, at_s=stamp.at_s + 1_000),
        )


def test_many_cells_in_a_row_that_expires() -> None:
    wide = table(column("p", "int", ColumnKind.PARTITION_KEY), *(column(f"v{place:02}", "int") for place in range(20)))
    given = {name.name: pa.array([1, None if place % 3 else 2], pa.int32()) for place, name in enumerate(wide.columns)}
    given["p"] = pa.array([1, 2], pa.int32())
    for value in encode_upserts(wide, pa.record_batch(given), WriteStamp(timestamp_us=7, at_s=9, ttl_s=1))[
        1
    ].to_pylist():
        assert value == encode_row(decode_row(value, wide.layouts), wide.version, wide.layouts[-1])


def test_rows_are_deleted_by_their_keys_alone() -> None:
    given = batch(p=["a", "b"], c=[1, 2], d=["t", "t"], w=["v", None], m=[[("k", 3)], None])
    found = rows_of(
        encode_row_deletions(MIXED, given, WriteStamp(timestamp_us=7, at_s=100, nulls_delete=True, ttl_s=3))
    )
    assert found == dict.fromkeys([key("a", 1), key("b", 2)], Row(deletion=Deletion(7, 100)))
    with pytest.raises(InvalidRequest, match=r"'d' of ks\.t is null in 1"):
        encode_row_deletions(MIXED, batch(p=["a"], c=[1], d=[None]), WriteStamp(timestamp_us=7, at_s=100))


def test_partitions_are_deleted_by_the_partition_key_alone() -> None:
    given = batch(p=["a", "b"], c=[None, 2], w=["v", None])
    keys, values = encode_partition_deletions(MIXED, given, WriteStamp(timestamp_us=7, at_s=100))
    assert keys.to_pylist() == [head_key(stored_prefix([b"a"])), head_key(stored_prefix([b"b"]))]
    assert [decode_head(value) for value in values.to_pylist()] == [PartitionHead(Deletion(7, 100))] * 2


def test_static_cells_need_no_row() -> None:
    given = batch(p=["a", "b"], c=[None, 1], d=[None, "t"], s=["x", "y"], w=[None, "v"])
    keys, _ = encode_upserts(MIXED, given, WriteStamp(timestamp_us=7, at_s=3))
    heads = [head_key(stored_prefix([name])) for name in (b"a", b"b")]
    assert sorted(keys.to_pylist()) == sorted([*heads, key("b", 1)])
    only = encode_upserts(MIXED, batch(p=["a"], s=["x"]), WriteStamp(timestamp_us=7, at_s=3, ttl_s=2))
    assert only[0].to_pylist() == heads[:1]
    assert decode_head(only[1][0].as_py()) == PartitionHead(
        static=Row(cells={NUMBER["s"]: Cell(timestamp_us=7, value=b"x", ttl_s=2, at_s=5)})
    )
    with pytest.raises(InvalidRequest, match="a value in 'w' and no clustering key"):
        encode_upserts(MIXED, batch(p=["a"], c=[None], d=[None], s=["x"], w=["v"]), WriteStamp(timestamp_us=7, at_s=3))
    with pytest.raises(InvalidRequest, match=r"'d' of ks\.t is null in 1"):
        encode_upserts(MIXED, batch(p=["a"], c=[1], d=[None], s=["x"]), WriteStamp(timestamp_us=7, at_s=3))


def test_a_head_by_vectors_is_byte_for_byte_what_the_codec_writes() -> None:
    for stamp in (
        WriteStamp(timestamp_us=7, at_s=3),
        WriteStamp(timestamp_us=7, at_s=3, nulls_delete=True),
        WriteStamp(timestamp_us=7, at_s=3, ttl_s=6),
    ):
        given = batch(p=["a", "b", "b", "b"], c=[1, 2, 3, 4], d=["t"] * 4, s=["x", None, "z", "z"])
        _, values = encode_upserts(MIXED, given, stamp)
        found = [value for value in values.to_pylist() if value[1] & RowFlag.HEAD]
        assert all(value == encode_head(decode_head(value), MIXED.version) for value in found)
        assert len(found) == (3 if stamp.nulls_delete else 2), "the same twice in a row is said once"


def test_nulls_inside_collections_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="not a value of type"):
        encode_upserts(MIXED, batch(p=["a"], c=[1], d=["t"], m=[[("k", None)]]), WriteStamp(timestamp_us=7, at_s=3))
    with pytest.raises(InvalidRequest, match="not a value of type"):
        encode_upserts(MIXED, batch(p=["a"], c=[1], d=["t"], l=[[1, None]]), WriteStamp(timestamp_us=7, at_s=3))
