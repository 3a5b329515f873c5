import uuid
from decimal import Decimal
from typing import Any

import pytest

from ebla.cql.parse.literals import days_of, literal_value, parse_date, parse_duration, parse_time, parse_timestamp
from ebla.cql.parse.terms import Literal, LiteralKind
from ebla.model.cql_types import parse_type
from ebla.model.errors import InvalidRequest
from ebla.model.values import Duration, decode

TIMEUUID = "8ac6d1dc-fbeb-11ed-be56-0242ac120002"
HOUR_NS = 3_600_000_000_000


def whole(text: str) -> Literal:
    return Literal(LiteralKind.INTEGER, text)


def fraction(text: str) -> Literal:
    return Literal(LiteralKind.FLOAT, text)


def string(text: str) -> Literal:
    return Literal(LiteralKind.STRING, text)


@pytest.mark.parametrize(
    ("kind", "literal", "value"),
    [
        ("ascii", string("abc"), "abc"),
        ("text", string("äß"), "äß"),
        ("varchar", string(""), ""),
        ("tinyint", whole("-128"), -128),
        ("smallint", whole("32767"), 32767),
        ("int", whole("-2147483648"), -(1 << 31)),
        ("bigint", whole("9223372036854775807"), (1 << 63) - 1),
        ("varint", whole("123456789012345678901234567890"), 123456789012345678901234567890),
        ("varint", whole("-1"), -1),
        ("float", whole("3"), 3.0),
        ("float", fraction("1.5"), 1.5),
        ("float", fraction("1e39"), float("inf")),
        ("double", fraction("-Infinity"), float("-inf")),
        ("double", fraction("1e-3"), 0.001),
        ("decimal", fraction("1.50"), Decimal("1.50")),
        ("decimal", whole("7"), Decimal(7)),
        ("decimal", fraction("1e400"), Decimal("1e400")),
        ("boolean", Literal(LiteralKind.BOOLEAN, "true"), True),
        ("blob", Literal(LiteralKind.HEX, "00fF"), b"\0\xff"),
        ("blob", Literal(LiteralKind.HEX, ""), b""),
        ("uuid", Literal(LiteralKind.UUID, TIMEUUID), uuid.UUID(TIMEUUID)),
        ("timeuuid", Literal(LiteralKind.UUID, TIMEUUID), uuid.UUID(TIMEUUID)),
        ("inet", string("127.0.0.1"), "127.0.0.1"),
        ("inet", string("2001:db8::1"), "2001:db8::1"),
        ("date", string("1970-01-02"), 1),
        ("date", whole("2147483648"), 0),
        ("date", whole("0"), -(1 << 31)),
        ("time", string("00:00:01.000000002"), 1_000_000_002),
        ("time", whole("5"), 5),
        ("timestamp", string("1970-01-01 00:00:01+0000"), 1000),
        ("timestamp", whole("-7"), -7),
        ("timestamp", string("1234"), 1234),
        ("duration", Literal(LiteralKind.DURATION, "1mo2d3h"), Duration(1, 2, 3 * HOUR_NS)),
    ],
)
def test_a_constant_of_every_type(kind: str, literal: Literal, value: Any) -> None:
    found = decode(parse_type(kind), literal_value(parse_type(kind), literal, "c"))
    assert (str(found) if kind == "inet" else found) == value


def test_not_a_number_is_a_float() -> None:
    found = decode(parse_type("double"), literal_value(parse_type("double"), fraction("NaN"), "c"))
    assert found != found


