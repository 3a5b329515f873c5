"""Every way to compute a token agrees with the driver's own, and ranges keep their promises."""

import itertools
import random

import pyarrow as pa
from cassandra.metadata import Murmur3Token
from hypothesis import given
from hypothesis import strategies as st

from ebla.model import murmur3
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, Token, TokenRange, advance, distance, token_of
from ebla.model.token_columns import tokens_of

tokens = st.integers(TOKEN_MIN, TOKEN_MAX).map(Token)
near_the_top = st.integers(-3, 3).map(lambda steps: advance(TOKEN_MIN, steps))
ends = st.one_of(tokens, near_the_top)
ranges = st.builds(TokenRange, ends, ends)


def test_a_hundred_thousand_random_keys() -> None:
    dice = random.Random(3)
    lengths = [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 33, 36, 47, 48, 63, 64, 100, 255, 256, 1000]
    keys = [dice.randbytes(dice.choice(lengths)) for _ in range(100_000)]
    expected = [Murmur3Token.hash_fn(key) for key in keys]
    assert tokens_of(pa.array(keys)).tolist() == expected
    assert [token_of(key) for key in keys] == expected
    assert [murmur3.hash_key(key) for key in keys[:10_000]] == expected[:10_000]


@given(st.lists(st.binary(min_size=1, max_size=50)))
def test_any_column(keys: list[bytes]) -> None:
    assert tokens_of(pa.array(keys, pa.binary())).tolist() == [Murmur3Token.hash_fn(key) for key in keys]


@given(st.binary(min_size=1, max_size=100))
def test_the_fallback_on_any_key(key: bytes) -> None:
    assert token_of(key) == Token(murmur3.hash_key(key))


@given(ends, st.integers(-(2**65), 2**65))
def test_advance_and_distance_are_inverse(start: Token, steps: int) -> None:
    assert TOKEN_MIN <= advance(start, steps) <= TOKEN_MAX
    assert distance(start, advance(start, steps)) == steps % 2**64


@given(ranges, ends)
def test_a_token_is_in_a_range_by_its_distance_from_the_start(covered: TokenRange, token: Token) -> None:
    steps = distance(covered.start, token) or 2**64
    assert (token in covered) == (steps <= covered.width)


@given(ranges, ends)
def test_unwrapping_keeps_every_token_that_has_keys(covered: TokenRange, token: Token) -> None:
    parts = covered.unwrapped()
    assert all(part.start < part.end for part in parts)
    holders = sum(token in part for part in parts)
    assert holders == (token in covered and token != TOKEN_MIN)


@given(ranges, st.integers(1, 40))
def test_a_split_is_even_and_misses_nothing(covered: TokenRange, count: int) -> None:
    parts = covered.split(min(count, covered.width))
    assert parts[0].start == covered.start
    assert parts[-1].end == covered.end
    assert all(left.end == right.start for left, right in itertools.pairwise(parts))
    if len(parts) > 1:
        widths = [part.width for part in parts]
        assert sum(widths) == covered.width
        assert max(widths) - min(widths) <= 1
        assert all(covered.covers(part) and covered.overlaps(part) for part in parts)


def spans(covered: TokenRange) -> list[tuple[int, int]]:
    """First and last token of each straight piece."""
    if covered.start < covered.end:
        return [(covered.start + 1, covered.end)]
    pieces = [(covered.start + 1, TOKEN_MAX), (TOKEN_MIN, covered.end)]
    return [(first, last) for first, last in pieces if first <= last]


@given(ranges, ranges)
def test_overlap_and_cover_are_what_counting_tokens_says(one: TokenRange, other: TokenRange) -> None:
    shared = 0
    for first, last in spans(one):
        for other_first, other_last in spans(other):
            shared += max(0, min(last, other_last) - max(first, other_first) + 1)
    assert one.overlaps(other) == (shared > 0)
    assert one.covers(other) == (shared == other.width)
