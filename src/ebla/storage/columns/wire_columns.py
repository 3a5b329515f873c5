"""Converts whole Arrow columns to the wire form of their values and back.

Types of fixed width, texts and blobs use vector operations; the others are converted one value at a time. Arrow has no
empty numbers, times or uuids: those are null in its columns, and `holds_empties` finds the values that lose something.
"""

import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.byte_comparable import canonical
from ebla.model.cql_types import (
    EMPTIABLE,
    FIXED_BYTES,
    CqlType,
    ListType,
    MapType,
    Scalar,
    ScalarType,
    SetType,
    TupleType,
    contains,
)
from ebla.model.errors import InvalidRequest
from ebla.model.values import NANOSECONDS_PER_DAY, Duration, decode, encode, holds_empty
from ebla.storage.columns.arrow_types import arrow_type, number_type
from ebla.storage.columns.binary_columns import (
    ByteRun,
    Bytes,
    Mask,
    Positions,
    ValuePart,
    as_matrix,
    gather,
    slice_values,
)

_NUMBER_FORMS: dict[Scalar, tuple[str, pa.DataType]] = {
    Scalar.BIGINT: (">i8", pa.int64()),
    Scalar.DATE: (">i4", pa.int32()),
    Scalar.DOUBLE: (">f8", pa.float64()),
    Scalar.FLOAT: (">f4", pa.float32()),
    Scalar.INT: (">i4", pa.int32()),
    Scalar.SMALLINT: (">i2", pa.int16()),
    Scalar.TIME: (">i8", pa.int64()),
    Scalar.TIMESTAMP: (">i8", pa.int64()),
    Scalar.TINYINT: ("i1", pa.int8()),
}
_AS_THEY_ARE = (Scalar.ASCII, Scalar.BLOB, Scalar.TEXT)
_TOP_BIT = np.uint8(0x80)


def fixed_width(kind: CqlType) -> int | None:
    """The length of every value; None where lengths differ."""
    return FIXED_BYTES.get(kind.scalar) if isinstance(kind, ScalarType) else None


