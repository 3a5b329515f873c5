"""lz4 as drivers write and read it, and malformed input."""

import struct

import pytest
from cassandra.connection import locally_supported_compressions

from ebla.model.errors import BadProtocol
from ebla.wire.cql.compression import LZ4, find_compression

BODY = b"clay tablet " * 400
driver_compress, driver_decompress = locally_supported_compressions["lz4"]


def test_a_driver_reads_what_is_written_here_and_the_other_way_round() -> None:
    assert driver_decompress(LZ4.compress(BODY)) == BODY
    assert LZ4.decompress(driver_compress(BODY), len(BODY)) == BODY
    assert len(LZ4.compress(BODY)) < len(BODY) // 10


def test_nothing_at_all() -> None:
    assert LZ4.decompress(struct.pack(">i", 0), 10) == b""
    assert LZ4.decompress(LZ4.compress(b""), 10) == b""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\0\0\0", "no room"),
        (struct.pack(">i", 1 << 30) + b"x", "exceeds"),
        (struct.pack(">i", -1) + b"x", "exceeds"),
        (struct.pack(">i", 100) + b"\xff\xff\xff", "no LZ4 block"),
        (struct.pack(">i", len(BODY) + 1) + LZ4.compress(BODY)[4:], "instead of"),
    ],
)
def test_what_is_not_lz4_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(BadProtocol, match=words):
        LZ4.decompress(body, 1 << 20)


def test_a_name_that_is_not_offered() -> None:
    assert find_compression("LZ4") is LZ4
    with pytest.raises(BadProtocol, match="snappy"):
        find_compression("snappy")
