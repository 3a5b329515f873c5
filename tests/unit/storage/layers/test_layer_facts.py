"""Facts of rows and heads, and how facts add up."""

import pytest

from ebla.model.rows import Cell, CollectionCells, Deletion, PartitionHead, RangeDeletion, Row, RowMarker
from ebla.storage.codec.row_codec import encode_row
from ebla.storage.layers.layer_facts import ALWAYS_US, NO_FACTS, LayerFacts, head_facts, plain_facts, row_facts


def test_a_plain_row_by_its_header() -> None:
    value = encode_row(Row(marker=RowMarker(7), deletion=None, cells={1: Cell(timestamp_us=7, value=b"x")}), 1, (1,))
    assert plain_facts(value) == LayerFacts(least_us=7, greatest_us=7, rows=1)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Row(), LayerFacts(least_us=ALWAYS_US, greatest_us=NO_FACTS.greatest_us, rows=1, all_plain=False)),
        (
            Row(cells={1: Cell(timestamp_us=3, value=b"x"), 2: Cell(timestamp_us=9, value=b"")}),
            LayerFacts(least_us=3, greatest_us=9, rows=1, all_plain=False),
        ),
        (
            Row(marker=RowMarker(2, 60, 100), cells={1: Cell(timestamp_us=5, value=b"x")}),
            LayerFacts(least_us=2, greatest_us=5, rows=1, has_expiring=True, all_plain=False),
        ),
        (
            Row(cells={1: Cell(timestamp_us=5, value=b"x", ttl_s=60, at_s=100)}),
            LayerFacts(least_us=5, greatest_us=5, rows=1, has_expiring=True, all_plain=False),
        ),
        (
            Row(cells={1: Cell(timestamp_us=5, value=None, ttl_s=0, at_s=100)}),
            LayerFacts(least_us=5, greatest_us=5, rows=1, has_tombstones=True, all_plain=False),
        ),
        (
            Row(marker=None, deletion=Deletion(4, 100)),
            LayerFacts(least_us=4, greatest_us=4, rows=1, has_tombstones=True, all_plain=False),
        ),
        (
            Row(
                collections={
                    1: CollectionCells(
                        None,
                        {
                            b"k": Cell(timestamp_us=8, value=None),
                            b"l": Cell(timestamp_us=6, value=b"x", ttl_s=9, at_s=9),
                        },
                    )
                }
            ),
            LayerFacts(least_us=6, greatest_us=8, rows=1, has_tombstones=True, has_expiring=True, all_plain=False),
        ),
        (
            Row(collections={1: CollectionCells(Deletion(1, 9))}),
            LayerFacts(least_us=1, greatest_us=1, rows=1, has_tombstones=True, all_plain=False),
        ),
    ],
)
def test_rows(row: Row, expected: LayerFacts) -> None:
    assert row_facts(row) == expected


def test_heads() -> None:
    static = Row(cells={1: Cell(timestamp_us=50, value=b"x")})
    assert head_facts(PartitionHead(static=static)) == LayerFacts(
        least_us=50, greatest_us=50, rows=1, has_heads=True, all_plain=False
    )
    ranges = (RangeDeletion(b"a", None, Deletion(3, 9)), RangeDeletion(b"b", b"c", Deletion(70, 9)))
    assert head_facts(PartitionHead(None, ranges, static)) == LayerFacts(
        least_us=3, greatest_us=70, rows=1, has_heads=True, has_tombstones=True, all_plain=False
    )
    assert head_facts(PartitionHead(Deletion(2, 9))) == LayerFacts(
        least_us=2, greatest_us=2, rows=1, has_heads=True, has_tombstones=True, all_plain=False
    )


def test_facts_add_up() -> None:
    plain, head = (
        LayerFacts(least_us=5, greatest_us=9, rows=3),
        LayerFacts(least_us=2, greatest_us=6, rows=1, has_heads=True, has_tombstones=True, all_plain=False),
    )
    both = plain.widened(head)
    assert (
        both
        == head.widened(plain)
        == LayerFacts(least_us=2, greatest_us=9, rows=4, has_heads=True, has_tombstones=True, all_plain=False)
    )
    assert NO_FACTS.widened(plain) == plain
    assert both.covers(plain)
    assert both.covers(head)
    assert both.covers(NO_FACTS)
    assert not plain.covers(head)
    assert not NO_FACTS.covers(plain)


@pytest.mark.parametrize(
    "wider",
    [
        LayerFacts(least_us=4, greatest_us=9),
        LayerFacts(least_us=5, greatest_us=10),
        LayerFacts(least_us=5, greatest_us=9, rows=0, has_heads=True),
        LayerFacts(least_us=5, greatest_us=9, rows=0, has_tombstones=True),
        LayerFacts(least_us=5, greatest_us=9, rows=0, has_expiring=True),
        LayerFacts(least_us=5, greatest_us=9, rows=0, all_plain=False),
    ],
)  # fmt: skip
def test_each_fact_counts(wider: LayerFacts) -> None:
    assert wider.covers(LayerFacts(least_us=5, greatest_us=9))
    assert not LayerFacts(least_us=5, greatest_us=9).covers(wider)
