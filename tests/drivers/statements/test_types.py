"""Writes and reads values of all types, by literals, by values of a query and by prepared statements."""

import datetime
import decimal
import ipaddress
import math
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from cassandra.cqltypes import lookup_casstype
from cassandra.util import Date, Duration, Time

Rows = Callable[..., list[tuple[Any, ...]]]
Table = Callable[[str], str]


def moment(year: int, month: int, day: int, *rest: int) -> datetime.datetime:
    """As drivers return it: in UTC, without a time zone."""
    hour, minute, second, microsecond = (*rest, 0, 0, 0, 0)[:4]
    made = datetime.datetime(year, month, day, hour, minute, second, microsecond, datetime.UTC)
    return made.replace(tzinfo=None)


SCALARS = (
    "ascii", "bigint", "blob", "boolean", "date", "decimal", "double", "duration", "float", "inet", "int", "smallint",
    "text", "time", "timestamp", "timeuuid", "tinyint", "uuid", "varchar", "varint",
)  # fmt: skip
SHAPE = "k int PRIMARY KEY, " + ", ".join(f"c_{name} {name}" for name in SCALARS)

VALUES: tuple[tuple[str, Any], ...] = (
    ("ascii", ""), ("ascii", "it's"),
    ("bigint", -(2**63)), ("bigint", 2**63 - 1),
    ("blob", b""), ("blob", bytes(range(256))),
    ("boolean", True), ("boolean", False),
    ("date", Date("1969-12-31")), ("date", Date(0)), ("date", Date("9999-12-31")),
    ("decimal", decimal.Decimal("-1.000")), ("decimal", decimal.Decimal("1E+30")), ("decimal", decimal.Decimal(0)),
    ("double", -0.0), ("double", 1.7976931348623157e308), ("double", math.inf), ("double", 5e-324),
    ("duration", Duration(1, 2, 3_000)), ("duration", Duration(-1, -2, -3_000)),
    ("float", 3.4028234663852886e38), ("float", -math.inf),
    ("inet", "127.0.0.1"), ("inet", "::1"),
    ("int", -(2**31)), ("int", 2**31 - 1),
    ("smallint", -(2**15)), ("smallint", 2**15 - 1),
    ("text", ""), ("text", "žluťoučký 🐎 'q'"), ("text", "x" * 100_000),
    ("time", Time(0)), ("time", Time(86_399_999_999_999)),
    ("timestamp", moment(1969, 12, 31, 23, 59, 59, 999_000)),
    ("timestamp", moment(2026, 1, 2, 3, 4, 5, 678_000)),
    ("timeuuid", uuid.UUID("13814000-1dd2-11b2-8080-808080808080")),
    ("tinyint", -128), ("tinyint", 127),
    ("uuid", uuid.UUID(int=0)), ("uuid", uuid.UUID(int=2**128 - 1)),
    ("varchar", "v"),
    ("varint", 0), ("varint", -1), ("varint", 2**300), ("varint", -(2**300)),
)  # fmt: skip


def test_scalars_come_back_as_they_were_bound(session: Any, table: Table, key: int) -> None:
    name = table(SHAPE)
    for place, (kind, value) in enumerate(VALUES):
        insert = session.prepare(f"INSERT INTO {name} (k, c_{kind}) VALUES (?, ?)")
        session.execute(insert, (key * 100 + place, value))
        (row,) = session.execute(f"SELECT c_{kind} FROM {name} WHERE k = %s", (key * 100 + place,))
        assert (row[0], str(row[0])) == (value, str(value)), kind


