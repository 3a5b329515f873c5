"""Filters that nodes apply, exactly as Spark would; every other one goes back."""

import datetime
import uuid
from decimal import Decimal

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from ebla.model.cql_types import parse_type
from ebla.model.identity import TableId
from ebla.model.schema import Column, ColumnKind, new_schema
from ebla.model.selection import ColumnSelector, KeyCondition, KeyOperator, SelectorKind
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, Token, TokenRange, composite_key, token_of
from ebla.model.values import encode
from ebla.source.read import pushdown
from ebla.source.read.pushdown import PushedFilters, push_filters
from ebla.storage.codec.key_codec import partition_prefix

CLUSTERING = ("text", "timestamp", "uuid", "double", "decimal", "date", "boolean", "blob", "time", "bigint", "varint")
SCHEMA = new_schema(
    TableId(uuid.UUID(int=1)),
    "ks",
    "t",
    (
        Column(name="a", type=parse_type("int"), kind=ColumnKind.PARTITION_KEY, position=0),
        Column(name="b", type=parse_type("text"), kind=ColumnKind.PARTITION_KEY, position=1),
        *(
            Column(name=f"c_{name}", type=parse_type(name), kind=ColumnKind.CLUSTERING, position=n)
            for n, name in enumerate(CLUSTERING)
        ),
        Column(name="v", type=parse_type("int"), kind=ColumnKind.REGULAR),
    ),
)
ASKED = (
    *(ColumnSelector(column.name) for column in SCHEMA.columns),
    ColumnSelector("", SelectorKind.TOKEN, "tok"),
    ColumnSelector("v", SelectorKind.WRITETIME, "v_writetime"),
)


def pushed(*filters: Filter) -> PushedFilters:
    return push_filters(SCHEMA, ASKED, filters)


def prefix(a: int, b: str) -> bytes:
    key = composite_key([encode(parse_type("int"), a), b.encode()])
    return partition_prefix(token_of(key), key)


UUID = "123e4567-e89b-12d3-a456-426614174000"
MOMENT = datetime.datetime(2020, 1, 2, 3, 4, 5, 678_000, datetime.UTC)
KEPT: list[tuple[Filter, str, KeyOperator, object]] = [
    (EqualTo(("c_text",), "x"), "c_text", KeyOperator.EQUAL, "x"),
    (GreaterThan(("c_text",), ""), "c_text", KeyOperator.GREATER, ""),
    (LessThanOrEqual(("c_text",), "ü"), "c_text", KeyOperator.LESS_OR_EQUAL, "ü"),
    (LessThan(("c_timestamp",), MOMENT), "c_timestamp", KeyOperator.LESS, 1_577_934_245_678),
    (EqualTo(("c_timestamp",), 5), "c_timestamp", KeyOperator.EQUAL, 5),
    (EqualTo(("c_uuid",), UUID), "c_uuid", KeyOperator.EQUAL, uuid.UUID(UUID)),
    (GreaterThanOrEqual(("c_date",), datetime.date(1969, 12, 31)), "c_date", KeyOperator.GREATER_OR_EQUAL, -1),
    (EqualTo(("c_boolean",), True), "c_boolean", KeyOperator.EQUAL, True),
    (EqualNullSafe(("c_blob",), bytearray(b"\1")), "c_blob", KeyOperator.EQUAL, b"\1"),
    (LessThan(("c_time",), 86_399_999_999_999), "c_time", KeyOperator.LESS, 86_399_999_999_999),
    (GreaterThan(("a",), 5), "a", KeyOperator.GREATER, 5),
    (EqualTo(("b",), "half a key"), "b", KeyOperator.EQUAL, "half a key"),
]


@pytest.mark.parametrize(("given", "column", "operator", "value"), KEPT)
def test_kept(given: Filter, column: str, operator: KeyOperator, value: object) -> None:
    wire = encode(SCHEMA.column(column).type, value)
    assert pushed(given) == PushedFilters(conditions=(KeyCondition(column, operator, (wire,)),))


RETURNED: list[Filter] = [
    EqualTo(("v",), 1),
    EqualTo(("v_writetime",), 1),
    EqualTo(("c_double",), 1.0),
    EqualTo(("c_decimal",), "1.0"),
    EqualTo(("c_varint",), "1"),
    GreaterThan(("c_uuid",), UUID),
    EqualTo(("c_uuid",), UUID.upper()),
    EqualTo(("c_uuid",), "no uuid"),
    GreaterThan(("c_blob",), b"\1"),
    GreaterThan(("c_boolean",), False),
    LessThan(("c_timestamp",), MOMENT + datetime.timedelta(microseconds=1)),
    LessThan(("c_timestamp",), MOMENT.replace(tzinfo=None)),
    LessThan(("c_date",), MOMENT),
    LessThan(("c_time",), 86_400_000_000_000),
    EqualTo(("a",), 2**31),
    EqualTo(("a",), True),
    EqualTo(("a",), Decimal(1)),
    EqualTo(("a",), None),
    EqualTo(("a", "inner"), 1),
    EqualTo(("unknown",), 1),
    In(("a",), ()),
    In(("a",), (1, "x")),
    IsNull(("a",)),
    IsNotNull(("c_text",)),
    IsNotNull(("v",)),
    IsNotNull(("v_writetime",)),
    Not(EqualTo(("a",), 1)),
    StringStartsWith(("c_text",), "x"),
    GreaterThan(("tok",), 1.5),
]


