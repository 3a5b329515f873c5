"""The stored formats, pinned byte by byte.

A difference here means that folders written before cannot be read, or are read as something else. It needs a new
format byte and a way to read the old one, not new files (which `python -m tests.unit.storage.test_golden` writes).
"""

import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.storage.random_rows import arrow_column, column, table

from ebla.model.cql_types import parse_type
from ebla.model.errors import Corruption
from ebla.model.rows import Cell, CollectionCells, Deletion, PartitionHead, RangeDeletion, Row, RowMarker
from ebla.model.schema import Column, ColumnKind
from ebla.model.token import composite_key, token_of
from ebla.model.values import encode
from ebla.storage.codec.key_codec import (
    decode_clustering,
    encode_clustering,
    head_key,
    partition_key_of,
    partition_prefix,
    row_key,
    split_key,
)
from ebla.storage.codec.row_codec import RowFlag, decode_head, decode_row, encode_head, encode_row
from ebla.storage.columns.chunks import chunk_of, field_name, stored_values, whole_shape
from ebla.storage.columns.key_columns import encode_keys

GOLDEN = Path(__file__).parent / "golden"
LAYOUT = (3, 4, 5)

CLUSTERING: dict[str, list[Any]] = {
    "ascii": ["", "a\0b"],
    "bigint": [-1, 1 << 40],
    "blob": [b"", b"\0\xff"],
    "boolean": [False, True],
    "date": [-1, 20_000],
    "decimal": [Decimal("-12.340"), Decimal(0), Decimal("1E+5")],
    "double": [-1.5, 0.0, float("nan")],
    "float": [-1.5, float("inf")],
    "frozen<list<int>>": [[], [3, 1]],
    "frozen<map<text, int>>": [{"b": 2, "a": 1}],
    "frozen<set<int>>": [[2, 1]],
    "inet": ["127.0.0.1", "::1"],
    "int": [-(1 << 31), 7],
    "smallint": [-2],
    "text": ["", "žluť"],
    "time": [1],
    "timestamp": [-1, 1_700_000_000_000],
    "timeuuid": [uuid.UUID("0f6d4f50-6b1b-11ee-b962-0242ac120002")],
    "tinyint": [-128, 127],
    "tuple<int, text>": [(1, None), (None, "x")],
    "uuid": [uuid.UUID("0f6d4f50-6b1b-11ee-b962-0242ac120002"), uuid.UUID("936da01f-9abd-4d9d-80c7-02af85c822a8")],
    "varint": [-(1 << 70), 0, 128],
}

ROWS: dict[str, Row] = {
    "plain": Row(
        marker=RowMarker(5),
        deletion=None,
        cells={3: Cell(timestamp_us=5, value=b"abc"), 5: Cell(timestamp_us=5, value=b"")},
    ),
    "plain without marker": Row(marker=None, deletion=None, cells={4: Cell(timestamp_us=-1, value=b"\0\0\0\1")}),
    "only a marker": Row(marker=RowMarker(1 << 50)),
    "two timestamps": Row(marker=RowMarker(5), deletion=None, cells={3: Cell(timestamp_us=6, value=b"abc")}),
    "a time to live": Row(
        marker=RowMarker(5, 60, 1_700_000_060),
        deletion=None,
        cells={3: Cell(timestamp_us=5, value=b"abc", ttl_s=60, at_s=1_700_000_060)},
    ),
    "a deleted cell": Row(
        marker=None, deletion=None, cells={3: Cell(timestamp_us=5, value=None, ttl_s=0, at_s=1_700_000_000)}
    ),
    "a deleted row": Row(marker=None, deletion=Deletion(9, 1_700_000_000)),
    "collections": Row(
        marker=None,
        deletion=None,
        cells={},
        collections={
            4: CollectionCells(
                Deletion(4, 1),
                {b"k": Cell(timestamp_us=5, value=b"v"), b"l": Cell(timestamp_us=5, value=None, ttl_s=0, at_s=2)},
            )
        },
    ),
    "empty": Row(),
}

HEADS: dict[str, PartitionHead] = {
    "a deleted partition": PartitionHead(Deletion(9, 1_700_000_000)),
    "a deleted slice": PartitionHead(
        None, (RangeDeletion(b"a", b"b", Deletion(9, 1)), RangeDeletion(b"c", None, Deletion(8, 1)))
    ),
    "static cells": PartitionHead(
        None, (), Row(marker=None, deletion=None, cells={2: Cell(timestamp_us=5, value=b"s")})
    ),
}


