"""When a tombstone may go. `INV-LAYER-GC` (a) and (b), and what a collector does with a row."""

import pytest
from tests.unit.storage.naive_compaction import collected
from tests.unit.storage.small_table import CELLS, MAP, SMALL, clustering_of, head_of, key_of, value_of

from ebla.model.rows import NEVER_US, Cell, CollectionCells, Deletion, PartitionHead, RangeDeletion, Row, RowMarker
from ebla.model.schema import TableOptions, TombstoneGc
from ebla.model.token import WHOLE_RING, Token
from ebla.storage.codec.row_codec import encode_head
from ebla.storage.compaction.tombstone_gc import (
    KEEP_ALL,
    GcContext,
    GcRule,
    GcSpan,
    RepairedRange,
    TombstoneCollector,
    gc_rule,
)
from ebla.storage.layers.layer_facts import ALWAYS_US

LOW, HIGH = WHOLE_RING.split(2)
IN_LOW, IN_HIGH = Token(-5), Token(5)
NOW_S = 100_000
A = CELLS[0]


def before(mode: TombstoneGc, terms: GcContext, token: Token = IN_LOW, propagation_s: int = 3_600) -> int | None:
    options = TableOptions(gc_grace_s=1_000, tombstone_gc=mode, propagation_s=propagation_s)
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
    assert before(mode, GcContext(now_s=NOW_S, replication_factor=3)) == expected


def test_by_repair_only_what_was_repaired_and_has_had_time_to_arrive() -> None:
    terms = GcContext(now_s=NOW_S, replication_factor=3, repaired=(RepairedRange(LOW, 90_000),))
    assert before(TombstoneGc.REPAIR, terms, IN_LOW) == 90_000 - 3_600
    assert before(TombstoneGc.REPAIR, terms, IN_HIGH) is None


def test_with_repair_mode_a_single_replica_need_not_wait() -> None:
    assert before(TombstoneGc.REPAIR, GcContext(now_s=NOW_S, replication_factor=1)) == NOW_S


def test_a_range_repaired_twice_counts_from_the_later() -> None:
    terms = GcContext(
        now_s=NOW_S,
        replication_factor=3,
        repaired=(RepairedRange(WHOLE_RING, 50_000), RepairedRange(LOW, 60_000)),
    )
    assert before(TombstoneGc.REPAIR, terms, IN_LOW, propagation_s=73) == 60_000 - 73
    assert before(TombstoneGc.REPAIR, terms, IN_HIGH, propagation_s=73) == 50_000 - 73


RULE = GcRule((GcSpan(WHOLE_RING, 50),), below_us=1_000)


@pytest.mark.parametrize(
    ("cell", "stays"),
    [
        (Cell(timestamp_us=999, value=None, ttl_s=0, at_s=49), False),
        (Cell(timestamp_us=999, value=None, ttl_s=0, at_s=50), True),
        (Cell(timestamp_us=1_000, value=None, ttl_s=0, at_s=49), True),
        (Cell(timestamp_us=999, value=b"v", ttl_s=5, at_s=49), False),
        (Cell(timestamp_us=999, value=b"v", ttl_s=5, at_s=50), True),
        (Cell(timestamp_us=999, value=b"v"), True),
    ],
)
def test_a_cell_goes_by_its_end_and_its_timestamp(cell: Cell, stays: bool) -> None:
    collector = TombstoneCollector(RULE)
    left = collector.row(IN_LOW, Row(marker=None, deletion=None, cells={A: cell}))
    assert left.cells == ({A: cell} if stays else {})
    assert collector.dropped_greatest_us == (NEVER_US if stays else cell.timestamp_us)


def test_every_kind_of_tombstone_goes_and_the_newest_is_remembered() -> None:
    collector = TombstoneCollector(RULE)
    row = Row(
        marker=RowMarker(10, 5, 1),
        deletion=Deletion(20, 1),
        cells={A: Cell(timestamp_us=30, value=None, ttl_s=0, at_s=1)},
        collections={MAP: CollectionCells(Deletion(40, 1), {b"x": Cell(timestamp_us=41, value=b"v")})},
    )
    left = collector.row(IN_LOW, row)
    assert left == Row(
        marker=None,
        deletion=None,
        cells={},
        collections={MAP: CollectionCells(None, {b"x": Cell(timestamp_us=41, value=b"v")})},
    )
    assert collector.dropped_greatest_us == 40
    slice_ = RangeDeletion(b"", None, Deletion(60, 1))
    kept = RangeDeletion(b"", None, Deletion(61, 99))
    assert collector.head(IN_LOW, PartitionHead(Deletion(50, 1), (slice_, kept))) == PartitionHead(None, (kept,))
    assert collector.dropped_greatest_us == 60


def test_without_a_rule_everything_stays() -> None:
    row = Row(marker=None, deletion=Deletion(20, 1), cells={A: Cell(timestamp_us=30, value=None, ttl_s=0, at_s=1)})
    collector = TombstoneCollector(KEEP_ALL)
    assert collector.row(IN_LOW, row) == row
    assert collector.dropped_greatest_us == NEVER_US


def test_a_slice_that_goes_takes_along_what_it_deleted() -> None:
    head = PartitionHead(None, (RangeDeletion(clustering_of(1), clustering_of(2), Deletion(20, 1)),))
    plain = value_of(Row(marker=RowMarker(10), deletion=None, cells={A: Cell(timestamp_us=10, value=b"v")}))
    items = [
        (head_of(1), encode_head(head, 1)),
        (key_of(1, 0), plain),
        (key_of(1, 1), plain),
        (key_of(2, 1), plain),
    ]
    assert list(collected(items, SMALL, TombstoneCollector(RULE))) == [(key_of(1, 0), plain), (key_of(2, 1), plain)]
    kept = list(collected(items, SMALL, TombstoneCollector(KEEP_ALL)))
    assert kept == [items[0], items[1], items[3]]
