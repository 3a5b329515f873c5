import zlib

import pytest

from ebla.journal.frames import (
    ALIGNMENT,
    FRAME_HEADER_BYTES,
    SECTOR_BYTES,
    SegmentHeader,
    decode_frame_body,
    decode_frame_header,
    decode_segment_header,
    encode_frame,
    encode_segment_header,
    framed_size,
    header_candidates,
    payload_size,
)

LOG = 0x1122334455667788


def decode(frame: bytes, offset: int = 64) -> list[bytes] | None:
    header = decode_frame_header(LOG, offset, frame[:FRAME_HEADER_BYTES])
    if header is None:
        return None
    batch = decode_frame_body(header, frame[FRAME_HEADER_BYTES:])
    return None if batch is None else batch.records


@pytest.mark.parametrize("records", [[b""], [b"a"], [b"", b"bc", b""], [bytes(3000)], [b"x" * 27, b"y" * 28]])
def test_a_frame_gives_back_its_records(records: list[bytes]) -> None:
    frame = encode_frame(LOG, 64, 7, records)
    assert decode(frame) == records
    assert len(frame) == framed_size(payload_size(records))
    assert len(frame) % ALIGNMENT == 0


def test_a_frame_is_valid_in_its_log_at_its_offset_only() -> None:
    frame = encode_frame(LOG, 64, 7, [b"record"])
    header = frame[:FRAME_HEADER_BYTES]
    assert decode_frame_header(LOG, 64, header) is not None
    assert decode_frame_header(LOG, 96, header) is None
    assert decode_frame_header(LOG + 1, 64, header) is None


def test_every_changed_byte_is_noticed() -> None:
    frame = encode_frame(LOG, 64, 7, [b"one", b"two", b"three"])
    for position in range(len(frame)):
        for change in (0x01, 0x80, 0xFF, frame[position]):
            damaged = bytearray(frame)
            damaged[position] ^= change
            assert bytes(damaged) == frame or decode(bytes(damaged)) is None


@pytest.mark.parametrize("offset", [32, 512 - 32, 512, 2048 + 96])
@pytest.mark.parametrize("record", [bytes(5000), bytes(511), b"\x01" * 4096 + bytes(4096), bytes(512) + b"\x01" * 600])
def test_no_sector_of_a_whole_frame_is_blank(record: bytes, offset: int) -> None:
    frame = encode_frame(LOG, offset, 1, [record])
    assert decode(frame, offset) == [record]
    place = bytes(offset) + frame
    for start in range(offset - offset % SECTOR_BYTES, len(place), SECTOR_BYTES):
        assert place[start : start + SECTOR_BYTES].count(0) < len(place[start : start + SECTOR_BYTES])
    assert bytes(SECTOR_BYTES) not in frame


def test_a_batch_without_a_possible_mask_is_kept_as_it_is() -> None:
    record = b"".join(bytes((byte,)) * SECTOR_BYTES for byte in range(256))
    assert decode(encode_frame(LOG, 64, 1, [record])) == [record]


def test_a_header_is_found_among_other_bytes() -> None:
    frame = encode_frame(LOG, 64 + 320, 9, [b"later"])
    data = b"\x55" * 320 + frame
    found = [
        position
        for position in header_candidates(data)
        if decode_frame_header(LOG, 64 + position, data[position : position + FRAME_HEADER_BYTES])
    ]
    assert found == [320]


def test_a_segment_header_is_checked() -> None:
    header = SegmentHeader(LOG, 42)
    data = encode_segment_header(header)
    assert decode_segment_header(data) == header
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        assert decode_segment_header(bytes(damaged)) is None
    assert decode_segment_header(data[:-1]) is None


def test_another_file_with_a_good_checksum_is_no_segment() -> None:
    body = b"NOT-EBLA" + bytes(20)
    assert decode_segment_header(body + zlib.crc32(body).to_bytes(4, "little")) is None