def key_lines() -> dict[str, bytes]:
    lines = {}
    for parts in ([b"k"], [bytes(8)], [b"a", b"", bytes(4)]):
        key = composite_key(parts)
        prefix = partition_prefix(token_of(key), key)
        name = "/".join(part.hex() for part in parts)
        lines[f"head of {name}"] = head_key(prefix)
        lines[f"row of {name}"] = row_key(prefix)
    for kind, values in CLUSTERING.items():
        for descending in (False, True):
            one = Column(name="c", type=parse_type(kind), kind=ColumnKind.CLUSTERING, position=0, descending=descending)
            for value in values:
                wire = encode(one.type, value)
                order = "descending" if descending else "ascending"
                lines[f"{kind} {value} {order}"] = encode_clustering([one], [wire])
    return lines


def row_lines() -> dict[str, bytes]:
    lines = {f"row: {name}": encode_row(row, 1, LAYOUT) for name, row in ROWS.items()}
    return {**lines, **{f"head: {name}": encode_head(head, 1) for name, head in HEADS.items()}}


FILES: dict[str, Callable[[], dict[str, bytes]]] = {"keys.txt": key_lines, "rows.txt": row_lines}


def stored(name: str) -> dict[str, bytes]:
    lines = (GOLDEN / name).read_text().splitlines()
    return {line.partition(" = ")[0]: bytes.fromhex(line.partition(" = ")[2]) for line in lines}


@pytest.mark.parametrize("name", sorted(FILES))
def test_the_format_has_not_changed(name: str) -> None:
    assert FILES[name]() == stored(name)


def test_stored_rows_read_back() -> None:
    for name, data in stored("rows.txt").items():
        kind, _, what = name.partition(": ")
        if kind == "row":
            assert decode_row(data, [LAYOUT]) == ROWS[what]
            assert bool(data[1] & RowFlag.PLAIN) == (what.startswith("plain") or what == "only a marker")
        else:
            assert decode_head(data) == HEADS[what]


def test_stored_keys_read_back() -> None:
    kinds = sorted(CLUSTERING, key=len, reverse=True)
    for name, data in stored("keys.txt").items():
        if name.startswith(("head of ", "row of ")):
            parts = [bytes.fromhex(part) for part in name.partition(" of ")[2].split("/")]
            assert partition_key_of(data) == composite_key(parts)
            assert split_key(data)[0] == data[:-1]
            continue
        kind = next(kind for kind in kinds if name.startswith(f"{kind} "))
        one = Column(
            name="c",
            type=parse_type(kind),
            kind=ColumnKind.CLUSTERING,
            position=0,
            descending=name.endswith("descending"),
        )
        assert encode_clustering([one], decode_clustering([one], data)) == data


def test_columns_give_the_same_bytes() -> None:
    """The vector operations write the pinned bytes too."""
    keys = stored("keys.txt")
    for kind, values in CLUSTERING.items():
        for descending in (False, True):
            schema = table(
                column("p", "text", ColumnKind.PARTITION_KEY),
                column("c", kind, ColumnKind.CLUSTERING, desc=descending),
            )
            typed = arrow_column(parse_type(kind), [encode(parse_type(kind), value) for value in values])
            found = encode_keys(schema, {"p": pa.array(["k"] * len(values)), "c": typed}, len(values)).to_pylist()
            order = "descending" if descending else "ascending"
            prefix = keys["row of 6b"]
            if kind not in ("frozen<map<text, int>>", "frozen<set<int>>"):  # columns put these into order first
                assert found == [prefix + keys[f"{kind} {value} {order}"] for value in values]
    schema = table(
        column("a", "int", ColumnKind.PARTITION_KEY),
        column("b", "int", ColumnKind.PARTITION_KEY, 1),
        column("c", "int", ColumnKind.PARTITION_KEY, 2),
        column("x", "blob"), column("y", "blob"), column("z", "blob"),
    )  # fmt: skip
    assert schema.layouts == (LAYOUT,)
    rows = stored("rows.txt")
    plain = [rows["row: plain"], rows["row: plain without marker"]]
    key = partition_prefix(0, composite_key([bytes(4)] * 3))
    chunk = chunk_of(whole_shape(schema), pa.array([row_key(key)] * 2, pa.binary()), pa.array(plain, pa.binary()))
    assert chunk.column(field_name(3)).to_pylist() == [b"abc", None]
    assert stored_values(whole_shape(schema), chunk).to_pylist() == plain


def test_a_newer_format_is_refused() -> None:
    row = stored("rows.txt")["row: plain"]
    newer = b"\x02" + row[1:]
    for read in (lambda: decode_row(newer, [LAYOUT]), lambda: decode_head(newer)):
        with pytest.raises(Corruption, match="format 2"):
            read()


def write() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name, lines in FILES.items():
        text = "".join(f"{what} = {data.hex()}\n" for what, data in lines().items())
        (GOLDEN / name).write_text(text)


if __name__ == "__main__":
    write()
