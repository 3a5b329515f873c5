"""A digest of stored rows that replicas can compare: it depends on the content, not on the stored bytes. Pure.

Two replicas with the same cells compute the same digest, however the cells are spread over layers, whatever shape a row
is stored in, and whichever schema version wrote it. Tombstones and expired cells past their grace period are left out:
one replica may have dropped them already.

Most rows are plain and of the current schema version. Their stored bytes are canonical and are hashed as they are.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TypeVar

import msgspec

from ebla.model.rows import EMPTY_HEAD, EMPTY_ROW, Cell, CollectionCells, PartitionHead, Row, merge_heads, merge_rows
from ebla.model.schema import TableSchema
from ebla.model.token import WHOLE_RING, Token
from ebla.storage.codec.row_codec import (
    decode_head,
    decode_row,
    encode_head,
    encode_row,
    has_cells,
    is_head,
    is_marked,
    is_plain,
    schema_version,
)
from ebla.storage.compaction.tombstone_gc import GcRule, GcSpan, TombstoneCollector
from ebla.storage.layers.layer import Item
from ebla.storage.layers.layer_facts import ALWAYS_US

DIGEST_BYTES = 16

_NOWHERE = Token(0)
_encode = msgspec.msgpack.Encoder().encode

K = TypeVar("K", int, bytes)


def digest_rows(items: Sequence[Item], schema: TableSchema, gc_before_s: int) -> bytes:
    """The digest of merged items; rows must lack what their heads delete."""
    version, columns = schema.version, len(schema.layouts[-1])
    said: list[Item] = []
    collector: TombstoneCollector | None = None
    for item in items:
        value = item[1]
        if is_plain(value) and schema_version(value) == version and (is_marked(value) or has_cells(value, columns)):
            said.append(item)
            continue
        if collector is None:
            collector = TombstoneCollector(GcRule((GcSpan(WHOLE_RING, gc_before_s),), ALWAYS_US))
        canonical = canonical_value(value, schema, collector)
        if canonical is not None:
            said.append((item[0], canonical))
    return blake2b(_encode(said), digest_size=DIGEST_BYTES).digest()


def canonical_value(value: bytes, schema: TableSchema, collector: TombstoneCollector) -> bytes | None:
    """The canonical form of a value; None where nothing of it is visible."""
    if is_head(value):
        head = decode_head(value)
        # Merging it with itself removes what it covers of its own and sorts its ranges.
        head = collector.head(_NOWHERE, merge_heads(head, head))
        head = PartitionHead(head.deletion, head.ranges, _in_order(head.static, schema))
        return None if head == EMPTY_HEAD else encode_head(head, schema.version)
    row = decode_row(value, schema.layouts)
    row = _in_order(collector.row(_NOWHERE, merge_rows(row, row)), schema)
    return None if row == EMPTY_ROW else encode_row(row, schema.version, schema.layouts[-1])


def _in_order(row: Row, schema: TableSchema) -> Row:
    """Cells sorted by number and path, without those of dropped columns."""
    columns = schema.by_number
    cells = {number: cell for number, cell in _sorted(row.cells).items() if number in columns}
    collections = {
        number: CollectionCells(elements.deletion, _sorted(elements.cells))
        for number, elements in sorted(row.collections.items())
        if number in columns
    }
    return Row(marker=row.marker, deletion=row.deletion, cells=cells, collections=collections)


def _sorted(cells: Mapping[K, Cell]) -> dict[K, Cell]:
    return {position: cells[position] for position in sorted(cells)}
