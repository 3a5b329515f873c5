"""The bytes of a log segment: a header, then frames. Pure.

A frame holds one batch of records and is the unit of atomicity: a batch is there completely or not at all. There is one
checksum per frame instead of one per record, because a batch is acknowledged as a whole anyway (half of it is of no use
to the reader), and because in Python one CRC over 50 KB costs about 12 µs where 256 calls over 200 B cost 40 µs.

What the layout does for recovery (`segment_scan.py` decides):

- A frame starts at a multiple of 32 bytes and its header is 32 bytes, so no header crosses a sector: a power cut
  leaves the old header or the new one, not a mixture.
- The header has a checksum of its own. A damaged length cannot send the reader somewhere else.
- Every sector that a whole frame touches has a byte that is not zero: the first has the header, the last has the
  padding (1 to 32 bytes, never zero), and those between are masked if a record has 512 zeros in a row. Unwritten space
  reads as zeros. So a sector of zeros inside a frame proves that the frame was never written to its end, and a frame
  without one that fails its checksum was written completely and changed afterwards.
- Header checksums are seeded with the log's id and the frame's offset: a frame of another log, from another offset of
  this log, or inside a record is not mistaken for a frame at this offset.
"""

import enum
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

LOG_FORMAT = 1
ALIGNMENT = 32
SECTOR_BYTES = 512
FRAME_HEADER_BYTES = 32
SEGMENT_HEADER_BYTES = 32
RECORDS_PER_FRAME_MAX = 1 << 20

_SEGMENT_MAGIC = b"EBLA-LOG"
_HEADER_END = 0xE5
_PADDING = b"\xa5" * ALIGNMENT
_ZERO_SECTOR = bytes(SECTOR_BYTES)

_SEED = struct.Struct("<QQ")
_CHECKSUM = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
# sequence of the first record, payload length, payload checksum, number of records, mask, kind, spare, end mark
_FRAME_BODY = struct.Struct("<QIIIBB5xB")
# magic, format, spare, log id, sequence of the first record
_SEGMENT_BODY = struct.Struct("<8sHHQQ")

assert _CHECKSUM.size + _FRAME_BODY.size == FRAME_HEADER_BYTES
assert _CHECKSUM.size + _SEGMENT_BODY.size == SEGMENT_HEADER_BYTES
assert SECTOR_BYTES % ALIGNMENT == 0
assert FRAME_HEADER_BYTES <= ALIGNMENT


class JournalFrameKind(enum.IntEnum):
    BATCH = 1


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records that became durable together; `records[i]` has the sequence `first_sequence + i`."""

    first_sequence: int
    records: list[bytes]

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + len(self.records)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeader:
    first_sequence: int
    payload_bytes: int
    payload_checksum: int
    record_count: int
    mask: int
    kind: int

    @property
    def frame_bytes(self) -> int:
        return framed_size(self.payload_bytes)

    @property
    def body_bytes(self) -> int:
        """Payload and padding."""
        return self.frame_bytes - FRAME_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    log_id: int
    first_sequence: int
    format: int = LOG_FORMAT


def framed_size(payload_bytes: int) -> int:
    """With header and padding. The padding is never empty: the frame's last byte must not be zero."""
    return FRAME_HEADER_BYTES + payload_bytes + _padding_bytes(payload_bytes)


def encode_frame(log_id: int, offset: int, first_sequence: int, records: Sequence[bytes]) -> bytes:
    """The frame of these records, valid only in this log at this offset."""
    assert records
    assert offset % ALIGNMENT == 0
    if len(records) == 1:
        payload = _LENGTH.pack(len(records[0])) + records[0]
    else:
        payload = b"".join((struct.pack(f"<{len(records)}I", *map(len, records)), *records))
    mask = 0
    if _ZERO_SECTOR in payload and (mask := _choose_mask(payload)):
        payload = payload.translate(_mask_table(mask))
    body = _FRAME_BODY.pack(
        first_sequence, len(payload), zlib.crc32(payload), len(records), mask, JournalFrameKind.BATCH, _HEADER_END
    )
    checksum = _CHECKSUM.pack(zlib.crc32(body, _seed(log_id, offset)))
    return b"".join((checksum, body, payload, _PADDING[: _padding_bytes(len(payload))]))


def decode_frame_header(log_id: int, offset: int, header: bytes) -> FrameHeader | None:
    """None if these bytes are not a frame header of this log at this offset."""
    if len(header) != FRAME_HEADER_BYTES:
        return None
    body = header[_CHECKSUM.size :]
    if _CHECKSUM.unpack_from(header)[0] != zlib.crc32(body, _seed(log_id, offset)):
        return None
    first_sequence, length, payload_checksum, count, mask, kind, _end = _FRAME_BODY.unpack(body)
    return FrameHeader(
        first_sequence=first_sequence,
        payload_bytes=length,
        payload_checksum=payload_checksum,
        record_count=count,
        mask=mask,
        kind=kind,
    )


def decode_frame_body(header: FrameHeader, body: bytes) -> RecordBatch | None:
    """None unless this matches the header to the last byte of the padding."""
    payload = body[: header.payload_bytes]
    if zlib.crc32(payload) != header.payload_checksum:
        return None
    if body[header.payload_bytes :] != _PADDING[: _padding_bytes(header.payload_bytes)]:
        return None
    if header.mask:
        payload = payload.translate(_mask_table(header.mask))
    lengths = struct.unpack_from(f"<{header.record_count}I", payload)
    records = []
    start = 4 * header.record_count
    for length in lengths:
        records.append(payload[start : start + length])
        start += length
    assert start == len(payload)
    return RecordBatch(header.first_sequence, records)


def payload_size(records: Sequence[bytes]) -> int:
    return 4 * len(records) + sum(map(len, records))


def header_candidates(data: bytes) -> list[int]:
    """Offsets in `data` (which starts aligned) where a frame header could be: a cheap test before the checksum, for
    scanning many offsets."""
    last_bytes = data[FRAME_HEADER_BYTES - 1 :: ALIGNMENT]
    return [index * ALIGNMENT for index, byte in enumerate(last_bytes) if byte == _HEADER_END]


def encode_segment_header(header: SegmentHeader) -> bytes:
    body = _SEGMENT_BODY.pack(_SEGMENT_MAGIC, header.format, 0, header.log_id, header.first_sequence)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """None if this is not a segment header. The caller checks id, sequence and format."""
    if len(data) != SEGMENT_HEADER_BYTES:
        return None
    body = data[: _SEGMENT_BODY.size]
    if _CHECKSUM.unpack_from(data, _SEGMENT_BODY.size)[0] != zlib.crc32(body):
        return None
    magic, log_format, _spare, log_id, first_sequence = _SEGMENT_BODY.unpack(body)
    return SegmentHeader(log_id, first_sequence, log_format) if magic == _SEGMENT_MAGIC else None


def _padding_bytes(payload_bytes: int) -> int:
    return ALIGNMENT - (FRAME_HEADER_BYTES + payload_bytes) % ALIGNMENT


def _seed(log_id: int, offset: int) -> int:
    return zlib.crc32(_SEED.pack(log_id, offset))


def _choose_mask(payload: bytes) -> int:
    """The byte to XOR the payload with so that no 512 bytes in a row become zero."""
    # A crafted batch with such a run of every byte value keeps its zeros. The only consequence: damage to this frame,
    # while it is the last one, is taken for a torn write.
    return next((byte for byte in range(1, 256) if bytes((byte,)) * SECTOR_BYTES not in payload), 0)


def _mask_table(mask: int) -> bytes:
    return bytes(byte ^ mask for byte in range(256))
