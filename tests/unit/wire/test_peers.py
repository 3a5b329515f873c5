"""Connections to peers: made on first use, made again with a bounded back-off, never to the wrong host."""

import asyncio
from collections.abc import Awaitable

import pytest
from tests.async_tests import runs_in, settled
from tests.unit.wire.rig import (
    ECHO,
    RUMOUR,
    SERVER_ADDRESS,
    SLOW,
    EchoAnswer,
    EchoRequest,
    Rig,
    Rumour,
    introduction,
    running_rig,
)

from ebla.model.errors import ConnectionLost, DeadlineExceeded, EblaError, Stale, Unreachable
from ebla.model.identity import Address
from ebla.sim.rng import SimRng
from ebla.sim.world import World
from ebla.wire.frames import Lane
from ebla.wire.limits import WireLimits
from ebla.wire.peers import Peers, backoff_ms

SERVER = introduction(1).host


def make_peers(rig: Rig) -> Peers:
    peers = Peers(rig.tasks, rig.context(introduction(2)))
    peers.set_address(SERVER, SERVER_ADDRESS)
    return peers


async def test_calls_connect_by_themselves_and_share_the_connection() -> None:
    async with running_rig() as rig:
        peers = make_peers(rig)
        for text in ("a", "b"):
            assert await peers.call(SERVER, ECHO, EchoRequest(text), 1000) == EchoAnswer(text)
        assert rig.transport.attempts == 1
        peers.close("over")


async def test_a_check_is_made_after_the_wait_for_the_connection_and_may_refuse() -> None:
    limits = WireLimits(backoff_first_ms=2, backoff_max_ms=4)
    async with running_rig(limits) as rig:
        is_allowed = True

        def check() -> None:
            if not is_allowed:
                raise Stale("too late")

        peers = make_peers(rig)
        late = asyncio.ensure_future(peers.call(SERVER, ECHO, EchoRequest("a"), 1000, check))
        is_allowed = False
        with pytest.raises(Stale):
            await late
        is_allowed = True
        assert await peers.call(SERVER, ECHO, EchoRequest("b"), 1000, check) == EchoAnswer("b")
        peers.close("over")


async def test_lanes_have_connections_of_their_own() -> None:
    async with running_rig() as rig:
        peers = make_peers(rig)
        await peers.call(SERVER, ECHO, EchoRequest(""), 1000)
        assert peers.send(SERVER, RUMOUR, Rumour("lost: it only starts the connection")) is False
        await settled()
        assert peers.send(SERVER, RUMOUR, Rumour("heard"))
        await settled()
        assert rig.rumours == ["heard"]
        assert [lane for lane in Lane if peers.is_connected(SERVER, lane)] == [Lane.RAFT, Lane.CONTROL]
        peers.close("over")


async def test_a_dead_peer_is_unreachable_and_tried_again() -> None:
    limits = WireLimits(backoff_first_ms=2, backoff_max_ms=4)
    async with running_rig(limits) as rig:
        accept = rig.transport.listeners.pop(SERVER_ADDRESS)
        peers = make_peers(rig)
        with pytest.raises(Unreachable, match="no listener"):
            await peers.call(SERVER, ECHO, EchoRequest(""), 1000)
        with pytest.raises(Unreachable):
            await peers.call(SERVER, ECHO, EchoRequest(""), 1000)
        assert [name for name, _ in rig.events].count("wire.peer_unreachable") == 1
        rig.transport.listeners[SERVER_ADDRESS] = accept
        assert await peers.call(SERVER, ECHO, EchoRequest("back"), 5000) == EchoAnswer("back")
        peers.close("over")


async def test_a_deadline_before_the_next_attempt_is_answered_at_once() -> None:
    async with running_rig(WireLimits(backoff_first_ms=60_000, backoff_max_ms=60_000)) as rig:
        rig.transport.listeners.clear()
        peers = make_peers(rig)
        for _ in range(2):
            with pytest.raises(Unreachable, match="no listener"):
                await peers.call(SERVER, ECHO, EchoRequest(""), 10_000)
        assert rig.transport.attempts == 1
        peers.close("over")


def test_a_lost_connection_is_made_again() -> None:
    async def run() -> None:
        async with running_rig(WireLimits(backoff_first_ms=2, backoff_max_ms=4)) as rig:
            peers = make_peers(rig)
            rig.tasks.create_task(_lost(peers))
            await settled()
            assert rig.slow_started == ["under way"]
            rig.server_link.close("pulled the plug")
            await settled()
            assert await peers.call(SERVER, ECHO, EchoRequest("again"), 5000) == EchoAnswer("again")
            assert rig.transport.attempts == 2
            peers.close("over")

    async def _lost(peers: Peers) -> None:
        with pytest.raises(ConnectionLost):
            await peers.call(SERVER, SLOW, EchoRequest("under way"), 20_000)

    asyncio.run(run())


