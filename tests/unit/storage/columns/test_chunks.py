"""Columns by vector operations say the same as the codecs that go row by row."""

from random import Random

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.storage.random_rows import (
    KEY_KINDS,
    MIXED,
    VALUE_KINDS,
    RandomRows,
    arrow_column,
    column,
    layer_facts,
    random_value,
    stored_key,
    table,
)

from ebla.model.cql_types import parse_type
from ebla.model.errors import Corruption, InvalidRequest, Stale, TooLarge
from ebla.model.rows import Cell, Row, RowMarker
from ebla.model.schema import ColumnKind, with_column, without_column
from ebla.model.values import join_elements, join_fields
from ebla.storage.codec.key_codec import split_key
from ebla.storage.codec.row_codec import decode_row, encode_row, is_plain
from ebla.storage.columns.chunks import (
    KEY,
    STORED,
    ChunkFlag,
    ChunkShape,
    chunk_facts,
    chunk_of,
    field_name,
    flags_of,
    stored_values,
    timestamps_of,
    whole_shape,
    with_completeness,
)
from ebla.storage.columns.key_columns import encode_keys, partition_prefixes
from ebla.storage.merge.chunk_merge import same_rows

ROWS = 60


def cells_of(value: bytes) -> dict[int, bytes | None]:
    return {} if not is_plain(value) else {at: one.value for at, one in decode_row(value, MIXED.layouts).cells.items()}


def binary(values: list[bytes]) -> pa.Array:
    return pa.array(values, pa.binary())


def same(one: pa.Array, other: pa.Array) -> bool:
    """Also of NaNs, which equal nothing: by what they look like."""
    return bool(one.equals(other)) or (one.type == other.type and str(one.to_pylist()) == str(other.to_pylist()))


@pytest.mark.parametrize("kind", VALUE_KINDS)
@pytest.mark.parametrize("nulls", [0.0, 0.4, 1.0])
def test_values_of_every_type_there_and_back(kind: str, nulls: float) -> None:
    rng = Random(f"{kind}{nulls}")
    schema = table(
        column("p", "int", ColumnKind.PARTITION_KEY), column("a", "int"), column("b", kind), column("c", "text")
    )
    keys, values, expected = [], [], []
    for number in range(ROWS):
        cells = {name: random_value(rng, schema.column(name).type) for name in "abc" if rng.random() >= nulls}
        expected.append(cells.get("b"))
        row = Row(
            marker=RowMarker(number),
            deletion=None,
            cells={schema.column(name).number: Cell(timestamp_us=number, value=data) for name, data in cells.items()},
        )
        keys.append(stored_key(schema, {"p": number.to_bytes(4)}))
        values.append(encode_row(row, 1, schema.layouts[0]))
    shape = whole_shape(schema)
    chunk = chunk_of(shape, binary(keys), binary(values))
    chunk.validate(full=True)
    assert same(chunk.column(field_name(schema.column("b").number)), arrow_column(parse_type(kind), expected))
    assert timestamps_of(chunk).tolist() == list(range(ROWS))
    assert chunk.column(STORED).null_count == ROWS
    assert stored_values(shape, chunk).to_pylist() == values


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("int", b"", None),
        ("uuid", b"", None),
        ("varint", b"", None),
        ("inet", b"", None),
        ("text", b"", ""),
        ("frozen<list<int>>", join_elements([bytes(4), b""], 2), [0, None]),
        ("frozen<set<varint>>", join_elements([b"", b"\1"], 2), [None, "1"]),
        ("frozen<map<int, int>>", join_elements([b"", bytes(4), bytes(4), b""], 2), [(0, None)]),
        ("tuple<int, text>", join_fields([b"", b"a"]), {"_1": None, "_2": "a"}),
    ],
)
def test_an_empty_value_is_null_in_columns_and_kept_in_rows(kind: str, value: bytes, shown: object) -> None:
    schema = table(column("p", "int", ColumnKind.PARTITION_KEY), column("a", "int"), column("b", kind))
    number = schema.column("b").number
    row = Row(marker=None, deletion=None, cells={number: Cell(timestamp_us=5, value=value)})
    keys, values = [stored_key(schema, {"p": bytes(4)})], [encode_row(row, 1, schema.layouts[0])]
    shape = whole_shape(schema)
    chunk = chunk_of(shape, binary(keys), binary(values))
    chunk.validate(full=True)
    assert chunk.column(field_name(number)).to_pylist() == [shown]
    assert stored_values(shape, chunk).to_pylist() == values
    other = chunk_of(shape, binary([*keys, keys[0] + b"x"]), binary([*values, values[0]]))
    assert same_rows(shape, other.slice(0, 1), other.slice(1)).all()
    assert not flags_of(chunk)[0] & ChunkFlag.BARE
    newer = with_column(schema, column("d", "int"))
    added = pa.RecordBatch.from_arrays(
        [chunk.column(one.name) if one.name in chunk.schema.names else pa.nulls(1, one.type)
         for one in whole_shape(newer).arrow_schema], schema=whole_shape(newer).arrow_schema
    )  # fmt: skip
    assert flags_of(with_completeness(whole_shape(newer), added)).tolist() == flags_of(chunk).tolist()


