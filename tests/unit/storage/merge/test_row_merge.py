"""The short ways of merging two plain rows lead where the long way does."""

import random

from tests.unit.storage.small_table import CELLS, MAP, SMALL

from ebla.model.rows import Cell, Row, RowMarker, merge_rows
from ebla.storage.codec.row_codec import decode_row, encode_row, is_plain
from ebla.storage.merge.row_merge import merge_values

LAYOUT = SMALL.layouts[-1]


def random_plain(rng: random.Random) -> bytes:
    """With cells missing, and values that look like a missing cell."""
    timestamp_us = rng.choice((-300, -1, 1, 2, 255, 256, 1 << 50))
    values = [b"\0\0\0\1", b"\xff\xff\xff\xff", b"", b"\xff\xff\xff\xff\0\0\0\2\xff\xff\xff\xff"]
    cells = {
        number: Cell(timestamp_us=timestamp_us, value=rng.choice(values))
        for number in (*CELLS, MAP)
        if rng.random() < 0.6
    }
    marker = RowMarker(timestamp_us) if rng.random() < 0.5 or not cells else None
    value = encode_row(Row(marker=marker, deletion=None, cells=cells), 1, LAYOUT)
    assert is_plain(value)
    return value


def test_merged_plain_rows_say_what_both_said() -> None:
    rng = random.Random(8)
    kept = 0
    for _ in range(5_000):
        one, other = random_plain(rng), random_plain(rng)
        merged = merge_values(one, other, SMALL)
        whole = merge_rows(decode_row(one, SMALL.layouts), decode_row(other, SMALL.layouts))
        assert decode_row(merged, SMALL.layouts) == whole
        assert decode_row(merge_values(other, one, SMALL), SMALL.layouts) == whole
        kept += merged in (one, other)
    assert 1_000 < kept < 4_500, "both ways are gone"
