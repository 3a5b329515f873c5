"""What the bulk process and its workers say to each other over a socket pair: frames of one byte for the kind, four for
the length, and the body.

A job goes to the worker. A compaction or a build answers with one result. A scan answers with its Arrow schema, batches
and an end. Any of them may answer with a failure instead. After the last frame the worker takes the next job.
"""

import enum
import socket
import struct

import msgspec
import pyarrow as pa

from ebla.model.errors import InvalidRequest
from ebla.model.schema import TableSchema
from ebla.model.transfers import ScanStack
from ebla.wire.transfer_messages import HashesQuery, StoredRowsQuery, TypedRowsQuery

FRAME_HEADER = struct.Struct(">BI")
FRAME_BYTES_MAX = 1 << 30
"""A single row may be large; anything longer than this is not a frame of ours."""


class WorkerFrameKind(enum.IntEnum):
    COMPACT = 1
    BUILD = 2
    SCAN = 3
    RESULT = 4
    SCHEMA = 5
    BATCH = 6
    END = 7
    FAILURE = 8


class ScanJob(msgspec.Struct, frozen=True, array_like=True):
    schema: TableSchema
    stacks: tuple[ScanStack, ...]
    query: StoredRowsQuery | TypedRowsQuery | HashesQuery


def frame_header(kind: WorkerFrameKind, size: int) -> bytes:
    return FRAME_HEADER.pack(kind, size)


def read_frame_header(data: bytes | bytearray) -> tuple[WorkerFrameKind, int]:
    kind, size = FRAME_HEADER.unpack(data)
    if size > FRAME_BYTES_MAX:
        raise InvalidRequest(f"a frame of {size} bytes is over the limit of {FRAME_BYTES_MAX}")
    try:
        return WorkerFrameKind(kind), size
    except ValueError:
        raise InvalidRequest(f"{kind} is not a kind of frame") from None


def send_frame(channel: socket.socket, kind: WorkerFrameKind, body: bytes | pa.Buffer) -> None:
    """Blocks."""
    view = memoryview(body)
    channel.sendall(frame_header(kind, len(view)))
    channel.sendall(view)


def receive_frame(channel: socket.socket) -> tuple[WorkerFrameKind, bytearray]:
    """Blocks. Raises `EOFError` where the peer is gone."""
    kind, size = read_frame_header(_receive_exactly(channel, FRAME_HEADER.size))
    return kind, _receive_exactly(channel, size)


def _receive_exactly(channel: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, received = memoryview(data), 0
    while received < size:
        count = channel.recv_into(view[received:])
        if not count:
            raise EOFError
        received += count
    return data
