"""The codec: what goes out comes back, newer and older peers understand each other, garbage is reported."""

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

WHO = Introduction(
    host=HostId(uuid.UUID(int=1)),
    cluster=ClusterId(uuid.UUID(int=2)),
    cluster_name="palace",
    process="shard-0",
    features=("purge",),
)


@pytest.mark.parametrize(
    "frame",
    [
        HelloFrame(oldest=1, newest=3, lane=Lane.RAFT, frame_bytes_max=4096, introduction=WHO, expected_host=WHO.host),
        WelcomeFrame(2, 4096, WHO),
        RefusalFrame(1, "no"),
        FailureFrame(id=7, error="stale", outcome=Outcome.NOT_APPLIED, message="old", advice="read again"),
        CancelFrame(7),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_frames_come_back_as_they_went(frame: WireFrame) -> None:
    assert decode(encode(frame)) == frame


def test_bodies_travel_undecoded() -> None:
    body = HeartbeatRequest(5, 1)
    for frame in (
        RequestFrame(id=1, verb=2, remaining_ms=300, body=with_body(body)),
        AnswerFrame(1, with_body(body)),
        NoticeFrame(3, with_body(body)),
    ):
        got = decode(encode(frame))
        assert isinstance(got, RequestFrame | AnswerFrame | NoticeFrame)
        assert msgspec.msgpack.decode(got.body, type=HeartbeatRequest) == body


def test_tags_are_pinned() -> None:
    kinds = (HelloFrame, WelcomeFrame, RefusalFrame, RequestFrame, AnswerFrame, FailureFrame, CancelFrame, NoticeFrame)
    assert [kind.__struct_config__.tag for kind in kinds] == [1, 2, 3, 4, 5, 6, 7, 8]


class NewerHello(msgspec.Struct, frozen=True, array_like=True, tag=1, kw_only=True):
    """What a later version may send: one field more."""

    oldest: int
    newest: int
    lane: Lane
    frame_bytes_max: int
    introduction: Introduction
    expected_host: HostId | None = None
    mood: str = "calm"


def test_a_newer_greeting_is_understood() -> None:
    newer = NewerHello(
        oldest=1, newest=9, lane=Lane.DATA, frame_bytes_max=4096, introduction=WHO, expected_host=None, mood="eager"
    )
    assert decode(encode(newer)) == HelloFrame(
        oldest=1, newest=9, lane=Lane.DATA, frame_bytes_max=4096, introduction=WHO
    )


def test_an_older_greeting_is_understood() -> None:
    older = encode(HelloFrame(oldest=1, newest=1, lane=Lane.DATA, frame_bytes_max=4096, introduction=WHO))
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
