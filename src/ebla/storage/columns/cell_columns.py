"""Encodes whole columns as rows that are not plain: cells that expire, and deleted ones. `row_codec.py` by vector
operations.

Such a row is the msgpack of its struct. Only a few numbers and the values differ from row to row, so the parts of many
rows are joined as those of plain rows are. The result is byte for byte what the codec writes for a row whose cells are
in the order of their columns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.cql_types import ScalarType
from ebla.model.schema import Column, TableSchema
from ebla.storage.codec.row_codec import FORMAT, HEADER, RowFlag
from ebla.storage.columns.binary_columns import (
    Mask,
    Positions,
    ValuePart,
    as_binary,
    concat_parts,
    repeat_value,
    value_lengths,
)
from ebla.storage.columns.wire_columns import fixed_to_wire, fixed_width, to_wire, valid_of

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
        return BatchStamp(
            timestamp_us=self.timestamp_us, at_s=self.at_s, nulls_delete=self.nulls_delete, ttls_s=self.ttls_s[members]
        )


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


def wire_binary(column: Column, values: pa.Array) -> pa.Array:
    """The wire form of each value as a binary column without nulls; a null becomes arbitrary bytes."""
    if fixed_width(column.type) is not None:
        assert isinstance(column.type, ScalarType)
        return as_binary(fixed_to_wire(column.type.scalar, values))
    wire = to_wire(column.type, values)
    return wire.fill_null(b"") if wire.null_count else wire


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
    wire = wire_binary(column, values)
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
