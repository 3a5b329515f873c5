"""The codec: what goes out comes back, newer and older peers understand each other, garbage is told."""

import uuid

import msgspec
import pytest

from ebla.model.errors import InvalidRequest, Outcome
from ebla.model.identity import ClusterId, HostId
from ebla.wire.frames import (
    AnswerFrame,
    CancelFrame,
    FailureFrame,
    HelloFrame,
    Introduction,
    Lane,
    NoticeFrame,
    RefusalFrame,
    RequestFrame,
    WelcomeFrame,
    WireFrame,
    decode,
    encode,
    with_body,
)
from ebla.wire.verbs import HeartbeatRequest

WHO = Introduction(HostId(uuid.UUID(int=1)), ClusterId(uuid.UUID(int=2)), "palace", "shard-0", ("purge",))


@pytest.mark.parametrize(
    "frame",
    [
        HelloFrame(1, 3, Lane.RAFT, 4096, WHO, WHO.host),
        WelcomeFrame(2, 4096, WHO),
        RefusalFrame(1, "no"),
        FailureFrame(7, "stale", Outcome.NOT_APPLIED, "old", "read again"),
        CancelFrame(7),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_frames_come_back_as_they_went(frame: WireFrame) -> None:
    assert decode(encode(frame)) == frame


def test_bodies_travel_undecoded() -> None:
    body = HeartbeatRequest(5, 1)
    for frame in (
        RequestFrame(1, 2, 300, with_body(body)),
        AnswerFrame(1, with_body(body)),
        NoticeFrame(3, with_body(body)),
    ):
        got = decode(encode(frame))
        assert isinstance(got, RequestFrame | AnswerFrame | NoticeFrame)
        assert msgspec.msgpack.decode(got.body, type=HeartbeatRequest) == body


def test_tags_are_pinned() -> None:
    kinds = (HelloFrame, WelcomeFrame, RefusalFrame, RequestFrame, AnswerFrame, FailureFrame, CancelFrame, NoticeFrame)
    assert [kind.__struct_config__.tag for kind in kinds] == [1, 2, 3, 4, 5, 6, 7, 8]


class NewerHello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """What a later version may send: one field more."""

    oldest: int
    newest: int
    lane: Lane
    frame_bytes_max: int
    introduction: Introduction
    expected_host: HostId | None = None
    mood: str = "calm"


def test_a_newer_greeting_is_understood() -> None:
    newer = NewerHello(1, 9, Lane.DATA, 4096, WHO, None, "eager")
    assert decode(encode(newer)) == HelloFrame(1, 9, Lane.DATA, 4096, WHO)


def test_an_older_greeting_is_understood() -> None:
    older = encode(HelloFrame(1, 1, Lane.DATA, 4096, WHO))
    assert msgspec.msgpack.decode(older, type=NewerHello).mood == "calm"
    shorter = msgspec.msgpack.encode([1, 1, 1, Lane.DATA, 4096, [WHO.host.bytes, None, "palace"]])
    got = decode(shorter)
    assert isinstance(got, HelloFrame)
    assert got.introduction.process == "control"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x95\x04\x01\x02\x03" + b"\x91" * 100_000,
        b"\x92\x63\x01",
        encode(CancelFrame(1)) + b"x",
        encode(RefusalFrame(1, "x"))[:-1],
        msgspec.msgpack.encode([7, "one"]),
        msgspec.msgpack.encode({"id": 1}),
    ],
    ids=repr,
)
def test_garbage_is_told(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a frame"):
        decode(data)
