"""What a process and those that work for it say to each other, on pipes."""

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = struct.Struct(">BII")  # kind, number of the job, length of the body


class WorkerFrameKind(enum.IntEnum):
    JOB = 1
    KILL = 2
    """Whoever is at it."""
    OUTCOME = 3
    GONE = 4
    """Whoever was at it has died."""


@dataclass(frozen=True, slots=True)
class WorkerFrame:
    kind: WorkerFrameKind
    number: int
    body: bytes = b""


def encode_frame(one: WorkerFrame) -> bytes:
    return _HEADER.pack(one.kind, one.number, len(one.body)) + one.body


class WorkerFrameReader:
    """Bytes as they come; frames as they are whole."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def take(self, data: bytes) -> Iterator[WorkerFrame]:
        waiting = self._waiting
        waiting += data
        while len(waiting) >= _HEADER.size:
            kind, number, size = _HEADER.unpack_from(waiting)
            end = _HEADER.size + size
            if len(waiting) < end:
                return
            body = bytes(waiting[_HEADER.size : end])
            del waiting[:end]
            yield WorkerFrame(WorkerFrameKind(kind), number, body)
