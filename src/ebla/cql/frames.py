"""Frames of the native protocol, version 4: a header of nine bytes and a body. Pure.

version (1) | flags (1) | stream (2) | opcode (1) | length of the body (4)
"""

import enum
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ebla.model.errors import BadProtocol

VERSION = 4
VERSION_OLDEST = 3
RESPONSE = 0x80
HEADER_BYTES = 9
HEADER = struct.Struct(">BBhBi")
FRAME_BYTES_MAX = 256 << 20
"""What drivers expect to be allowed; the bound for one request is an option of the server, below that."""


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


class Flag(enum.IntFlag):
    COMPRESSED = 0x01
    TRACING = 0x02
    CUSTOM_PAYLOAD = 0x04
    WARNING = 0x08
    BETA = 0x10


@dataclass(frozen=True, slots=True)
class Frame:
    version: int
    flags: int
    stream: int
    opcode: int
    body: bytes


class UnknownVersion(BadProtocol):
    """Answered with our own version in the header, so that the driver steps down to it."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"Invalid or unsupported protocol version ({version}); the lowest supported version is {VERSION_OLDEST} "
            f"and the greatest is {VERSION}"
        )


class FrameSplitter:
    """Bytes as they arrive to frames as they were sent. After an error the connection must end."""

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._buffer = bytearray()

    def frames(self, data: bytes) -> Iterator[Frame]:
        """Whole frames in order. Raises `UnknownVersion` and `BadProtocol` (with `stream` as the header said)."""
        self._buffer += data
        buffer = self._buffer
        offset = 0
        try:
            while len(buffer) - offset >= HEADER_BYTES:
                version, flags, stream, opcode, size = HEADER.unpack_from(buffer, offset)
                self._check(version, size, stream)
                end = offset + HEADER_BYTES + size
                if len(buffer) < end:
                    break
                body = bytes(buffer[offset + HEADER_BYTES : end])
                offset = end
                yield Frame(version, flags, stream, opcode, body)
        finally:
            del buffer[:offset]

    @property
    def waiting_bytes(self) -> int:
        return len(self._buffer)

    def _check(self, version: int, size: int, stream: int) -> None:
        if version & RESPONSE:
            raise BrokenFrame("A response frame came from a client", stream)
        if not VERSION_OLDEST <= version <= VERSION:
            raise UnknownVersion(version)
        if size < 0:
            raise BrokenFrame(f"Invalid frame body length {size}", stream)
        if size > self._body_bytes_max:
            raise BrokenFrame(
                f"Request is too big: length {size} exceeds maximum allowed length {self._body_bytes_max}", stream
            )


class BrokenFrame(BadProtocol):
    def __init__(self, message: str, stream: int) -> None:
        super().__init__(message)
        self.stream = stream


def encode_frame(version: int, stream: int, opcode: Opcode, body: bytes, flags: int = 0) -> bytes:
    return HEADER.pack(version | RESPONSE, flags, stream, opcode, len(body)) + body


@dataclass(frozen=True, slots=True)
class Compression:
    """An algorithm both sides know, by its name in STARTUP."""

    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes], bytes]
