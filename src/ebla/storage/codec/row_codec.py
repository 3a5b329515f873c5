"""Stored values: rows and partition heads as bytes. Only this module and its columnar counterpart (`row_columns.py`)
know their layout.

    format (1) | flags (1) | schema version (2) | …

A row of the *plain* shape has one timestamp, no TTL, no tombstone and no collection cell. Its header is followed by the
timestamp and the cells of its schema version's regular columns in wire form, each with a length prefix:

    timestamp (8) | length (4, -1: no cell) value | length value | …

so that columns of many rows encode and decode by vector operations. Every other row is the msgpack of its struct.
"""

import enum
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from ebla.model.errors import Corruption
from ebla.model.rows import Cell, PartitionHead, Row, RowMarker

FORMAT = 1
HEADER = struct.Struct(">BBH")
PLAIN_HEADER = struct.Struct(">BBHq")
NO_CELL = b"\xff\xff\xff\xff"
LENGTH_BYTES = 4

Layouts = Sequence[Sequence[int]]
"""The regular columns' numbers, in stored order, of each schema version; version 1 comes first."""

_LENGTH = struct.Struct(">i")
_encoder = msgspec.msgpack.Encoder()
_rows = msgspec.msgpack.Decoder(Row)
_heads = msgspec.msgpack.Decoder(PartitionHead)


class RowFlag(enum.IntFlag):
    PLAIN = 1
    MARKED = 2
    """A plain row with a marker that has the same timestamp as its cells."""
    HEAD = 4


# As plain ints: combining an IntFlag with a byte costs more than the rest of these checks.
_PLAIN, _MARKED, _HEAD = int(RowFlag.PLAIN), int(RowFlag.MARKED), int(RowFlag.HEAD)


# -- whole rows and heads ----------------------------------------------------------------------------------------------


def encode_row(row: Row, version: int, layout: Sequence[int]) -> bytes:
    timestamp_us = _plain_timestamp(row, layout)
    if timestamp_us is None:
        return HEADER.pack(FORMAT, 0, version) + _encoder.encode(row)
    cells = [None if (cell := row.cells.get(number)) is None else cell.value for number in layout]
    return encode_plain(version, timestamp_us, cells, marked=row.marker is not None)


def decode_row(data: bytes, layouts: Layouts) -> Row:
    flags, version = _check(data)
    if not flags & _PLAIN:
        return _rows.decode(memoryview(data)[HEADER.size :])
    timestamp_us = plain_timestamp_us(data)
    cells = {}
    offset = PLAIN_HEADER.size
    for number in layouts[version - 1]:
        (size,) = _LENGTH.unpack_from(data, offset)
        offset += LENGTH_BYTES
        if size >= 0:
            cells[number] = Cell(timestamp_us=timestamp_us, value=data[offset : offset + size])
            offset += size
    return Row(marker=RowMarker(timestamp_us) if flags & _MARKED else None, deletion=None, cells=cells)


def encode_head(head: PartitionHead, version: int) -> bytes:
    return HEADER.pack(FORMAT, RowFlag.HEAD, version) + _encoder.encode(head)


def decode_head(data: bytes) -> PartitionHead:
    flags, _ = _check(data)
    assert flags & _HEAD
    return _heads.decode(memoryview(data)[HEADER.size :])


def _check(data: bytes) -> tuple[int, int]:
    stored, flags, version = HEADER.unpack_from(data)
    if stored != FORMAT:
        raise Corruption(
            f"a stored row has format {stored}, this release reads {FORMAT}",
            advice="start the node with the release that wrote it, or a newer one",
        )
    return flags, version


# -- headers -----------------------------------------------------------------------------------------------------------


def is_head(value: bytes) -> bool:
    return bool(value[1] & _HEAD)


def is_plain(value: bytes) -> bool:
    return bool(value[1] & _PLAIN)


def is_marked(value: bytes) -> bool:
    """Whether a plain row has a marker."""
    return bool(value[1] & _MARKED)


def schema_version(value: bytes) -> int:
    """The schema version that wrote it."""
    return value[2] << 8 | value[3]


def plain_timestamp_us(value: bytes) -> int:
    timestamp_us: int = PLAIN_HEADER.unpack_from(value)[3]
    return timestamp_us


# -- plain rows --------------------------------------------------------------------------------------------------------


