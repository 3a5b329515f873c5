"""Converts Arrow columns between storage's types and Spark's, whole columns at once, nested ones too.

Nothing is rounded or cut: a value that does not fit raises an `InvalidRequest` that names the column.
"""

from collections.abc import Sequence
from typing import assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.cql_types import CqlType, ListType, MapType, Scalar, ScalarType, SetType, TupleType
from ebla.model.errors import InvalidRequest
from ebla.source import uuid_columns
from ebla.storage.columns.arrow_types import arrow_type
from ebla.storage.columns.wire_columns import valid_of

_INTERVAL = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
_DURATION_TYPES = (pa.int32(), pa.int32(), pa.int64())
_DURATION_FIELDS = ("months", "days", "nanoseconds")
_TIMESTAMP = arrow_type(ScalarType(Scalar.TIMESTAMP))


def columns_to_spark(kinds: Sequence[CqlType | None], batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """`kinds`: the CQL types of the batch's columns, None for a column that is not a value of the table (a token, a
    write time). `wanted`: the schema Spark expects, in the same order."""
    arrays = []
    for kind, column, field in zip(kinds, batch.columns, wanted, strict=True):
        try:
            arrays.append(column.cast(field.type) if kind is None else to_spark(kind, column, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidRequest(
                f"column {field.name!r} has a value that Spark's {field.type} does not hold ({error})",
                advice=_reading_advice(kind),
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def column_to_stored(kind: CqlType, column: pa.Array, name: str, *, cuts_timestamps: bool = False) -> pa.Array:
    """In the Arrow type that storage has for the CQL type. `cuts_timestamps`: microseconds of a timestamp are dropped;
    else they are an error."""
    try:
        return to_stored(kind, column, cuts_timestamps)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise InvalidRequest(
            f"column {name!r} has a value that a CQL {kind} does not hold ({error})", advice=_writing_advice(kind)
        ) from None
    except InvalidRequest as error:
        raise InvalidRequest(f"column {name!r}: {error.message}", advice=error.advice) from None


# ---- from storage


def to_spark(kind: CqlType, column: pa.Array, wanted: pa.DataType) -> pa.Array:
    match kind:
        case ScalarType(scalar=scalar):
            return _scalar_to_spark(scalar, column, wanted)
        case ListType(element=element) | SetType(element=element):
            offsets, values = _offsets_and_child(column, column.values)
            return _listed(wanted, column, offsets, to_spark(element, values, wanted.value_type))
        case MapType(key=key, value=value):
            offsets, keys = _offsets_and_child(column, column.keys)
            _, items = _offsets_and_child(column, column.items)
            keys, items = to_spark(key, keys, wanted.key_type), to_spark(value, items, wanted.item_type)
            return _mapped(wanted, column, offsets, keys, items)
        case TupleType(elements=elements):
            fields = [wanted.field(place) for place in range(wanted.num_fields)]
            parts = [to_spark(one, column.field(place), fields[place].type) for place, one in enumerate(elements)]
            return _struct(fields, column, parts)
        case _ as never:
            assert_never(never)


def _scalar_to_spark(scalar: Scalar, column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if column.type == wanted:
        return column
    match scalar:
        case Scalar.UUID | Scalar.TIMEUUID if pa.types.is_string(wanted):
            return uuid_columns.to_text(column)
        case Scalar.DURATION:
            return _duration_to_spark(column, wanted)
        case _:
            return column.cast(wanted)


def _duration_to_spark(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    raw = _fixed_data(column, _INTERVAL)
    fields = [wanted.field(place) for place in range(wanted.num_fields)]
    parts = [
        pa.array(np.ascontiguousarray(raw[name]), plain).cast(field.type)
        for name, plain, field in zip(_DURATION_FIELDS, _DURATION_TYPES, fields, strict=True)
    ]
    return _struct(fields, column, parts)


# ---- into storage


def to_stored(kind: CqlType, column: pa.Array, cuts_timestamps: bool = False) -> pa.Array:
    wanted = arrow_type(kind)
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), wanted)
    match kind:
        case ScalarType(scalar=scalar):
            return _scalar_to_stored(scalar, column, cuts_timestamps)
        case ListType(element=element) | SetType(element=element):
            offsets, values = _offsets_and_child(column, column.values)
            _refuse_nulls(values, column, offsets, kind)
            return _listed(wanted, column, offsets, to_stored(element, values, cuts_timestamps))
        case MapType(key=key, value=value):
            offsets, keys = _offsets_and_child(column, column.keys)
            _, items = _offsets_and_child(column, column.items)
            _refuse_nulls(items, column, offsets, kind)
            return _mapped(
                wanted, column, offsets, to_stored(key, keys, cuts_timestamps), to_stored(value, items, cuts_timestamps)
            )
        case TupleType(elements=elements):
            fields = [wanted.field(place) for place in range(wanted.num_fields)]
            parts = [to_stored(one, column.field(place), cuts_timestamps) for place, one in enumerate(elements)]
            return _struct(fields, column, parts)
        case _ as never:
            assert_never(never)


def _scalar_to_stored(scalar: Scalar, column: pa.Array, cuts_timestamps: bool) -> pa.Array:
    wanted = arrow_type(ScalarType(scalar))
    if column.type == wanted:
        return column
    match scalar:
        case Scalar.UUID | Scalar.TIMEUUID if pa.types.is_string(column.type):
            return uuid_columns.from_text(column)
        case Scalar.DURATION:
            return _duration_to_stored(column)
        case Scalar.TIMESTAMP if pa.types.is_timestamp(column.type) and cuts_timestamps:
            return pc.floor_temporal(column, unit="millisecond").cast(wanted)
        case Scalar.VARINT if pa.types.is_decimal(column.type):
            return column.cast(pa.decimal128(38, 0)).cast(wanted)
        case _:
            return column.cast(wanted)


def _duration_to_stored(column: pa.Array) -> pa.Array:
    raw = np.zeros(len(column), _INTERVAL)
    valid = valid_of(column)
    for place, (name, plain) in enumerate(zip(_DURATION_FIELDS, _DURATION_TYPES, strict=True)):
        part = column.field(place).cast(plain)
        if (part.is_null() if valid is None else pc.and_(part.is_null(), pa.array(valid))).true_count:
            raise InvalidRequest(f"a duration has no {name}", advice="all three parts are needed; 0 is allowed")
        raw[name] = part.fill_null(0).to_numpy(zero_copy_only=False)
    bitmap = None if valid is None else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(pa.month_day_nano_interval(), len(column), [bitmap, pa.py_buffer(raw)])


def _refuse_nulls(values: pa.Array, column: pa.Array, offsets: npt.NDArray[np.int32], kind: CqlType) -> None:
    """Elements of a list that is null itself do not matter."""
    if not values.null_count:
        return
    valid = valid_of(column)
    sizes = np.diff(offsets)
    is_in_valid = np.repeat(np.ones(len(column), np.bool_) if valid is None else valid, sizes)
    if bool((np.asarray(values.is_null().to_numpy(zero_copy_only=False)) & is_in_valid).any()):
        raise InvalidRequest(f"a {kind} holds no nulls", advice="leave them out, as by filter(c, x -> x is not null)")


# ---- nested arrays, rebuilt around their converted parts


def _offsets_and_child(column: pa.Array, child: pa.Array) -> tuple[npt.NDArray[np.int32], pa.Array]:
    """Offsets starting at 0, and the part of the child they refer to. A slice has the whole child, and offsets into its
    middle."""
    offsets = column.offsets.to_numpy(zero_copy_only=False)
    first, last = int(offsets[0]), int(offsets[-1])
    return (offsets - first).astype(np.int32), child.slice(first, last - first)


def _listed(wanted: pa.DataType, column: pa.Array, offsets: npt.NDArray[np.int32], values: pa.Array) -> pa.Array:
    buffers = [_validity(column), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(wanted, len(column), buffers, children=[values])


def _mapped(
    wanted: pa.DataType, column: pa.Array, offsets: npt.NDArray[np.int32], keys: pa.Array, items: pa.Array
) -> pa.Array:
    entries = pa.StructArray.from_arrays([keys, items], fields=[wanted.key_field, wanted.item_field])
    buffers = [_validity(column), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(wanted, len(column), buffers, children=[entries])


def _struct(fields: Sequence[pa.Field], column: pa.Array, parts: Sequence[pa.Array]) -> pa.Array:
    return pa.Array.from_buffers(pa.struct(fields), len(column), [_validity(column)], children=list(parts))


def _validity(column: pa.Array) -> pa.Buffer | None:
    valid = valid_of(column)
    return None if valid is None else pa.array(valid).buffers()[1]


def _fixed_data(column: pa.Array, kind: np.dtype[np.void]) -> npt.NDArray[np.void]:
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), kind)
    return np.frombuffer(data, kind, len(column), column.offset * kind.itemsize)


def _reading_advice(kind: CqlType | None) -> str:
    match kind:
        case ScalarType(scalar=Scalar.TIMESTAMP):
            return "a schema of your own that calls the column bigint gives milliseconds since 1970"
        case ScalarType(scalar=Scalar.VARINT | Scalar.DECIMAL):
            return "a schema of your own that calls the column string, or a wider decimal, holds it"
        case _:
            return ""


def _writing_advice(kind: CqlType) -> str:
    match kind:
        case ScalarType(scalar=Scalar.TIMESTAMP):
            return (
                "CQL keeps milliseconds: cut the rest off by date_trunc('MILLISECOND', c), or give the option "
                "timestamps=cut"
            )
        case ScalarType(scalar=Scalar.VARINT):
            return "only whole numbers are varints"
        case _:
            return ""
