"""Columns of any type as CSV text, and back, without loss.

A value is written as Spark writes it: times in UTC, bytes in base64. Lists, sets, maps, tuples and durations are JSON;
a map whose keys are not text is a list of its entries. A null is an empty field, and an empty text is two quotes.
"""

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, DataFrameReader
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

EMPTY_MARK = "\x01empty\x01"
"""What two quotes are read as. Otherwise Spark would read them as null, too."""

_LAYOUT: dict[str, str | bool] = {
    "header": True,
    "quote": '"',
    "escape": '"',
    "ignoreLeadingWhiteSpace": False,
    "ignoreTrailingWhiteSpace": False,
    "nullValue": "",
}
WRITING: dict[str, str | bool] = {**_LAYOUT, "emptyValue": '""'}
READING: dict[str, str | bool] = {
    **_LAYOUT,
    "emptyValue": EMPTY_MARK,
    "multiLine": True,
    "mode": "FAILFAST",
    "enforceSchema": False,
}
_WHOLE = (StructType, ArrayType, MapType)
_PLAIN_JSON = (StringType, BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType)


def as_texts(frame: DataFrame) -> DataFrame:
    return frame.select(*(_as_text(fn.col(quoted(one.name)), one.dataType).alias(one.name) for one in frame.schema))


def from_texts(frame: DataFrame, schema: StructType) -> DataFrame:
    """The columns of the frame, with the types that they have in the schema."""
    kinds = {field.name: field.dataType for field in schema}
    return frame.select(*(_from_text(fn.col(quoted(name)), kinds[name]).alias(name) for name in frame.columns))


def read_texts(reader: DataFrameReader, paths: Sequence[str]) -> DataFrame:
    """Each file must have the header of the first."""
    options = {name: value for name, value in READING.items() if name != "enforceSchema"}
    names = reader.options(**options).csv(paths[0]).columns
    texts = StructType([StructField(name, StringType()) for name in names])
    return reader.options(**READING).schema(texts).csv(list(paths))


def quoted(name: str) -> str:
    """A column name, quoted for Spark."""
    return "`" + name.replace("`", "``") + "`"


def _as_text(column: Column, kind: DataType) -> Column:
    if isinstance(kind, _WHOLE):
        return fn.to_json(_jsonable(column, kind), {"ignoreNullFields": "false"})
    return fn.base64(column) if isinstance(kind, BinaryType) else column.cast("string")


def _from_text(column: Column, kind: DataType) -> Column:
    if isinstance(kind, _WHOLE):
        parsed = fn.from_json(column, _json_type(kind), {"mode": "FAILFAST"})  # type: ignore[arg-type]  # any type
        return _restored(parsed, kind)
    text = fn.when(column == EMPTY_MARK, "").otherwise(column)
    if isinstance(kind, BinaryType):
        return fn.unbase64(text)
    return text if isinstance(kind, StringType) else text.cast(kind)


# ---- nested values


def _has_text_keys(kind: MapType) -> bool:
    return isinstance(kind.keyType, StringType)


def _entry_fields(kind: MapType) -> StructType:
    return StructType([StructField("key", kind.keyType), StructField("value", kind.valueType)])


def _json_type(kind: DataType) -> DataType:
    """The type that is written as JSON for a type."""
    if isinstance(kind, ArrayType):
        return ArrayType(_json_type(kind.elementType))
    if isinstance(kind, StructType):
        return StructType([StructField(one.name, _json_type(one.dataType)) for one in kind])
    if isinstance(kind, MapType):
        if _has_text_keys(kind):
            return MapType(StringType(), _json_type(kind.valueType))
        return ArrayType(_json_type(_entry_fields(kind)))
    return kind if isinstance(kind, _PLAIN_JSON) else StringType()


def _jsonable(column: Column, kind: DataType) -> Column:
    if isinstance(kind, MapType) and not _has_text_keys(kind):
        return _jsonable(fn.map_entries(column), ArrayType(_entry_fields(kind)))
    if isinstance(kind, _WHOLE):
        return _with_parts(column, kind, _jsonable)
    return column if isinstance(kind, _PLAIN_JSON) else _as_text(column, kind)


def _restored(column: Column, kind: DataType) -> Column:
    if isinstance(kind, MapType) and not _has_text_keys(kind):
        return fn.map_from_entries(_restored(column, ArrayType(_entry_fields(kind))))
    if isinstance(kind, _WHOLE):
        return _with_parts(column, kind, _restored)
    if isinstance(kind, BinaryType):
        return fn.unbase64(column)
    return column if isinstance(kind, _PLAIN_JSON) else column.cast(kind)


def _with_parts(
    column: Column, kind: StructType | ArrayType | MapType, convert: Callable[[Column, DataType], Column]
) -> Column:
    """The same array, struct or map of text keys, with each part converted."""
    if isinstance(kind, ArrayType):
        return fn.transform(column, lambda one: convert(one, kind.elementType))
    if isinstance(kind, MapType):
        return fn.transform_values(column, lambda _, one: convert(one, kind.valueType))
    parts = [convert(column.getField(one.name), one.dataType).alias(one.name) for one in kind]
    return fn.when(column.isNotNull(), fn.struct(*parts))
