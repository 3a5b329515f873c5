"""Every CQL type to Spark and back: nulls, empties, extremes, nested ones, slices; and what does not fit is refused."""

import datetime
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from ebla.model.cql_types import Scalar, parse_type
from ebla.model.errors import InvalidRequest
from ebla.model.values import Duration, encode
from ebla.source.arrow_conversion import column_to_stored, columns_to_spark, to_spark, to_stored
from ebla.source.spark_types import DEFAULT_TYPES, read_mismatch, spark_type, write_mismatch
from ebla.storage.columns.arrow_types import arrow_type
from ebla.storage.columns.wire_columns import from_wire

UUIDS = [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1), uuid.UUID("123e4567-e89b-12d3-a456-426614174000")]
TIMEUUIDS = [uuid.UUID("123e4567-e89b-12d3-a456-426614174000"), uuid.UUID("00000000-0000-1000-8000-000000000000")]

CASES: dict[str, list[Any]] = {
    "ascii": ["", "plain", "\x00\x7f"],
    "bigint": [-(2**63), 0, 2**63 - 1],
    "blob": [b"", b"\x00\xff"],
    "boolean": [True, False],
    "date": [-(2**31), 0, 2**31 - 1],
    "decimal": [Decimal(0), Decimal("-1.50"), Decimal("1E+3"), Decimal("123456789" * 9), Decimal("1E-400")],
    "double": [-1.5, 0.0, 5e-324, 1.7976931348623157e308, float("inf")],
    "duration": [Duration(0, 0, 0), Duration(2**31 - 1, 2**31 - 1, 2**63 - 1), Duration(-1, -2, -3)],
    "float": [-1.5, 0.0, float("-inf")],
    "inet": ["127.0.0.1", "::1", "2001:db8::8a2e:370:7334"],
    "int": [-(2**31), 0, 2**31 - 1],
    "smallint": [-(2**15), 0, 2**15 - 1],
    "text": ["", "ünïcødé 🦆", "x" * 100_000],
    "time": [0, 1, 86_399_999_999_999],
    "timestamp": [-62_135_596_800_000, -1, 0, 253_402_300_799_999, 9_223_372_036_854_775],
    "timeuuid": TIMEUUIDS,
    "tinyint": [-128, 0, 127],
    "uuid": UUIDS,
    "varint": [0, -1, 10**100, -(2**64)],
    "list<int>": [[], [1, 2, 2], [0]],
    "set<text>": [[""], ["a", "b"]],
    "map<text, int>": [[("a", 1), ("b", -1)], []],
    "map<uuid, frozen<list<timestamp>>>": [[(UUIDS[0], [1, 2]), (UUIDS[1], [])]],
    "list<frozen<tuple<int, text>>>": [[(1, "a"), (None, None)], []],
    "frozen<tuple<uuid, duration, frozen<set<inet>>>>": [
        (UUIDS[1], Duration(1, 2, 3), ["10.0.0.1"]),
        (None, None, None),
        (UUIDS[0], None, []),
    ],
    "list<duration>": [[Duration(1, 1, 1), Duration(0, 0, -5)]],
    "set<decimal>": [[Decimal("1.0"), Decimal(2)]],
    "map<varint, frozen<map<text, frozen<list<blob>>>>>": [[(10**30, [("k", [b"", b"\x01"])])]],
}


def stored(kind_name: str, values: list[Any]) -> pa.Array:
    """As storage has them."""
    kind = parse_type(kind_name)
    wire = [None if value is None else encode(kind, value) for value in values]
    return from_wire(kind, pa.array(wire, pa.binary()))


def arrow_of(kind: DataType) -> pa.DataType:
    return to_arrow_type(kind, timezone="UTC")


def test_every_scalar_has_a_case() -> None:
    assert {scalar.value for scalar in Scalar} <= set(CASES)
    assert set(DEFAULT_TYPES) == set(Scalar)


@pytest.mark.parametrize("name", CASES)
def test_there_and_back(name: str) -> None:
    kind = parse_type(name)
    values = [None, *CASES[name], None, *reversed(CASES[name])]
    column = stored(name, values)
    wanted = arrow_of(spark_type(kind))
    shown = to_spark(kind, column, wanted)
    shown.validate(full=True)
    assert shown.type == wanted
    assert shown.null_count == column.null_count
    back = to_stored(kind, shown)
    back.validate(full=True)
    assert back.equals(column)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("bounds", [(0, 0), (1, 2), (2, 4)])
def test_slices_are_what_they_show(name: str, bounds: tuple[int, int]) -> None:
    kind = parse_type(name)
    values = [*CASES[name], None, *CASES[name]]
    part = stored(name, values).slice(bounds[0], bounds[1] - bounds[0])
    shown = to_spark(kind, part, arrow_of(spark_type(kind)))
    shown.validate(full=True)
    whole = to_spark(kind, stored(name, values), arrow_of(spark_type(kind)))
    assert shown.equals(whole.slice(bounds[0], bounds[1] - bounds[0]))
    assert to_stored(kind, whole.slice(bounds[0], bounds[1] - bounds[0])).equals(part)