@pytest.mark.parametrize("kind", KEY_KINDS)
@pytest.mark.parametrize("desc", [False, True])
def test_clustering_of_every_type_there_and_back(kind: str, desc: bool) -> None:
    rng = Random(kind)
    schema = table(
        column("p", kind, ColumnKind.PARTITION_KEY),
        column("q", "text", ColumnKind.PARTITION_KEY, 1),
        column("c", kind, ColumnKind.CLUSTERING, 0, desc=desc),
        column("d", "smallint", ColumnKind.CLUSTERING, 1, desc=not desc),
    )
    rows = [{one.name: random_value(rng, one.type) for one in schema.columns} for _ in range(ROWS)]
    typed = {one.name: arrow_column(one.type, [row[one.name] for row in rows]) for one in schema.columns}
    encoded = encode_keys(schema, typed, ROWS)
    expected = [stored_key(schema, row) for row in rows]
    assert encoded.to_pylist() == expected
    assert partition_prefixes(encoded).to_pylist() == [split_key(key)[0] for key in expected]
    value = encode_row(Row(marker=RowMarker(1)), 1, schema.layouts[0])
    chunk = chunk_of(whole_shape(schema), encoded, binary([value] * ROWS))
    for one in schema.columns:
        found = chunk.column(field_name(one.number))
        if "decimal" in kind:  # in a key, 1.0 and 1.00 are one value, which reads back as one of them
            assert encode_keys(schema, {**typed, one.name: found}, ROWS).equals(encoded)
        elif kind in ("double", "float") and one.name in "pc":
            assert np.array_equal(found.to_numpy(), typed[one.name].to_numpy(), equal_nan=True)
        else:
            assert same(found, typed[one.name]), one.name


def test_a_single_partition_key_of_fixed_width_and_of_none() -> None:
    for kind in ("bigint", "text"):
        schema = table(column("p", kind, ColumnKind.PARTITION_KEY), column("v", "int"))
        rng = Random(kind)
        values = [random_value(rng, parse_type(kind)) or b"x" for _ in range(ROWS)]
        keys = encode_keys(schema, {"p": arrow_column(parse_type(kind), values)}, ROWS)
        assert keys.to_pylist() == [stored_key(schema, {"p": value}) for value in values]


@pytest.mark.parametrize("seed", range(8))
def test_rows_of_all_shapes_keep_their_places(seed: int) -> None:
    items = RandomRows(seed).layer() or RandomRows(seed + 100).layer()
    keys, values = zip(*items)
    for shape in (whole_shape(MIXED), ChunkShape(MIXED)):
        chunk = chunk_of(shape, binary(list(keys)), binary(list(values)))
        chunk.validate(full=True)
        assert chunk.column(KEY).to_pylist() == list(keys)
        assert stored_values(shape, chunk).to_pylist() == list(values)
        plain = [is_plain(value) for value in values]
        assert (flags_of(chunk) & ChunkFlag.PLAIN).astype(bool).tolist() == plain
        if not shape.is_raw:
            numbers = [MIXED.column(name).number for name in "xy"]
            empty = [any(cells.get(number) == b"" for number in numbers) for cells in map(cells_of, values)]
            expected = [one and not reduced for one, reduced in zip(plain, empty, strict=True)]
            assert chunk.column(STORED).is_null().to_pylist() == expected
        assert chunk_facts(chunk, MIXED) == layer_facts(MIXED, items)


