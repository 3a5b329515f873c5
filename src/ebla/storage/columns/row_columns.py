"""Converts stored rows to typed columns and back: `row_codec.py` by vector operations.

A plain value is a header and then a length and a value for each regular column of its schema version, so the position
of a column depends on the lengths before it. All rows advance from column to column together.

Rows that are not plain (with cells that expire, or deleted ones) are encoded only. Such a row is the msgpack of its
struct. Only a few numbers and the values differ from row to row, so the parts of many rows are joined as those of plain
rows are. The result is byte for byte what the codec writes for a row whose cells are in the order of their columns.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.cql_types import is_multi_cell
from ebla.model.errors import Corruption
from ebla.model.schema import Column, TableSchema
from ebla.storage.codec.row_codec import FORMAT, HEADER, LENGTH_BYTES, NO_CELL, PLAIN_HEADER, RowFlag
from ebla.storage.columns.arrow_types import arrow_type
from ebla.storage.columns.binary_columns import (
    ByteRun,
    Mask,
    Positions,
    ValuePart,
    as_binary,
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
from ebla.storage.columns.wire_columns import (
    fixed_from_wire,
    fixed_width,
    holds_empties,
    slices_from_wire,
    valid_of,
    wire_part,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRows:
    """Rows of one schema version. `complete` ones have a cell in every regular column of the current schema (except
    multi-cell collections, which no plain row has), `bare` ones in none. `reduced` ones have an empty value that the
    columns show as null."""

    timestamps: npt.NDArray[np.int64]
    complete: Mask
    bare: Mask
    reduced: Mask
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
        self.reduced: Mask = np.zeros(len(run), np.bool_)
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
        block_bytes = sum(widths) + LENGTH_BYTES * len(columns)
        if not len(self.positions) or self.positions[-1] + block_bytes > len(self._run.data):
            return False
        block = gather(self._run.data, self.positions, block_bytes)
        starts = [sum(widths[:position]) + LENGTH_BYTES * (position + 1) for position in range(len(columns))]
        for start, width in zip(starts, widths):
            if not (block[:, start - LENGTH_BYTES : start].view(">i4") == width).all():
                return False
        for column, start, width in zip(columns, starts, widths):
            if column.number in self._wanted:
                self.columns[column.number] = fixed_from_wire(column.type, block[:, start : start + width])
        self.bare[:] = False
        self.positions = self.positions + block_bytes
        return True

    def _pass_one(self, column: Column | None) -> None:
        """One column of any type; a dropped one is skipped."""
        sizes = gather_numbers(self._run.data, self.positions, ">i4")
        valid: Mask = sizes >= 0
        starts = self.positions + LENGTH_BYTES
        self.positions = starts + np.maximum(sizes, 0)
        if column is None:
            return
        if not is_multi_cell(column.type):
            self.complete &= valid
        self.bare &= ~valid
        if column.number in self._wanted:
            all_there = None if valid.all() else valid
            values = slices_from_wire(column.type, self._run, starts, self.positions, all_there)
            self.columns[column.number] = values
            empties = holds_empties(column.type, self._run, starts, self.positions, all_there)
            if empties is not None:
                self.reduced |= empties


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
    return PlainRows(
        timestamps=timestamps,
        complete=walk.complete,
        bare=walk.bare,
        reduced=walk.reduced,
        columns=walk.columns,
    )


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


def _cell_pieces(column: Column, values: pa.Array) -> tuple[ValuePart, ...]:
    """A length and a value for each row."""
    valid, wire = valid_of(values), wire_part(column.type, values)
    if isinstance(wire, pa.Array):
        sizes = value_lengths(wire)
        return (as_matrix(sizes if valid is None else np.where(valid, sizes, -1), ">i4"), wire)
    width = wire.shape[1]
    if valid is None:
        return (repeat_value(width.to_bytes(LENGTH_BYTES), len(values)), wire)
    return (as_matrix(np.where(valid, width, -1), ">i4"), binary_where(wire, valid))


# -- older layouts -----------------------------------------------------------------------------------------------------


_TIMESTAMP_BYTES = PLAIN_HEADER.size - HEADER.size


def upgrade_layout(schema: TableSchema, values: pa.Array, version: int) -> pa.Array:
    """Plain rows that were all written by `version`, in the current layout, byte for byte: values are not decoded.
    Cells
    of dropped columns are removed."""
    run = byte_run(values)
    try:
        cells = _stored_cells(run, schema.layouts[version - 1])
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


def _stored_cells(run: ByteRun, layout: tuple[int, ...]) -> dict[int, tuple[ValuePart, ValuePart]]:
    """The length and the bytes of every cell, by the number of its column."""
    cells: dict[int, tuple[ValuePart, ValuePart]] = {}
    positions: Positions = run.starts + PLAIN_HEADER.size
    for number in layout:
        sizes = gather_numbers(run.data, positions, ">i4")
        there: Mask = sizes >= 0
        starts = positions + LENGTH_BYTES
        positions = starts + np.where(there, sizes, 0)
        cells[number] = (as_matrix(sizes, ">i4"), slice_values(run, starts, positions))
    if not (positions == run.ends).all():
        raise IndexError("values are longer than their columns")
    return cells


# -- rows that are not plain -------------------------------------------------------------------------------------------


Seconds = npt.NDArray[np.int64]

_NIL, _NO_ENTRIES, _NO_RANGES = b"\xc0", b"\x80", b"\x90"
_ARRAY = 0x90
"""The first byte of an array of up to 15 elements, without their number."""
_MARKER_FIELDS, _CELL_FIELDS, _ROW_FIELDS, _HEAD_FIELDS = 3, 4, 4, 3
_pack = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStamp:
    """When rows are written, and the TTL of each; 0 seconds: none. A null is no cell at all (unset), or deletes the
    cell."""

    timestamp_us: int
    at_s: int
    nulls_delete: bool
    ttls_s: Seconds

    def __len__(self) -> int:
        return len(self.ttls_s)

    @property
    def expiries_s(self) -> Seconds:
        return np.where(self.ttls_s > 0, self.at_s + self.ttls_s, 0)

    def of(self, members: Positions) -> "BatchStamp":
        return replace(self, ttls_s=self.ttls_s[members])


def encode_cell_values(schema: TableSchema, columns: Mapping[int, pa.Array], batch_stamp: BatchStamp) -> pa.Array:
    """Stored values of rows with a marker. The columns are typed, by number, and none is multi-cell."""
    ordered = {number: columns[number] for number in schema.layouts[-1] if number in columns}
    head = repeat_value(HEADER.pack(FORMAT, 0, schema.version), len(batch_stamp))
    return concat_parts([head, *_row_pieces(schema, ordered, batch_stamp, marked=True)], len(batch_stamp))


def encode_static_values(schema: TableSchema, columns: Mapping[int, pa.Array], batch_stamp: BatchStamp) -> pa.Array:
    """Stored values of partition heads with only these static cells."""
    head = HEADER.pack(FORMAT, RowFlag.HEAD, schema.version) + bytes((_ARRAY + _HEAD_FIELDS,)) + _NIL + _NO_RANGES
    parts = _row_pieces(schema, columns, batch_stamp, marked=False)
    return concat_parts([repeat_value(head, len(batch_stamp)), *parts], len(batch_stamp))


def _row_pieces(
    schema: TableSchema, columns: Mapping[int, pa.Array], batch_stamp: BatchStamp, *, marked: bool
) -> list[ValuePart]:
    count = len(batch_stamp)
    marker: list[ValuePart] = [repeat_value(_NIL, count)]
    if marked:
        start = bytes((_ARRAY + _MARKER_FIELDS,)) + _pack(batch_stamp.timestamp_us)
        marker = [repeat_value(start, count), _numbers(batch_stamp.ttls_s), _numbers(batch_stamp.expiries_s)]
    cells: list[ValuePart] = []
    entries = np.zeros(count, np.int64)
    for number, values in columns.items():
        valid = valid_of(values)
        entries += 1 if valid is None or batch_stamp.nulls_delete else valid
        cells.append(_cells(schema.by_number[number], values, valid, batch_stamp))
    return [
        repeat_value(bytes((_ARRAY + _ROW_FIELDS,)), count),
        *marker,
        repeat_value(_NIL, count),
        _dictionary(entries, _map_head),
        *cells,
        repeat_value(_NO_ENTRIES, count),
    ]


def _cells(column: Column, values: pa.Array, valid: Mask | None, batch_stamp: BatchStamp) -> pa.Array:
    """An entry of the map of cells for each row."""
    count = len(batch_stamp)
    wire = as_binary(wire_part(column.type, values))
    start = _pack(column.number) + bytes((_ARRAY + _CELL_FIELDS,)) + _pack(batch_stamp.timestamp_us)
    parts: list[ValuePart] = [repeat_value(start, count), _dictionary(value_lengths(wire), _bytes_head), wire]
    live = concat_parts([*parts, _numbers(batch_stamp.ttls_s), _numbers(batch_stamp.expiries_s)], count)
    if valid is None:
        return live
    dead = start + _NIL + _pack(0) + _pack(batch_stamp.at_s) if batch_stamp.nulls_delete else b""
    return pc.if_else(pa.array(valid), live, pa.scalar(dead, pa.binary()))


def _numbers(values: Seconds) -> ValuePart:
    return _dictionary(values, _pack)


def _dictionary(values: npt.NDArray[np.int64], form: Callable[[int], bytes]) -> ValuePart:
    """The form of each number; there are few different ones, usually one."""
    count = len(values)
    if not count or (values == values[0]).all():
        return repeat_value(form(int(values[0])) if count else b"", count)
    found, positions = np.unique(values, return_inverse=True)
    return pa.array([form(one) for one in found.tolist()], pa.binary()).take(pa.array(positions.reshape(count)))


def _map_head(entries: int) -> bytes:
    if entries < 16:
        return bytes((0x80 + entries,))
    return b"\xde" + entries.to_bytes(2)


def _bytes_head(size: int) -> bytes:
    if size < 1 << 8:
        return b"\xc4" + size.to_bytes(1)
    if size < 1 << 16:
        return b"\xc5" + size.to_bytes(2)
    return b"\xc6" + size.to_bytes(4)
