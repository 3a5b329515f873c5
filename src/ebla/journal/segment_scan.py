"""Reads a segment, and distinguishes a torn tail from damage.

The order of writes makes the difference: a frame is written only after the one before it is synced, and a segment only
after all before it are complete. So at any moment at most one frame, the last, is not acknowledged. If a frame is bad:

1. A frame header of this log with a later sequence is anywhere behind it: the bad one was acknowledged, so it is
   damage.
2. It is not in the newest segment: it was acknowledged, so it is damage.
3. Otherwise it was the last write. A power failure leaves some sectors written and others not; the latter read as zeros
   or lie beyond the end of the file. A complete frame has no sector of zeros (`frames.py`). So with an unwritten sector
   the frame was torn, never acknowledged, and is cut; without one it was written completely and changed afterwards, so
   it is damage.

What remains: damage that turns exactly the last acknowledged frame into something unwritten (the device loses whole
sectors of it, or the file is truncated) looks like a torn tail. For that case the manifest has a sequence that was
certainly acknowledged, written at every rotation, drop and orderly close.
"""

from dataclasses import dataclass

from ebla.journal.frames import (
    FRAME_HEADER_BYTES,
    LOG_FORMAT,
    SECTOR_BYTES,
    SEGMENT_HEADER_BYTES,
    FrameHeader,
    JournalFrameKind,
    RecordBatch,
    decode_frame_body,
    decode_frame_header,
    decode_segment_header,
    header_candidates,
)
from ebla.model.advice import replace_node_advice
from ebla.model.errors import Corruption, Refused
from ebla.ports.disk import File

ADVICE = (
    "the log holds acknowledged records, so nothing was cut: check the device and keep a copy of the folder, then "
    f"{replace_node_advice()}; the other replicas have the records"
)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """An offset in a segment, and the sequence of the record that is or will be there."""

    offset: int
    sequence: int


@dataclass(frozen=True, slots=True)
class SegmentTail:
    """The end of the newest segment; `torn` if something unacknowledged is behind it and must be cut."""

    spot: LogPosition
    torn: bool
    last_frame: int
    """Where the frame before the end begins; the end itself if there is none."""


def check_segment_header(file: File, log_id: int, first_sequence: int) -> None:
    """Raises `Corruption`, or `Refused` for a newer format. A named segment's header was synced before its name."""
    header = decode_segment_header(file.read(0, SEGMENT_HEADER_BYTES))
    if header is None:
        raise damaged(file.path, 0, "the segment's header is not one of ours")
    if header.format > LOG_FORMAT:
        raise Refused(
            f"{file.path} has log format {header.format}, this program knows formats up to {LOG_FORMAT}",
            advice="run the version that wrote it, or a newer one",
        )
    if header.log_id != log_id:
        raise damaged(file.path, 0, "the segment belongs to another log")
    if header.first_sequence != first_sequence:
        raise damaged(file.path, 0, f"it begins at {header.first_sequence}, not at {first_sequence} as it must")


def read_batches(
    file: File, log_id: int, spot: LogPosition, end_sequence: int, bytes_max: int
) -> tuple[list[RecordBatch], LogPosition]:
    """Batches from `spot` on, about `bytes_max`, and where to continue. Everything before `end_sequence` was
    acknowledged, so any error is damage."""
    batches: list[RecordBatch] = []
    stop = spot.offset + bytes_max
    while spot.sequence < end_sequence and spot.offset < stop:
        frame = _read_frame(file, log_id, spot)
        if isinstance(frame, str):
            raise damaged(file.path, spot.offset, f"{frame}, and records up to {end_sequence - 1} must follow")
        batch, spot = frame
        if batch.next_sequence > end_sequence:
            raise damaged(
                file.path, spot.offset, f"it holds records after {end_sequence - 1}, where the next one begins"
            )
        batches.append(batch)
    return batches, spot


