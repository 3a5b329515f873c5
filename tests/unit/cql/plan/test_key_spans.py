"""Compares key spans with a naive evaluation of the restrictions, for every mix of directions."""

import itertools

import pytest

from ebla.cql.plan.key_spans import SliceBound, coalesce, intersect, row_spans, token_span
from ebla.model.cql_types import SCALARS
from ebla.model.schema import Column, ColumnKind
from ebla.model.token import TOKEN_MAX, TOKEN_MIN
from ebla.storage.codec.key_codec import encode_clustering, encode_token, row_key
from ebla.wire.row_messages import Span

PREFIX = bytes(8) + b"\0\1k"
VALUES = (-1, 0, 1)
DIRECTIONS = tuple(itertools.product((False, True), repeat=3))


def columns(*descending: bool) -> list[Column]:
    return [
        Column(name=f"c{position}", type=SCALARS["int"], kind=ColumnKind.CLUSTERING, position=position, descending=one)
        for position, one in enumerate(descending)
    ]


def encoded(values: tuple[int, ...]) -> tuple[bytes, ...]:
    return tuple(value.to_bytes(4, signed=True) for value in values)


def within(key: bytes, spans: list[Span]) -> bool:
    return any(start <= key and (end is None or key < end) for start, end in spans)


def holds(row: tuple[int, ...], end: SliceBound, values: tuple[int, ...]) -> bool:
    mine = row[: len(values)]
    if end.inclusive and mine == values:
        return True
    return mine > values if end.is_lower else mine < values


@pytest.mark.parametrize("descending", DIRECTIONS)
@pytest.mark.parametrize("is_lower", [False, True])
@pytest.mark.parametrize("inclusive", [False, True])
def test_a_slice_of_several_columns(descending: tuple[bool, ...], is_lower: bool, inclusive: bool) -> None:
    shape = columns(*descending)
    rows = list(itertools.product(VALUES, repeat=3))
    for width in (1, 2, 3):
        for values in itertools.product(VALUES, repeat=width):
            end = SliceBound(encoded(values), is_lower, inclusive)
            spans = row_spans(shape, PREFIX, [], [end])
            assert spans == coalesce(spans)
            for row in rows:
                key = row_key(PREFIX, encode_clustering(shape, encoded(row)))
                assert within(key, spans) is holds(row, end, values), (row, values)


@pytest.mark.parametrize("descending", DIRECTIONS)
def test_between_two_ends_behind_a_fixed_column(descending: tuple[bool, ...]) -> None:
    shape = columns(*descending)
    low, high = SliceBound(encoded((-1, 0)), True, True), SliceBound(encoded((1,)), False, False)
    spans = row_spans(shape, PREFIX, encoded((0,)), [low, high])
    for row in itertools.product(VALUES, repeat=3):
        key = row_key(PREFIX, encode_clustering(shape, encoded(row)))
        wanted = row[0] == 0 and row[1:] >= (-1, 0) and row[1] < 1
        assert within(key, spans) is wanted, row


def test_a_whole_key_is_one_row() -> None:
    shape = columns(False, True)
    ((start, end),) = row_spans(shape, PREFIX, encoded((1, 2)), [])
    assert start == row_key(PREFIX, encode_clustering(shape, encoded((1, 2))))
    assert end == start + b"\0"


@pytest.mark.parametrize(
    ("spans", "joined"),
    [
        ([], []),
        ([(b"c", b"d"), (b"a", b"b")], [(b"a", b"b"), (b"c", b"d")]),
        ([(b"a", b"c"), (b"b", b"d")], [(b"a", b"d")]),
        ([(b"a", b"b"), (b"b", b"c")], [(b"a", b"c")]),
        ([(b"a", b"z"), (b"b", b"c")], [(b"a", b"z")]),
        ([(b"b", b"b"), (b"c", b"a")], []),
        ([(b"a", None), (b"b", b"c")], [(b"a", None)]),
        ([(b"a", b"c"), (b"b", None)], [(b"a", None)]),
    ],
)
def test_spans_are_joined(spans: list[Span], joined: list[Span]) -> None:
    assert coalesce(spans) == joined


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ([(b"a", b"c")], [(b"b", b"d")], [(b"b", b"c")]),
        ([(b"a", b"c"), (b"e", b"g")], [(b"b", b"f")], [(b"b", b"c"), (b"e", b"f")]),
        ([(b"a", None)], [(b"b", None)], [(b"b", None)]),
        ([(b"a", None)], [(b"b", b"c")], [(b"b", b"c")]),
        ([(b"a", b"b")], [(b"b", b"c")], []),
        ([], [(b"a", None)], []),
    ],
)
def test_spans_in_both(one: list[Span], other: list[Span], both: list[Span]) -> None:
    assert intersect(one, other) == both
    assert intersect(other, one) == both


def test_tokens() -> None:
    assert token_span(5, 4) == []
    assert token_span(5, 5) == [(encode_token(5), encode_token(6))]
    assert token_span(int(TOKEN_MIN), int(TOKEN_MAX)) == [(encode_token(int(TOKEN_MIN)), None)]
    assert token_span(int(TOKEN_MIN) - 1, 0) == [(encode_token(int(TOKEN_MIN)), encode_token(1))]
