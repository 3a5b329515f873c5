"""Facts of rows and heads, and how facts add up."""

import pytest

from ebla.model.rows import Cell, CollectionCells, Deletion, PartitionHead, RangeDeletion, Row, RowMarker
from ebla.storage.codec.row_codec import encode_row
from ebla.storage.layers.layer_facts import ALWAYS_US, NO_FACTS, LayerFacts, head_facts, plain_facts, row_facts


def test_a_plain_row_by_its_header() -> None:
    value = encode_row(Row(RowMarker(7), None, {1: Cell(7, b"x")}), 1, (1,))
    assert plain_facts(value) == LayerFacts(7, 7, 1)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Row(), LayerFacts(ALWAYS_US, NO_FACTS.greatest_us, 1, all_plain=False)),
        (Row(cells={1: Cell(3, b"x"), 2: Cell(9, b"")}), LayerFacts(3, 9, 1, all_plain=False)),
        (Row(RowMarker(2, 60, 100), cells={1: Cell(5, b"x")}), LayerFacts(2, 5, 1, False, False, True, False)),
        (Row(cells={1: Cell(5, b"x", 60, 100)}), LayerFacts(5, 5, 1, False, False, True, False)),
        (Row(cells={1: Cell(5, None, 0, 100)}), LayerFacts(5, 5, 1, False, True, False, False)),
        (Row(None, Deletion(4, 100)), LayerFacts(4, 4, 1, False, True, False, False)),
        (
            Row(collections={1: CollectionCells(None, {b"k": Cell(8, None), b"l": Cell(6, b"x", 9, 9)})}),
            LayerFacts(6, 8, 1, False, True, True, False),
        ),
        (Row(collections={1: CollectionCells(Deletion(1, 9))}), LayerFacts(1, 1, 1, False, True, False, False)),
    ],
)
def test_rows(row: Row, expected: LayerFacts) -> None:
    assert row_facts(row) == expected


def test_heads() -> None:
    static = Row(cells={1: Cell(50, b"x")})
    assert head_facts(PartitionHead(static=static)) == LayerFacts(50, 50, 1, True, False, False, False)
    ranges = (RangeDeletion(b"a", None, Deletion(3, 9)), RangeDeletion(b"b", b"c", Deletion(70, 9)))
    assert head_facts(PartitionHead(None, ranges, static)) == LayerFacts(3, 70, 1, True, True, False, False)
    assert head_facts(PartitionHead(Deletion(2, 9))) == LayerFacts(2, 2, 1, True, True, False, False)


def test_facts_add_up() -> None:
    plain, head = LayerFacts(5, 9, 3), LayerFacts(2, 6, 1, True, True, False, False)
    both = plain.widened(head)
    assert both == head.widened(plain) == LayerFacts(2, 9, 4, True, True, False, False)
    assert NO_FACTS.widened(plain) == plain
    assert both.covers(plain)
    assert both.covers(head)
    assert both.covers(NO_FACTS)
    assert not plain.covers(head)
    assert not NO_FACTS.covers(plain)


@pytest.mark.parametrize(
    "wider",
    [
        LayerFacts(4, 9), LayerFacts(5, 10), LayerFacts(5, 9, 0, True), LayerFacts(5, 9, 0, False, True),
        LayerFacts(5, 9, 0, False, False, True), LayerFacts(5, 9, 0, all_plain=False),
    ],
)  # fmt: skip
def test_each_fact_counts(wider: LayerFacts) -> None:
    assert wider.covers(LayerFacts(5, 9))
    assert not LayerFacts(5, 9).covers(wider)