@pytest.mark.parametrize("given", RETURNED)
def test_returned(given: Filter) -> None:
    assert pushed(given) == PushedFilters(left=(given,))


def test_partitions_that_are_wholly_named_are_read_alone() -> None:
    found = pushed(In(("a",), (1, 2, 1, None)), EqualTo(("b",), "x"), GreaterThan(("c_text",), "m"))
    assert found.partitions == tuple(sorted((prefix(1, "x"), prefix(2, "x"))))
    assert found.conditions == (KeyCondition("c_text", KeyOperator.GREATER, (b"m",)),)
    tokens = sorted(token_of(composite_key([encode(parse_type("int"), a), b"x"])) for a in (1, 2))
    assert found.ranges == tuple(TokenRange(Token(token - 1), token) for token in tokens)
    assert found.left == ()


def test_ranges_of_a_partition_key_hold_besides() -> None:
    found = pushed(In(("a",), (1, 2)), GreaterThan(("a",), 1), EqualTo(("b",), "x"))
    assert found.partitions == tuple(sorted((prefix(1, "x"), prefix(2, "x"))))
    assert found.conditions == (KeyCondition("a", KeyOperator.GREATER, (encode(parse_type("int"), 1),)),)


def test_two_equalities_that_exclude_each_other_find_nothing() -> None:
    found = pushed(EqualTo(("a",), 1), EqualTo(("a",), 2), EqualTo(("b",), "x"))
    assert found.partitions == ()
    assert found.ranges == ()


def test_too_many_partitions_are_scanned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushdown, "PARTITIONS_MAX", 3)
    found = pushed(In(("a",), (1, 2)), In(("b",), ("x", "y")))
    assert found.partitions is None
    assert found.ranges is None
    assert [condition.operator for condition in found.conditions] == [KeyOperator.IN, KeyOperator.IN]
    assert found.left == ()


def test_what_cannot_be_null_needs_no_filter_for_it() -> None:
    kept = IsNotNull(("c_text",)), EqualTo(("c_text",), "x"), IsNotNull(("a",)), IsNotNull(("tok",))
    assert pushed(*kept).left == ()


TOKENS: list[tuple[tuple[Filter, ...], tuple[tuple[int, int], ...]]] = [
    ((GreaterThan(("tok",), 5),), ((5, TOKEN_MAX),)),
    ((GreaterThanOrEqual(("tok",), 5),), ((4, TOKEN_MAX),)),
    ((LessThan(("tok",), 5),), ((TOKEN_MIN, 4),)),
    ((LessThanOrEqual(("tok",), 5),), ((TOKEN_MIN, 5),)),
    ((EqualTo(("tok",), 5),), ((4, 5),)),
    ((In(("tok",), (7, 5)),), ((4, 5), (6, 7))),
    ((GreaterThan(("tok",), 5), LessThan(("tok",), 9)), ((5, 8),)),
    ((GreaterThan(("tok",), 5), LessThan(("tok",), 6)), ()),
    ((GreaterThan(("tok",), TOKEN_MAX),), ()),
    ((GreaterThanOrEqual(("tok",), TOKEN_MIN),), ((TOKEN_MIN, TOKEN_MAX),)),
    ((LessThan(("tok",), TOKEN_MIN),), ()),
    ((EqualTo(("tok",), TOKEN_MIN),), ()),
    ((LessThanOrEqual(("tok",), TOKEN_MAX),), ((TOKEN_MIN, TOKEN_MAX),)),
]


@pytest.mark.parametrize(("given", "expected"), TOKENS)
def test_tokens_are_ranges(given: tuple[Filter, ...], expected: tuple[tuple[int, int], ...]) -> None:
    found = pushed(*given)
    assert found == PushedFilters(ranges=tuple(TokenRange(Token(start), Token(end)) for start, end in expected))


def test_a_partition_outside_of_the_tokens_is_not_read() -> None:
    token = token_of(composite_key([encode(parse_type("int"), 1), b"x"]))
    found = pushed(EqualTo(("a",), 1), EqualTo(("b",), "x"), GreaterThan(("tok",), token))
    assert found.ranges == ()


def test_columns_are_known_by_the_names_they_have_in_the_schema_of_the_user() -> None:
    asked = (ColumnSelector("b", alias="B"), ColumnSelector("v", alias="a"))
    found = push_filters(SCHEMA, asked, [EqualTo(("B",), "x"), EqualTo(("a",), 1)])
    assert found.conditions == (KeyCondition("b", KeyOperator.EQUAL, (b"x",)),)
    assert found.left == (EqualTo(("a",), 1),)
