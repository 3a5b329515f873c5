"""Shares of tasks: every token of the plan once, of about the size asked for, of few nodes each."""

import random
import uuid

import pytest

from ebla.model.cql_types import parse_type
from ebla.model.identity import Address, HostId, TableId, TopologyVersion
from ebla.model.schema import Column, ColumnKind, new_schema
from ebla.model.selection import ColumnSelector
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, WHOLE_RING, Token, TokenRange
from ebla.source.read.planner import InputSplit, ReadSpec, clip_range, decode_split, encode_split, plan_splits
from ebla.storage.codec.key_codec import decode_token, partition_prefix
from ebla.wire.table_calls import ReadRange, ReadSource, TableReadPlan

SCHEMA = new_schema(
    TableId(uuid.UUID(int=1)), "ks", "t", (Column(name="k", type=parse_type("int"), kind=ColumnKind.PARTITION_KEY),)
)
COLUMNS = (ColumnSelector("k"),)
MB = 1 << 20


def source(number: int) -> ReadSource:
    return ReadSource(
        host=HostId(uuid.UUID(int=number)), flight=Address("127.0.0.1", 7000 + number), ticket=b"ticket%d" % number
    )


def plan_of(*pieces: ReadRange, sources: int = 3) -> TableReadPlan:
    return TableReadPlan(
        schema=SCHEMA,
        version=TopologyVersion(7),
        sources=tuple(source(n) for n in range(sources)),
        pieces=pieces,
        authority=b"authority",
        now_s=99,
    )


def tablets(count: int, size_bytes: int, sources: tuple[int, ...] = (0, 1, 2)) -> list[ReadRange]:
    return [
        ReadRange(range=part, sources=sources, needed=1, size_bytes=size_bytes, rows=10)
        for part in WHOLE_RING.split(count)
    ]


def covered(shares: list[InputSplit]) -> list[TokenRange]:
    """Neighbours joined."""
    found: list[TokenRange] = []
    for part in sorted(piece.range for share in shares for piece in share.ranges):
        if found and found[-1].end == part.start:
            found[-1] = TokenRange(found[-1].start, part.end)
        else:
            assert not found or found[-1].end < part.start, "a token twice"
            found.append(part)
    return found


def test_small_pieces_of_the_same_sources_are_joined() -> None:
    shares = plan_splits(plan_of(*tablets(64, MB)), ReadSpec(columns=COLUMNS, split_bytes=16 * MB))
    assert [len(share.ranges) for share in shares] == [16, 16, 16, 16]
    assert covered(shares) == [WHOLE_RING]


def test_pieces_of_other_sources_stay_apart() -> None:
    pieces = [
        ReadRange(range=part, sources=(n % 3,), needed=1, size_bytes=1, rows=1)
        for n, part in enumerate(WHOLE_RING.split(30))
    ]
    shares = plan_splits(plan_of(*pieces), ReadSpec(columns=COLUMNS))
    assert [len(share.sources) for share in shares] == [1, 1, 1]
    assert {share.sources[0].ticket for share in shares} == {b"ticket0", b"ticket1", b"ticket2"}
    assert all(piece.sources == (0,) for share in shares for piece in share.ranges), "numbered from 0 in each share"
    assert covered(shares) == [WHOLE_RING]


def test_the_order_of_preference_of_each_piece_stays_though_they_are_joined() -> None:
    first, second = WHOLE_RING.split(2)
    shares = plan_splits(
        plan_of(
            ReadRange(range=first, sources=(2, 0), needed=1, size_bytes=1, rows=1),
            ReadRange(range=second, sources=(0, 2), needed=1, size_bytes=1, rows=1),
        ),
        ReadSpec(columns=COLUMNS),
    )
    assert len(shares) == 1
    assert [piece.sources for piece in shares[0].ranges] == [(1, 0), (0, 1)]
    assert [one.ticket for one in shares[0].sources] == [b"ticket0", b"ticket2"]


def test_large_pieces_are_split_by_token() -> None:
    shares = plan_splits(plan_of(*tablets(2, 1000 * MB)), ReadSpec(columns=COLUMNS, split_bytes=100 * MB))
    assert len(shares) == 20
    assert covered(shares) == [WHOLE_RING]


def test_one_that_is_a_little_too_large_is_left_whole() -> None:
    shares = plan_splits(plan_of(*tablets(1, 149 * MB)), ReadSpec(columns=COLUMNS, split_bytes=100 * MB))
    assert [len(share.ranges) for share in shares] == [1]