@pytest.mark.parametrize("name", CASES)
def test_a_column_of_nulls_alone_and_one_of_nothing(name: str) -> None:
    kind = parse_type(name)
    wanted = arrow_of(spark_type(kind))
    for column in (stored(name, [None, None]), stored(name, [])):
        shown = to_spark(kind, column, wanted)
        assert shown.null_count == len(column)
        assert to_stored(kind, shown).equals(column)
    assert to_stored(kind, pa.nulls(2)).equals(pa.nulls(2, arrow_type(kind)))


def test_what_a_user_sees() -> None:
    def shown(name: str, value: Any) -> Any:
        kind = parse_type(name)
        return to_spark(kind, stored(name, [value]), arrow_of(spark_type(kind))).to_pylist()[0]

    assert shown("uuid", UUIDS[2]) == "123e4567-e89b-12d3-a456-426614174000"
    assert shown("duration", Duration(1, 2, 3)) == {"months": 1, "days": 2, "nanoseconds": 3}
    assert shown("time", 5) == 5
    assert shown("timestamp", 1_500) == datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, datetime.UTC)
    assert shown("date", 31) == datetime.date(1970, 2, 1)
    assert shown("inet", "::1") == "::1"
    assert shown("varint", 10**30) == "1" + "0" * 30
    assert shown("decimal", Decimal("-1.50")) == "-1.50"
    assert shown("frozen<tuple<int, text>>", (1, "a")) == {"_1": 1, "_2": "a"}
    assert spark_type(parse_type("map<text, int>")) == MapType(StringType(), IntegerType())


OTHERS: list[tuple[str, Any, DataType, Any]] = [
    ("varint", 12, DecimalType(38, 0), Decimal(12)),
    ("varint", -7, LongType(), -7),
    ("decimal", Decimal("1.50"), DecimalType(10, 2), Decimal("1.50")),
    ("decimal", Decimal("1.5"), DecimalType(10, 2), Decimal("1.50")),
    ("int", 5, LongType(), 5),
    ("tinyint", 5, IntegerType(), 5),
    ("float", 0.5, DoubleType(), 0.5),
    ("uuid", UUIDS[2], BinaryType(), UUIDS[2].bytes),
    ("timestamp", 2**62, LongType(), 2**62),
    ("time", 1_000, TimeType(6), datetime.time(0, 0, 0, 1)),
    ("list<varint>", [1, 2], ArrayType(DecimalType(20, 0)), [Decimal(1), Decimal(2)]),
]


@pytest.mark.parametrize(("name", "value", "asked", "expected"), OTHERS)
def test_read_as_another_type_by_a_schema(name: str, value: Any, asked: DataType, expected: Any) -> None:
    kind = parse_type(name)
    assert read_mismatch(kind, asked) is None
    found = to_spark(kind, stored(name, [value, None]), arrow_of(asked))
    assert found.type == arrow_of(asked)
    assert found.to_pylist() == [expected, None]


WRONG_TO_READ = [
    ("int", StringType()),
    ("int", ShortType()),
    ("bigint", IntegerType()),
    ("double", FloatType()),
    ("text", IntegerType()),
    ("timestamp", TimestampNTZType()),
    ("timestamp", DateType()),
    ("decimal", DoubleType()),
    ("list<int>", ArrayType(StringType())),
    ("list<int>", IntegerType()),
    ("map<text, int>", MapType(StringType(), StringType())),
    ("map<text, int>", MapType(IntegerType(), IntegerType())),
    ("frozen<tuple<int, int>>", StructType([StructField("a", IntegerType())])),
    ("duration", StructType([StructField("months", IntegerType())])),
    ("blob", StringType()),
    ("boolean", ByteType()),
    ("int", NullType()),
]


@pytest.mark.parametrize(("name", "asked"), WRONG_TO_READ)
def test_types_that_a_column_cannot_be_read_as(name: str, asked: DataType) -> None:
    reason = read_mismatch(parse_type(name), asked)
    assert reason is not None
    assert asked.simpleString() in reason or "array" in name or "map" in name or "list" in name


TOO_MUCH_TO_READ = [
    ("varint", 10**20, LongType()),
    ("varint", 10**40, DecimalType(38, 0)),
    ("decimal", Decimal("1.005"), DecimalType(10, 2)),
    ("decimal", Decimal(12345), DecimalType(4, 0)),
    ("timestamp", 2**62, TimestampType()),
    ("timestamp", -(2**62), TimestampType()),
]


@pytest.mark.parametrize(("name", "value", "asked"), TOO_MUCH_TO_READ)
def test_a_value_that_does_not_fit_is_an_error_that_names_its_column(name: str, value: Any, asked: DataType) -> None:
    kind = parse_type(name)
    batch = pa.RecordBatch.from_arrays([stored(name, [value])], ["c"])
    wanted = pa.schema([pa.field("price", arrow_of(asked))])
    with pytest.raises(InvalidRequest, match="'price'") as found:
        columns_to_spark([kind], batch, wanted)
    assert found.value.advice


