"""Stored keys sort like their values, decode to them, and no key is a prefix of another."""

import functools
import ipaddress
import math
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.model.byte_comparable import canonical, decode_comparable, encode_comparable
from ebla.model.cql_types import parse_type
from ebla.model.schema import Column, ColumnKind
from ebla.model.values import decode, encode
from ebla.storage.codec.key_codec import (
    KeyKind,
    decode_clustering,
    decode_token,
    encode_clustering,
    head_key,
    partition_key_of,
    partition_prefix,
    prefix_end,
    row_key,
    split_key,
)

TEXT = st.text(st.characters(min_codepoint=0, max_codepoint=300), max_size=5)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=4) | st.decimals(
    allow_nan=False, allow_infinity=False, min_value=-5, max_value=5
)
UUID1 = st.builds(
    lambda time, rest: uuid.UUID(
        fields=(time & 0xFFFFFFFF, time >> 32 & 0xFFFF, time >> 48 & 0xFFF, 0x80, 0, rest), version=1
    ),
    st.integers(0, (1 << 60) - 1),
    st.integers(0, (1 << 48) - 1),
)


def number_order(value: float) -> tuple[int, float, float]:
    if math.isnan(value):
        return (1, 0.0, 0.0)
    return (0, value, math.copysign(1, value))


def uuid_order(value: uuid.UUID) -> tuple[int, ...]:
    version = value.int >> 76 & 0xF  # whatever the variant is, which `value.version` does not ignore
    first = value.time if version == 1 else value.int >> 64
    return (version, first, value.int & (1 << 64) - 1)


def time_order(value: uuid.UUID) -> tuple[int, ...]:
    return (value.time, *(byte - 256 if byte > 127 else byte for byte in value.bytes[8:]))


def tuple_order(value: tuple[int | None, str | None]) -> tuple[tuple[bool, int], tuple[bool, bytes]]:
    number, text = value
    return (number is not None, number or 0), (text is not None, (text or "").encode())


ORDERS: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "text": (TEXT, lambda value: value.encode()),
    "blob": (st.binary(max_size=5), bytes),
    "int": (st.integers(-(1 << 31), (1 << 31) - 1), int),
    "bigint": (INT64, int),
    "tinyint": (st.integers(-128, 127), int),
    "date": (st.integers(-(1 << 31), (1 << 31) - 1), int),
    "timestamp": (INT64, int),
    "boolean": (st.booleans(), bool),
    "double": (st.floats(), number_order),
    "float": (st.floats(width=32), number_order),
    "varint": (st.integers() | st.integers(-300, 300), int),
    "decimal": (DECIMALS, Decimal),
    "inet": (st.ip_addresses(), lambda value: ipaddress.ip_address(value).packed),
    "timeuuid": (UUID1, time_order),
    "uuid": (st.uuids() | UUID1, uuid_order),
    "frozen<list<text>>": (st.lists(TEXT, max_size=3), lambda value: [part.encode() for part in value]),
    "frozen<list<int>>": (st.lists(st.integers(-3, 3), max_size=3), list),
    "tuple<int, text>": (st.tuples(st.none() | st.integers(0, 2), st.none() | TEXT), tuple_order),
}


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_bytes_sort_as_values(name: str, data: st.DataObject) -> None:
    strategy, order = ORDERS[name]
    kind = parse_type(name)
    left, right = data.draw(strategy), data.draw(strategy)
    one, other = (encode_comparable(kind, encode(kind, value)) for value in (left, right))
    assert (one < other) == (order(left) < order(right)), (left, right)
    assert (one == other) == (order(left) == order(right)), (left, right)


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_values_read_back_and_end_where_they_end(name: str, data: st.DataObject) -> None:
    kind = parse_type(name)
    wire = encode(kind, data.draw(ORDERS[name][0]))
    ordered = encode_comparable(kind, wire)
    back, end = decode_comparable(kind, ordered + data.draw(st.binary(max_size=4)), 0)
    assert end == len(ordered)
    assert encode_comparable(kind, back) == ordered
    if name not in ("decimal", "double", "float"):
        assert back == wire
    elif name == "decimal":
        assert decode(kind, back) == decode(kind, wire)


COLUMNS = tuple(
    Column(name=name, type=parse_type(kind), kind=ColumnKind.CLUSTERING, position=position, descending=descending)
    for position, (name, kind, descending) in enumerate([("a", "text", False), ("b", "int", True), ("c", "text", True)])
)


def clustering_compare(left: tuple[str, int, str], right: tuple[str, int, str]) -> int:
    for one, other, column in zip(_comparable(left), _comparable(right), COLUMNS):
        if one != other:
            return (-1 if one < other else 1) * (-1 if column.descending else 1)
    return 0


def _comparable(row: tuple[str, int, str]) -> tuple[bytes, bytes, bytes]:
    return row[0].encode(), bytes((row[1] + 128,)), row[2].encode()


ROWS = st.tuples(TEXT, st.integers(-3, 3), TEXT)


def clustering(values: tuple[str, int, str]) -> bytes:
    return encode_clustering(COLUMNS, [encode(column.type, value) for column, value in zip(COLUMNS, values)])


@settings(max_examples=200, deadline=None)
@given(st.lists(ROWS, max_size=6))
def test_clustering_order_with_descending_columns(rows: list[tuple[str, int, str]]) -> None:
    by_bytes = sorted(rows, key=clustering)
    assert [clustering(row) for row in by_bytes] == [
        clustering(row) for row in sorted(rows, key=functools.cmp_to_key(clustering_compare))
    ]
    for row in rows:
        wire = [encode(column.type, value) for column, value in zip(COLUMNS, row)]
        assert decode_clustering(COLUMNS, clustering(row)) == wire
        assert decode_clustering(COLUMNS, encode_clustering(COLUMNS, wire[:2])) == wire[:2]


@settings(max_examples=200, deadline=None)
@given(INT64, st.binary(max_size=20), ROWS, st.integers(0, 3))
def test_a_prefix_covers_exactly_what_begins_with_it(
    token: int, key: bytes, row: tuple[str, int, str], columns: int
) -> None:
    prefix = partition_prefix(token, key)
    full = row_key(prefix, clustering(row))
    wire = [encode(column.type, value) for column, value in zip(COLUMNS, row)]
    slice_start = row_key(prefix, encode_clustering(COLUMNS, wire[:columns]))
    assert slice_start <= full < prefix_end(slice_start)
    assert prefix < head_key(prefix) < full < prefix_end(prefix)
    assert split_key(full) == (prefix, KeyKind.ROW, clustering(row))
    assert partition_key_of(full) == key
    assert decode_token(full) == token


@given(INT64, INT64)
def test_tokens_sort_as_numbers(left: int, right: int) -> None:
    one, other = (partition_prefix(token, b"") for token in (left, right))
    assert (one < other) == (left < right)


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 3)), max_size=6), st.randoms(use_true_random=False))
def test_equal_collections_have_one_canonical_form(pairs: list[tuple[int, int]], random: Any) -> None:
    kind = parse_type("map<int, int>")
    unique = list(dict(pairs).items())
    shuffled = random.sample(unique, len(unique))
    one, other = (canonical(kind, encode(kind, value)) for value in (unique, shuffled))
    assert one == other
    assert decode(kind, one) == sorted(unique)