def encode_plain(version: int, timestamp_us: int, cells: Sequence[bytes | None], *, marked: bool) -> bytes:
    """A plain row from the wire forms of its cells, in the order of its version's layout; None: no cell."""
    parts = [PLAIN_HEADER.pack(FORMAT, _PLAIN | _MARKED if marked else _PLAIN, version, timestamp_us)]
    for cell in cells:
        if cell is None:
            parts.append(NO_CELL)
        else:
            parts.append(len(cell).to_bytes(LENGTH_BYTES))
            parts.append(cell)
    return b"".join(parts)


def plain_header_prefixes(version: int) -> tuple[bytes, bytes]:
    """What stored plain rows of this schema version begin with, without and with a marker: `startswith` finds them."""
    return HEADER.pack(FORMAT, _PLAIN, version), HEADER.pack(FORMAT, _PLAIN | _MARKED, version)


def take_plain_cells(value: bytes, positions: Sequence[int], values: list[bytes | None]) -> None:
    """Copies cells of a plain row into `values`: the cell at each place of the layout goes to the position given for
    it, a negative one means it is not needed. Cells after the last position are not read."""
    offset = PLAIN_HEADER.size
    length_at = _LENGTH.unpack_from
    for position in positions:
        (size,) = length_at(value, offset)
        offset += LENGTH_BYTES
        if size >= 0:
            if position >= 0:
                values[position] = value[offset : offset + size]
            offset += size


def plain_cells(value: bytes) -> Iterator[tuple[int, bytes]]:
    """The cells of a plain row whose schema may be unknown, each with its place in the layout. Raises `Corruption`
    where a length does not fit."""
    offset = PLAIN_HEADER.size
    place = 0
    while offset < len(value):
        length = int.from_bytes(value[offset : offset + LENGTH_BYTES], signed=True)
        offset += LENGTH_BYTES
        if length >= 0:
            if offset + length > len(value):
                raise Corruption(f"a row has a cell of {length} bytes and ends after {len(value) - offset}")
            yield place, value[offset : offset + length]
            offset += length
        place += 1


def has_cells(value: bytes, column_count: int) -> bool:
    """Whether a plain row has any cell, empty values included. `column_count` is that of its schema version."""
    return value[PLAIN_HEADER.size :] != _no_cells(column_count)


@lru_cache(maxsize=1024)
def _no_cells(column_count: int) -> bytes:
    return NO_CELL * column_count


def newer_plain(one: bytes, other: bytes) -> bytes | None:
    """The newer of two plain rows of one version and flags, if it has every cell: then the other is hidden. None: it
    takes a closer look. Decides most merges, by comparing bytes: timestamps of one sign sort as their bytes do, which
    costs half of decoding them."""
    if one[:4] == other[:4] and one[1] & _PLAIN and one[4] ^ other[4] < 128:
        at, other_at = one[4:12], other[4:12]
        if at != other_at:
            newer = one if at > other_at else other
            if NO_CELL not in newer:
                return newer
    return None


def hiding_plain(one: bytes, other: bytes, layouts: Layouts) -> bytes | None:
    """The newer of two plain rows of one version, if nothing of the older one shows beside it; else None."""
    if not one[1] & other[1] & _PLAIN or one[2:4] != other[2:4]:
        return None
    age = plain_timestamp_us(one) - plain_timestamp_us(other)
    if age == 0:
        return None
    newer, older = (one, other) if age > 0 else (other, one)
    if older[1] & _MARKED and not newer[1] & _MARKED:
        return None
    # The four bytes of NO_CELL may also be part of a value: then the closer look gives the same result.
    if NO_CELL in newer and _shows_through(newer, older, len(layouts[schema_version(one) - 1])):
        return None
    return newer


def _shows_through(newer: bytes, older: bytes, columns: int) -> bool:
    """Whether the older of two plain rows of one version has a cell where the newer has none."""
    at = older_at = PLAIN_HEADER.size
    for _ in range(columns):
        size, older_size = newer[at : at + LENGTH_BYTES], older[older_at : older_at + LENGTH_BYTES]
        at += LENGTH_BYTES
        older_at += LENGTH_BYTES
        if size != NO_CELL:
            at += int.from_bytes(size)
        elif older_size != NO_CELL:
            return True
        if older_size != NO_CELL:
            older_at += int.from_bytes(older_size)
    return False


def _plain_timestamp(row: Row, layout: Sequence[int]) -> int | None:
    """The one timestamp of a row that can be stored plain; None where it cannot."""
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
