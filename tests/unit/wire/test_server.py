"""Greetings, and peers that misbehave: only their own connection suffers."""

import asyncio
import uuid

import msgspec
import pytest
from tests.async_tests import real_time, runs_in, settled
from tests.unit.wire.rig import (
    DATA_ECHO,
    ECHO,
    RUMOUR,
    SERVER_ADDRESS,
    SLOW,
    EchoAnswer,
    EchoRequest,
    MemoryLink,
    Rig,
    Rumour,
    introduction,
    running_rig,
)

from ebla.model.errors import ConnectionLost, HostLeft, Unreachable
from ebla.model.identity import ClusterId, HostId
from ebla.wire.client_connection import ConnectionTarget, RpcClientConnection
from ebla.wire.frames import (
    OPERATOR_PROCESS,
    CancelFrame,
    HelloFrame,
    Introduction,
    Lane,
    NoticeFrame,
    RefusalFrame,
    RequestFrame,
    WelcomeFrame,
    decode,
    encode,
    with_body,
)
from ebla.wire.limits import WireLimits
from ebla.wire.peers import connect
from ebla.wire.server import IncomingCall


class RawPeer:
    """Sends whatever bytes it likes."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.closed: str | None = None
        self.ended = asyncio.Event()

    def frame_received(self, frame: bytes) -> None:
        self.frames.append(frame)

    def link_closed(self, cause: str) -> None:
        self.closed = cause
        self.ended.set()


async def raw_peer(rig: Rig) -> tuple[RawPeer, MemoryLink]:
    peer = RawPeer()
    link = await rig.transport.connect(SERVER_ADDRESS, lambda _: peer)
    return peer, link


def hello(who: Introduction, oldest: int = 1, newest: int = 1, expected: HostId | None = None) -> bytes:
    return encode(
        HelloFrame(
            oldest=oldest,
            newest=newest,
            lane=Lane.CONTROL,
            frame_bytes_max=65536,
            introduction=who,
            expected_host=expected,
        )
    )


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (hello(introduction(2), 2, 5), "protocol versions 2 to 5"),
        (hello(introduction(2), 0, 0), "protocol versions 0 to 0"),
        (hello(introduction(2, name="temple")), "'temple'"),
        (hello(introduction(2, cluster=ClusterId(uuid.UUID(int=99)))), "this is cluster"),
        (hello(introduction(2), expected=introduction(5).host), "looks for"),
    ],
)
async def test_greetings_that_do_not_fit_are_refused_with_the_reason(greeting: bytes, reason: str) -> None:
    async with running_rig() as rig:
        peer, link = await raw_peer(rig)
        link.send(greeting)
        await settled()
        refusal = decode(peer.frames[0])
        assert isinstance(refusal, RefusalFrame)
        assert reason in refusal.message
        assert peer.closed is not None
        assert reason in rig.causes("wire.link_ended")[0]


@pytest.mark.parametrize("newest", [1, 2, 9])
async def test_the_newest_common_version_is_chosen(newest: int) -> None:
    async with running_rig() as rig:
        peer, link = await raw_peer(rig)
        link.send(hello(introduction(2), 0, newest))
        await settled()
        welcome = decode(peer.frames[0])
        assert isinstance(welcome, WelcomeFrame)
        assert welcome.version == 1


async def test_a_node_without_a_cluster_may_greet() -> None:
    async with running_rig() as rig:
        caller, welcome = await connect(
            rig.context(introduction(2, cluster=None)), SERVER_ADDRESS, ConnectionTarget(Lane.CONTROL)
        )
        assert welcome.introduction == introduction(1)
        assert await caller.call(ECHO, EchoRequest("hi"), 1000) == EchoAnswer("hi")


async def test_who_has_greeted_is_told_once_and_who_was_refused_is_not() -> None:
    async with running_rig() as rig:
        came: list[tuple[HostId, Lane]] = []
        rig.server.on_introduced = lambda host, lane: came.append((host, lane))
        for greeting in (hello(introduction(2)), hello(introduction(3, name="temple"))):
            _, link = await raw_peer(rig)
            link.send(greeting)
            link.send(greeting)
            await settled()
        assert came == [(introduction(2).host, Lane.CONTROL)]


async def test_the_greeting_must_be_that_of_the_certificate() -> None:
    async with running_rig() as rig:
        rig.transport.certificate_of_client = introduction(8).host
        with pytest.raises(Unreachable, match="the certificate is for host"):
            await rig.connect(number=2)


@pytest.mark.parametrize(
    "frames",
    [
        [b"garbage"],
        [b""],
        [encode(RequestFrame(id=1, verb=ECHO.number, remaining_ms=1000, body=with_body(EchoRequest("too early"))))],
        [encode(NoticeFrame(RUMOUR.number, with_body(Rumour("too early"))))],
        [hello(introduction(2)), b"\xc1"],
        [hello(introduction(2)), encode(WelcomeFrame(1, 4096, introduction(2)))],
        [
            hello(introduction(2)),
            encode(RequestFrame(id=1_000_000, verb=ECHO.number, remaining_ms=1000, body=with_body(EchoRequest("")))),
        ],
    ],
)
async def test_what_has_no_place_ends_that_connection_alone(frames: list[bytes]) -> None:
    async with running_rig() as rig:
        good = await rig.connect()
        peer, link = await raw_peer(rig)
        for frame in frames:
            link.send(frame)
        await settled()
        assert peer.closed is not None
        assert len(rig.causes("wire.link_ended")) == 1
        assert await good.call(ECHO, EchoRequest("fine"), 1000) == EchoAnswer("fine")
        assert rig.server.links_open == 1
        assert rig.rumours == []


async def test_a_repeated_greeting_and_a_strange_cancel_are_harmless() -> None:
    async with running_rig() as rig:
        peer, link = await raw_peer(rig)
        for frame in (hello(introduction(2)), hello(introduction(2)), encode(CancelFrame(77))):
            link.send(frame)
        await settled()
        assert peer.closed is None
        assert len(peer.frames) == 1


async def test_a_silent_connection_is_ended() -> None:
    async with running_rig(WireLimits(hello_ms=10)) as rig:
        peer, _ = await raw_peer(rig)
        await peer.ended.wait()
        assert "no greeting" in str(peer.closed)
        assert rig.server.links_open == 0


async def test_connections_are_bounded() -> None:
    async with running_rig(WireLimits(served_links_max=3, unintroduced_links_max=2)) as rig:
        callers = [await rig.connect(number=2) for _ in range(2)]
        await raw_peer(rig)
        with pytest.raises(Unreachable, match="3 connections are open already"):
            await rig.connect(number=4)
        callers[0].close("makes room")
        await settled()
        await raw_peer(rig)
        callers[1].close("makes room")
        await settled()
        with pytest.raises(Unreachable, match="have not greeted"):
            await rig.connect(number=5)


async def test_a_peer_that_leaves_its_answers_unread_is_cut_off() -> None:
    async with running_rig(WireLimits(answer_queue_bytes_max=10_000)) as rig:
        caller = await rig.connect()
        rig.server_link.held = True
        for _ in range(10):
            rig.tasks.create_task(_lost(caller))
        assert "unread" in await caller.wait_closed()
        assert "unread" in rig.causes("wire.link_ended")[0]


@runs_in(real_time)
async def test_a_broken_notice_is_told_and_the_next_arrives() -> None:
    async with running_rig() as rig:

        async def broken(message: Rumour, call: IncomingCall) -> None:
            rig.rumours.append(message.text)
            raise KeyError(message.text)

        del rig.server.notices[RUMOUR.number]
        rig.server.serve_notice(RUMOUR, broken)
        caller = await rig.connect(Lane.RAFT)
        caller.send(RUMOUR, Rumour("a"))
        caller.send(RUMOUR, Rumour("b"))
        await settled()
        assert rig.rumours == ["a", "b"]
        assert [name for name, _ in rig.events].count("wire.verb_broke") == 2


async def test_a_request_whose_time_is_over_is_not_started() -> None:
    async with running_rig() as rig:
        await rig.connect()
        events = rig.server_link.events
        assert events is not None
        events.frame_received(
            encode(RequestFrame(id=1, verb=SLOW.number, remaining_ms=0, body=with_body(EchoRequest("late"))))
        )
        await settled()
        assert rig.slow_started == []


async def test_a_missing_id_counts_as_seen_once_thousands_passed() -> None:
    async with running_rig() as rig:
        await rig.connect()
        events = rig.server_link.events
        assert events is not None
        for number in range(1, 10_000, 2):  # every second one is missing
            events.frame_received(
                encode(RequestFrame(id=number, verb=ECHO.number, remaining_ms=1000, body=with_body(EchoRequest(""))))
            )
        answered = len(rig.server_link.sent)
        for number in (2, 9998):
            events.frame_received(
                encode(RequestFrame(id=number, verb=ECHO.number, remaining_ms=1000, body=with_body(EchoRequest(""))))
            )
        assert len(rig.server_link.sent) == answered + 1


async def test_an_answer_that_cannot_be_encoded_is_our_defect() -> None:
    async with running_rig() as rig:

        def strange(request: EchoRequest, call: IncomingCall) -> EchoAnswer:
            return object()  # type: ignore[return-value]  # a defect on purpose

        rig.server.serve(DATA_ECHO, strange)
        caller = await rig.connect(Lane.DATA)
        with pytest.raises(Exception, match="data_echo broke"):
            await caller.call(DATA_ECHO, EchoRequest(""), 1000)


async def _lost(caller: RpcClientConnection) -> None:
    with pytest.raises((ConnectionLost, Unreachable)):
        await caller.call(ECHO, EchoRequest("y" * 2000), 5000)


async def test_connections_of_an_excluded_host_are_closed_and_refused() -> None:
    async with running_rig() as rig:
        context = rig.context(introduction(2))
        caller, _ = await connect(context, SERVER_ADDRESS, ConnectionTarget(Lane.CONTROL))
        rig.server.exclude(frozenset({context.introduction.host}))
        assert "excluded" in await caller.wait_closed()
        with pytest.raises(Unreachable, match="excluded"):
            await connect(context, SERVER_ADDRESS, ConnectionTarget(Lane.CONTROL))
        rig.server.exclude(frozenset())
        caller, _ = await connect(context, SERVER_ADDRESS, ConnectionTarget(Lane.CONTROL))
        caller.close("the test ends")


@pytest.mark.parametrize("lane", Lane)
async def test_a_host_that_has_left_is_told_so_on_every_lane_and_its_operator_may_call(lane: Lane) -> None:
    async with running_rig() as rig:
        context = rig.context(introduction(2))
        caller, _ = await connect(context, SERVER_ADDRESS, ConnectionTarget(lane))
        rig.server.exclude(frozenset(), frozenset({context.introduction.host}))
        assert "left" in await caller.wait_closed()
        with pytest.raises(HostLeft, match="has left the cluster and can never come back"):
            await connect(context, SERVER_ADDRESS, ConnectionTarget(lane))
        operator = rig.context(msgspec.structs.replace(introduction(2), process=OPERATOR_PROCESS))
        caller, _ = await connect(operator, SERVER_ADDRESS, ConnectionTarget(lane))
        caller.close("the test ends")
