"""Converts plain rows to typed columns and back: `row_codec.py` by vector operations.

A plain value is a header and then a length and a value for each regular column of its schema version, so the position
of a column depends on the lengths before it. All rows advance from column to column together.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebla.model.cql_types import ScalarType, is_multi_cell
from ebla.model.errors import Corruption
from ebla.model.schema import Column, TableSchema
from ebla.storage.codec.row_codec import FORMAT, HEADER, NO_CELL, PLAIN_HEADER, RowFlag
from ebla.storage.columns.arrow_types import arrow_type
from ebla.storage.columns.binary_columns import (
    ByteRun,
    Bytes,
    Mask,
    Positions,
    ValuePart,
    as_matrix,
    as_numbers,
    binary_where,
    byte_run,
    concat_parts,
    gather,
    gather_numbers,
    repeat_value,
    slice_values,
    value_lengths,
)
from ebla.storage.columns.wire_columns import fixed_from_wire, fixed_to_wire, fixed_width, from_wire, to_wire, valid_of

_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRows:
    """Rows of one schema version. `complete` ones have a cell in every regular column of the current schema (except
    multi-cell collections, which no plain row has), `bare` ones in none."""

    timestamps: npt.NDArray[np.int64]
    complete: Mask
    bare: Mask
    columns: dict[int, pa.Array]


class _Walk:
    """Advances all rows through the columns of one layout."""

    def __init__(self, schema: TableSchema, run: ByteRun, wanted: Container[int]) -> None:
        self._schema = schema
        self._run = run
        self._wanted = wanted
        self.positions: Positions = run.starts + PLAIN_HEADER.size
        self.complete: Mask = np.ones(len(run), np.bool_)
        self.bare: Mask = np.ones(len(run), np.bool_)
        self.columns: dict[int, pa.Array] = {}

    def go(self, layout: tuple[int, ...]) -> None:
        waiting: list[Column] = []
        for number in layout:
            column = self._schema.by_number.get(number)
            if column is not None and fixed_width(column.type) is not None:
                waiting.append(column)
                continue
            self._pass_fixed(waiting)
            waiting = []
            self._pass_one(column)
        self._pass_fixed(waiting)
        if not (self.positions == self._run.ends).all():
            raise IndexError("values are longer than their columns")

    def _pass_fixed(self, columns: list[Column]) -> None:
        """Adjacent columns of fixed width: usually every row has all of them, and one gather reads the whole block."""
        if columns and not self._pass_block(columns):
            for column in columns:
                self._pass_one(column)

    def _pass_block(self, columns: list[Column]) -> bool:
        widths = [fixed_width(column.type) or 0 for column in columns]
        block_bytes = sum(widths) + _LENGTH_BYTES * len(columns)
        if not len(self.positions) or self.positions[-1] + block_bytes > len(self._run.data):
            return False
        block = gather(self._run.data, self.positions, block_bytes)
        starts = [sum(widths[:position]) + _LENGTH_BYTES * (position + 1) for position in range(len(columns))]
        for start, width in zip(starts, widths):
            if not (block[:, start - _LENGTH_BYTES : start].view(">i4") == width).all():
                return False
        for column, start, width in zip(columns, starts, widths):
            if column.number in self._wanted:
                self.columns[column.number] = _fixed(column, block[:, start : start + width], None)
        self.bare[:] = False
        self.positions = self.positions + block_bytes
        return True

    def _pass_one(self, column: Column | None) -> None:
        """One column of any type; a dropped one is skipped."""
        sizes = gather_numbers(self._run.data, self.positions, ">i4")
        valid: Mask = sizes >= 0
        starts = self.positions + _LENGTH_BYTES
        self.positions = starts + np.maximum(sizes, 0)
        if column is None:
            return
        if not is_multi_cell(column.type):
            self.complete &= valid
        self.bare &= ~valid
        if column.number in self._wanted:
            all_there = None if valid.all() else valid
            self.columns[column.number] = self._values(column, (starts, self.positions), all_there)

    def _values(self, column: Column, bounds: tuple[Positions, Positions], valid: Mask | None) -> pa.Array:
        starts, ends = bounds
        width = fixed_width(column.type)
        if width is None:
            return from_wire(column.type, slice_values(self._run, starts, ends, valid))
        there = slice(None) if valid is None else valid
        if not ((ends - starts)[there] == width).all():
            raise IndexError(f"a {column.type} does not have {width} bytes")
        if valid is None:
            return _fixed(column, gather(self._run.data, starts, width), None)
        matrix = np.zeros((len(valid), width), np.uint8)
        matrix[valid] = gather(self._run.data, starts[valid], width)
        return _fixed(column, matrix, valid)


def decode_plain(schema: TableSchema, values: pa.Array, version: int, wanted: Container[int]) -> PlainRows:
    """Values of one version; `wanted` are numbers of regular columns. Raises `Corruption`."""
    run = byte_run(values)
    walk = _Walk(schema, run, wanted)
    layout = schema.layouts[version - 1]
    try:
        timestamps = gather_numbers(run.data, run.starts + HEADER.size, ">i8")
        walk.go(layout)
    except IndexError as error:
        raise Corruption(f"a row of {schema.full_name} cannot be read ({error})") from error
    for column in schema.regular:
        if column.number not in layout:
            walk.complete[:] &= is_multi_cell(column.type)
            if column.number in wanted:
                walk.columns[column.number] = pa.nulls(len(run), arrow_type(column.type))
    return PlainRows(timestamps=timestamps, complete=walk.complete, bare=walk.bare, columns=walk.columns)


def encode_plain_values(
    schema: TableSchema,
    columns: Mapping[int, pa.Array],
    timestamps: npt.NDArray[np.int64],
    marked: Mask,
) -> pa.Array:
    """Stored values of plain rows of the newest version. A null, or a missing column, is no cell."""
    count = len(timestamps)
    flags = np.where(marked, RowFlag.PLAIN | RowFlag.MARKED, RowFlag.PLAIN).astype(np.uint8)
    parts: list[ValuePart] = [
        repeat_value(bytes((FORMAT,)), count),
        flags.reshape(count, 1),
        repeat_value(schema.version.to_bytes(2), count),
        as_matrix(timestamps, ">i8"),
    ]
    for number in schema.layouts[-1]:
        values = columns.get(number)
        if values is None:
            parts.append(repeat_value(NO_CELL, count))
        else:
            parts += _cell_pieces(schema.by_number[number], values)
    return concat_parts(parts, count)


def plain_headers(run: ByteRun) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The flags and the schema version of each value; raises `Corruption` for formats of other releases."""
    try:
        headers = gather(run.data, run.starts, HEADER.size)
    except IndexError as error:
        raise Corruption(f"a stored row has no header ({error})") from error
    other = headers[headers[:, 0] != FORMAT]
    if len(other):
        raise Corruption(
            f"a stored row has format {other[0, 0]}, this release reads {FORMAT}",
            advice="start the node with the release that wrote it, or a newer one",
        )
    return headers[:, 1].copy(), as_numbers(headers[:, 2:4], ">u2")


