"""Vector operations on columns of bytes: read a part of every value at once, and join many values from parts.

A column of values is one run of bytes and the positions where each value starts and ends. Reading a field of every
value is one gather over that run. Slices in ascending order become a column by one `take`: Arrow accepts any ascending
offsets, and the bytes between two slices become values that are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
ValuePart: TypeAlias = "Bytes | pa.Array"
"""A part of every value: one row of a matrix each, or one entry each of a binary column without nulls."""
SHORT_BYTES_MAX = 64
"""From this length on Arrow copies values as fast as numpy."""


@cache
def _nothing() -> pa.Scalar:
    """Made when first needed: Arrow's first conversion of a Python value loads pandas, which would slow down the import
    of this module."""
    return pa.scalar(b"", pa.binary())


@dataclass(frozen=True, slots=True)
class ByteRun:
    """The bytes of a binary column without nulls, and where each of its values starts and ends."""

    data: Bytes
    starts: Positions
    ends: Positions

    def __len__(self) -> int:
        return len(self.starts)

    def inverted(self) -> "ByteRun":
        return ByteRun(~self.data, self.starts, self.ends)


def byte_run(column: pa.Array) -> ByteRun:
    assert column.type == pa.binary()
    assert not column.null_count
    count = len(column)
    if not count:
        none = np.empty(0, np.int64)
        return ByteRun(np.empty(0, np.uint8), none, none)
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, count + 1, column.offset * 4).astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    data = data[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    return ByteRun(data, offsets[:-1], offsets[1:])


def gather(data: Bytes, positions: Positions, width: int) -> Bytes:
    """`width` bytes from each position, a row each. Raises `IndexError` where they would pass the end."""
    if not len(positions) or not width:
        return np.empty((len(positions), width), np.uint8)
    if len(data) < width:
        raise IndexError(f"{width} bytes are needed of {len(data)}")
    windows: npt.NDArray[np.void] = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    return windows[positions].view(np.uint8).reshape(len(positions), width)


def gather_numbers(data: Bytes, positions: Positions, form: str) -> npt.NDArray[np.int64]:
    """The big-endian integer of the given form (`>i4`) at each position."""
    return as_numbers(gather(data, positions, np.dtype(form).itemsize), form)


def as_numbers(matrix: Bytes, form: str) -> npt.NDArray[np.int64]:
    return matrix.view(form).reshape(len(matrix)).astype(np.int64)


def as_matrix(values: npt.NDArray[np.generic], form: str) -> Bytes:
    """Each number as its bytes in the given form."""
    width = np.dtype(form).itemsize
    return np.ascontiguousarray(values.astype(form)).view(np.uint8).reshape(len(values), width)


def repeat_value(value: bytes, count: int) -> Bytes:
    return np.broadcast_to(np.frombuffer(value, np.uint8), (count, len(value)))


def slice_values(run: ByteRun, starts: Positions, ends: Positions, valid: Mask | None = None) -> pa.Array:
    """The bytes between each start and end as a binary column; null where not valid. Ascending, without overlap."""
    count = len(starts)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = ends
    offsets[-1] = len(run.data)
    with_gaps = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(run.data))]
    )
    wanted = np.arange(0, 2 * count, 2)
    return with_gaps.take(pa.array(wanted, mask=None if valid is None else ~valid))


def as_binary(part: ValuePart) -> pa.Array:
    if isinstance(part, pa.Array):
        return part
    count, width = part.shape
    offsets = (np.arange(count + 1) * width).astype(np.int32)
    data = np.ascontiguousarray(part)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def binary_where(matrix: Bytes, valid: Mask) -> pa.Array:
    """The valid rows, and empty values instead of the others."""
    width = matrix.shape[1]
    offsets = np.zeros(len(valid) + 1, np.int32)
    np.cumsum(valid, out=offsets[1:])
    offsets *= width
    data = np.ascontiguousarray(matrix[valid])
    return pa.Array.from_buffers(pa.binary(), len(valid), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def value_lengths(column: pa.Array) -> Positions:
    run = byte_run(column)
    return run.ends - run.starts


def inverted(part: ValuePart) -> ValuePart:
    """Every bit inverted: how a descending part of a key is stored."""
    if not isinstance(part, pa.Array):
        return ~part
    run = byte_run(part)
    offsets = np.concatenate((run.starts, run.ends[-1:])).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(run), [None, pa.py_buffer(offsets), pa.py_buffer(~run.data)])


def concat_parts(parts: Sequence[ValuePart], count: int) -> pa.Array:
    """A binary column whose values are the parts one after another."""
    merged: list[ValuePart] = []
    fixed: list[Bytes] = []
    for part in parts:
        if not isinstance(part, pa.Array):
            fixed.append(part)
            continue
        merged += [*_side_by_side(fixed), part]
        fixed = []
    merged += _side_by_side(fixed)
    if not merged:
        return as_binary(np.empty((count, 0), np.uint8))
    if len(merged) == 1:
        return as_binary(merged[0])
    return pc.binary_join_element_wise(*(as_binary(part) for part in merged), _nothing())


def _side_by_side(matrices: Sequence[Bytes]) -> list[ValuePart]:
    """As one matrix, or none of none. Each row's part is copied as one item instead of byte by byte, in a fifth of the
    time that numpy takes to concatenate them."""
    if len(matrices) < 2:
        return list(matrices)
    count, width = len(matrices[0]), sum(matrix.shape[1] for matrix in matrices)
    together = np.empty((count, width), np.uint8)
    start = 0
    for matrix in matrices:
        if size := matrix.shape[1] if count else 0:
            column: npt.NDArray[np.void] = np.ndarray((count,), f"V{size}", together, start, (width,))
            # A constant is one row, broadcast.
            rows = matrix if matrix.strides[0] else matrix[:1]
            column[:] = np.ascontiguousarray(rows).view(f"V{size}").reshape(len(rows))
            start += size
    return [together]


def take_binary(column: pa.Array, order: Positions) -> pa.Array:
    """The values at these positions of a binary column without nulls. Short values of one length, as most keys are,
    take
    a fifth of the time."""
    run = byte_run(column)
    width = _common_length(run)
    if width and width <= SHORT_BYTES_MAX:
        found = run.data.view(f"V{width}")[order]
        return as_binary(found.view(np.uint8).reshape(len(order), width))
    return column.take(pa.array(order))


def _common_length(run: ByteRun) -> int | None:
    """The length of all values; None where lengths differ or there are no values."""
    count = len(run)
    if not count or len(run.data) % count:
        return None
    width = len(run.data) // count
    if run.ends[0] != width or run.ends[count // 2] != (count // 2 + 1) * width:
        return None  # decides most columns of texts
    return width if bool((np.diff(run.starts) == width).all()) else None


def splice_columns(parts: Sequence[pa.Array], positions: Sequence[Positions]) -> pa.Array:
    """One column from several, with values ordered by their positions."""
    order = np.argsort(np.concatenate(positions), kind="stable")
    return pa.concat_arrays(parts).take(pa.array(order))


def concat_columns(columns: Sequence[pa.Array]) -> pa.Array:
    """Arrow would copy a single one, too."""
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)
