"""Rows in the stacks of a checkpoint, and what a Flight read of them returns."""

from collections.abc import Sequence

import pyarrow as pa
from tests.unit.bulk.flight_rig import Layer
from tests.unit.storage.random_rows import (
    MIXED,
    Mix,
    RandomRows,
    column,
    stored_key,
    table,
)

from ebla.model.rows import Cell, Row, RowMarker
from ebla.model.schema import ColumnKind
from ebla.model.selection import ColumnSelector
from ebla.model.token import TOKEN_MIN, WHOLE_RING, Token, TokenRange
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.codec.row_codec import encode_row
from ebla.storage.codec.row_file import items_of
from ebla.storage.layers.layer import Item
from ebla.storage.merge.row_merge import merge_streams
from ebla.wire.transfer_messages import TypedRowsQuery

LOWER, UPPER = TokenRange(TOKEN_MIN, Token(0)), TokenRange(Token(0), TOKEN_MIN)

PLAIN = table(column("k", "bigint", ColumnKind.PARTITION_KEY), column("v", "text"))


def asked(names: Sequence[str]) -> TypedRowsQuery:
    return TypedRowsQuery(range=WHOLE_RING, columns=tuple(ColumnSelector(name) for name in names), now_s=0)


def stacks(seed: int) -> list[list[Layer]]:
    """Two stacks of one table, each with all of its rows in a half of the ring, over layers of several kinds."""
    rows = RandomRows(seed, Mix(plain=0.5, partitions=8, rows=60))
    found: list[list[Layer]] = []
    for half in (LOWER, UPPER):
        layers = [[item for item in rows.layer() if decode_token(item[0]) in half] for _ in range(3)]
        found.append([(items, WHOLE_RING, bool(number)) for number, items in enumerate(layers) if items])
    return found


def stored(batches: Sequence[pa.RecordBatch]) -> list[Item]:
    return [item for batch in batches for item in items_of(batch)]


def merged(parts: Sequence[Sequence[Layer]], token_range: TokenRange = WHOLE_RING) -> list[Item]:
    items = merge_streams([layer[0] for part in parts for layer in part], MIXED)
    return [item for item in items if decode_token(item[0]) in token_range]


def plain_items(count: int, size: int = 20) -> list[Item]:
    return sorted(plain_item(number, b"x" * size) for number in range(count))


def plain_item(number: int, text: bytes, timestamp_us: int = 5) -> Item:
    key = stored_key(PLAIN, {"k": number.to_bytes(8)})
    row = Row(
        marker=RowMarker(timestamp_us),
        deletion=None,
        cells={PLAIN.column("v").number: Cell(timestamp_us=timestamp_us, value=text)},
    )
    return key, encode_row(row, 1, PLAIN.layouts[-1])