def _fixed(column: Column, matrix: Bytes, valid: Mask | None) -> pa.Array:
    assert isinstance(column.type, ScalarType)
    return fixed_from_wire(column.type.scalar, matrix, valid)


def _cell_pieces(column: Column, values: pa.Array) -> tuple[ValuePart, ...]:
    """A length and a value for each row."""
    valid = valid_of(values)
    width = fixed_width(column.type)
    if width is None:
        wire = to_wire(column.type, values)
        wire = wire.fill_null(b"") if wire.null_count else wire
        sizes = value_lengths(wire)
        return (as_matrix(sizes if valid is None else np.where(valid, sizes, -1), ">i4"), wire)
    assert isinstance(column.type, ScalarType)
    matrix = fixed_to_wire(column.type.scalar, values)
    if valid is None:
        return (repeat_value(width.to_bytes(4), len(values)), matrix)
    return (as_matrix(np.where(valid, width, -1), ">i4"), binary_where(matrix, valid))


# -- older layouts -----------------------------------------------------------------------------------------------------


_LENGTH_BYTES = 4
_TIMESTAMP_BYTES = PLAIN_HEADER.size - HEADER.size


def upgrade_layout(schema: TableSchema, values: pa.Array, version: int) -> pa.Array:
    """Plain rows that were all written by `version`, in the current layout, byte for byte: values are not decoded.
    Cells
    of dropped columns are removed."""
    run = byte_run(values)
    try:
        cells = _cells(run, schema.layouts[version - 1])
    except IndexError as error:
        raise Corruption(f"a row of {schema.full_name} cannot be read ({error})") from error
    count = len(run)
    parts: list[ValuePart] = [
        gather(run.data, run.starts, 2),
        repeat_value(schema.version.to_bytes(2), count),
        gather(run.data, run.starts + HEADER.size, _TIMESTAMP_BYTES),
    ]
    for number in schema.layouts[-1]:
        parts += cells.get(number) or (repeat_value(NO_CELL, count),)
    return concat_parts(parts, count)


def _cells(run: ByteRun, layout: tuple[int, ...]) -> dict[int, tuple[ValuePart, ValuePart]]:
    """The length and the bytes of every cell, by the number of its column."""
    cells: dict[int, tuple[ValuePart, ValuePart]] = {}
    positions: Positions = run.starts + PLAIN_HEADER.size
    for number in layout:
        sizes = gather_numbers(run.data, positions, ">i4")
        there: Mask = sizes >= 0
        starts = positions + _LENGTH_BYTES
        positions = starts + np.where(there, sizes, 0)
        cells[number] = (as_matrix(sizes, ">i4"), slice_values(run, starts, positions))
    if not (positions == run.ends).all():
        raise IndexError("values are longer than their columns")
    return cells
