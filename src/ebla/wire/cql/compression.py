"""Compression of bodies, as negotiated in STARTUP. Pure."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import lz4.block

from ebla.model.errors import BadProtocol

_SIZE = struct.Struct(">i")
COMPRESSED_BYTES_MIN = 512
"""Shorter bodies are sent uncompressed, which their frames say: little would be saved."""


@dataclass(frozen=True, slots=True)
class Compression:
    name: str
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes, int], bytes]
    """Raises `BadProtocol` if the result would exceed this many bytes, or the bytes are malformed."""


def _lz4_compress(body: bytes) -> bytes:
    """The uncompressed length, then one block."""
    compressed: bytes = lz4.block.compress(body, store_size=False)
    return _SIZE.pack(len(body)) + compressed


def _lz4_decompress(body: bytes, bytes_max: int) -> bytes:
    if len(body) < _SIZE.size:
        raise BadProtocol(f"A compressed body of {len(body)} bytes has no room for its length")
    (size,) = _SIZE.unpack_from(body)
    if size == 0:
        return b""
    # Checked before any allocation: a few bytes can claim to be gigabytes.
    if not 0 < size <= bytes_max:
        raise BadProtocol(f"Request is too big: length {size} exceeds maximum allowed length {bytes_max}")
    try:
        found: bytes = lz4.block.decompress(memoryview(body)[_SIZE.size :], uncompressed_size=size)
    except lz4.block.LZ4BlockError:
        raise BadProtocol(f"A compressed body of {len(body)} bytes is no LZ4 block") from None
    if len(found) != size:
        raise BadProtocol(f"A compressed body holds {len(found)} bytes instead of {size}")
    return found


LZ4 = Compression("lz4", _lz4_compress, _lz4_decompress)
KNOWN: Mapping[str, Compression] = {LZ4.name: LZ4}


def find_compression(name: str) -> Compression:
    found = KNOWN.get(name.lower())
    if found is None:
        raise BadProtocol(f"Unknown compression algorithm: {name}")
    return found
