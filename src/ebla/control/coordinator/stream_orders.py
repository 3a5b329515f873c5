"""The coordinator's order to stream vnode ranges, and how far the pipeline of this node is with it.

Control and pipeline are two processes. The pipeline watches for an order by long polls, and reports with each of them.
The order is not written to group 0: the topology's rows say what has to be streamed, and the next leader gives the
order again.
"""

import asyncio
from collections.abc import Callable

from ebla.aio.wakeup import Wakeup
from ebla.control.fault_points import FaultPoint, FaultPoints
from ebla.wire.server import IncomingCall, Server
from ebla.wire.topology_messages import StreamOrder, StreamResult, StreamWatchAnswer, StreamWatchRequest
from ebla.wire.verbs import STREAM_WATCH

STREAM_POINTS = "stream."
"""The prefix of the fault points that the pipeline reaches."""


class StreamOrders:
    def __init__(self, is_acting: Callable[[int], bool], fault_points: FaultPoints) -> None:
        """`is_acting`: whether the process with this pid acts as the pipeline, under the current permit."""
        self._is_acting = is_acting
        self._fault_points = fault_points
        self._order: StreamOrder | None = None
        self._number = 0
        self._ordered = Wakeup()
        self.result: StreamResult | None = None
        """The latest, of the current order. None: the pipeline has not reported yet."""
        self.changed = Wakeup()
        """Of `result`."""

    def give(self, order: StreamOrder | None) -> None:
        """None: end what runs. The same order again changes nothing."""
        if order == self._order:
            return
        self._order, self.result = order, None
        self._number += 1
        self._ordered.wake()

    def serve_on(self, server: Server) -> None:
        server.serve(STREAM_WATCH, self._watch)

    async def _watch(self, request: StreamWatchRequest, _call: IncomingCall) -> StreamWatchAnswer:
        if request.reached:
            await self._fault_points.reach(FaultPoint(request.reached))
        self._take(request)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + request.hold_ms / 1000
        while request.seen == self._number and loop.time() < until_s:
            await self._ordered.wait(until_s - loop.time())
        # A process without a permit may not act, whatever it has seen.
        order = self._order if self._is_acting(request.pid) else None
        return StreamWatchAnswer(self._number, order, self._fault_points.set_points(STREAM_POINTS))

    def _take(self, request: StreamWatchRequest) -> None:
        """By number, not by session alone: an order that was withdrawn and given again has been begun by nobody yet."""
        result, order = request.result, self._order
        if result is None or order is None or request.seen != self._number or result.session != order.session:
            return
        if self._is_acting(request.pid) and result != self.result:
            self.result = result
            self.changed.wake()
