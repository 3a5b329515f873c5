"""Connections to peers: made on first use, made again with a bounded back-off, never to the wrong host."""

import asyncio

import pytest
from tests.unit.wire.rig import (
    ECHO,
    RUMOUR,
    SERVER_ADDRESS,
    SLOW,
    EchoAnswer,
    EchoRequest,
    Rig,
    Rumour,
    SeededChance,
    introduction,
    running_rig,
    turns,
)

from ebla.model.errors import ConnectionLost, Unreachable
from ebla.model.identity import Address
from ebla.wire.frames import Lane
from ebla.wire.limits import WireLimits
from ebla.wire.peers import Peers, RouteState, backoff_ms

SERVER = introduction(1).host


def make_peers(rig: Rig) -> Peers:
    peers = Peers(rig.tasks, rig.context(introduction(2)))
    peers.set_address(SERVER, SERVER_ADDRESS)
    return peers


def test_calls_connect_by_themselves_and_share_the_connection() -> None:
    async def run() -> None:
        async with running_rig() as rig:
            peers = make_peers(rig)
            for text in ("a", "b"):
                assert await peers.call(SERVER, ECHO, EchoRequest(text), 1000) == EchoAnswer(text)
            assert rig.transport.attempts == 1
            peers.close("over")

    asyncio.run(run())


def test_lanes_have_connections_of_their_own() -> None:
    async def run() -> None:
        async with running_rig() as rig:
            peers = make_peers(rig)
            await peers.call(SERVER, ECHO, EchoRequest(""), 1000)
            assert peers.send(SERVER, RUMOUR, Rumour("lost: it only starts the connection")) is False
            await turns(20)
            assert peers.send(SERVER, RUMOUR, Rumour("heard"))
            await turns()
            assert rig.rumours == ["heard"]
            assert [(route.lane, route.state) for route in peers.routes()] == [
                (Lane.CONTROL, RouteState.READY),
                (Lane.RAFT, RouteState.READY),
            ]
            peers.close("over")

    asyncio.run(run())


def test_a_dead_peer_is_unreachable_and_tried_again() -> None:
    async def run() -> None:
        limits = WireLimits(backoff_first_ms=2, backoff_max_ms=4)
        async with running_rig(limits) as rig:
            accept = rig.transport.listeners.pop(SERVER_ADDRESS)
            peers = make_peers(rig)
            with pytest.raises(Unreachable, match="nobody listens"):
                await peers.call(SERVER, ECHO, EchoRequest(""), 1000)
            with pytest.raises(Unreachable):
                await peers.call(SERVER, ECHO, EchoRequest(""), 1000)
            assert [name for name, _ in rig.events].count("wire.peer_unreachable") == 1
            rig.transport.listeners[SERVER_ADDRESS] = accept
            assert await peers.call(SERVER, ECHO, EchoRequest("back"), 5000) == EchoAnswer("back")
            peers.close("over")

    asyncio.run(run())


def test_a_deadline_before_the_next_attempt_is_answered_at_once() -> None:
    async def run() -> None:
        async with running_rig(WireLimits(backoff_first_ms=60_000, backoff_max_ms=60_000)) as rig:
            rig.transport.listeners.clear()
            peers = make_peers(rig)
            for _ in range(2):
                with pytest.raises(Unreachable, match="nobody listens"):
                    await peers.call(SERVER, ECHO, EchoRequest(""), 10_000)
            assert rig.transport.attempts == 1
            peers.close("over")

    asyncio.run(run())


def test_a_lost_connection_is_made_again() -> None:
    async def run() -> None:
        async with running_rig(WireLimits(backoff_first_ms=2, backoff_max_ms=4)) as rig:
            peers = make_peers(rig)
            rig.tasks.create_task(_lost(peers))
            await turns(20)
            assert rig.slow_started == ["under way"]
            rig.server_link.close("pulled the plug")
            await turns()
            assert await peers.call(SERVER, ECHO, EchoRequest("again"), 5000) == EchoAnswer("again")
            assert rig.transport.attempts == 2
            peers.close("over")

    async def _lost(peers: Peers) -> None:
        with pytest.raises(ConnectionLost):
            await peers.call(SERVER, SLOW, EchoRequest("under way"), 20_000)

    asyncio.run(run())


def test_another_host_at_the_address_is_not_used() -> None:
    async def run() -> None:
        async with running_rig() as rig:
            peers = make_peers(rig)
            stranger = introduction(9).host
            peers.set_address(stranger, SERVER_ADDRESS)
            with pytest.raises(Unreachable, match="looks for"):
                await peers.call(stranger, ECHO, EchoRequest(""), 1000)
            peers.close("over")

    asyncio.run(run())


def test_forgotten_and_moved_peers() -> None:
    async def run() -> None:
        async with running_rig() as rig:
            peers = make_peers(rig)
            await peers.call(SERVER, ECHO, EchoRequest(""), 1000)
            rig.transport.listeners[Address("elsewhere", 1)] = rig.transport.listeners.pop(SERVER_ADDRESS)
            peers.set_address(SERVER, Address("elsewhere", 1))
            assert await peers.call(SERVER, ECHO, EchoRequest("moved"), 1000) == EchoAnswer("moved")
            peers.forget(SERVER)
            assert peers.hosts() == ()
            with pytest.raises(Unreachable, match="no address"):
                await peers.call(SERVER, ECHO, EchoRequest(""), 1000)
            await turns()
            assert rig.server.links_open == 0

    asyncio.run(run())


def test_those_who_wait_for_a_forgotten_peer_are_told() -> None:
    async def run() -> None:
        async with running_rig(WireLimits(backoff_first_ms=5000, backoff_max_ms=5000)) as rig:
            rig.transport.listeners.clear()
            peers = make_peers(rig)
            with pytest.raises(Unreachable):
                await peers.call(SERVER, ECHO, EchoRequest(""), 1000)
            waiting = rig.tasks.create_task(_told(peers))
            await turns()
            peers.forget(SERVER)
            assert "no longer a peer" in await waiting

    async def _told(peers: Peers) -> str:
        with pytest.raises(Unreachable) as caught:
            await peers.call(SERVER, ECHO, EchoRequest(""), 60_000)
        return str(caught.value)

    asyncio.run(run())


def test_the_backoff_grows_to_its_bound_and_differs_by_chance() -> None:
    limits = WireLimits(backoff_first_ms=50, backoff_max_ms=1000)
    chance = SeededChance()
    for failures, step in ((1, 50), (2, 100), (5, 800), (6, 1000), (10_000, 1000)):
        drawn = [backoff_ms(failures, limits, chance) for _ in range(200)]
        assert step // 2 <= min(drawn)
        assert max(drawn) <= step
        assert len(set(drawn)) > 10
