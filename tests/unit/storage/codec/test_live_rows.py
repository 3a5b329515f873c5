import pytest
from tests.unit.storage.random_rows import MIXED, column

from ebla.model.rows import Cell, CollectionCells, Deletion, PartitionHead, Row, RowMarker
from ebla.model.schema import TableSchema, with_column, without_column
from ebla.storage.codec.live_rows import has_static, is_live_row, may_be_live
from ebla.storage.codec.row_codec import (
    NO_CELL,
    PLAIN_HEADER,
    RowFlag,
    encode_head,
    encode_row,
    is_head,
    schema_version,
)

NOW_S = 10
X, M, S = (MIXED.column(name).number for name in "xms")
FOUR = b"\0\0\0\x01"


def stored(row: Row, schema: TableSchema = MIXED) -> bytes:
    return encode_row(row, schema.version, schema.layouts[-1])


@pytest.mark.parametrize(
    ("row", "is_live"),
    [
        (Row(marker=RowMarker(1)), True),
        (Row(marker=RowMarker(1, 5, NOW_S + 1)), True),
        (Row(marker=RowMarker(1, 5, NOW_S)), False),
        (Row(marker=None, deletion=None, cells={X: Cell(timestamp_us=1, value=FOUR)}), True),
        (Row(marker=None, deletion=None, cells={X: Cell(timestamp_us=1, value=b"")}), True),
        (Row(marker=None, deletion=None, cells={X: Cell(timestamp_us=1, value=FOUR, ttl_s=5, at_s=NOW_S)}), False),
        (Row(marker=None, deletion=None, cells={X: Cell(timestamp_us=1, value=None, ttl_s=0, at_s=5)}), False),
        (Row(marker=None, deletion=Deletion(1, 5)), False),
        (
            Row(
                marker=None,
                deletion=None,
                cells={},
                collections={M: CollectionCells(None, {b"a": Cell(timestamp_us=1, value=FOUR)})},
            ),
            True,
        ),
        (
            Row(
                marker=None,
                deletion=None,
                cells={},
                collections={
                    M: CollectionCells(Deletion(1, 5), {b"a": Cell(timestamp_us=2, value=None, ttl_s=0, at_s=5)})
                },
            ),
            False,
        ),
    ],
)
def test_a_row_is_there_with_a_live_marker_or_cell(row: Row, is_live: bool) -> None:
    assert is_live_row(stored(row), MIXED, NOW_S) is is_live
    assert may_be_live(stored(row), MIXED, NOW_S) is is_live


def test_a_plain_row_without_any_cell_is_not_there() -> None:
    bare = PLAIN_HEADER.pack(1, RowFlag.PLAIN, MIXED.version, 5) + NO_CELL * len(MIXED.layouts[-1])
    assert not is_live_row(bare, MIXED, NOW_S)


def test_a_cell_of_a_dropped_column_shows_nothing_to_us_and_may_to_others() -> None:
    value = stored(Row(marker=None, deletion=None, cells={X: Cell(timestamp_us=1, value=FOUR)}))
    dropped = without_column(MIXED, "x")
    assert not is_live_row(value, dropped, NOW_S)
    assert may_be_live(value, dropped, NOW_S)
    grown = with_column(MIXED, column("new", "int"))
    assert is_live_row(value, grown, NOW_S)


def test_versions_and_heads_are_told_by_their_bytes() -> None:
    newer = with_column(MIXED, column("new", "int"))
    assert schema_version(stored(Row(marker=RowMarker(1)), newer)) == newer.version == MIXED.version + 1
    assert not is_head(stored(Row(marker=RowMarker(1))))
    assert is_head(encode_head(PartitionHead(), 1))


@pytest.mark.parametrize(
    ("head", "shows"),
    [
        (PartitionHead(), False),
        (PartitionHead(Deletion(1, 5)), False),
        (PartitionHead(None, (), Row(marker=None, deletion=None, cells={S: Cell(timestamp_us=1, value=b"s")})), True),
        (
            PartitionHead(
                Deletion(1, 5), (), Row(marker=None, deletion=None, cells={S: Cell(timestamp_us=1, value=b"s")})
            ),
            False,
        ),
        (
            PartitionHead(
                Deletion(1, 5), (), Row(marker=None, deletion=None, cells={S: Cell(timestamp_us=2, value=b"s")})
            ),
            True,
        ),
        (
            PartitionHead(
                None,
                (),
                Row(marker=None, deletion=None, cells={S: Cell(timestamp_us=1, value=b"s", ttl_s=5, at_s=NOW_S)}),
            ),
            False,
        ),
    ],
)
def test_a_head_shows_its_live_static_cells(head: PartitionHead, shows: bool) -> None:
    assert has_static(encode_head(head, 1), MIXED, NOW_S) is shows
