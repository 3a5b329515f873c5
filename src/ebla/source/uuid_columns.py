"""Converts uuid columns to text and back, whole columns at once."""

import uuid

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebla.model.errors import InvalidRequest
from ebla.storage.columns.binary_columns import Mask
from ebla.storage.columns.wire_columns import valid_of

BYTES = 16
TEXT_BYTES = 36
_DASHES = (8, 13, 18, 23)
_DIGITS = np.array([place for place in range(TEXT_BYTES) if place not in _DASHES])
_BAD = 0xFF

_HEX = np.frombuffer("".join(f"{number:02x}" for number in range(256)).encode(), np.uint8).reshape(256, 2)
_VALUE = np.full(256, _BAD, np.uint8)
for _digit in range(16):
    _VALUE[ord(f"{_digit:x}")] = _VALUE[ord(f"{_digit:X}")] = _digit


def to_text(column: pa.Array) -> pa.Array:
    """From 16 bytes each; nulls stay null."""
    count = len(column)
    data = column.buffers()[1]
    if not count or data is None:
        return pa.nulls(count, pa.string())
    raw = np.frombuffer(data, np.uint8, count * BYTES, column.offset * BYTES).reshape(count, BYTES)
    text = np.full((count, TEXT_BYTES), ord("-"), np.uint8)
    text[:, _DIGITS] = _HEX[raw].reshape(count, 2 * BYTES)
    valid = valid_of(column)
    if valid is not None:
        text = text[valid]
    sizes = np.full(count, TEXT_BYTES, np.int32) if valid is None else np.where(valid, TEXT_BYTES, 0)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text))]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def from_text(column: pa.Array) -> pa.Array:
    """Raises `InvalidRequest` for a text that is not a uuid."""
    valid = valid_of(column)
    texts = column if valid is None else column.drop_null()
    raw = _parsed(texts)
    if valid is None:
        return _fixed(raw, None)
    whole = np.zeros((len(column), BYTES), np.uint8)
    whole[valid] = raw
    return _fixed(whole, valid)


def _parsed(texts: pa.Array) -> npt.NDArray[np.uint8]:
    """With vector operations if all have the canonical form; else one at a time."""
    count = len(texts)
    offsets = np.frombuffer(texts.buffers()[1] or b"\0" * 4, np.int32, count + 1, texts.offset * 4)
    data = texts.buffers()[2]
    if count and data is not None and bool((np.diff(offsets) == TEXT_BYTES).all()):
        text = np.frombuffer(data, np.uint8, count * TEXT_BYTES, int(offsets[0])).reshape(count, TEXT_BYTES)
        digits = _VALUE[text[:, _DIGITS]]
        if bool((digits != _BAD).all()) and bool((text[:, _DASHES] == ord("-")).all()):
            return ((digits[:, 0::2] << 4) | digits[:, 1::2]).astype(np.uint8)
    joined = b"".join(_one(text).bytes for text in texts.to_pylist())
    return np.frombuffer(joined, np.uint8).reshape(count, BYTES)


def _one(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise InvalidRequest(
            f"{text[:80]!r} is not a uuid", advice="such as 123e4567-e89b-12d3-a456-426614174000"
        ) from None


def _fixed(raw: npt.NDArray[np.uint8], valid: Mask | None) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(raw))
    return pa.Array.from_buffers(pa.binary(BYTES), len(raw), [_bitmap(valid), data])


def _bitmap(valid: Mask | None) -> pa.Buffer | None:
    return None if valid is None else pa.array(valid).buffers()[1]