def test_not_a_number_is_kept(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(SHAPE)
    session.execute(f"INSERT INTO {name} (k, c_double, c_float) VALUES (%s, NaN, NaN)", (key,))
    ((double, single),) = rows(f"SELECT c_double, c_float FROM {name} WHERE k = %s", (key,))
    assert math.isnan(double)
    assert math.isnan(single)


LITERALS: tuple[tuple[str, str, Any], ...] = (
    ("ascii", "'a''b'", "a'b"), ("text", "$$it's$$", "it's"),
    ("bigint", "-9223372036854775808", -(2**63)),
    ("blob", "0x00fF", b"\x00\xff"), ("blob", "0x", b""),
    ("boolean", "TRUE", True),
    ("date", "'2026-02-28'", Date("2026-02-28")), ("date", "2147483648", Date(0)),
    ("decimal", "-12.50", decimal.Decimal("-12.50")), ("decimal", "1e3", decimal.Decimal("1E+3")),
    ("double", "1", 1.0), ("double", "-1.5E-3", -0.0015), ("double", "-Infinity", -math.inf),
    ("duration", "1y2mo3w4d5h6m7s8ms9us10ns", Duration(14, 25, 18_367_008_009_010)),
    ("duration", "-P1Y2M3DT4H5M6S", Duration(-14, -3, -14_706_000_000_000)),
    ("duration", "P3W", Duration(0, 21, 0)),
    ("float", "0.5", 0.5),
    ("inet", "'2001:db8::ff'", "2001:db8::ff"),
    ("int", "-0", 0), ("smallint", "-1", -1), ("tinyint", "7", 7),
    ("time", "'08:12:54.123456789'", Time("08:12:54.123456789")),
    ("timestamp", "'2026-01-02 03:04:05.678+0200'", moment(2026, 1, 2, 1, 4, 5, 678_000)),
    ("timestamp", "'2026-01-02T03:04Z'", moment(2026, 1, 2, 3, 4)),
    ("timestamp", "'2026-01-02+0000'", moment(2026, 1, 2)),
    ("timestamp", "-1", moment(1969, 12, 31, 23, 59, 59, 999_000)),
    ("timeuuid", "13814000-1dd2-11b2-8080-808080808080", uuid.UUID("13814000-1dd2-11b2-8080-808080808080")),
    ("uuid", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", uuid.UUID(int=2**128 - 1)),
    ("varint", "-" + "9" * 60, -(10**60 - 1)),
)  # fmt: skip


def test_literals_are_read(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(SHAPE)
    for kind, literal, value in LITERALS:
        session.execute(f"INSERT INTO {name} (k, c_{kind}) VALUES ({key}, {literal})")
        assert rows(f"SELECT c_{kind} FROM {name} WHERE k = {key}") == [(value,)], (kind, literal)


WRONG_LITERALS = (
    ("bigint", "9223372036854775808"), ("int", "2147483648"), ("smallint", "32768"), ("tinyint", "-129"),
    ("int", "'1'"), ("text", "1"), ("ascii", "'é'"), ("boolean", "1"), ("blob", "'ab'"), ("int", "1.0"),
    ("date", "'2026-13-01'"), ("time", "'25:00:00'"), ("time", "86400000000000"), ("timestamp", "'yesterday'"),
    ("inet", "'1.2.3'"), ("uuid", "'550e8400-e29b-41d4-a716-446655440000'"),
    ("timeuuid", "550e8400-e29b-41d4-a716-446655440000"), ("duration", "'1h'"), ("float", "'x'"), ("int", "[1]"),
    ("int", "{1}"), ("int", "{1: 2}"), ("int", "(1, 2)"),
)  # fmt: skip


@pytest.mark.parametrize(("kind", "literal"), WRONG_LITERALS)
def test_literals_of_another_type_are_refused(
    table: Table, refused: Callable[..., str], kind: str, literal: str
) -> None:
    assert refused(f"INSERT INTO {table(SHAPE)} (k, c_{kind}) VALUES (1, {literal})")


def test_values_of_a_wrong_length_are_refused(session: Any, table: Table, refused: Callable[..., str]) -> None:
    """`%s` formats literals in statements that are not prepared, so these values are passed by blobAs…."""
    name = table(SHAPE)
    for kind, data in (("int", "0x00"), ("uuid", "0x00"), ("inet", "0x0102"), ("text", "0xff"), ("boolean", "0x0001")):
        assert refused(f"INSERT INTO {name} (k, c_{kind}) VALUES (1, blobAs{kind}({data}))"), kind


COLLECTIONS = (
    "k int PRIMARY KEY, l list<int>, s set<text>, m map<text, int>, fl frozen<list<int>>, fs frozen<set<int>>, "
    "fm frozen<map<int, text>>, t tuple<int, text, frozen<list<int>>>, "
    "n list<frozen<map<text, frozen<set<int>>>>>, tt frozen<tuple<int, frozen<tuple<text, int>>>>, u set<uuid>"
)


def test_collections_and_tuples_come_back(session: Any, table: Table, key: int) -> None:
    name = table(COLLECTIONS)
    values = {
        "l": [3, 1, 2, 1], "s": {"b", "a", ""}, "m": {"x": 1, "": -1}, "fl": [2, 1, 2], "fs": {3, 1}, "fm": {2: "b"},
        "t": (1, "a", [1, 2]), "n": [{"a": {1, 2}}, {}], "tt": (1, ("x", 2)), "u": {uuid.UUID(int=1)},
    }  # fmt: skip
    names = ", ".join(values)
    marks = ", ".join("?" for _ in values)
    insert = session.prepare(f"INSERT INTO {name} (k, {names}) VALUES (?, {marks})")
    session.execute(insert, (key, *values.values()))
    (row,) = session.execute(f"SELECT {names} FROM {name} WHERE k = {key}")
    assert row.l == values["l"]
    assert row.s == values["s"]
    assert dict(row.m) == values["m"]
    assert row.fl == values["fl"]
    assert row.fs == values["fs"]
    assert dict(row.fm) == values["fm"]
    assert tuple(row.t) == values["t"]
    assert [dict(one) for one in row.n] == values["n"]
    assert row.tt == values["tt"]
    assert row.u == values["u"]


def test_empty_collections_are_null_unless_they_are_frozen(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(COLLECTIONS)
    session.execute(f"INSERT INTO {name} (k, l, s, m, fl, fs, fm) VALUES (%s, [], {{}}, {{}}, [], {{}}, {{}})", (key,))
    ((one, two, three, *frozen),) = rows(f"SELECT l, s, m, fl, fs, fm FROM {name} WHERE k = {key}")
    assert (one, two, three) == (None, None, None)
    assert [len(value) for value in frozen] == [0, 0, 0]


def test_tuples_have_nulls_and_may_be_short(session: Any, table: Table, rows: Rows, key: int) -> None:
    name = table(COLLECTIONS)
    session.execute(f"INSERT INTO {name} (k, t) VALUES ({key}, (1, null, null))")
    assert rows(f"SELECT t FROM {name} WHERE k = {key}") == [((1, None, None),)]
    session.execute(f"INSERT INTO {name} (k, t) VALUES ({key}, (1, 'a'))")
    assert rows(f"SELECT t FROM {name} WHERE k = {key}") == [((1, "a", None),)]


def test_nulls_in_collections_are_refused(session: Any, table: Table, rows: Rows, refused: Callable[..., str]) -> None:
    name = table(COLLECTIONS)
    wrong = (("l", "[null]"), ("s", "{null}"), ("m", "{'a': null}"), ("m", "{null: 1}"), ("fl", "[null]"))
    for column, literal in wrong:
        assert "null" in refused(f"INSERT INTO {name} (k, {column}) VALUES (1, {literal})").lower()
    insert = session.prepare(f"INSERT INTO {name} (k, l) VALUES (1, ?)")
    if lookup_casstype("ListType(Int32Type)").serialize([None], 4).endswith(b"\xff" * 4):
        assert refused(insert, ([1, None],))
    else:  # cassandra-driver sends an empty value, which an int may have, and returns it as None
        session.execute(insert, ([1, None],))
        assert rows(f"SELECT l FROM {name} WHERE k = 1") == [([1, None],)]


def test_every_type_may_be_a_key(session: Any, table: Table) -> None:
    for kind, value in VALUES:
        if kind == "duration":
            continue
        name = table(f"k {kind}, c {kind}, v int, PRIMARY KEY (k, c)") if kind != "varchar" else None
        if name is None or (kind in ("text", "ascii") and value == "") or value == b"":
            continue
        insert = session.prepare(f"INSERT INTO {name} (k, c, v) VALUES (?, ?, 1)")
        if len(str(value)) > 60_000:
            continue
        session.execute(insert, (value, value))
        select = session.prepare(f"SELECT k, c FROM {name} WHERE k = ? AND c = ?")
        assert [tuple(row) for row in session.execute(select, (value, value))] == [(value, value)], kind


def test_inet_columns_keep_addresses(rows: Rows, session: Any, table: Table, key: int) -> None:
    name = table(SHAPE)
    session.execute(f"INSERT INTO {name} (k, c_inet) VALUES ({key}, '::ffff:1.2.3.4')")
    ((found,),) = rows(f"SELECT c_inet FROM {name} WHERE k = {key}")
    assert ipaddress.ip_address(found) == ipaddress.ip_address("::ffff:1.2.3.4")