def cast_to_type(kind: CqlType, column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column in the one Arrow type of its CQL type. `InvalidRequest` where its values do not fit."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    wanted = arrow_type(kind)
    if column.type == wanted:
        return column
    try:
        return column.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRequest(f"a column of Arrow type {column.type} cannot be written as {kind} ({error})") from error


def check_values(kind: CqlType, column: pa.Array) -> None:
    """Raises `InvalidRequest` for values that fit the Arrow type and not the CQL type. Types that are converted one
    value
    at a time are checked there."""
    if not isinstance(kind, ScalarType) or not len(column):
        return
    match kind.scalar:
        case Scalar.TIME:
            numbers = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            wrong = bool(((numbers < 0) | (numbers >= NANOSECONDS_PER_DAY)).any())
        case Scalar.TIMEUUID:
            versions = fixed_to_wire(kind, column)[:, 6] >> 4
            valid = valid_of(column)
            wrong = bool((versions[slice(None) if valid is None else valid] != 1).any())
        case Scalar.ASCII:
            wrong = not pc.all(pc.string_is_ascii(column), skip_nulls=True, min_count=0).as_py()
        case _:
            wrong = False
    if wrong:
        raise InvalidRequest(f"a value is not a valid {kind}")


def valid_of(column: pa.Array) -> Mask | None:
    """Which values are not null; None where all are."""
    if not column.null_count:
        return None
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


def fixed_to_wire(kind: CqlType, column: pa.Array) -> Bytes:
    """A row of bytes for each value of a type of fixed width; rows of nulls are arbitrary."""
    assert isinstance(kind, ScalarType)
    scalar = kind.scalar
    if scalar in (Scalar.UUID, Scalar.TIMEUUID):
        return _uuid_bytes(column)
    if scalar is Scalar.BOOLEAN:
        values = column.fill_null(False).to_numpy(zero_copy_only=False)
        return as_matrix(values, "u1")
    form, plain = _NUMBER_FORMS[scalar]
    numbers = column.cast(plain).fill_null(0).to_numpy(zero_copy_only=False)
    matrix = as_matrix(numbers, form)
    if scalar is Scalar.DATE:
        matrix[:, 0] ^= _TOP_BIT
    return matrix


def fixed_from_wire(kind: CqlType, matrix: Bytes, valid: Mask | None = None) -> pa.Array:
    assert isinstance(kind, ScalarType)
    scalar, count = kind.scalar, len(matrix)
    absent = None if valid is None else ~valid
    if scalar in (Scalar.UUID, Scalar.TIMEUUID):
        bitmap = None if valid is None else pa.array(valid).buffers()[1]
        data = pa.py_buffer(np.ascontiguousarray(matrix))
        return pa.Array.from_buffers(pa.binary(16), count, [bitmap, data])
    if scalar is Scalar.BOOLEAN:
        return pa.array(matrix.reshape(count) != 0, mask=absent)
    form, plain = _NUMBER_FORMS[scalar]
    if scalar is Scalar.DATE:
        matrix = matrix.copy()
        matrix[:, 0] ^= _TOP_BIT
    # Usually the matrix is a slice of a wider one: read it in place, since a copy costs ten times the conversion.
    numbers = matrix.view(form).reshape(count).astype(np.dtype(form).newbyteorder("="))
    return pa.array(numbers, plain, mask=absent).cast(arrow_type(kind))


def wire_part(kind: CqlType, column: pa.Array) -> ValuePart:
    """The wire form of each value, to be joined with others; those of nulls are arbitrary."""
    if fixed_width(kind) is not None:
        return fixed_to_wire(kind, column)
    wire = to_wire(kind, column)
    return wire.fill_null(b"") if wire.null_count else wire


def slices_from_wire(
    kind: CqlType, run: ByteRun, starts: Positions, ends: Positions, valid: Mask | None = None
) -> pa.Array:
    """Typed values of the bytes between each start and end; null where not valid. Raises `IndexError` where a value has
    another length than its type."""
    width = fixed_width(kind)
    if width is None:
        return from_wire(kind, slice_values(run, starts, ends, valid))
    assert isinstance(kind, ScalarType)
    empty = ends == starts
    if kind.scalar in EMPTIABLE and empty.any():
        valid = ~empty if valid is None else valid & ~empty
    there = slice(None) if valid is None else valid
    if not ((ends - starts)[there] == width).all():
        raise IndexError(f"a {kind} does not have {width} bytes")
    if valid is None:
        return fixed_from_wire(kind, gather(run.data, starts, width))
    matrix = np.zeros((len(valid), width), np.uint8)
    matrix[valid] = gather(run.data, starts[valid], width)
    return fixed_from_wire(kind, matrix, valid)


def holds_empties(kind: CqlType, run: ByteRun, starts: Positions, ends: Positions, valid: Mask | None) -> Mask | None:
    """Which values are empty, or contain an empty value, of a type for which Arrow has none; None: no value."""
    found: Mask
    if isinstance(kind, ScalarType):
        if kind.scalar not in EMPTIABLE:
            return None
        found = ends == starts if valid is None else (ends == starts) & valid
    elif not any(contains(kind, scalar) for scalar in EMPTIABLE):
        return None
    else:
        values = slice_values(run, starts, ends, valid).to_pylist()
        found = np.array([data is not None and holds_empty(kind, data) for data in values], np.bool_)
    return found if found.any() else None


def to_wire(kind: CqlType, column: pa.Array) -> pa.Array:
    """The wire form of each value as a binary column; nulls stay."""
    if isinstance(kind, ScalarType) and kind.scalar in _AS_THEY_ARE:
        return _retyped(column, pa.binary())
    values = _numbered(kind, column).to_pylist()
    back = _converter(kind, _FROM_ARROW)
    wire = [None if value is None else canonical(kind, encode(kind, back(value))) for value in values]
    return pa.array(wire, pa.binary())


def from_wire(kind: CqlType, column: pa.Array) -> pa.Array:
    """Typed values of a binary column; nulls stay."""
    if isinstance(kind, ScalarType) and kind.scalar in _AS_THEY_ARE:
        return _retyped(column, arrow_type(kind))
    forth = _part_converter(kind, _TO_ARROW)
    values = [None if data is None else forth(decode(kind, data)) for data in column.to_pylist()]
    return pa.array(values, number_type(kind)).cast(arrow_type(kind))


def _retyped(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return (
        column
        if column.type == kind
        else pa.Array.from_buffers(kind, len(column), column.buffers(), column.null_count, column.offset)
    )


def _numbered(kind: CqlType, column: pa.Array) -> pa.Array:
    wanted = number_type(kind)
    return column if column.type == wanted else column.cast(wanted)


def _uuid_bytes(column: pa.Array) -> Bytes:
    data = column.buffers()[1]
    if data is None:
        return np.zeros((len(column), 16), np.uint8)
    return np.frombuffer(data, np.uint8, len(column) * 16, column.offset * 16).reshape(len(column), 16)


Convert = Callable[[Any], Any]

_TO_ARROW: dict[Scalar, Convert] = {
    Scalar.DECIMAL: str,
    Scalar.DURATION: lambda value: pa.MonthDayNano((value.months, value.days, value.nanoseconds)),
    Scalar.INET: str,
    Scalar.TIMEUUID: lambda value: value.bytes,
    Scalar.UUID: lambda value: value.bytes,
    Scalar.VARINT: str,
}
"""From the Python value of `values.decode` to what `pa.array` takes for `number_type`; other scalars are the same."""
_FROM_ARROW: dict[Scalar, Convert] = {
    Scalar.DECIMAL: Decimal,
    Scalar.DURATION: lambda value: Duration(value.months, value.days, value.nanoseconds),
    Scalar.TIMEUUID: lambda value: uuid.UUID(bytes=value),
    Scalar.UUID: lambda value: uuid.UUID(bytes=value),
    Scalar.VARINT: int,
}
"""From `as_py` of `number_type` to what `values.encode` takes."""


def _converter(kind: CqlType, scalars: dict[Scalar, Convert]) -> Convert:
    match kind:
        case ScalarType(scalar=scalar):
            return scalars.get(scalar, _same)
        case ListType(element=element) | SetType(element=element):
            inner = _part_converter(element, scalars)
            return lambda value: [inner(one) for one in value]
        case MapType(key=key, value=value_kind):
            left, right = _part_converter(key, scalars), _part_converter(value_kind, scalars)
            # Arrow has no null keys: an entry with an empty key is left out.
            return lambda value: [(left(one), right(other)) for one, other in value if one is not None]
        case TupleType(elements=elements):
            parts = [_converter(one, scalars) for one in elements]
            return lambda value: tuple(
                None if one is None else convert(one) for convert, one in zip(parts, _fields(value), strict=True)
            )
        case _ as never:
            assert_never(never)


def _part_converter(kind: CqlType, scalars: dict[Scalar, Convert]) -> Convert:
    """Of a value that may be empty, which is null in Arrow. Nulls inside collections do not become empty values."""
    convert = _converter(kind, scalars)
    return convert if scalars is _FROM_ARROW else lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _fields(value: Any) -> Any:
    """Of a tuple, which Arrow returns as a dictionary."""
    return value.values() if isinstance(value, dict) else value
