"""Rows of chunks compared, whole columns at once: replicas and layers that were adopted twice hold the same rows, and
what is the same need not be merged."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.cql_types import CqlType
from ebla.storage.columns.binary_columns import Mask
from ebla.storage.columns.chunks import FLAGS, KEY, STORED, TIMESTAMP, ChunkShape, field_name
from ebla.storage.columns.wire_columns import to_wire

_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64(), pa.month_day_nano_interval(): pa.binary(16)}


def same_keys(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    return len(one) == len(other) and bool(one.column(KEY).equals(other.column(KEY)))


def same_rows(shape: ChunkShape, one: pa.RecordBatch, other: pa.RecordBatch) -> Mask:
    """For each place whether the rows there say the same, cell by cell and with their times. Their keys must be equal
    where they do: those are not looked at."""
    found: Mask = _same(one.column(TIMESTAMP), other.column(TIMESTAMP))
    found &= _same(one.column(FLAGS), other.column(FLAGS))
    found &= _same(one.column(STORED), other.column(STORED))
    for column in shape.schema.regular:
        if not found.any():
            break
        if column.number in shape.numbers:
            name = field_name(column.number)
            found &= _same_values(column.type, one.column(name), other.column(name))
    return found


def _same_values(kind: CqlType, one: pa.Array, other: pa.Array) -> Mask:
    if one.type in _BITS:
        # Not by value: NaN is equal to nothing, -0.0 to 0.0, and Arrow does not compare durations at all.
        return _same(one.view(_BITS[one.type]), other.view(_BITS[one.type]))
    if not pa.types.is_nested(one.type):
        return _same(one, other)
    if one.equals(other):
        return np.ones(len(one), np.bool_)
    # Arrow compares no nested values one by one.
    return _same(to_wire(kind, one), to_wire(kind, other))


def _same(one: pa.Array, other: pa.Array) -> Mask:
    """A null is the same as a null."""
    equal = pc.equal(one, other)
    if equal.null_count:
        equal = pc.if_else(equal.is_null(), pc.and_(one.is_null(), other.is_null()), equal)
    return np.array(equal.to_numpy(zero_copy_only=False))
