"""When a tombstone may go. `INV-LAYER-GC` (a) and (b), and what a collector does with a row."""

import pytest

from ebla.model.rows import NEVER_US, Cell, Deletion, Elements, Head, Marker, RangeDeletion, Row
from ebla.model.schema import TableOptions, TombstoneGc
from ebla.model.token import WHOLE_RING, Token
from ebla.sim.workloads.store_rows import CELLS, MAP, SMALL, clustering_of, head_of, key_of, value_of
from ebla.storage.layer_facts import ALWAYS_US
from ebla.storage.row_codec import encode_head
from ebla.storage.tombstone_gc import (
    KEEP_ALL,
    Collector,
    GcRule,
    GcSpan,
    GcTerms,
    RepairedSpan,
    collected,
    gc_rule,
)

LOW, HIGH = WHOLE_RING.split(2)
IN_LOW, IN_HIGH = Token(-5), Token(5)
NOW_S = 100_000
A = CELLS[0]


def before(mode: TombstoneGc, terms: GcTerms, token: Token = IN_LOW) -> int | None:
    options = TableOptions(gc_grace_s=1_000, tombstone_gc=mode)
    return gc_rule(options, terms, WHOLE_RING, ALWAYS_US).before_s(token)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (TombstoneGc.TIMEOUT, NOW_S - 1_000),
        (TombstoneGc.IMMEDIATE, NOW_S),
        (TombstoneGc.DISABLED, None),
        (TombstoneGc.REPAIR, None),
    ],
)
def test_modes(mode: TombstoneGc, expected: int | None) -> None:
    assert before(mode, GcTerms(NOW_S, 3)) == expected


def test_by_repair_only_what_was_repaired_and_has_had_time_to_arrive() -> None:
    terms = GcTerms(NOW_S, 3, (RepairedSpan(LOW, 90_000),))
    assert before(TombstoneGc.REPAIR, terms, IN_LOW) == 90_000 - 3_600
    assert before(TombstoneGc.REPAIR, terms, IN_HIGH) is None


def test_by_repair_a_single_replica_has_nobody_to_wait_for() -> None:
    assert before(TombstoneGc.REPAIR, GcTerms(NOW_S, 1)) == NOW_S


def test_a_range_repaired_twice_counts_from_the_later() -> None:
    terms = GcTerms(NOW_S, 3, (RepairedSpan(WHOLE_RING, 50_000), RepairedSpan(LOW, 60_000)), propagation_s=0)
    assert before(TombstoneGc.REPAIR, terms, IN_LOW) == 60_000
    assert before(TombstoneGc.REPAIR, terms, IN_HIGH) == 50_000


RULE = GcRule((GcSpan(WHOLE_RING, 50),), below_us=1_000)


@pytest.mark.parametrize(
    ("cell", "stays"),
    [
        (Cell(999, None, 0, 49), False),
        (Cell(999, None, 0, 50), True),
        (Cell(1_000, None, 0, 49), True),
        (Cell(999, b"v", 5, 49), False),
        (Cell(999, b"v", 5, 50), True),
        (Cell(999, b"v"), True),
    ],
)
def test_a_cell_goes_by_its_end_and_its_timestamp(cell: Cell, stays: bool) -> None:
    collector = Collector(RULE)
    left = collector.row(IN_LOW, Row(None, None, {A: cell}))
    assert left.cells == ({A: cell} if stays else {})
    assert collector.dropped_greatest_us == (NEVER_US if stays else cell.timestamp_us)


def test_every_kind_of_tombstone_goes_and_the_newest_is_remembered() -> None:
    collector = Collector(RULE)
    row = Row(
        Marker(10, 5, 1),
        Deletion(20, 1),
        {A: Cell(30, None, 0, 1)},
        {MAP: Elements(Deletion(40, 1), {b"x": Cell(41, b"v")})},
    )
    left = collector.row(IN_LOW, row)
    assert left == Row(None, None, {}, {MAP: Elements(None, {b"x": Cell(41, b"v")})})
    assert collector.dropped_greatest_us == 40
    slice_ = RangeDeletion(b"", None, Deletion(60, 1))
    kept = RangeDeletion(b"", None, Deletion(61, 99))
    assert collector.head(IN_LOW, Head(Deletion(50, 1), (slice_, kept))) == Head(None, (kept,))
    assert collector.dropped_greatest_us == 60


def test_without_a_rule_everything_stays() -> None:
    row = Row(None, Deletion(20, 1), {A: Cell(30, None, 0, 1)})
    collector = Collector(KEEP_ALL)
    assert collector.row(IN_LOW, row) == row
    assert collector.dropped_greatest_us == NEVER_US


def test_a_slice_that_goes_takes_along_what_it_deleted() -> None:
    head = Head(None, (RangeDeletion(clustering_of(1), clustering_of(2), Deletion(20, 1)),))
    plain = value_of(Row(Marker(10), None, {A: Cell(10, b"v")}))
    items = [
        (head_of(1), encode_head(head, 1)),
        (key_of(1, 0), plain),
        (key_of(1, 1), plain),
        (key_of(2, 1), plain),
    ]
    assert list(collected(items, SMALL, Collector(RULE))) == [(key_of(1, 0), plain), (key_of(2, 1), plain)]
    kept = list(collected(items, SMALL, Collector(KEEP_ALL)))
    assert kept == [items[0], items[1], items[3]]
