"""Values in wire form agree with what the drivers send, and bad bytes are refused."""

import ipaddress
import uuid
from decimal import Decimal
from typing import Any

import pytest
from cassandra import cqltypes
from cassandra.util import Duration as DriverDuration
from hypothesis import given
from hypothesis import strategies as st

from ebla.model.cql_types import parse_type
from ebla.model.errors import InvalidRequest
from ebla.model.values import Duration, decode, decode_vint, encode, encode_vint, validation_error

CASES: list[tuple[str, Any, Any]] = [
    ("ascii", "plain", "plain"),
    ("bigint", -(1 << 63), -(1 << 63)),
    ("blob", b"\x00\xff", b"\x00\xff"),
    ("boolean", True, True),
    ("decimal", Decimal("-12.340"), Decimal("-12.340")),
    ("decimal", Decimal("1E+5"), Decimal("1E+5")),
    ("double", 1.5, 1.5),
    ("duration", Duration(1, 2, 3_000_000_000), DriverDuration(1, 2, 3_000_000_000)),
    ("float", -0.25, -0.25),
    ("inet", "::1", "::1"),
    ("int", 2**31 - 1, 2**31 - 1),
    ("smallint", -1, -1),
    ("text", "žluťoučký", "žluťoučký"),
    ("timeuuid", uuid.UUID("0f6d4f50-6b1b-11ee-b962-0242ac120002"), uuid.UUID("0f6d4f50-6b1b-11ee-b962-0242ac120002")),
    ("tinyint", -128, -128),
    ("uuid", uuid.UUID(int=5), uuid.UUID(int=5)),
    ("varint", -(1 << 127) - 1, -(1 << 127) - 1),
    ("varint", 128, 128),
    ("list<int>", [3, 1, 2], [3, 1, 2]),
    ("frozen<map<text, int>>", {"b": 2, "a": 1}, {"b": 2, "a": 1}),
    ("tuple<int, text>", (1, None), (1, None)),
]


@pytest.mark.parametrize(("name", "ours", "theirs"), CASES)
def test_the_wire_form_is_the_drivers(name: str, ours: Any, theirs: Any) -> None:
    driver = cqltypes.lookup_casstype(_driver_name(name))
    kind = parse_type(name)
    assert encode(kind, ours) == driver.to_binary(theirs, 4)
    assert validation_error(kind, encode(kind, ours)) is None


@pytest.mark.parametrize(("name", "value", "_theirs"), CASES)
def test_there_and_back(name: str, value: Any, _theirs: Any) -> None:
    kind = parse_type(name)
    back = decode(kind, encode(kind, value))
    if isinstance(value, dict):
        back = dict(back)
    expected = ipaddress.ip_address(value) if name == "inet" else value
    assert back == expected


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("int", b"\0\0\0"),
        ("text", b"\xff"),
        ("ascii", b"\x80"),
        ("smallint", b""),
        ("decimal", b"\0\0\0\0"),
        ("inet", b"\0" * 5),
        ("time", b"\xff" * 8),
        ("timeuuid", bytes(16)),
        ("duration", b"\x02"),
        ("duration", encode_vint(1) + encode_vint(-1) + encode_vint(0)),
        ("list<int>", b"\0\0\0\2\0\0\0\4\0\0\0\1"),
        ("list<int>", b"\0\0\0\1\xff\xff\xff\xff"),
        ("list<int>", b"\0"),
        ("map<int, text>", b"\0\0\0\1\0\0\0\4\0\0\0\1\0\0\0\1\xff"),
        ("tuple<int>", b"\0\0\0\4\0\0\0\1\0\0\0\4\0\0\0\1"),
    ],
)
def test_bytes_that_are_no_value_are_refused_in_words(name: str, data: bytes) -> None:
    assert validation_error(parse_type(name), data)


@pytest.mark.parametrize(("name", "value"), [("int", "x"), ("int", 2**31), ("text", 5), ("tuple<int>", (1, 2))])
def test_python_values_that_do_not_fit_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match="is not a value of type"):
        encode(parse_type(name), value)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_vints_there_and_back(value: int) -> None:
    data = encode_vint(value)
    assert decode_vint(data, 0) == (value, len(data))
    assert data == cqltypes.vints_pack([value])


@pytest.mark.parametrize(
    "name",
    ["int", "list<text>", "frozen<set<uuid>>", "map<text, frozen<list<int>>>", "frozen<tuple<int, frozen<set<text>>>>"],
)
def test_a_types_name_reads_back(name: str) -> None:
    assert str(parse_type(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nope",
        "list",
        "list<",
        "list<int",
        "list<int>>",
        "map<int>",
        "list<list<int>>",
        "set<duration>",
        "frozen<int>",
        "int;",
    ],
)
def test_names_that_are_no_type(name: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_type(name)


def _driver_name(name: str) -> str:
    return {
        "list<int>": "ListType(Int32Type)",
        "frozen<map<text, int>>": "FrozenType(MapType(UTF8Type,Int32Type))",
        "tuple<int, text>": "TupleType(Int32Type,UTF8Type)",
        "ascii": "AsciiType",
        "bigint": "LongType",
        "blob": "BytesType",
        "boolean": "BooleanType",
        "decimal": "DecimalType",
        "double": "DoubleType",
        "duration": "DurationType",
        "float": "FloatType",
        "inet": "InetAddressType",
        "int": "Int32Type",
        "smallint": "ShortType",
        "text": "UTF8Type",
        "timeuuid": "TimeUUIDType",
        "tinyint": "ByteType",
        "uuid": "UUIDType",
        "varint": "IntegerType",
    }[name]
