"""CQL types as Arrow types, for scans, sidecars and Spark.

The mapping loses nothing. Types that Arrow lacks become text (`varint`, `decimal`, `inet`) or 16 bytes (`uuid`,
`timeuuid`); sets are lists, tuples are structs with fields `_1`, `_2`, …, as Spark names them.
"""

from typing import assert_never

import pyarrow as pa

from ebla.model.cql_types import CqlType, ListType, MapType, Scalar, ScalarType, SetType, TupleType

_SCALARS: dict[Scalar, pa.DataType] = {
    Scalar.ASCII: pa.string(),
    Scalar.BIGINT: pa.int64(),
    Scalar.BLOB: pa.binary(),
    Scalar.BOOLEAN: pa.bool_(),
    Scalar.DATE: pa.date32(),
    Scalar.DECIMAL: pa.string(),
    Scalar.DOUBLE: pa.float64(),
    Scalar.DURATION: pa.month_day_nano_interval(),
    Scalar.FLOAT: pa.float32(),
    Scalar.INET: pa.string(),
    Scalar.INT: pa.int32(),
    Scalar.SMALLINT: pa.int16(),
    Scalar.TEXT: pa.string(),
    Scalar.TIME: pa.time64("ns"),
    Scalar.TIMESTAMP: pa.timestamp("ms", tz="UTC"),
    Scalar.TIMEUUID: pa.binary(16),
    Scalar.TINYINT: pa.int8(),
    Scalar.UUID: pa.binary(16),
    Scalar.VARINT: pa.string(),
}

_AS_NUMBERS: dict[Scalar, pa.DataType] = {
    **_SCALARS,
    Scalar.DATE: pa.int32(),
    Scalar.TIME: pa.int64(),
    Scalar.TIMESTAMP: pa.int64(),
}
"""Python's own dates end at the year 9999; CQL's do not."""


def arrow_type(kind: CqlType) -> pa.DataType:
    return _build(kind, _SCALARS)


def number_type(kind: CqlType) -> pa.DataType:
    """The same with dates and times as integers: the form for conversion to single Python values."""
    return _build(kind, _AS_NUMBERS)


def _build(kind: CqlType, scalars: dict[Scalar, pa.DataType]) -> pa.DataType:
    match kind:
        case ScalarType(scalar=scalar):
            return scalars[scalar]
        case ListType(element=element) | SetType(element=element):
            return pa.list_(_build(element, scalars))
        case MapType(key=key, value=value):
            return pa.map_(_build(key, scalars), _build(value, scalars))
        case TupleType(elements=elements):
            fields = enumerate((_build(one, scalars) for one in elements), 1)
            return pa.struct([(f"_{number}", field) for number, field in fields])
        case _ as never:
            assert_never(never)