def test_rows_of_older_schema_versions_are_read_by_the_newest() -> None:
    first = table(column("p", "int", ColumnKind.PARTITION_KEY), column("gone", "text"), column("kept", "int"))
    second = with_column(first, column("new", "text"))
    third = without_column(second, "gone")
    gone, kept, new = (second.column(name).number for name in ("gone", "kept", "new"))
    key = [stored_key(first, {"p": number.to_bytes(4)}) for number in range(4)]
    values = [
        encode_row(
            Row(
                marker=RowMarker(1),
                deletion=None,
                cells={gone: Cell(timestamp_us=1, value=b"old"), kept: Cell(timestamp_us=1, value=bytes(4))},
            ),
            1,
            first.layouts[0],
        ),
        encode_row(
            Row(marker=None, deletion=None, cells={gone: Cell(timestamp_us=2, value=b"old")}), 1, first.layouts[0]
        ),
        encode_row(
            Row(
                marker=None,
                deletion=None,
                cells={kept: Cell(timestamp_us=3, value=bytes(4)), new: Cell(timestamp_us=3, value=b"n")},
            ),
            2,
            second.layouts[1],
        ),
        encode_row(
            Row(
                marker=None,
                deletion=None,
                cells={kept: Cell(timestamp_us=4, value=bytes(4)), new: Cell(timestamp_us=4, value=b"m")},
            ),
            3,
            third.layouts[2],
        ),
    ]
    shape = whole_shape(third)
    chunk = chunk_of(shape, binary(key), binary(values))
    assert chunk.column(field_name(kept)).to_pylist() == [0, None, 0, 0]
    assert chunk.column(field_name(new)).to_pylist() == [None, None, "n", "m"]
    complete = (flags_of(chunk) & ChunkFlag.COMPLETE) != 0
    bare = (flags_of(chunk) & ChunkFlag.BARE) != 0
    assert complete.tolist() == [False, False, True, True]
    assert bare.tolist() == [False, True, False, False]
    assert flags_of(with_completeness(shape, chunk)).tolist() == flags_of(chunk).tolist()
    assert [decode_row(value, third.layouts).cells.keys() for value in stored_values(shape, chunk).to_pylist()] == [
        {kept}, set(), {kept, new}, {kept, new}
    ]  # fmt: skip
    with pytest.raises(Stale, match="schema version 3"):
        chunk_of(whole_shape(second), binary(key), binary(values))


def test_damaged_values_and_other_formats_are_refused() -> None:
    schema = table(column("p", "int", ColumnKind.PARTITION_KEY), column("a", "text"), column("b", "int"))
    row = Row(
        marker=RowMarker(1),
        deletion=None,
        cells={
            schema.column("a").number: Cell(timestamp_us=1, value=b"abc"),
            schema.column("b").number: Cell(timestamp_us=1, value=bytes(4)),
        },
    )
    good = encode_row(row, 1, schema.layouts[0])
    key = stored_key(schema, {"p": bytes(4)})
    shape = whole_shape(schema)
    longer = good.replace(b"\0\0\0\3abc", b"\0\0\0\x7fabc")
    for bad in (good[:-1], good + b"\0", longer, b"\x02" + good[1:], b"\x01"):
        with pytest.raises(Corruption):
            chunk_of(shape, binary([key, key + b"\0"]), binary([bad, bad]))
    with pytest.raises(Corruption, match="key"):
        chunk_of(shape, binary([key[:9]]), binary([good]))
    assert not len(chunk_of(shape, binary([]), binary([])))


def test_keys_that_cannot_be_are_refused() -> None:
    schema = table(column("p", "text", ColumnKind.PARTITION_KEY), column("c", "int", ColumnKind.CLUSTERING))
    numbers = pa.array([1], pa.int32())
    with pytest.raises(InvalidRequest, match="missing"):
        encode_keys(schema, {"p": pa.array(["a"])}, 1)
    with pytest.raises(InvalidRequest, match="null in 1"):
        encode_keys(schema, {"p": pa.array([None], pa.string()), "c": numbers}, 1)
    with pytest.raises(InvalidRequest, match="empty"):
        encode_keys(schema, {"p": pa.array([""]), "c": numbers}, 1)
    with pytest.raises(TooLarge, match="65536"):
        encode_keys(schema, {"p": pa.array(["a" * 65_536]), "c": numbers}, 1)
