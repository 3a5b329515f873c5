"""Clustering columns as ordered bytes and back, whole columns at once: equal to `model/byte_comparable.py` bit by bit.

Types of fixed width, texts and blobs use vector operations; the others are converted one value at a time.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.byte_comparable import decode_comparable, encode_comparable
from ebla.model.cql_types import CqlType, Scalar, ScalarType
from ebla.model.schema import Column
from ebla.storage.columns.binary_columns import (
    ByteRun,
    Bytes,
    Mask,
    Positions,
    ValuePart,
    byte_run,
    concat_parts,
    gather,
    inverted,
    repeat_value,
    slice_values,
)
from ebla.storage.columns.wire_columns import fixed_from_wire, fixed_to_wire, fixed_width, from_wire, to_wire

_SIGNED = (Scalar.BIGINT, Scalar.INT, Scalar.SMALLINT, Scalar.TIME, Scalar.TIMESTAMP, Scalar.TINYINT)
_FLOATING = (Scalar.DOUBLE, Scalar.FLOAT)
_ESCAPED = (Scalar.ASCII, Scalar.BLOB, Scalar.INET, Scalar.TEXT)
_TIME_FIRST = np.array([6, 7, 4, 5, 0, 1, 2, 3, *range(8, 16)])
_TIME_BACK = np.argsort(_TIME_FIRST)
_TOP_BIT = np.uint8(0x80)
_NANS = {8: np.frombuffer(b"\x7f\xf8" + bytes(6), np.uint8), 4: np.frombuffer(b"\x7f\xc0" + bytes(2), np.uint8)}


@dataclass(frozen=True, slots=True)
class KeyCursor:
    """Where the next clustering component of each key starts. `flipped` is the same bytes inverted, for descending
    components."""

    run: ByteRun
    flipped: ByteRun | None
    positions: Positions

    def moved(self, positions: Positions) -> "KeyCursor":
        return KeyCursor(self.run, self.flipped, positions)


def encode_component(column: Column, values: pa.Array) -> ValuePart:
    part = encode_ascending(column.type, values)
    return inverted(part) if column.descending else part


def decode_component(column: Column, cursor: KeyCursor) -> tuple[pa.Array, KeyCursor]:
    """The typed values of one clustering column, and the cursor after them."""
    run = cursor.flipped if column.descending else cursor.run
    assert run is not None
    width = fixed_width(column.type)
    if width is not None:
        assert isinstance(column.type, ScalarType)
        scalar = column.type.scalar
        stored = width + 1 if scalar is Scalar.UUID else width
        matrix = _fixed_back(scalar, gather(run.data, cursor.positions, stored))
        return fixed_from_wire(scalar, matrix), cursor.moved(cursor.positions + stored)
    if isinstance(column.type, ScalarType) and column.type.scalar in _ESCAPED:
        wire, ends = _unescaped(run, cursor.positions)
        return from_wire(column.type, wire), cursor.moved(ends)
    found = _one_by_one(column.type, run, cursor)
    wire = pa.array([value for value, _ in found], pa.binary())
    return from_wire(column.type, wire), cursor.moved(np.array([end for _, end in found], np.int64))


def _one_by_one(kind: CqlType, run: ByteRun, cursor: KeyCursor) -> list[tuple[bytes, int]]:
    """Each key's bytes are cut out first: some types search for their end in all that follows."""
    found = []
    data = run.data.tobytes()
    for position, end in zip(cursor.positions.tolist(), run.ends.tolist()):
        value, used = decode_comparable(kind, data[position:end], 0)
        found.append((value, position + used))
    return found


def encode_ascending(kind: CqlType, values: pa.Array) -> ValuePart:
    """Self-delimiting bytes that sort in the order of the values."""
    if fixed_width(kind) is not None:
        assert isinstance(kind, ScalarType)
        return _fixed_forth(kind.scalar, fixed_to_wire(kind.scalar, values))
    wire = to_wire(kind, values)
    if isinstance(kind, ScalarType) and kind.scalar in _ESCAPED:
        return _escaped(wire)
    return pa.array([encode_comparable(kind, value) for value in wire.to_pylist()], pa.binary())


def _fixed_forth(scalar: Scalar, matrix: Bytes) -> Bytes:
    if scalar in _SIGNED:
        matrix = matrix.copy()
        matrix[:, 0] ^= _TOP_BIT
        return matrix
    if scalar in _FLOATING:
        return _ordered_floats(matrix)
    if scalar is Scalar.TIMEUUID:
        matrix = matrix[:, _TIME_FIRST]
        matrix[:, 8:] ^= _TOP_BIT
        return matrix
    if scalar is Scalar.UUID:
        versions = matrix[:, 6:7] >> 4
        return np.concatenate((versions, np.where(versions == 1, matrix[:, _TIME_FIRST], matrix)), axis=1)
    return matrix


def _fixed_back(scalar: Scalar, matrix: Bytes) -> Bytes:
    if scalar in _SIGNED:
        matrix[:, 0] ^= _TOP_BIT
    elif scalar in _FLOATING:
        positive = matrix[:, :1] >= _TOP_BIT
        matrix = np.where(positive, matrix, ~matrix)
        matrix[:, 0] ^= np.where(positive[:, 0], _TOP_BIT, np.uint8(0))
    elif scalar is Scalar.TIMEUUID:
        matrix[:, 8:] ^= _TOP_BIT
        matrix = matrix[:, _TIME_BACK]
    elif scalar is Scalar.UUID:
        matrix = np.where(matrix[:, :1] == 1, matrix[:, 1:][:, _TIME_BACK], matrix[:, 1:])
    return matrix


def _ordered_floats(matrix: Bytes) -> Bytes:
    width = matrix.shape[1]
    numbers = np.ascontiguousarray(matrix).view(f">f{width}").reshape(len(matrix))
    matrix = np.where(np.isnan(numbers)[:, None], _NANS[width], matrix)
    negative = matrix[:, :1] >= _TOP_BIT
    matrix = np.where(negative, ~matrix, matrix)
    matrix[:, 0] |= np.where(negative[:, 0], np.uint8(0), _TOP_BIT)
    return matrix


def _escaped(wire: pa.Array) -> ValuePart:
    run = byte_run(wire)
    if len(run) and not run.data[run.starts[0] : run.ends[-1]].all():
        wire = pc.replace_substring(wire, b"\0", b"\0\xff")
    return concat_parts((wire, repeat_value(b"\0\0", len(wire))), len(wire))


def _unescaped(run: ByteRun, positions: Positions) -> tuple[pa.Array, Positions]:
    """Texts and blobs up to their terminators, and the positions after those.

    Every zero byte is either escaped (0xff follows) or begins the terminator. Each key finds its next zero; only keys
    whose zero is escaped search again after it.
    """
    zeros = np.flatnonzero(run.data == 0)
    ends = _next_zero(zeros, positions)
    has_escapes: Mask = np.zeros(len(positions), np.bool_)
    open_ones = np.flatnonzero(run.data[ends + 1] != 0)
    while len(open_ones):
        has_escapes[open_ones] = True
        ends[open_ones] = _next_zero(zeros, ends[open_ones] + 2)
        open_ones = open_ones[run.data[ends[open_ones] + 1] != 0]
    wire = slice_values(run, positions, ends)
    if has_escapes.any():
        wire = pc.replace_substring(wire, b"\0\xff", b"\0")
    return wire, ends + 2


def _next_zero(zeros: Positions, positions: Positions) -> Positions:
    return zeros[np.searchsorted(zeros, positions)]