@runs_in(lambda work: World(seed=1, seconds=60.0).run(work))
async def test_a_connection_on_which_nothing_comes_any_more_is_made_anew(world: World, /) -> None:
    """A half-open one: what is sent on it is lost without an error."""
    async with running_rig(WireLimits(backoff_first_ms=2, backoff_max_ms=4)) as rig:
        peers = make_peers(rig)
        await peers.call(SERVER, ECHO, EchoRequest("before"), 1000)
        rig.client_link.held = True
        began = world.loop.time()
        failed: list[EblaError | None] = []
        while not failed or failed[-1] is not None:
            failed.append(await _error_of(peers.call(SERVER, ECHO, EchoRequest("swallowed"), 500)))
            await asyncio.sleep(0.01)
        assert rig.transport.attempts == 2
        assert WireLimits().silent_ms_max / 1000 <= world.loop.time() - began < 6
        assert set(map(type, failed[:-1])) <= {DeadlineExceeded, ConnectionLost, Unreachable}
        assert rig.causes("wire.peer_unreachable")[0].startswith("nothing came for")
        peers.close("over")


@runs_in(lambda work: World(seed=1, seconds=60.0).run(work))
async def test_a_peer_that_answers_anything_is_not_left_however_many_deadlines_pass(world: World, /) -> None:
    async with running_rig() as rig:
        peers = make_peers(rig)
        for _ in range(20):
            assert isinstance(await _error_of(peers.call(SERVER, SLOW, EchoRequest("late"), 500)), DeadlineExceeded)
            await peers.call(SERVER, ECHO, EchoRequest("prompt"), 1000)
        assert rig.transport.attempts == 1
        peers.close("over")


@runs_in(lambda work: World(seed=1, seconds=60.0).run(work))
async def test_deadlines_that_pass_all_at_once_end_no_connection(_world: World, /) -> None:
    """So it looks to a process that was halted for a while: the answers are there and not yet read."""
    async with running_rig() as rig:
        peers = make_peers(rig)
        await peers.call(SERVER, ECHO, EchoRequest("before"), 1000)
        calls = (_error_of(peers.call(SERVER, SLOW, EchoRequest("late"), 9000)) for _ in range(10))
        assert {type(error) for error in await asyncio.gather(*calls)} == {DeadlineExceeded}
        await peers.call(SERVER, ECHO, EchoRequest("after"), 1000)
        assert rig.transport.attempts == 1
        peers.close("over")


async def _error_of(work: Awaitable[EchoAnswer]) -> EblaError | None:
    try:
        await work
    except EblaError as error:
        return error
    return None


async def test_another_host_at_the_address_is_not_used() -> None:
    async with running_rig() as rig:
        peers = make_peers(rig)
        stranger = introduction(9).host
        peers.set_address(stranger, SERVER_ADDRESS)
        with pytest.raises(Unreachable, match="looks for"):
            await peers.call(stranger, ECHO, EchoRequest(""), 1000)
        peers.close("over")


async def test_forgotten_and_moved_peers() -> None:
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
        await settled()
        assert rig.server.links_open == 0


def test_those_who_wait_for_a_forgotten_peer_are_told() -> None:
    async def run() -> None:
        async with running_rig(WireLimits(backoff_first_ms=5000, backoff_max_ms=5000)) as rig:
            rig.transport.listeners.clear()
            peers = make_peers(rig)
            with pytest.raises(Unreachable):
                await peers.call(SERVER, ECHO, EchoRequest(""), 1000)
            waiting = rig.tasks.create_task(_failure(peers))
            await settled()
            peers.forget(SERVER)
            assert "no longer a peer" in await waiting

    async def _failure(peers: Peers) -> str:
        with pytest.raises(Unreachable) as caught:
            await peers.call(SERVER, ECHO, EchoRequest(""), 60_000)
        return str(caught.value)

    asyncio.run(run())


def test_the_backoff_grows_to_its_bound_and_differs_by_chance() -> None:
    limits = WireLimits(backoff_first_ms=50, backoff_max_ms=1000)
    rng = SimRng("test")
    for failures, step in ((1, 50), (2, 100), (5, 800), (6, 1000), (10_000, 1000)):
        drawn = [backoff_ms(failures, limits, rng) for _ in range(200)]
        assert step // 2 <= min(drawn)
        assert max(drawn) <= step
        assert len(set(drawn)) > 10


async def test_a_refusal_says_that_this_host_has_left_and_no_other_failure_does() -> None:
    limits = WireLimits(backoff_first_ms=2, backoff_max_ms=4)
    async with running_rig(limits) as rig:
        peers, learned = make_peers(rig), []
        peers.on_left = lambda: learned.append("left")
        rig.server.exclude(frozenset({introduction(2).host}))
        with pytest.raises(Unreachable, match="excluded"):
            await peers.call(SERVER, ECHO, EchoRequest(""), 1000)
        assert learned == []
        rig.server.exclude(frozenset(), frozenset({introduction(2).host}))
        with pytest.raises(Unreachable, match="has left the cluster"):
            await peers.call(SERVER, ECHO, EchoRequest(""), 5000)
        assert set(learned) == {"left"}
        peers.close("over")
