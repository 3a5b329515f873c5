"""Stored bytes as text, and keys that people type."""

import uuid

import pytest

from ebla.model.cql_types import CqlType, ListType, MapType, Scalar, ScalarType, SetType, TupleType
from ebla.model.errors import InvalidRequest
from ebla.model.identity import TableId
from ebla.model.schema import Column, ColumnKind, TableSchema, new_schema
from ebla.model.values import encode
from ebla.storage.inspection.value_text import SchemaNames, bytes_text, value_text

INT, TEXT = ScalarType(Scalar.INT), ScalarType(Scalar.TEXT)


def table(*kinds: CqlType) -> TableSchema:
    columns = [
        Column(name=f"k{place}", type=kind, kind=ColumnKind.PARTITION_KEY, position=place)
        for place, kind in enumerate(kinds)
    ]
    collections = (
        Column(name="m", type=MapType(INT, TEXT), kind=ColumnKind.REGULAR),
        Column(name="s", type=SetType(INT), kind=ColumnKind.REGULAR),
        Column(name="l", type=ListType(INT), kind=ColumnKind.REGULAR),
    )
    return new_schema(TableId(uuid.UUID(int=1)), "ks", "t", (*columns, *collections))


@pytest.mark.parametrize(
    ("scalar", "text", "shown"),
    [
        (Scalar.TEXT, "ann", "ann"),
        (Scalar.INT, "-5", "-5"),
        (Scalar.BIGINT, "12", "12"),
        (Scalar.VARINT, "99999999999999999999", "99999999999999999999"),
        (Scalar.DOUBLE, "1.5", "1.5"),
        (Scalar.DECIMAL, "1.50", "1.50"),
        (Scalar.BOOLEAN, "True", "True"),
        (Scalar.INET, "10.0.0.1", "10.0.0.1"),
        (Scalar.UUID, "00000000-0000-0000-0000-000000000007", "00000000-0000-0000-0000-000000000007"),
    ],
)
def test_keys_of_each_type(scalar: Scalar, text: str, shown: str) -> None:
    naming = SchemaNames(table(ScalarType(scalar)))
    assert naming.partition_key(naming.parse_key(text)) == shown


def test_keys_of_several_columns() -> None:
    naming = SchemaNames(table(TEXT, INT))
    assert naming.parse_key("ann,7") == b"\0\x03ann\0\0\x04\0\0\0\x07\0"
    assert naming.partition_key(naming.parse_key("ann,7")) == "ann,7"
    assert naming.parse_key("0x00ff") == b"\x00\xff"


@pytest.mark.parametrize(
    ("kind", "text"),
    [(INT, "x"), (INT, "99999999999"), (ScalarType(Scalar.UUID), "7"), (ScalarType(Scalar.BOOLEAN), "maybe"),
     (ScalarType(Scalar.INET), "here"), (ScalarType(Scalar.DECIMAL), "one"), (TupleType((INT,)), "1"), (INT, "0xz")],
)  # fmt: skip
def test_what_is_no_key(kind: CqlType, text: str) -> None:
    with pytest.raises(InvalidRequest):
        SchemaNames(table(kind)).parse_key(text)


def test_values() -> None:
    assert value_text(INT, encode(INT, 7)) == "7"
    assert value_text(INT, b"\x01") == "0x01", "not four bytes"
    assert value_text(ScalarType(Scalar.BLOB), b"abc") == "0x616263"
    assert value_text(None, b"abc") == "abc"
    assert [bytes_text(data) for data in (b"", b"\xff", b"a\nb", "é".encode())] == ["0x", "0xff", "0x610a62", "é"]


def test_collections() -> None:
    schema = table(INT)
    naming = SchemaNames(schema)
    m, s, element = (schema.column(name).number for name in "msl")
    assert (naming.path(m, encode(INT, 3)), naming.element(m, b"three")) == ("3", "three")
    assert (naming.path(s, encode(INT, 3)), naming.element(s, b"")) == ("3", "0x")
    assert (naming.path(element, b"\x01\x02"), naming.element(element, encode(INT, 4))) == ("0x0102", "4")
    assert naming.column(m) == "m"
    assert naming.column(99) == "#99"


def test_without_a_schema() -> None:
    naming = SchemaNames(None)
    assert naming.parse_key("ann") == b"ann"
    assert naming.partition_key(b"ann") == "ann"
    assert (naming.clustering(b""), naming.clustering(b"\x01")) == ("", "0x01")
    assert naming.columns_of(1) == ()
    assert SchemaNames(table(INT)).columns_of(2) == ()
