"""Which shard of a node has a token, for tables on vnodes: a function of the token, the shard count and `ignore_msb`.

The token's range is cut into 2^ignore_msb equal segments, and every segment into one piece per shard, so that a vnode,
which is a small part of the ring, still touches all shards. Drivers that know shards compute the same.
"""

from ebla.model.identity import ShardNumber
from ebla.model.token import RING_TOKENS, TOKEN_MIN, Token, TokenRange, advance, distance

TOKEN_BITS = 64
IGNORE_MSB_MAX = 63


def static_shard(token: int, shard_count: int, ignore_msb: int) -> ShardNumber:
    assert shard_count >= 1
    assert 0 <= ignore_msb <= IGNORE_MSB_MAX
    within_segment = ((token - TOKEN_MIN) << ignore_msb) & (RING_TOKENS - 1)
    return ShardNumber((within_segment * shard_count) >> TOKEN_BITS)


def first_token_of_shard(token: Token, shard: int, shard_count: int, ignore_msb: int) -> Token:
    """The first token at or after this one, around the ring, that the shard has."""
    assert 0 <= shard < shard_count
    if static_shard(token, shard_count, ignore_msb) == shard:
        return token
    segment_width = RING_TOKENS >> ignore_msb
    offset = token - TOKEN_MIN
    piece_start = _ceil_div(shard * segment_width, shard_count)
    start = offset - offset % segment_width + piece_start
    return advance(TOKEN_MIN, start if start >= offset else start + segment_width)


def last_token_of_shard(token: int, shard_count: int, ignore_msb: int) -> Token:
    """The last token of the piece that contains this token; a piece belongs to one shard."""
    shard = static_shard(token, shard_count, ignore_msb)
    segment_width = RING_TOKENS >> ignore_msb
    offset = token - TOKEN_MIN
    segment_start = offset - offset % segment_width
    return Token(TOKEN_MIN + segment_start + _ceil_div((shard + 1) * segment_width, shard_count) - 1)


def first_token_in_range(within: TokenRange, shard: int, shard_count: int, ignore_msb: int) -> Token:
    """The first token of the range that the shard has; the range's end where it has none of it."""
    first = advance(within.start, 1)
    found = first_token_of_shard(first, shard, shard_count, ignore_msb)
    return found if distance(first, found) < within.width else within.end


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
