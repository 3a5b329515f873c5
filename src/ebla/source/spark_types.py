"""Maps CQL types to Spark types, and lists the other types a job may read as or write from.

The default type loses nothing and needs no Spark setting: `varint` and `decimal` have no bound, so they are text unless
a schema says `decimal(p,s)`. `time` has nanoseconds, and Spark's TIME type is off by default, so it is a number of
nanoseconds.
"""

from collections.abc import Mapping, Sequence
from typing import assert_never

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
    TimestampType,
    TimeType,
)

from ebla.model import cql_types as cql
from ebla.model.cql_types import CqlType, Scalar
from ebla.model.schema import TableSchema
from ebla.model.selection import ColumnSelector, SelectorKind

DURATION = StructType(
    [StructField("months", IntegerType()), StructField("days", IntegerType()), StructField("nanoseconds", LongType())]
)

_Kinds = tuple[type[DataType], ...]
_INTEGERS: _Kinds = (ByteType, ShortType, IntegerType, LongType)

DEFAULT_TYPES: Mapping[Scalar, DataType] = {
    Scalar.ASCII: StringType(),
    Scalar.BIGINT: LongType(),
    Scalar.BLOB: BinaryType(),
    Scalar.BOOLEAN: BooleanType(),
    Scalar.DATE: DateType(),
    Scalar.DECIMAL: StringType(),
    Scalar.DOUBLE: DoubleType(),
    Scalar.DURATION: DURATION,
    Scalar.FLOAT: FloatType(),
    Scalar.INET: StringType(),
    Scalar.INT: IntegerType(),
    Scalar.SMALLINT: ShortType(),
    Scalar.TEXT: StringType(),
    Scalar.TIME: LongType(),
    Scalar.TIMESTAMP: TimestampType(),
    Scalar.TIMEUUID: StringType(),
    Scalar.TINYINT: ByteType(),
    Scalar.UUID: StringType(),
    Scalar.VARINT: StringType(),
}

ALSO_READ_AS: Mapping[Scalar, _Kinds] = {
    Scalar.DECIMAL: (DecimalType,),
    Scalar.FLOAT: (DoubleType,),
    Scalar.INT: (LongType,),
    Scalar.SMALLINT: (IntegerType, LongType),
    Scalar.TIME: (TimeType,),
    Scalar.TIMESTAMP: (LongType,),
    Scalar.TIMEUUID: (BinaryType,),
    Scalar.TINYINT: (ShortType, IntegerType, LongType),
    Scalar.UUID: (BinaryType,),
    Scalar.VARINT: (DecimalType, LongType),
}
"""With a schema from the user. A value that does not fit is an error."""

ALSO_WRITTEN_FROM: Mapping[Scalar, _Kinds] = {
    Scalar.BIGINT: _INTEGERS,
    Scalar.DECIMAL: (DecimalType, *_INTEGERS),
    Scalar.DOUBLE: (FloatType, ByteType, ShortType, IntegerType),
    Scalar.FLOAT: (ByteType, ShortType),
    Scalar.INT: _INTEGERS,
    Scalar.SMALLINT: _INTEGERS,
    Scalar.TIME: (TimeType,),
    Scalar.TIMESTAMP: (LongType,),
    Scalar.TIMEUUID: (BinaryType,),
    Scalar.TINYINT: _INTEGERS,
    Scalar.UUID: (BinaryType,),
    Scalar.VARINT: (DecimalType, *_INTEGERS),
}
"""Each value is checked: one that does not fit is an error, and none is rounded."""

METADATA_TYPES: Mapping[SelectorKind, DataType] = {
    SelectorKind.WRITETIME: LongType(),
    SelectorKind.TTL: IntegerType(),
    SelectorKind.TOKEN: LongType(),
}


def spark_type(kind: CqlType) -> DataType:
    match kind:
        case cql.ScalarType(scalar=scalar):
            return DEFAULT_TYPES[scalar]
        case cql.ListType(element=element) | cql.SetType(element=element):
            return ArrayType(spark_type(element))
        case cql.MapType(key=key, value=value):
            return MapType(spark_type(key), spark_type(value))
        case cql.TupleType(elements=elements):
            return StructType([StructField(f"_{place}", spark_type(one)) for place, one in enumerate(elements, 1)])
        case _ as never:
            assert_never(never)


def spark_schema(schema: TableSchema, asked: Sequence[ColumnSelector]) -> StructType:
    """Of the columns a job reads. Everything may be null: a partition with only static columns has a row without
    clustering columns."""
    return StructType([StructField(one.label, column_type(schema, one)) for one in asked])


def column_type(schema: TableSchema, asked: ColumnSelector) -> DataType:
    if asked.kind is SelectorKind.VALUE:
        return spark_type(schema.column(asked.name).type)
    return METADATA_TYPES[asked.kind]


def read_mismatch(kind: CqlType, asked: DataType) -> str | None:
    """Why a column cannot be read as this type; None where it can."""
    return _refuse(kind, asked, ALSO_READ_AS, "read as")


def write_mismatch(kind: CqlType, given: DataType) -> str | None:
    """Why a Spark column cannot be written to a column of this type; None where it can, value by value."""
    return _refuse(kind, given, ALSO_WRITTEN_FROM, "written from")


def choices(kind: CqlType, others: Mapping[Scalar, _Kinds]) -> str:
    """The Spark types that fit, the default first."""
    names = [spark_type(kind).simpleString()]
    if isinstance(kind, cql.ScalarType):
        shown = {DecimalType: "decimal(p,s)", TimeType: "time(6)"}
        names += [shown.get(one) or one().simpleString() for one in others.get(kind.scalar, ())]
    return ", ".join(dict.fromkeys(names))


def _refuse(kind: CqlType, given: DataType, others: Mapping[Scalar, _Kinds], how: str) -> str | None:
    if isinstance(given, NullType) and others is ALSO_WRITTEN_FROM:
        return None
    match kind, given:
        case cql.ScalarType(scalar=Scalar.DURATION), StructType():
            wanted, found = DURATION.names, given.names
            fits = wanted == found and all(isinstance(one.dataType, _INTEGERS) for one in given)
            return None if fits else _words(kind, given, others, how)
        case cql.ScalarType(scalar=scalar), _:
            fits = type(given) is type(DEFAULT_TYPES[scalar]) or type(given) in others.get(scalar, ())
            return None if fits else _words(kind, given, others, how)
        case ((cql.ListType(element=element) | cql.SetType(element=element)), ArrayType()):
            return _refuse(element, given.elementType, others, how)
        case cql.MapType(key=key, value=value), MapType():
            return _refuse(key, given.keyType, others, how) or _refuse(value, given.valueType, others, how)
        case cql.TupleType(elements=elements), StructType() if len(elements) == len(given):
            pairs = ((one, field.dataType) for one, field in zip(elements, given))
            return next((reason for reason in (_refuse(*pair, others, how) for pair in pairs) if reason), None)
        case _:
            return _words(kind, given, others, how)


def _words(kind: CqlType, given: DataType, others: Mapping[Scalar, _Kinds], how: str) -> str:
    return f"a CQL {kind} is {how} {choices(kind, others)}, not {given.simpleString()}"
