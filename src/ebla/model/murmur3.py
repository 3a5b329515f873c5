"""Cassandra's Murmur3, one key at a time, for platforms without the driver's compiled one.

Murmur3 x64 128, seed 0, first half of the result; but the bytes after the last whole block are sign-extended, so a byte
above 127 also flips every bit above it. That was a bug of Cassandra that existing data made part of the format.
"""

import struct
from typing import Final

C1: Final = 0x87C37B91114253D5
C2: Final = 0x4CF5AD432745937F
BODY_ADD_1: Final = 0x52DCE729
BODY_ADD_2: Final = 0x38495AB5
FINAL_1: Final = 0xFF51AFD7ED558CCD
FINAL_2: Final = 0xC4CEB9FE1A85EC53
BLOCK_BYTES: Final = 16
WORD_BYTES: Final = 8

_MASK: Final = 2**64 - 1


def hash_key(key: bytes) -> int:
    """The hash as a signed 64-bit number."""
    body_end = len(key) - len(key) % BLOCK_BYTES
    words = struct.unpack_from(f"<{body_end // WORD_BYTES}Q", key)
    first = second = 0
    for at in range(0, len(words), 2):
        first ^= _mix_first(words[at])
        first = ((_rotate(first, 27) + second) * 5 + BODY_ADD_1) & _MASK
        second ^= _mix_second(words[at + 1])
        second = ((_rotate(second, 31) + first) * 5 + BODY_ADD_2) & _MASK
    tail = key[body_end:]
    first ^= _mix_first(_signed_word(tail[:WORD_BYTES]))
    second ^= _mix_second(_signed_word(tail[WORD_BYTES:]))
    first ^= len(key)
    second ^= len(key)
    first = (first + second) & _MASK
    second = (second + first) & _MASK
    result = (_finish(first) + _finish(second)) & _MASK
    return result - 2**64 if result >= 2**63 else result


def _signed_word(tail: bytes) -> int:
    """Up to eight bytes, the least significant first, each sign-extended over all bits above it."""
    word = 0
    for position, byte in enumerate(tail):
        signed = byte - 256 if byte > 127 else byte
        word ^= (signed << 8 * position) & _MASK
    return word


def _mix_first(word: int) -> int:
    return (_rotate(word * C1 & _MASK, 31) * C2) & _MASK


def _mix_second(word: int) -> int:
    return (_rotate(word * C2 & _MASK, 33) * C1) & _MASK


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK


def _finish(word: int) -> int:
    word = ((word ^ word >> 33) * FINAL_1) & _MASK
    word = ((word ^ word >> 33) * FINAL_2) & _MASK
    return word ^ word >> 33
