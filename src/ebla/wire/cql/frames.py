"""Frames of the native protocol, version 4: a header of nine bytes, then the body. Pure.

version (1) | flags (1) | stream (2) | opcode (1) | length of the body (4)
"""

import enum
import struct

import msgspec

from ebla.model.errors import BadProtocol

VERSION = 4
VERSION_OLDEST = 3
RESPONSE = 0x80
HEADER_BYTES = 9
HEADER = struct.Struct(">BBhBi")
EVENT_STREAM = -1
FIRST_WITH_WIDE_STREAMS = 3
"""Earlier versions have a one-byte stream id and a header of eight bytes."""


class Opcode(enum.IntEnum):
    ERROR = 0x00
    STARTUP = 0x01
    READY = 0x02
    AUTHENTICATE = 0x03
    OPTIONS = 0x05
    SUPPORTED = 0x06
    QUERY = 0x07
    RESULT = 0x08
    PREPARE = 0x09
    EXECUTE = 0x0A
    REGISTER = 0x0B
    EVENT = 0x0C
    BATCH = 0x0D
    AUTH_CHALLENGE = 0x0E
    AUTH_RESPONSE = 0x0F
    AUTH_SUCCESS = 0x10


class QueryFlag(enum.IntFlag):
    VALUES = 0x01
    SKIP_METADATA = 0x02
    PAGE_SIZE = 0x04
    PAGING_STATE = 0x08
    SERIAL_CONSISTENCY = 0x10
    TIMESTAMP = 0x20
    NAMES = 0x40


class BatchKind(enum.IntEnum):
    LOGGED = 0
    UNLOGGED = 1
    COUNTER = 2


class FrameFlag(enum.IntFlag):
    COMPRESSED = 0x01
    TRACING = 0x02
    CUSTOM_PAYLOAD = 0x04
    WARNING = 0x08
    BETA = 0x10


class CqlFrame(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A request. A msgspec struct because one is created per request."""

    version: int
    flags: int
    stream: int
    opcode: int
    body: bytes


class MalformedFrame(BadProtocol):
    """The start of the next frame is unknown, so the connection is closed after the response."""

    def __init__(self, message: str, stream: int) -> None:
        super().__init__(message)
        self.stream = stream


class UnknownVersion(MalformedFrame):
    """The response has our own version in its header, so that the driver falls back to it."""

    def __init__(self, version: int, stream: int) -> None:
        super().__init__(
            f"Invalid or unsupported protocol version ({version}); the lowest supported version is {VERSION_OLDEST} "
            f"and the greatest is {VERSION}",
            stream,
        )


class FrameSplitter:
    """Splits received bytes into frames. The caller takes one frame at a time, and may stop."""

    __slots__ = ("_data", "_offset", "body_bytes_max", "frames")

    def __init__(self, body_bytes_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        self.frames = 0
        """Taken so far."""
        self._data: bytes | bytearray = b""
        self._offset = 0

    def feed(self, data: bytes) -> None:
        kept, offset = self._data, self._offset
        self._offset = 0
        if offset == len(kept):
            self._data = data
            return
        # A frame in pieces grows in place. Otherwise every piece would copy a large frame again.
        if isinstance(kept, bytes):
            kept = bytearray(memoryview(kept)[offset:])
        elif offset:
            del kept[:offset]
        kept += data
        self._data = kept

    def clear(self) -> None:
        """Drops what has not been taken."""
        self._data, self._offset = b"", 0

    def take(self) -> CqlFrame | None:
        """The next complete frame; None if there is none. After `MalformedFrame` nothing more can be read."""
        data, offset = self._data, self._offset
        start = offset + HEADER_BYTES
        if len(data) < start:
            return None
        version, flags, stream, opcode, size = HEADER.unpack_from(data, offset)
        if not VERSION_OLDEST <= version <= VERSION or not 0 <= size <= self.body_bytes_max:
            raise self._broken(version, stream, size)
        end = start + size
        if len(data) < end:
            return None
        self._offset = end
        self.frames += 1
        body = data[start:end] if isinstance(data, bytes) else bytes(memoryview(data)[start:end])
        return CqlFrame(version=version, flags=flags, stream=stream, opcode=opcode, body=body)

    @property
    def waiting_bytes(self) -> int:
        return len(self._data) - self._offset

    @property
    def next_body_bytes(self) -> int:
        """The announced length of the frame that is not complete yet; 0 if its header is not."""
        if self.waiting_bytes < HEADER_BYTES:
            return 0
        size: int = HEADER.unpack_from(self._data, self._offset)[4]
        return size

    def _broken(self, version: int, stream: int, size: int) -> MalformedFrame:
        if VERSION_OLDEST <= version - RESPONSE <= VERSION:
            return MalformedFrame("A client sent a response frame", stream)
        if not VERSION_OLDEST <= version <= VERSION:
            return UnknownVersion(version, stream >> 8 if version < FIRST_WITH_WIDE_STREAMS else stream)
        if size < 0:
            return MalformedFrame(f"Invalid frame body length {size}", stream)
        return MalformedFrame(
            f"Request is too big: length {size} exceeds maximum allowed length {self.body_bytes_max}", stream
        )