@pytest.mark.parametrize(
    ("kind", "literal", "words"),
    [
        ("int", string("1"), 'Invalid STRING constant (1) for "c" of type int'),
        ("int", fraction("1.0"), 'Invalid FLOAT constant (1.0) for "c" of type int'),
        ("text", whole("1"), 'Invalid INTEGER constant (1) for "c" of type text'),
        ("boolean", string("true"), 'Invalid STRING constant (true) for "c" of type boolean'),
        ("int", Literal(LiteralKind.BOOLEAN, "false"), 'Invalid BOOLEAN constant (false) for "c" of type int'),
        ("text", Literal(LiteralKind.UUID, TIMEUUID), f'Invalid UUID constant ({TIMEUUID}) for "c" of type text'),
        ("text", Literal(LiteralKind.HEX, "ff"), 'Invalid HEX constant (0xff) for "c" of type text'),
        ("blob", Literal(LiteralKind.HEX, "f"), 'Invalid HEX constant (0xf) for "c" of type blob'),
        ("blob", string("f"), 'Invalid STRING constant (f) for "c" of type blob'),
        ("int", Literal(LiteralKind.DURATION, "1h"), 'Invalid DURATION constant (1h) for "c" of type int'),
        ("decimal", fraction("NaN"), 'Invalid FLOAT constant (NaN) for "c" of type decimal'),
        ("list<int>", whole("1"), 'Invalid INTEGER constant (1) for "c" of type list<int>'),
        ("tinyint", whole("128"), "128 is not a value of type tinyint"),
        ("bigint", whole("9223372036854775808"), "is not a value of type bigint"),
        (
            "timeuuid",
            Literal(LiteralKind.UUID, "123e4567-e89b-42d3-a456-426655440000"),
            "a timeuuid is a version 1 uuid",
        ),
        ("ascii", string("é"), "is not a value of type ascii"),
        ("inet", string("1.2.3"), "Unable to make inet address from '1.2.3'"),
        ("date", string("1970-13-01"), "Unable to coerce '1970-13-01' to a formatted date (long)"),
        ("date", string("today"), "Unable to coerce 'today' to a formatted date (long)"),
        ("date", whole("-1"), "Unable to make unsigned int (for date) from: '-1'"),
        ("date", whole("50000000000"), "Unable to make unsigned int (for date) from: '50000000000'"),
        ("time", string("25:00:00"), "Unable to coerce '25:00:00' to a formatted time (long)"),
        ("time", whole("86400000000000"), "a time lies within one day"),
        ("timestamp", string(""), "Unable to coerce '' to a formatted date (long)"),
        ("timestamp", string("1970-01-01T24:00"), "Unable to coerce '1970-01-01T24:00' to a formatted date (long)"),
        ("duration", Literal(LiteralKind.DURATION, "99999999999y"), "months and days of a duration have 32 bits"),
        ("varint", whole("1" * 5000), "digits"),
        ("decimal", fraction("1e99999999999"), "is not a value of type decimal"),
    ],
)
def test_what_does_not_fit(kind: str, literal: Literal, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        literal_value(parse_type(kind), literal, "c")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("2011-02-03", 1296691200000),
        ("2011-02-03 04:05", 1296705900000),
        ("2011-02-03 04:05+0000", 1296705900000),
        ("2011-02-03T04:05:06", 1296705906000),
        ("2011-02-03 04:05:06.7", 1296705906700),
        ("2011-02-03 04:05:06.789", 1296705906789),
        ("2011-02-03T04:05:06.789012Z", 1296705906789),
        ("2011-02-03T04:05:06+01:00", 1296702306000),
        ("2011-02-03 04:05:06-0130", 1296711306000),
        ("2011-02-03 04:05:06 UTC", 1296705906000),
        ("2011-02-03 04:05:06+02", 1296698706000),
        ("1969-12-31 23:59:59.999", -1),
        ("-5", -5),
    ],
)
def test_timestamps(text: str, milliseconds: int) -> None:
    assert parse_timestamp(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "days"), [("1970-01-01", 0), ("2000-02-29", 11016), ("-0001-01-01", -719893), ("10000-01-01", 2932897)]
)
def test_dates_reach_further_than_four_digits(text: str, days: int) -> None:
    assert parse_date(text) == days


def test_the_last_day_there_is() -> None:
    assert days_of(5881580, 7, 11) == (1 << 31) - 1


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("08:12", 29520 * 10**9), ("08:12:54", 29574 * 10**9), ("08:12:54.1", 29574_100_000_000)],
)
def test_times(text: str, nanoseconds: int) -> None:
    assert parse_time(text) == nanoseconds


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("1y2mo", Duration(14, 0, 0)),
        ("1w1d", Duration(0, 8, 0)),
        ("12h30m", Duration(0, 0, 12 * HOUR_NS + HOUR_NS // 2)),
        ("1s1ms1µs1ns", Duration(0, 0, 1_001_001_001)),
        ("-1D", Duration(0, -1, 0)),
        ("P1Y2M3DT4H5M6S", Duration(14, 3, 4 * HOUR_NS + 306 * 10**9)),
        ("P2W", Duration(0, 14, 0)),
        ("-P1M", Duration(-1, 0, 0)),
        ("P0001-02-03T04:05:06", Duration(14, 3, 4 * HOUR_NS + 306 * 10**9)),
    ],
)
def test_durations(text: str, duration: Duration) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "1", "h", "1hx", "1h 2m", "PT1"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="Unable to convert"):
        parse_duration(text)
