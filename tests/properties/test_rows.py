"""Versions of a row become one row whatever the order, and rows survive their stored form."""

import itertools
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.model.errors import Corruption
from ebla.model.rows import (
    EMPTY_HEAD,
    EMPTY_ROW,
    Cell,
    CollectionCells,
    Deletion,
    PartitionHead,
    RangeDeletion,
    Row,
    RowMarker,
    merge_heads,
    merge_rows,
    newer_cell,
)
from ebla.storage.codec.row_codec import decode_head, decode_row, encode_head, encode_row, is_plain

TIMES = st.integers(1, 4)
VALUES = st.none() | st.sampled_from([b"", b"a", b"b"])
CELLS = st.builds(
    lambda time, value, ttl, at: Cell(
        timestamp_us=time, value=value, ttl_s=ttl if value is not None else 0, at_s=at if ttl or value is None else 0
    ),
    TIMES,
    VALUES,
    st.sampled_from([0, 5, 9]),
    st.integers(0, 2),
)
DELETIONS = st.builds(Deletion, TIMES, st.integers(0, 2))
MARKERS = st.builds(
    lambda time, ttl, at: RowMarker(time, ttl, at if ttl else 0), TIMES, st.sampled_from([0, 5, 9]), st.integers(0, 2)
)


def elements(deletion: Deletion | None, cells: dict[bytes, Cell]) -> CollectionCells:
    kept = {path: cell for path, cell in cells.items() if deletion is None or not deletion.covers(cell.timestamp_us)}
    return CollectionCells(deletion, kept)


ELEMENTS = st.builds(elements, st.none() | DELETIONS, st.dictionaries(st.sampled_from([b"x", b"y"]), CELLS, max_size=2))
ROWS = st.builds(
    Row,
    marker=st.none() | MARKERS,
    deletion=st.none(),
    cells=st.dictionaries(st.integers(0, 2), CELLS, max_size=3),
    collections=st.dictionaries(
        st.integers(3, 4), ELEMENTS.filter(lambda one: one.deletion is not None or one.cells != {}), max_size=2
    ),
) | st.builds(lambda deletion: Row(marker=None, deletion=deletion), DELETIONS)
RANGES = st.builds(RangeDeletion, st.sampled_from([b"", b"a", b"b"]), st.sampled_from([b"c", b"d", None]), DELETIONS)


def head(deletion: Deletion | None, ranges: list[RangeDeletion]) -> PartitionHead:
    return PartitionHead(deletion, tuple(sorted(set(ranges), key=lambda one: one.sort_key)))


HEADS = st.builds(head, st.none() | DELETIONS, st.lists(RANGES, max_size=2)).map(
    lambda one: merge_heads(one, EMPTY_HEAD)
)


def cell(value: bytes | None, ttl_s: int = 0, at_s: int = 0, timestamp_us: int = 1) -> Cell:
    return Cell(timestamp_us=timestamp_us, value=value, ttl_s=ttl_s, at_s=at_s)


RANKED = [
    cell(b"a"),
    cell(b"b"),
    cell(b"z", ttl_s=1, at_s=2),
    cell(b"a", ttl_s=100, at_s=101),
    cell(b"b", ttl_s=50, at_s=101),
    cell(b"b", ttl_s=100, at_s=101),
    cell(None, at_s=1),
    cell(None, at_s=2),
    cell(b"a", timestamp_us=2),
]
"""Each wins over those before it."""
RANKED_MARKERS = [RowMarker(1), RowMarker(1, 9, 10), RowMarker(1, 5, 11), RowMarker(1, 9, 11), RowMarker(2)]


@given(CELLS, CELLS, CELLS)
def test_ties_are_decided_by_content(one: Cell, other: Cell, third: Cell) -> None:
    assert newer_cell(one, other) == newer_cell(other, one)
    assert newer_cell(newer_cell(one, other), third) == newer_cell(one, newer_cell(other, third))
    assert newer_cell(one, one) == one


@pytest.mark.parametrize(("loser", "best"), list(itertools.combinations(RANKED, 2)))
def test_the_tie_rule(loser: Cell, best: Cell) -> None:
    assert newer_cell(loser, best) == newer_cell(best, loser) == best


@pytest.mark.parametrize(("loser", "best"), list(itertools.combinations(RANKED_MARKERS, 2)))
def test_markers_follow_the_tie_rule(loser: RowMarker, best: RowMarker) -> None:
    one, other = Row(marker=loser), Row(marker=best)
    assert merge_rows(one, other) == merge_rows(other, one) == other


def merged(rows: Iterable[Row]) -> Row:
    result = EMPTY_ROW
    for row in rows:
        result = merge_rows(result, row)
    return result


@settings(max_examples=400, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_rows_merge_in_any_order_and_grouping(rows: list[Row], random: Random) -> None:
    straight = merged(rows)
    shuffled = random.sample(rows, len(rows))
    assert merged(shuffled) == straight
    middle = len(rows) // 2
    assert merge_rows(merged(rows[:middle]), merged(rows[middle:])) == straight
    assert merge_rows(straight, straight) == straight


@settings(max_examples=200, deadline=None)
@given(st.lists(HEADS, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_heads_merge_in_any_order(heads: list[PartitionHead], random: Random) -> None:
    def all_of(several: list[PartitionHead]) -> PartitionHead:
        result = EMPTY_HEAD
        for head in several:
            result = merge_heads(result, head)
        return result

    assert all_of(random.sample(heads, len(heads))) == all_of(heads)


@settings(max_examples=400, deadline=None)
@given(ROWS)
def test_a_row_survives_its_stored_form(row: Row) -> None:
    layouts = ((0, 1, 2, 3, 4),)
    stored = encode_row(row, 1, layouts[0])
    assert decode_row(stored, layouts) == row


@given(HEADS)
def test_a_head_survives_its_stored_form(head: PartitionHead) -> None:
    assert decode_head(encode_head(head, 1)) == head


def test_a_plain_row_is_told_by_its_flag_and_read_by_its_own_schema_version() -> None:
    layouts = ((1, 2), (1, 2, 3))
    old = encode_row(
        Row(marker=RowMarker(7), deletion=None, cells={1: Cell(timestamp_us=7, value=b"a")}), 1, layouts[0]
    )
    assert is_plain(old)
    assert decode_row(old, layouts) == Row(
        marker=RowMarker(7), deletion=None, cells={1: Cell(timestamp_us=7, value=b"a")}
    )
    mixed = encode_row(
        Row(marker=RowMarker(7), deletion=None, cells={1: Cell(timestamp_us=8, value=b"a")}), 2, layouts[1]
    )
    assert not is_plain(mixed)


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(Corruption, match="format 9"):
        decode_row(b"\x09\x00\x00\x01", ((),))