WRITTEN: list[tuple[str, DataType, Any, Any]] = [
    ("int", LongType(), 5, 5),
    ("tinyint", LongType(), -128, -128),
    ("bigint", ByteType(), 5, 5),
    ("double", IntegerType(), 5, 5.0),
    ("double", FloatType(), 0.5, 0.5),
    ("float", ShortType(), 5, 5.0),
    ("varint", StringType(), "123456789012345678901234567890", 123456789012345678901234567890),
    ("varint", DecimalType(10, 2), Decimal("5.00"), 5),
    ("varint", IntegerType(), 5, 5),
    ("decimal", DecimalType(20, 10), Decimal("0.0000001"), Decimal("0.0000001000")),
    ("decimal", IntegerType(), 5, Decimal(5)),
    ("uuid", StringType(), "123E4567-E89B-12D3-A456-426614174000", UUIDS[2]),
    ("uuid", StringType(), "123e4567e89b12d3a456426614174000", UUIDS[2]),
    ("uuid", BinaryType(), UUIDS[2].bytes, UUIDS[2]),
    ("timestamp", TimestampType(), datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC), 1_000),
    ("timestamp", LongType(), 1_000, 1_000),
    ("time", TimeType(6), datetime.time(0, 0, 0, 1), 1_000),
    ("boolean", BooleanType(), True, True),
    ("set<bigint>", ArrayType(IntegerType()), [1, 2], [1, 2]),
    (
        "frozen<tuple<bigint, text>>",
        StructType([StructField("id", IntegerType()), StructField("name", StringType())]),
        {"id": 1, "name": None},
        (1, None),
    ),
]


@pytest.mark.parametrize(("name", "given", "value", "expected"), WRITTEN)
def test_written_from_another_type(name: str, given: DataType, value: Any, expected: Any) -> None:
    kind = parse_type(name)
    assert write_mismatch(kind, given) is None
    column = pa.array([value, None], arrow_of(given))
    assert column_to_stored(kind, column, "c").equals(stored(name, [expected, None]))


NOT_WRITTEN: list[tuple[str, DataType, Any]] = [
    ("int", LongType(), 2**31),
    ("tinyint", IntegerType(), 128),
    ("varint", DecimalType(10, 2), Decimal("5.01")),
    ("uuid", StringType(), "no uuid"),
    ("uuid", StringType(), "123e4567-e89b-12d3-a456-42661417400g"),
    ("uuid", BinaryType(), b"short"),
    ("timestamp", TimestampType(), datetime.datetime(1970, 1, 1, 0, 0, 0, 1, datetime.UTC)),
    ("list<int>", ArrayType(IntegerType()), [1, None]),
    ("map<text, int>", MapType(StringType(), IntegerType()), [("a", None)]),
    ("duration", StructType([StructField(name, LongType()) for name in ("months", "days", "nanoseconds")]),
     {"months": 1, "days": None, "nanoseconds": 1}),
    ("duration", StructType([StructField(name, LongType()) for name in ("months", "days", "nanoseconds")]),
     {"months": 2**31, "days": 0, "nanoseconds": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "value"), NOT_WRITTEN)
def test_a_value_that_cannot_be_written_is_an_error_that_names_its_column(
    name: str, given: DataType, value: Any
) -> None:
    kind = parse_type(name)
    assert write_mismatch(kind, given) is None
    with pytest.raises(InvalidRequest, match="'price'"):
        column_to_stored(kind, pa.array([None, value], arrow_of(given)), "price")


def test_timestamps_are_cut_only_where_asked_for_and_always_down() -> None:
    kind = parse_type("timestamp")
    before = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, datetime.UTC)
    column = pa.array([before, None], pa.timestamp("us", "UTC"))
    assert to_stored(kind, column, cuts_timestamps=True).equals(stored("timestamp", [-1, None]))


def test_elements_of_a_list_that_is_null_itself_do_not_count() -> None:
    offsets = pa.py_buffer(pa.array([0, 2, 3], pa.int32()).buffers()[1])
    values = pa.array([1, None, 3], pa.int32())
    bitmap = pa.array([False, True]).buffers()[1]
    column = pa.Array.from_buffers(pa.list_(pa.int32()), 2, [bitmap, offsets], children=[values])
    found = to_stored(parse_type("list<int>"), column)
    assert found.to_pylist() == [None, [3]]


@pytest.mark.parametrize("given", [StringType(), DoubleType(), FloatType(), DecimalType(10, 0), BooleanType()])
def test_types_that_an_int_cannot_be_written_from(given: DataType) -> None:
    reason = write_mismatch(parse_type("int"), given)
    assert reason is not None
    assert given.simpleString() in reason
    assert "tinyint" in reason
