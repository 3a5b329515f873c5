"""What the bulk process and the workers that scan for it say to one another, over a socket pair inside one machine.

A job goes to the worker; back come its answer's Arrow schema, batches, and an end or a failure, each behind one byte
for its kind and four for its length. A worker that has said the end takes the next job.
"""

import enum
import struct

import msgspec

from ebla.model.errors import InvalidRequest
from ebla.model.schema import TableSchema
from ebla.storage.scan.scan_stack import ScanStack
from ebla.wire.transfer_messages import HashesQuery, StoredRowsQuery, TypedRowsQuery

ScanQuery = StoredRowsQuery | TypedRowsQuery | HashesQuery
FRAME_HEADER = struct.Struct(">BI")
FRAME_BYTES_MAX = 1 << 30
"""A single row may be large; what is longer than this is no frame of ours."""


class ScanFrameKind(enum.IntEnum):
    SCHEMA = 1
    BATCH = 2
    END = 3
    FAILURE = 4
    JOB = 5


class ScanJob(msgspec.Struct, frozen=True, array_like=True):
    schema: TableSchema
    stacks: tuple[ScanStack, ...]
    query: ScanQuery


def frame_header(kind: ScanFrameKind, size: int) -> bytes:
    return FRAME_HEADER.pack(kind, size)


def read_frame_header(data: bytes | bytearray) -> tuple[ScanFrameKind, int]:
    kind, size = FRAME_HEADER.unpack(data)
    if size > FRAME_BYTES_MAX:
        raise InvalidRequest(f"a frame of {size} bytes is over the limit of {FRAME_BYTES_MAX}")
    try:
        return ScanFrameKind(kind), size
    except ValueError:
        raise InvalidRequest(f"{kind} is no kind of frame") from None
