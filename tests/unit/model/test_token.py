"""Tokens of single keys, and ranges of the ring."""

import importlib
import random
import sys

import pytest
from cassandra.metadata import Murmur3Token

from ebla.model import murmur3, token
from ebla.model.errors import InvalidRequest, TooLarge
from ebla.model.token import (
    COMPONENT_BYTES_MAX,
    TOKEN_MAX,
    TOKEN_MIN,
    WHOLE_RING,
    Token,
    TokenRange,
    advance,
    composite_key,
    distance,
    token_of,
)


def test_tokens_are_those_of_the_driver() -> None:
    dice = random.Random(1)
    for _ in range(2_000):
        key = dice.randbytes(dice.randrange(1, 80))
        assert token_of(key) == Murmur3Token.hash_fn(key)


def test_known_tokens() -> None:
    # From the published behaviour of Cassandra: `SELECT token(k)` of these texts and of a key of bytes above 127.
    assert token_of(b"cassandra") == Murmur3Token.hash_fn(b"cassandra") == 356242581507269238
    assert token_of(b"\xff\xff\xff") == -9154616442117352147


def test_the_empty_key_stands_before_every_range() -> None:
    assert token_of(b"") == TOKEN_MIN
    assert TOKEN_MIN not in WHOLE_RING


def test_a_key_that_hashes_to_the_minimum_gets_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token, "hash_key", lambda key: TOKEN_MIN)
    assert token_of(b"any") == TOKEN_MAX


def test_without_the_compiled_module_tokens_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [bytes([200 + length]) * length for length in range(1, 40)]
    expected = [token_of(key) for key in keys]
    monkeypatch.setitem(sys.modules, "cassandra.cmurmur3", None)
    monkeypatch.delitem(sys.modules, "ebla.model.token")
    bare = importlib.import_module("ebla.model.token")
    try:
        assert bare.hash_key is murmur3.hash_key
        assert [bare.token_of(key) for key in keys] == expected
    finally:
        importlib.import_module("ebla.model").token = token  # type: ignore[attr-defined]  # the import rebinds it


def test_composite_keys_are_written_as_cql_does() -> None:
    assert composite_key([b"ab", b""]) == b"\x00\x02ab\x00" + b"\x00\x00\x00"
    assert composite_key([b"alone"]) == b"alone"


def test_composite_keys_have_bounds() -> None:
    composite_key([b"x" * COMPONENT_BYTES_MAX, b""])
    with pytest.raises(TooLarge):
        composite_key([b"x" * (COMPONENT_BYTES_MAX + 1), b""])
    with pytest.raises(InvalidRequest):
        composite_key([])


def test_the_ring_goes_round() -> None:
    assert advance(TOKEN_MAX, 1) == TOKEN_MIN
    assert advance(TOKEN_MIN, -1) == TOKEN_MAX
    assert distance(TOKEN_MAX, TOKEN_MIN) == 1
    assert distance(Token(5), Token(5)) == 0


def test_a_range_excludes_its_start_and_includes_its_end() -> None:
    inner = TokenRange(Token(10), Token(20))
    assert [Token(10) in inner, Token(11) in inner, Token(20) in inner, Token(21) in inner] == [
        False,
        True,
        True,
        False,
    ]
    assert not inner.wraps


def test_a_range_over_the_top() -> None:
    over = TokenRange(Token(20), Token(10))
    assert [TOKEN_MAX in over, TOKEN_MIN in over, Token(10) in over, Token(15) in over] == [True, True, True, False]
    assert over.wraps
    assert over.unwrapped() == (TokenRange(TOKEN_MIN, Token(10)), TokenRange(Token(20), TOKEN_MAX))
    assert TokenRange(Token(20), TOKEN_MIN).unwrapped() == (TokenRange(Token(20), TOKEN_MAX),)
    assert TokenRange(TOKEN_MAX, Token(10)).unwrapped() == (TokenRange(TOKEN_MIN, Token(10)),)


def test_equal_ends_are_the_whole_ring() -> None:
    once_around = TokenRange(Token(7), Token(7))
    assert once_around.width == 2**64
    assert Token(7) in once_around
    assert TOKEN_MIN in once_around
    assert once_around.covers(WHOLE_RING)
    assert not WHOLE_RING.covers(once_around)


def test_overlap_and_cover() -> None:
    low, high, both = (TokenRange(Token(a), Token(b)) for a, b in ((0, 10), (10, 20), (5, 15)))
    assert not low.overlaps(high)
    assert low.overlaps(both)
    assert both.overlaps(high)
    assert WHOLE_RING.covers(both)
    assert not low.covers(both)
    assert TokenRange(Token(20), Token(5)).covers(TokenRange(TOKEN_MAX, Token(5)))


def test_halving_is_by_the_top_bits_as_drivers_number_tablets() -> None:
    quarters = WHOLE_RING.split(4)
    assert [part.end for part in quarters] == [-(2**62) - 1, -1, 2**62 - 1, TOKEN_MAX]
    assert tuple(half for part in WHOLE_RING.split(2) for half in part.split(2)) == quarters


def test_a_split_has_at_most_one_part_per_token() -> None:
    three = TokenRange(Token(0), Token(3))
    assert len(three.split(3)) == 3
    with pytest.raises(AssertionError):
        three.split(4)