def find_tail(file: File, log_id: int, first_sequence: int) -> SegmentTail:
    """Where the newest segment ends."""
    spot = LogPosition(SEGMENT_HEADER_BYTES, first_sequence)
    last_frame = spot.offset
    while not isinstance(frame := _read_frame(file, log_id, spot), str):
        last_frame, spot = spot.offset, frame[1]
    rest = file.read(spot.offset, max(0, file.size() - spot.offset))
    if _is_blank(rest):
        return SegmentTail(spot, torn=False, last_frame=last_frame)
    later = _find_later_frame(log_id, spot, rest)
    if later is not None:
        raise damaged(
            file.path, spot.offset, f"{frame}, but the frame at offset {later} was written after it was synced"
        )
    whole = _why_not_torn(log_id, spot, rest)
    if whole is not None:
        raise damaged(file.path, spot.offset, whole)
    return SegmentTail(spot, torn=True, last_frame=last_frame)


def holds_frames(file: File) -> bool:
    """Whether anything was ever written behind the header."""
    return not _is_blank(file.read(SEGMENT_HEADER_BYTES, max(0, file.size() - SEGMENT_HEADER_BYTES)))


def damaged(path: str, offset: int, what: str) -> Corruption:
    return Corruption(f"{path} is damaged at offset {offset}: {what}", advice=ADVICE)


def _read_frame(file: File, log_id: int, spot: LogPosition) -> tuple[RecordBatch, LogPosition] | str:
    """The batch of the frame here and where the next one begins; or why there is no frame."""
    header = decode_frame_header(log_id, spot.offset, file.read(spot.offset, FRAME_HEADER_BYTES))
    if header is None:
        return "no frame begins here"
    if (wrong := _why_not_next(header, spot)) is not None:
        return wrong
    batch = decode_frame_body(header, file.read(spot.offset + FRAME_HEADER_BYTES, header.body_bytes))
    if batch is None:
        return f"the frame of sequence {spot.sequence} fails its checksum"
    return batch, LogPosition(spot.offset + header.frame_bytes, batch.next_sequence)


def _why_not_next(header: FrameHeader, spot: LogPosition) -> str | None:
    if header.first_sequence != spot.sequence:
        return f"the frame has sequence {header.first_sequence} where {spot.sequence} belongs"
    return None if header.kind == JournalFrameKind.BATCH else f"the frame is of an unknown kind {header.kind}"


def _find_later_frame(log_id: int, spot: LogPosition, rest: bytes) -> int | None:
    for position in header_candidates(rest):
        offset = spot.offset + position
        header = decode_frame_header(log_id, offset, rest[position : position + FRAME_HEADER_BYTES])
        if header is not None and header.first_sequence > spot.sequence:
            return offset
    return None


def _why_not_torn(log_id: int, spot: LogPosition, rest: bytes) -> str | None:
    """None if the last write did not complete; otherwise why it must have, and was changed afterwards."""
    header_bytes = rest[:FRAME_HEADER_BYTES]
    header = decode_frame_header(log_id, spot.offset, header_bytes)
    if header is not None:
        return _why_payload_not_torn(header, spot, rest)
    if _is_blank(rest[: SECTOR_BYTES - spot.offset % SECTOR_BYTES]):
        return None
    if len(header_bytes) < FRAME_HEADER_BYTES:
        return None
    # A device that stopped inside a sector: the beginning of a header, then nothing. The last byte of a header is never
    # zero.
    if header_bytes[-1] == 0 and _is_blank(rest[FRAME_HEADER_BYTES:]):
        return None
    return "the header of the last frame is there and fails its checksum"


def _why_payload_not_torn(header: FrameHeader, spot: LogPosition, rest: bytes) -> str | None:
    if (wrong := _why_not_next(header, spot)) is not None:
        return wrong
    frame = rest[: header.frame_bytes]
    # The first sector is there, since the header is. If the last one is missing, its end reads as zero or the file is
    # shorter. If one between is missing, there are 512 zeros, wherever the device's sectors begin.
    if len(frame) < header.frame_bytes or frame[-1] == 0 or bytes(SECTOR_BYTES) in frame:
        return None
    return "the last frame is there to its end and fails its checksum"


def _is_blank(data: bytes) -> bool:
    return data.count(0) == len(data)
