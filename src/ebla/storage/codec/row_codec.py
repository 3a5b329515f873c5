"""Stored values: rows and partition heads as bytes.

    format (1) | flags (1) | schema version (2) | …

A row of the *plain* shape (one timestamp, no TTL, no tombstone, no collection cell) goes on with its timestamp and the
cells of its schema version's regular columns in wire form, each behind its length:

    timestamp (8) | length (4, -1: no cell) value | length value | …

so that columns of many rows encode and decode by vector operations. Every other row is the msgpack of its struct.
"""

import enum
import struct
from collections.abc import Sequence

import msgspec

from ebla.model.errors import Corruption
from ebla.model.rows import Cell, PartitionHead, Row, RowMarker

FORMAT = 1
HEADER = struct.Struct(">BBH")
PLAIN_HEADER = struct.Struct(">BBHq")
NO_CELL = b"\xff\xff\xff\xff"

_LENGTH = struct.Struct(">i")
_encoder = msgspec.msgpack.Encoder()
_rows = msgspec.msgpack.Decoder(Row)
_heads = msgspec.msgpack.Decoder(PartitionHead)


class RowFlag(enum.IntFlag):
    PLAIN = 1
    MARKED = 2
    """A plain row with a marker, of the same timestamp as its cells."""
    HEAD = 4


Layouts = Sequence[Sequence[int]]
_PLAIN = int(RowFlag.PLAIN)
"""The regular columns' numbers, in stored order, of each schema version; version 1 stands first."""


def encode_row(row: Row, version: int, layout: Sequence[int]) -> bytes:
    timestamp_us = _plain_timestamp(row, layout)
    if timestamp_us is None:
        return HEADER.pack(FORMAT, 0, version) + _encoder.encode(row)
    flags = RowFlag.PLAIN | RowFlag.MARKED if row.marker is not None else RowFlag.PLAIN
    parts = [PLAIN_HEADER.pack(FORMAT, flags, version, timestamp_us)]
    for number in layout:
        cell = row.cells.get(number)
        if cell is None:
            parts.append(NO_CELL)
        else:
            assert cell.value is not None
            parts += (_LENGTH.pack(len(cell.value)), cell.value)
    return b"".join(parts)


def decode_row(data: bytes, layouts: Layouts) -> Row:
    flags, version = _check(data)
    if not flags & RowFlag.PLAIN:
        return _rows.decode(memoryview(data)[HEADER.size :])
    timestamp_us = PLAIN_HEADER.unpack_from(data)[3]
    cells = {}
    offset = PLAIN_HEADER.size
    for number in layouts[version - 1]:
        (size,) = _LENGTH.unpack_from(data, offset)
        offset += 4
        if size >= 0:
            cells[number] = Cell(timestamp_us=timestamp_us, value=data[offset : offset + size])
            offset += size
    return Row(marker=RowMarker(timestamp_us) if flags & RowFlag.MARKED else None, deletion=None, cells=cells)


def encode_head(head: PartitionHead, version: int) -> bytes:
    return HEADER.pack(FORMAT, RowFlag.HEAD, version) + _encoder.encode(head)


def decode_head(data: bytes) -> PartitionHead:
    flags, _ = _check(data)
    assert flags & RowFlag.HEAD
    return _heads.decode(memoryview(data)[HEADER.size :])


def is_plain(data: bytes) -> bool:
    return data[1] & _PLAIN != 0


def _check(data: bytes) -> tuple[int, int]:
    stored, flags, version = HEADER.unpack_from(data)
    if stored != FORMAT:
        raise Corruption(
            f"a stored row has format {stored}, this release reads {FORMAT}",
            advice="start the node with the release that wrote it, or a newer one",
        )
    return flags, version


def _plain_timestamp(row: Row, layout: Sequence[int]) -> int | None:
    """The one timestamp of a plain row; None where the row is of any other shape."""
    if row.deletion is not None or row.collections:
        return None
    timestamp_us = None
    if row.marker is not None:
        if row.marker.ttl_s:
            return None
        timestamp_us = row.marker.timestamp_us
    for number, cell in row.cells.items():
        if cell.value is None or cell.ttl_s or number not in layout:
            return None
        if timestamp_us is None:
            timestamp_us = cell.timestamp_us
        elif timestamp_us != cell.timestamp_us:
            return None
    return timestamp_us
