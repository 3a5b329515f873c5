"""Memory of large frames, frames that take too long, and turns of the loop."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.async_tests import real_time, runs_in, settled
from tests.unit.cql.protocol_rig import (
    AT_ONCE,
    ConnectionRig,
    Futures,
    ScriptedExecutor,
    Wired,
    execute,
    query,
    with_connection,
)

from ebla.cql.executor import StartedRequest
from ebla.cql.server.request_bounds import TURN_MS
from ebla.options import NodeLimits
from ebla.wire.cql.frames import HEADER_BYTES
from ebla.wire.cql.messages import CqlResponse

LIMITS = NodeLimits(shard_requests_bytes_max=300_000, cql_request_bytes_max=250_000, cql_frame_ms=30_000)
LARGE = query("x" * 200_000)
BODY_BYTES = len(LARGE) - HEADER_BYTES


def connections(parted: ConnectionRig, tasks: asyncio.TaskGroup, count: int) -> list[Wired]:
    made = [Wired(parted, tasks) for _ in range(count)]
    for one in made:
        one.greet()
    return made


async def test_a_large_frame_is_read_only_when_there_is_room_for_all_of_it() -> None:
    parted = ConnectionRig(limits=LIMITS)
    async with asyncio.TaskGroup() as tasks:
        first, second, third = connections(parted, tasks, 3)
        for one in (first, second, third):
            one.ask(LARGE[:1000])
        assert [one.transport.reads() for one in (first, second, third)] == [True, False, False]
        assert parted.load.bytes == BODY_BYTES
        assert first.ask(LARGE[1000:]), "it is answered, and makes room for the next"
        await settled()
        assert [one.transport.reads() for one in (first, second, third)] == [True, True, False]
        second.connection.lost()  # in the middle of its frame
        await settled()
        assert third.transport.reads()
        assert third.ask(LARGE[1000:])
        assert parted.load.bytes == 0


async def test_one_that_leaves_while_it_waits_does_not_hold_up_the_others() -> None:
    parted = ConnectionRig(limits=LIMITS)
    async with asyncio.TaskGroup() as tasks:
        first, second, third = connections(parted, tasks, 3)
        first.ask(LARGE[:1000])
        second.ask(query("y" * 240_000)[:1000])
        third.ask(query("z" * 70_000)[:1000])
        assert not third.transport.reads(), "nobody overtakes one that waits"
        second.connection.lost()
        await settled()
        assert third.transport.reads()
        first.connection.lost()
        third.connection.lost()
        assert parted.load.bytes == 0


async def test_requests_in_flight_and_frames_share_the_memory() -> None:
    futures = Futures()
    parted = ConnectionRig(execution=futures.output(), limits=LIMITS)
    async with asyncio.TaskGroup() as tasks:
        first, second = connections(parted, tasks, 2)
        first.ask(LARGE)
        second.ask(LARGE[:1000])
        assert not second.transport.reads()
        next(iter(futures.made.values())).set_result(None)
        await settled()
        assert second.transport.reads()
        second.connection.lost()


def test_a_frame_that_has_begun_is_complete_in_time_or_late() -> None:
    parted = ConnectionRig(limits=LIMITS)

    async def work(wired: Wired) -> None:
        parts = execute(stream=1)
        wired.ask(parts[:12])
        for now_ms, is_late in ((0, False), (29_999, False), (30_000, True)):
            parted.clock.now_ms = now_ms
            assert wired.connection.is_frame_late() == is_late
        wired.ask(parts[12:], parts[:5])
        assert not wired.connection.is_frame_late(), "the next one has just begun"
        wired.ask(parts[5:])
        parted.clock.now_ms = 90_000
        assert not wired.connection.is_frame_late(), "an idle client may stay"

    with_connection(work, parted)


async def test_time_in_which_a_frame_waits_for_memory_is_not_the_clients() -> None:
    parted = ConnectionRig(limits=LIMITS)
    async with asyncio.TaskGroup() as tasks:
        first, second = connections(parted, tasks, 2)
        first.ask(LARGE[:1000])
        second.ask(LARGE[:1000])
        for now_ms in (1, 40_000):
            parted.clock.now_ms = now_ms
            assert [one.connection.is_frame_late() for one in (first, second)] == [now_ms > 1, False]
        first.connection.lost()
        await settled()
        assert not second.connection.is_frame_late()
        parted.clock.now_ms = 70_000
        assert second.connection.is_frame_late()
        second.connection.lost()


@runs_in(real_time)
async def test_requests_of_one_connection_leave_turns_to_the_others() -> None:
    """Both kinds: those that are answered at once, and those that run as tasks."""
    parted = ConnectionRig()

    def slow() -> None:
        parted.clock.now_ms += TURN_MS // 2

    async def later() -> CqlResponse:
        slow()
        return AT_ONCE

    def in_task(_: str | bytes) -> Coroutine[Any, Any, CqlResponse]:
        return later()

    def at_once(_: str | bytes) -> StartedRequest:
        slow()
        return AT_ONCE

    for begin in (in_task, at_once):
        parted.execution = ScriptedExecutor(begin)
        async with asyncio.TaskGroup() as tasks:
            (wired,) = connections(parted, tasks, 1)
            answered: list[int] = []
            wired.connection.received(b"".join(execute(stream=stream) for stream in range(20)))
            while sum(answered) < 20:
                answered.append(len(wired.transport.taken()))
                await asyncio.sleep(0)
            assert max(answered) == 2, "10 ms in a row"
            assert answered.count(0) < 50, "and no more than a turn or two in between"
            wired.connection.lost()
