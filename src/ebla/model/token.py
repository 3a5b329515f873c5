"""Tokens of partition keys, and ranges of the ring.

Drivers and Spark connectors compute the same tokens; one different bit would send a row to the wrong replicas.
`token_columns.py` does it for whole columns.
"""

import itertools
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NewType

import msgspec

from ebla.model import murmur3
from ebla.model.errors import InvalidRequest, TooLarge

try:
    from cassandra.cmurmur3 import murmur3 as driver_hash
except ImportError:  # a platform for which the driver has no compiled module
    driver_hash = murmur3.hash_key

Token = NewType("Token", int)

TOKEN_MIN: Final = Token(-(2**63))
"""Before every key: only the empty key hashes to it, which CQL refuses. So a range that starts after it misses
nothing."""
TOKEN_MAX: Final = Token(2**63 - 1)

RING_TOKENS: Final = 2**64

COMPONENT_BYTES_MAX: Final = 2**16 - 1
"""The length of a part of a composite key has two bytes."""

hash_key: Final[Callable[[bytes], int]] = driver_hash


def token_of(key: bytes) -> Token:
    """The token of a serialized partition key.

    The empty key gets `TOKEN_MIN`, as in Cassandra (drivers hash it to 0, and never send it).
    """
    if not key:
        return TOKEN_MIN
    hashed = hash_key(key)
    return TOKEN_MAX if hashed == TOKEN_MIN else Token(hashed)


def composite_key(parts: Sequence[bytes]) -> bytes:
    """The serialized partition key: each of several parts with its length before and a zero byte after; of one column,
    just its bytes."""
    if not parts:
        raise InvalidRequest("a partition key has at least one column")
    if len(parts) == 1:
        return parts[0]
    too_large = next((len(part) for part in parts if len(part) > COMPONENT_BYTES_MAX), 0)
    if too_large:
        raise TooLarge(
            f"a partition key column has {too_large} bytes, at most {COMPONENT_BYTES_MAX} fit a composite key"
        )
    return b"".join(struct.pack(">H", len(part)) + part + b"\0" for part in parts)


def split_composite_key(key: bytes) -> list[bytes]:
    """The parts of a partition key of several columns."""
    parts: list[bytes] = []
    offset = 0
    while offset < len(key):
        size = int.from_bytes(key[offset : offset + 2])
        parts.append(key[offset + 2 : offset + 2 + size])
        offset += size + 3
    return parts


def distance(start: Token, end: Token) -> int:
    """Steps from `start` up to `end`, wrapping around the ring."""
    return (end - start) % RING_TOKENS


def advance(token: Token, steps: int) -> Token:
    """`steps` further up the ring (or down, if negative), wrapping around."""
    return Token((token - TOKEN_MIN + steps) % RING_TOKENS + TOKEN_MIN)


class TokenRange(msgspec.Struct, frozen=True, order=True, array_like=True):
    """After `start`, up to and including `end`; it wraps around the ring where `end` is below `start`.

    Equal bounds mean the whole ring.
    """

    start: Token
    end: Token

    def __contains__(self, token: Token) -> bool:
        if self.start < self.end:
            return self.start < token <= self.end
        return token > self.start or token <= self.end

    @property
    def width(self) -> int:
        """The number of tokens in it."""
        return distance(self.start, self.end) or RING_TOKENS

    @property
    def wraps(self) -> bool:
        """Whether it has tokens at both ends of the ring."""
        return self.start >= self.end and self.end != TOKEN_MIN

    def unwrapped(self) -> tuple["TokenRange", ...]:
        """The same keys in one or two ranges that do not wrap, lowest first.

        `TOKEN_MIN` itself, which has no keys, is in neither.
        """
        if self.start < self.end:
            return (self,)
        above = (TokenRange(self.start, TOKEN_MAX),) if self.start != TOKEN_MAX else ()
        below = (TokenRange(TOKEN_MIN, self.end),) if self.end != TOKEN_MIN else ()
        return below + above

    def overlaps(self, other: "TokenRange") -> bool:
        """Whether some token is in both."""
        return self.end in other or other.end in self

    def covers(self, other: "TokenRange") -> bool:
        """Whether every token of `other` is in this one."""
        if self.width == RING_TOKENS:
            return True
        return distance(self.start, other.start) + other.width <= self.width

    def split(self, count: int) -> tuple["TokenRange", ...]:
        """`count` adjacent ranges in ring order, whose widths differ by at most one token.

        Splitting the whole ring into 2^n, or repeatedly in two, gives the same bounds: those of the top n bits of the
        token, which is how drivers number tablets.
        """
        assert 1 <= count <= self.width
        width = self.width
        bounds = [advance(self.start, width * part // count) for part in range(count + 1)]
        return tuple(TokenRange(start, end) for start, end in itertools.pairwise(bounds))


WHOLE_RING: Final = TokenRange(TOKEN_MIN, TOKEN_MAX)
"""Every token a key can have."""


def intersect_ranges(token_range: TokenRange, within: TokenRange) -> tuple[TokenRange, ...]:
    """The intersection of two ranges: none, one range, or two if they meet at both ends."""
    if within.covers(token_range):
        return (token_range,)
    if token_range.covers(within):
        return (within,)
    pieces = [
        TokenRange(max(one.start, other.start), min(one.end, other.end))
        for one in token_range.unwrapped()
        for other in within.unwrapped()
        if max(one.start, other.start) < min(one.end, other.end)
    ]
    return tuple(sorted(pieces))


def merge_ranges(ranges: Iterable[TokenRange], count_max: int | None = None) -> tuple[TokenRange, ...]:
    """Ascending, disjoint and not adjacent; none wraps around the ring. If more than `count_max` remain, one range that
    covers them all."""
    merged: list[TokenRange] = []
    for each in sorted(part for one in ranges for part in one.unwrapped()):
        if merged and merged[-1].end >= each.start:
            merged[-1] = TokenRange(merged[-1].start, max(merged[-1].end, each.end))
        else:
            merged.append(each)
    return tuple(merged) if count_max is None or len(merged) <= count_max else (covering_range(merged),)


def covering_range(ranges: Collection[TokenRange]) -> TokenRange:
    """The smallest range that covers all of these; none of them may wrap."""
    return TokenRange(min(each.start for each in ranges), max(each.end for each in ranges))


def subtract_ranges(ranges: Iterable[TokenRange], without: Iterable[TokenRange]) -> tuple[TokenRange, ...]:
    """What is in the first and not in the second. Ascending, disjoint and not adjacent; none wraps around the ring."""
    left: list[TokenRange] = []
    gaps = merge_ranges(without)
    for one in merge_ranges(ranges):
        start = one.start
        for gap in gaps:
            if gap.end <= start or gap.start >= one.end:
                continue
            if gap.start > start:
                left.append(TokenRange(start, gap.start))
            start = gap.end
            if start >= one.end:
                break
        if start < one.end:
            left.append(TokenRange(start, one.end))
    return tuple(left)
