"""The order to stream vnode ranges, between the coordinator and the pipeline of its node."""

import asyncio
import uuid
from typing import cast

import pytest
from tests.async_tests import settled

from ebla.control.coordinator.stream_orders import StreamOrders
from ebla.control.fault_points import FaultPoint, FaultPoints
from ebla.model.identity import SessionId, TopologyVersion
from ebla.observe.event_reporter import discard_event
from ebla.wire.fault_messages import FaultKind
from ebla.wire.server import IncomingCall
from ebla.wire.topology_messages import (
    StreamOrder,
    StreamProgress,
    StreamResult,
    StreamWatchAnswer,
    StreamWatchRequest,
)

PIPELINE_PID = 42


def order(number: int = 1) -> StreamOrder:
    return StreamOrder(
        session=SessionId(uuid.UUID(int=number)), version=TopologyVersion(number), request=uuid.UUID(int=9)
    )


def result_of(ordered: StreamOrder, ranges: int = 1) -> StreamResult:
    return StreamResult(session=ordered.session, progress=StreamProgress(ranges_done=ranges))


class Watched:
    def __init__(self) -> None:
        self.acting = {PIPELINE_PID}
        self.fault_points = FaultPoints(lambda: None, discard_event, is_enabled=True)
        self.orders = StreamOrders(lambda pid: pid in self.acting, self.fault_points)

    async def watch(
        self, seen: int, result: StreamResult | None = None, *, pid: int = PIPELINE_PID, hold_ms: int = 0
    ) -> StreamWatchAnswer:
        request = StreamWatchRequest(pid=pid, result=result, seen=seen, hold_ms=hold_ms)
        return await self.orders._watch(request, cast("IncomingCall", None))


@pytest.fixture
def watched() -> Watched:
    return Watched()


async def test_an_order_reaches_a_waiting_pipeline_at_once(watched: Watched) -> None:
    waiting = asyncio.create_task(watched.watch(0, hold_ms=60_000))
    await settled()
    assert not waiting.done()
    watched.orders.give(order())
    await settled()
    assert waiting.result() == StreamWatchAnswer(1, order())
    watched.orders.give(order())
    assert await watched.watch(1) == StreamWatchAnswer(1, order())
    watched.orders.give(None)
    assert await watched.watch(1, hold_ms=60_000) == StreamWatchAnswer(2, None)


async def test_a_pipeline_without_a_permit_gets_no_order_and_its_result_does_not_count(watched: Watched) -> None:
    watched.orders.give(order())
    assert await watched.watch(1, result_of(order()), pid=41) == StreamWatchAnswer(1, None)
    assert watched.orders.result is None
    assert await watched.watch(1, result_of(order())) == StreamWatchAnswer(1, order())
    assert watched.orders.result == result_of(order())


async def test_a_result_counts_for_the_order_it_was_made_for(watched: Watched) -> None:
    watched.orders.give(order(1))
    waiting = asyncio.create_task(watched.orders.changed.wait(60))
    await settled()
    await watched.watch(1, result_of(order(1)))
    assert await waiting
    watched.orders.give(order(2))
    assert watched.orders.result is None
    await watched.watch(1, result_of(order(1), 2))
    await watched.watch(2, result_of(order(1), 2))
    assert watched.orders.result is None
    # Given again after it was withdrawn: what the first giving achieved is reported again.
    watched.orders.give(None)
    watched.orders.give(order(2))
    await watched.watch(2, result_of(order(2)))
    assert watched.orders.result is None


async def test_a_pipeline_stops_at_the_fault_points_that_are_set(watched: Watched) -> None:
    watched.fault_points.set(FaultPoint.PURGE_PUSHED, FaultKind.PAUSE)
    assert (await watched.watch(0)).fault_points == ()
    watched.fault_points.set(FaultPoint.STREAM_OPENED, FaultKind.PAUSE)
    assert (await watched.watch(0)).fault_points == ("stream.opened",)
    request = StreamWatchRequest(pid=PIPELINE_PID, seen=0, hold_ms=0, reached="stream.opened")
    stopped = asyncio.create_task(watched.orders._watch(request, cast("IncomingCall", None)))
    await settled()
    assert not stopped.done()
    watched.fault_points.release(FaultPoint.STREAM_OPENED)
    await stopped
