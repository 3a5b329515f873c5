"""Frames are complete and in order, however their bytes arrive."""

import pytest
from tests.unit.cql.protocol_rig import request

from ebla.wire.cql.frames import RESPONSE, CqlFrame, FrameSplitter, MalformedFrame, Opcode, UnknownVersion

MANY = [request(Opcode.QUERY, b"x" * size, stream=size) for size in (0, 1, 9, 300)]


def taken(splitter: FrameSplitter) -> list[CqlFrame]:
    found = []
    while (frame := splitter.take()) is not None:
        found.append(frame)
    return found


@pytest.mark.parametrize("step", [1, 2, 8, 9, 10, 17, 1000])
def test_bytes_in_any_pieces_give_the_same_frames(step: int) -> None:
    splitter = FrameSplitter(1000)
    data = b"".join(MANY)
    found = []
    for start in range(0, len(data), step):
        splitter.feed(data[start : start + step])
        found += taken(splitter)
    assert [(frame.stream, len(frame.body)) for frame in found] == [(size, size) for size in (0, 1, 9, 300)]
    assert splitter.waiting_bytes == 0


def test_a_frame_that_is_not_taken_stays() -> None:
    splitter = FrameSplitter(1000)
    splitter.feed(b"".join(MANY))
    first = splitter.take()
    assert first is not None
    assert first.stream == 0
    splitter.feed(MANY[0])
    assert [frame.stream for frame in taken(splitter)] == [1, 9, 300, 0]


@pytest.mark.parametrize("version", [5, 6, 65, 66, 0x47, 0x16])
def test_an_unknown_version_is_told_with_the_stream(version: int) -> None:
    splitter = FrameSplitter(1000)
    splitter.feed(request(Opcode.OPTIONS, stream=77, version=version))
    with pytest.raises(UnknownVersion, match=rf"\({version}\)") as caught:
        splitter.take()
    assert caught.value.stream == 77


def test_the_stream_of_old_versions_is_one_byte() -> None:
    splitter = FrameSplitter(1000)
    splitter.feed(bytes((2, 0, 5, 1)) + b"\0\0\0\0" + b"\0")
    with pytest.raises(UnknownVersion) as caught:
        splitter.take()
    assert caught.value.stream == 5


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (request(Opcode.READY, stream=3, version=4 | RESPONSE), "response frame"),
        (request(Opcode.QUERY, stream=3)[:5] + b"\xff\xff\xff\xff", "length -1"),
        (request(Opcode.QUERY, stream=3)[:5] + b"\0\0\3\xe9", "length 1001 exceeds"),
    ],
)
def test_what_is_no_frame_is_told_before_its_body_comes(frame: bytes, words: str) -> None:
    splitter = FrameSplitter(1000)
    splitter.feed(frame)
    with pytest.raises(MalformedFrame, match=words) as caught:
        splitter.take()
    assert caught.value.stream == 3


def test_a_large_frame_in_pieces_is_not_copied_with_each_of_them() -> None:
    splitter = FrameSplitter(1 << 20)
    whole = request(Opcode.QUERY, b"x" * (1 << 20))
    splitter.feed(whole[:100])
    assert splitter.take() is None
    splitter.feed(whole[100:200])
    kept = splitter._data
    for start in range(200, len(whole), 4096):
        splitter.feed(whole[start : start + 4096])
    assert splitter._data is kept
    (frame,) = taken(splitter)
    assert type(frame.body) is bytes
    assert len(frame.body) == 1 << 20