def test_groups_are_numbered_anew_with_the_sources() -> None:
    piece = ReadRange(
        range=WHOLE_RING, sources=(4, 2, 3), needed=2, size_bytes=1, rows=1, groups=(((4, 2), 1), ((3,), 1))
    )
    (share,) = plan_splits(plan_of(piece, sources=5), ReadSpec(columns=COLUMNS))
    assert share.ranges[0].sources == (2, 0, 1)
    assert share.ranges[0].groups == (((2, 0), 1), ((1,), 1))


def test_only_what_is_asked_for() -> None:
    ranges = (TokenRange(Token(-5), Token(5)), TokenRange(Token(100), Token(101)))
    shares = plan_splits(plan_of(*tablets(8, MB)), ReadSpec(columns=COLUMNS, ranges=ranges))
    assert covered(shares) == list(ranges)


def test_partitions_go_to_the_shares_that_have_them() -> None:
    prefixes = tuple(sorted(partition_prefix(token, b"key") for token in (-(2**62), 1, 2**62)))
    pieces = [
        ReadRange(range=part, sources=(n % 2,), needed=1, size_bytes=200 * MB, rows=1)
        for n, part in enumerate(WHOLE_RING.split(4))
    ]
    shares = plan_splits(plan_of(*pieces), ReadSpec(columns=COLUMNS, partitions=prefixes, split_bytes=10 * MB))
    assert sorted(prefix for share in shares for prefix in share.partitions) == list(prefixes)
    assert sum(len(share.ranges) for share in shares) == 3
    assert all(share.partitions for share in shares)


def test_thousands_of_partitions_are_each_read_once() -> None:
    rng = random.Random(7)
    borders = [part.end for part in WHOLE_RING.split(64)]
    drawn = [Token(rng.randrange(TOKEN_MIN + 2, TOKEN_MAX)) for _ in range(4_000)]
    tokens = sorted({*drawn, *borders[:-1], *(Token(one + 1) for one in borders[:-1])})
    prefixes = tuple(partition_prefix(token, b"key") for token in tokens)
    ranges = tuple(TokenRange(Token(one - 1), one) for one in reversed(tokens))
    shares = plan_splits(plan_of(*tablets(64, MB)), ReadSpec(columns=COLUMNS, ranges=ranges, partitions=prefixes))
    assert sorted(prefix for share in shares for prefix in share.partitions) == sorted(prefixes)
    read = [(piece.range.end, piece.range.width) for share in shares for piece in share.ranges]
    assert sorted(read) == [(token, 1) for token in tokens]
    for share in shares:
        assert {decode_token(prefix) for prefix in share.partitions} == {piece.range.end for piece in share.ranges}


@pytest.mark.parametrize("wanted", [ReadSpec(columns=COLUMNS, ranges=()), ReadSpec(columns=COLUMNS, partitions=())])
def test_nothing_is_asked_for(wanted: ReadSpec) -> None:
    assert plan_splits(plan_of(*tablets(8, MB)), wanted) == []


def test_a_share_arrives_as_it_was() -> None:
    (share,) = plan_splits(plan_of(*tablets(2, MB)), ReadSpec(columns=COLUMNS, uses_local_files=False))
    assert decode_split(encode_split(share)) == share


def test_a_range_over_the_top_is_cut_there() -> None:
    over = TokenRange(Token(TOKEN_MAX - 5), Token(TOKEN_MIN + 5))
    assert clip_range(over, (WHOLE_RING,)) == [
        TokenRange(TOKEN_MIN, Token(TOKEN_MIN + 5)),
        TokenRange(Token(TOKEN_MAX - 5), TOKEN_MAX),
    ]
    piece = ReadRange(range=over, sources=(0,), needed=1, size_bytes=1, rows=1)
    assert covered(plan_splits(plan_of(piece), ReadSpec(columns=COLUMNS))) == clip_range(over, (WHOLE_RING,))


@pytest.mark.parametrize("seed", range(30))
def test_any_plan_is_covered_once(seed: int) -> None:
    rng = random.Random(seed)
    ends = sorted({rng.randrange(TOKEN_MIN + 1, TOKEN_MAX) for _ in range(rng.randrange(1, 200))})
    starts = [ends[-1], *ends[:-1]]
    pieces = [
        ReadRange(
            range=TokenRange(Token(start), Token(end)),
            sources=tuple(rng.sample(range(5), 3)),
            needed=rng.randrange(1, 4),
            size_bytes=rng.choice((0, MB, 700 * MB)),
            rows=1,
        )
        for start, end in zip(starts, ends)
    ]
    shares = plan_splits(plan_of(*pieces, sources=5), ReadSpec(columns=COLUMNS, split_bytes=64 * MB))
    assert covered(shares) == [WHOLE_RING]
    for share in shares:
        assert len({tuple(sorted(piece.sources)) for piece in share.ranges}) == 1
