"""Any bytes are decoded or refused, and one peer's bytes do not disturb another."""

import asyncio

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.async_tests import settled
from tests.unit.wire.rig import (
    ECHO,
    RUMOUR,
    SERVER_ADDRESS,
    SLOW,
    EchoAnswer,
    EchoRequest,
    Rumour,
    introduction,
    running_rig,
)

from ebla.model.errors import InvalidRequest, Outcome
from ebla.wire.frames import (
    AnswerFrame,
    CancelFrame,
    FailureFrame,
    HelloFrame,
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

VALID: list[bytes] = [
    encode(HelloFrame(oldest=1, newest=1, lane=Lane.CONTROL, frame_bytes_max=65536, introduction=introduction(5))),
    encode(WelcomeFrame(1, 65536, introduction(5))),
    encode(RefusalFrame(1, "no")),
    encode(RequestFrame(id=1, verb=ECHO.number, remaining_ms=1000, body=with_body(EchoRequest("clay", 3)))),
    encode(RequestFrame(id=2, verb=SLOW.number, remaining_ms=1000, body=with_body(EchoRequest("clay", 3)))),
    encode(AnswerFrame(1, with_body(EchoAnswer("clay")))),
    encode(FailureFrame(id=1, error="stale", outcome=Outcome.NOT_APPLIED, message="old")),
    encode(CancelFrame(2)),
    encode(NoticeFrame(RUMOUR.number, with_body(Rumour("heard")))),
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid frame with some bytes changed, cut out, put in or doubled."""
    data = bytearray(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        change = draw(st.integers(0, 3))
        if change == 0 and data:
            data[at] = draw(st.integers(0, 255))
        elif change == 1:
            del data[at : at + draw(st.integers(1, 8))]
        elif change == 2:
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 30))]
    return bytes(data)


anything = st.one_of(st.binary(max_size=200), mutated(), st.sampled_from(VALID))


@given(anything)
def test_bytes_are_a_frame_or_are_told_to_be_none(data: bytes) -> None:
    try:
        frame = decode(data)
    except InvalidRequest:
        return
    assert isinstance(frame, WireFrame)
    assert isinstance(decode(encode(frame)), type(frame))


@settings(deadline=None, max_examples=60)
@given(st.booleans(), st.lists(anything, max_size=12))
def test_a_server_outlives_any_frames_and_serves_others(greets: bool, frames: list[bytes]) -> None:
    class Deaf:
        def frame_received(self, frame: bytes) -> None:
            decode(frame)  # whatever comes back is a frame

        def link_closed(self, cause: str) -> None:
            assert cause

    async def run() -> None:
        async with running_rig() as rig:
            good = await rig.connect()
            link = await rig.transport.connect(SERVER_ADDRESS, lambda _: Deaf())
            if greets:
                link.send(VALID[0])
            for frame in frames:
                link.send(frame)
            await settled()
            assert await good.call(ECHO, EchoRequest("fine"), 1000) == EchoAnswer("fine")
            assert [name for name, _ in rig.events if name == "wire.verb_broke"] == []
            link.close("enough")
            await settled()
            assert rig.server.links_open == 1

    asyncio.run(run())


@settings(deadline=None, max_examples=60)
@given(st.lists(anything, max_size=12))
def test_a_caller_outlives_any_frames(frames: list[bytes]) -> None:
    async def run() -> None:
        async with running_rig() as rig:
            caller = await rig.connect()
            for frame in frames:
                if caller.closed_cause is None:
                    caller.frame_received(frame)
            if caller.closed_cause is None:
                assert (await caller.call(ECHO, EchoRequest("fine"), 1000)).text == "fine"

    asyncio.run(run())


@given(st.binary(max_size=300))
def test_bodies_of_any_bytes_are_refused_or_read(data: bytes) -> None:
    """A request's body is decoded apart from its frame, by the same rules."""
    try:
        msgspec.msgpack.decode(data, type=EchoRequest)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
