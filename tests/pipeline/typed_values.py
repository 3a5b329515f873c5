"""Values of every CQL type, as Spark and as a driver represent them: usual, extreme, empty and nested."""

import datetime
import ipaddress
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from cassandra.util import Date, Duration, OrderedMapSerializedKey, SortedSet, Time
from pyspark.sql import Row

ZERO, ALL_ONES = uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)
BY_TIME = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")
DAY_NS = 86_400_000_000_000


def moment(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001  # as Spark and the driver give them


def lasting(months: int, days: int, nanoseconds: int) -> Row:
    return Row(months=months, days=days, nanoseconds=nanoseconds)


SAME: Mapping[str, tuple[str, list[Any]]] = {
    "ascii": ("string", ["plain", "", "\x7f\x00~"]),
    "text": ("string", ["ünï🦆", "", "a" * 20_000]),
    "bigint": ("bigint", [0, -(2**63), 2**63 - 1]),
    "int": ("int", [0, -(2**31), 2**31 - 1]),
    "smallint": ("smallint", [0, -(2**15), 2**15 - 1]),
    "tinyint": ("tinyint", [0, -128, 127]),
    "boolean": ("boolean", [True, False]),
    "double": ("double", [-0.0, 1.7976931348623157e308, 5e-324, float("inf"), float("-inf")]),
    "float": ("float", [-0.5, 3.4028234663852886e38, float("-inf")]),
    "inet": ("string", ["127.0.0.1", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db8::1"]),
    "timestamp": ("timestamp", [moment(2020, 1, 2, 3, 4, 5, 678_000), moment(1, 1, 2), moment(9999, 12, 30, 23, 59),
                                moment(1969, 12, 31, 23, 59, 59, 999_000)]),
    "frozen<list<int>>": ("array<int>", [[3, 1, 3], []]),
    "list<text>": ("array<string>", [["b", "", "a"], ["x"]]),
    "frozen<map<text, bigint>>": ("map<string,bigint>", [{"a": 1, "": -(2**63)}, {}]),
    "map<int, text>": ("map<int,string>", [{1: "", -1: "x"}]),
    "frozen<tuple<int, text, boolean>>": ("struct<_1:int,_2:string,_3:boolean>", [(1, None, True), (None, None, None)]),
    "list<frozen<map<int, frozen<list<text>>>>>": ("array<map<int,array<string>>>", [[{1: ["a", ""], 2: []}, {}]]),
}  # fmt: skip
"""CQL type, Spark type, and values that are the same for both."""

OTHER: Mapping[str, tuple[str, list[tuple[Any, Any]]]] = {
    "blob": ("binary", [(bytearray(one), one) for one in (b"\x00\xff", b"", bytes(20_000))]),
    "date": ("date", [(day, Date(day)) for day in (datetime.date(1970, 2, 1), datetime.date(1, 1, 1),
                                                   datetime.date(9999, 12, 31))]),
    "time": ("bigint", [(number, Time(number)) for number in (0, DAY_NS - 1)]),
    "decimal": ("string", [(text, Decimal(text)) for text in ("-1.50", "0", "1E+30", "-1.234567890123456789E-40",
                                                              "9" * 60)]),
    "varint": ("string", [(str(number), number) for number in (0, -1, 10**40, -(2**300))]),
    "uuid": ("string", [(str(one), one) for one in (ZERO, ALL_ONES, BY_TIME)]),
    "timeuuid": ("string", [(str(BY_TIME), BY_TIME)]),
    "duration": ("struct<months:int,days:int,nanoseconds:bigint>",
                 [(lasting(*parts), Duration(*parts)) for parts in ((1, 2, 3), (1 - 2**31, 1 - 2**31, -(2**63)),
                                                                    (0, 0, 2**63 - 1))]),
    "set<text>": ("array<string>", [(["", "a", "b"], {"", "a", "b"})]),
    "frozen<set<int>>": ("array<int>", [([-1, 0, 5], {-1, 0, 5}), ([], set())]),
    "map<uuid, frozen<tuple<inet, duration>>>": (
        "map<string,struct<_1:string,_2:struct<months:int,days:int,nanoseconds:bigint>>>",
        [({str(ZERO): Row(_1="::1", _2=lasting(0, 0, 1))}, {ZERO: ("::1", Duration(0, 0, 1))})]),
}  # fmt: skip
"""The same value, as Spark and as the driver represent it."""

TYPES: Mapping[str, tuple[str, list[tuple[Any, Any]]]] = {
    **{kind: (spark, [(value, value) for value in values]) for kind, (spark, values) in SAME.items()},
    **OTHER,
}
NO_KEYS = ("duration",)
"""Scalar types that CQL does not allow in keys."""


def plain(value: Any) -> Any:
    """Converts the driver's containers to Python's, and Spark's rows to tuples."""
    match value:
        case OrderedMapSerializedKey() | dict():
            return {_hashable(plain(key)): plain(item) for key, item in value.items()}
        case SortedSet() | set():
            return {_hashable(plain(one)) for one in value}
        case tuple():
            return tuple(plain(one) for one in value)
        case list():
            return [plain(one) for one in value]
        case bytearray():
            return bytes(value)
        case ipaddress.IPv4Address() | ipaddress.IPv6Address():
            return str(value)
        case _:
            return value


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
