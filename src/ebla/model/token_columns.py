"""Tokens of whole columns of keys by vector operations, bit for bit equal to `token_of`.

Keys of one length are hashed together: the bytes of a group are one two-dimensional array, and each step of the hash is
one operation over a word of every key. No code here runs once per row.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebla.model.errors import InvalidRequest
from ebla.model.murmur3 import BLOCK_BYTES, BODY_ADD_1, BODY_ADD_2, C1, C2, FINAL_1, FINAL_2, WORD_BYTES
from ebla.model.token import TOKEN_MAX, TOKEN_MIN

Tokens = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
KeyBytes = npt.NDArray[np.uint8]

BATCH_KEYS: Final = 16 * 1024
"""Few enough that a batch and its temporaries stay in a core's cache: more than twice as fast as whole columns of a
million."""

_C1, _C2 = np.uint64(C1), np.uint64(C2)
_BODY_ADD_1, _BODY_ADD_2 = np.uint64(BODY_ADD_1), np.uint64(BODY_ADD_2)
_FINAL_1, _FINAL_2 = np.uint64(FINAL_1), np.uint64(FINAL_2)
_FINAL_SHIFT = np.uint64(33)
_FIVE = np.uint64(5)
_EVERY_BYTE_ONE = np.uint64(0x0101010101010101)


def tokens_of(column: pa.Array | pa.ChunkedArray) -> Tokens:
    """The token of each key of a binary, string or fixed-size binary column (also their large and view forms)."""
    if column.null_count:
        raise InvalidRequest(f"{column.null_count} partition keys are null", advice="keys must be given")
    if isinstance(column, pa.ChunkedArray):
        parts = [tokens_of(chunk) for chunk in column.chunks]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)
    if pa.types.is_fixed_size_binary(column.type):
        return tokens_of_rows(_fixed_rows(column))
    return _tokens_of_variable(column.cast(pa.large_binary()))


def tokens_of_rows(rows: KeyBytes) -> Tokens:
    """The token of each row of a two-dimensional array of bytes: keys of one length."""
    assert rows.ndim == 2
    assert rows.dtype == np.uint8
    count, length = rows.shape
    if length == 0:
        return np.full(count, TOKEN_MIN, np.int64)
    tokens = np.empty(count, np.int64)
    for at in range(0, count, BATCH_KEYS):
        batch = rows[at : at + BATCH_KEYS]
        tokens[at : at + BATCH_KEYS] = _hash_rows(batch).view(np.int64)
    tokens[tokens == TOKEN_MIN] = TOKEN_MAX
    return tokens


def _fixed_rows(column: pa.Array) -> KeyBytes:
    length = column.type.byte_width
    data = column.buffers()[1]
    if length == 0 or data is None:
        return np.empty((len(column), length), np.uint8)
    flat = np.frombuffer(data, np.uint8, len(column) * length, column.offset * length)
    return flat.reshape(len(column), length)


def _tokens_of_variable(column: pa.Array) -> Tokens:
    count = len(column)
    if count == 0:
        return np.empty(0, np.int64)
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64, count + 1, column.offset * 8)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.empty(0, np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    if (lengths == lengths[0]).all():
        return tokens_of_rows(data[offsets[0] : offsets[-1]].reshape(count, lengths[0]))
    tokens = np.empty(count, np.int64)
    for length, members in _groups_by_length(lengths):
        if length == 0:
            tokens[members] = TOKEN_MIN
            continue
        windows = np.lib.stride_tricks.sliding_window_view(data, length)
        for at in range(0, len(members), BATCH_KEYS):
            batch = members[at : at + BATCH_KEYS]
            tokens[batch] = tokens_of_rows(windows[starts[batch]])
    return tokens


def _groups_by_length(lengths: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Each length with the positions of its keys."""
    order = np.argsort(lengths, kind="stable")
    found, first = np.unique(lengths[order], return_index=True)
    ends = [*first[1:], len(order)]
    for length, start, end in zip(found, first, ends):
        yield int(length), order[start:end]


def _hash_rows(rows: KeyBytes) -> Words:
    count, length = rows.shape
    first, second = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    body_end = length - length % BLOCK_BYTES
    for at in range(0, body_end, BLOCK_BYTES):
        first ^= _mix(_word(rows, at), (_C1, 31, _C2))
        first = (_rotate(first, 27) + second) * _FIVE + _BODY_ADD_1
        second ^= _mix(_word(rows, at + WORD_BYTES), (_C2, 33, _C1))
        second = (_rotate(second, 31) + first) * _FIVE + _BODY_ADD_2
    if body_end < length:
        first ^= _mix(_signed(_word(rows, body_end)), (_C1, 31, _C2))
    if body_end + WORD_BYTES < length:
        second ^= _mix(_signed(_word(rows, body_end + WORD_BYTES)), (_C2, 33, _C1))
    first ^= np.uint64(length)
    second ^= np.uint64(length)
    first += second
    second += first
    return _finish(first) + _finish(second)


def _word(rows: KeyBytes, at: int) -> Words:
    """Eight bytes of each row from `at` as little-endian words; zeros after the end of the row."""
    count, length = rows.shape
    width = min(WORD_BYTES, length - at)
    packed = np.zeros((count, WORD_BYTES), np.uint8)
    packed[:, :width] = rows[:, at : at + width]
    return packed.view("<u8").reshape(count).astype(np.uint64, copy=False)


def _signed(words: Words) -> Words:
    """The words as if each byte had been sign-extended before they were combined by xor.

    A byte with its top bit set flips all bytes above it, so a byte is flipped by the parity of the top bits below it: a
    prefix xor over the eight bytes, by doubling.
    """
    parity = (words >> np.uint64(7)) & _EVERY_BYTE_ONE
    parity <<= 8
    parity ^= parity << 8
    parity ^= parity << 16
    parity ^= parity << 32
    parity *= np.uint64(255)
    parity ^= words
    return parity


def _mix(words: Words, steps: tuple[np.uint64, int, np.uint64]) -> Words:
    before, bits, after = steps
    words *= before
    words = _rotate(words, bits)
    words *= after
    return words


def _rotate(words: Words, bits: int) -> Words:
    rotated = words << np.uint64(bits)
    rotated |= words >> np.uint64(64 - bits)
    return rotated


def _finish(words: Words) -> Words:
    words = words ^ (words >> _FINAL_SHIFT)
    words *= _FINAL_1
    words ^= words >> _FINAL_SHIFT
    words *= _FINAL_2
    words ^= words >> _FINAL_SHIFT
    return words
