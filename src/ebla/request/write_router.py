"""Routes writes to their replicas.

A write takes the current view of the topology, stays with it, and goes to every replica that is up. Its client is
answered as soon as the level is met or cannot be met any more. The version stays held until the last replica has
replied, even if the client has given up. Replies arrive by callbacks (`outbox.py`): no task runs per write.

A replica that refuses a write as stale knows a newer topology. The router then waits for that version and sends the
write again, whole and with its old timestamps, so what the first try left behind does no harm.

INV-ROWS-5: a read at a level that overlaps the level of an acknowledged write shows that write, or something newer.
INV-ROWS-12: the last replica write of every request ends in time, and nothing is held after that.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ebla.aio.deadline_timer import DeadlineTimer
from ebla.aio.long_work import LoopPauses
from ebla.feed.topology_view import View
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import (
    ConnectionLost,
    EblaError,
    InternalError,
    InvalidRequest,
    Overloaded,
    TooLarge,
    Unavailable,
)
from ebla.model.identity import Replica, TopologyVersion
from ebla.observe.metrics import CounterSeries, Metrics
from ebla.request.outbox import Outbox, Outboxes, ReplicaWrite
from ebla.request.router_types import Mutation, RouterDeps
from ebla.request.write_call import WriteCall, WriteProgress, write_failed, write_retry_failed, write_timeout
from ebla.request.write_plan import (
    PLANS_MAX,
    WritePlanCache,
    WriteReplicaPlan,
    plan_without,
    target_to_wait_for,
    too_few_replicas,
)
from ebla.wire.errors import failure_frame
from ebla.wire.row_messages import RowWrite

TURN_WRITES_MAX = 256
"""More mutations of one request are sent in several turns of the loop."""
_DEADLINE_SLACK_MS = 5
_WRITE_OVERHEAD_BYTES = 64
"""Of a write besides its keys and values."""

_SizedMutations = list[tuple[Mutation, int]]
"""Mutations with their bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WriteRequest:
    """What a client asked for; the times are the loop's."""

    writes: _SizedMutations
    level: ConsistencyLevel
    began_at: float
    expires_at: float


class WriteMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._ended = metrics.counter("router_writes_total", "Write requests by how they ended.", labels=("end",))
        self._acknowledged = self._ended.series("acknowledged")
        self.retries: CounterSeries = metrics.counter(
            "router_write_retries_total", "Write requests sent again by a newer topology."
        ).series()
        self.skipped: CounterSeries = metrics.counter(
            "router_replica_writes_skipped_total", "Replica writes not sent because an unneeded replica lagged."
        ).series()
        self.in_flight = metrics.gauge("router_writes_in_flight", "Writes with a replica still to reply.").series()
        self.seconds = metrics.histogram("router_write_seconds", "From request to answer.").series()

    def acknowledged(self, seconds: float) -> None:
        self._acknowledged.value += 1
        self.seconds.observe(seconds)

    def failed(self, error: EblaError) -> None:
        self._ended.series(failure_frame(0, error).error).add()


class WriteRouter:
    def __init__(self, deps: RouterDeps) -> None:
        self._deps = deps
        self._limits = deps.limits
        self._view = deps.view
        self._loop = asyncio.get_running_loop()
        self._outboxes = Outboxes(deps.clients, deps.tasks, deps.limits)
        self._metrics = WriteMetrics(deps.metrics)
        self._plans: WritePlanCache | None = None
        self._boxes: dict[WriteReplicaPlan, tuple[Outbox, ...]] = {}
        self._calls: dict[WriteCall, None] = {}
        """Those with a replica still to reply."""
        self._deadlines = DeadlineTimer(self._loop, _DEADLINE_SLACK_MS, self._expire)
        self._writes = 0
        self._bytes = 0
        self._waiting = 0

    def write(self, mutations: Sequence[Mutation], level: ConsistencyLevel, timeout_ms: int) -> "asyncio.Future[None]":
        """The future is done when every mutation is acknowledged at the level. It raises `TooFewReplicas` and
        `Overloaded` if nothing was sent, `WriteTimeout` and `WriteFailed` if something may be written. What can be
        refused at once raises here. `timeout_ms` is capped by the node's limit. Cancelling the future gives up waiting;
        what was sent is not taken back."""
        timeout_ms = min(timeout_ms, self._limits.write_timeout_ms_max)
        began_at = self._loop.time()
        try:
            request = _WriteRequest(
                writes=self._sized(mutations), level=level, began_at=began_at, expires_at=began_at + timeout_ms / 1000
            )
            call = self._start(request) if len(mutations) <= TURN_WRITES_MAX else None
        except EblaError as error:
            self._metrics.failed(error)
            raise
        answer: asyncio.Future[None] = self._loop.create_future()
        if call is None:
            self._finish_in_task(request, None, answer)
        else:
            call.on_decided = partial(self._answer, request, answer)
        return answer

    def _answer(self, request: _WriteRequest, answer: "asyncio.Future[None]", call: WriteCall) -> None:
        if answer.done():
            return  # its client gave up
        if call.unmet:
            self._finish_in_task(request, call, answer)
        else:
            self._metrics.acknowledged(self._loop.time() - request.began_at)
            answer.set_result(None)

    def _finish_in_task(self, request: _WriteRequest, call: WriteCall | None, answer: "asyncio.Future[None]") -> None:
        """For the few requests that have to wait for room, be sent again, or fail."""
        work = self._finish(request, call, answer)
        try:
            task = self._deps.tasks.create_task(work)
        except RuntimeError:  # the group takes no more tasks
            work.close()
            answer.set_exception(_stopping_error(call))
            return
        answer.add_done_callback(lambda _: task.cancel())
        task.add_done_callback(lambda _: answer.cancel())

    async def _finish(self, request: _WriteRequest, call: WriteCall | None, answer: "asyncio.Future[None]") -> None:
        try:
            if call is None:
                call = await self._start_when_room(request)
                await self._wait_first_decided(call)
            await self._wait_acknowledged(request, call)
        except EblaError as error:
            self._metrics.failed(error)
            _set_answer(answer, error)
        except Exception as error:  # a defect must fail this write, not the shard
            _set_answer(answer, InternalError(f"a write broke: {error!r}"))
        else:
            self._metrics.acknowledged(self._loop.time() - request.began_at)
            _set_answer(answer, None)

    async def _wait_first_decided(self, call: WriteCall) -> None:
        """A call that took several turns to send may be decided, or over time, by now."""
        if call.will_be_decided and self._loop.time() < call.expires_at:
            await self._wait_decided(call)

    async def _wait_decided(self, call: WriteCall) -> None:
        """To be called in the step in which the call was seen undecided."""
        decided: asyncio.Future[None] = self._loop.create_future()
        call.on_decided = lambda _: None if decided.done() else decided.set_result(None)
        await decided

    @property
    def in_flight(self) -> int:
        return self._writes

    # ---- starting

    def _sized(self, mutations: Sequence[Mutation]) -> _SizedMutations:
        limits = self._limits
        if not 0 < len(mutations) <= limits.request_writes_max:
            raise InvalidRequest(f"a request has 1 to {limits.request_writes_max} writes, not {len(mutations)}")
        sized: _SizedMutations = []
        for mutation in mutations:
            size = _WRITE_OVERHEAD_BYTES
            for key, value in mutation.items:
                size += len(key) + len(value)
            if size > limits.write_bytes_max:
                raise TooLarge(f"a write of {size} bytes is over the limit of {limits.write_bytes_max}")
            sized.append((mutation, size))
        return sized

    def _start(self, request: _WriteRequest) -> WriteCall | None:
        """None: some replica has no room."""
        view, plans = self._plan(request)
        for plan in plans:
            for box in self._boxes_of(plan):
                if box.is_full:
                    return None
        return self._send(request, view, plans)

    def _boxes_of(self, plan: WriteReplicaPlan) -> tuple[Outbox, ...]:
        boxes = self._boxes.get(plan)
        if boxes is None:
            if len(self._boxes) >= PLANS_MAX:
                self._boxes.clear()
            boxes = self._boxes[plan] = tuple([self._outboxes.of(target) for target in plan.targets])
        return boxes

    def _plan(self, request: _WriteRequest) -> tuple[View, list[WriteReplicaPlan]]:
        cache = self._current_plans()
        plans = []
        for mutation, _ in request.writes:
            plan = cache.plan(mutation.table, mutation.token, request.level)
            if not plan.is_available:
                raise too_few_replicas(plan, request.level)
            plans.append(plan)
        return cache.view, plans

    def _current_plans(self) -> WritePlanCache:
        view, down, refused = self._view.current, self._view.down, self._deps.clients.refused
        plans = self._plans
        if plans is None or not plans.is_for(view, down, refused):
            plans = self._plans = WritePlanCache(view, self._deps.datacenter, down, refused)
            self._boxes.clear()
            self._outboxes.sweep()
        return plans

    def _send(self, request: _WriteRequest, view: View, plans: Sequence[WriteReplicaPlan]) -> WriteCall:
        call = self._open_call(request, view, plans)
        for write, plan in zip(request.writes, plans):
            self._add(call, write, plan)
        self._metrics.in_flight.value = self._writes
        return call

    async def _send_in_turns(self, request: _WriteRequest, view: View, plans: Sequence[WriteReplicaPlan]) -> WriteCall:
        """The same for many mutations: other work of the loop runs in between. If it is cancelled, what was sent is not
        taken back."""
        call = self._open_call(request, view, plans)
        call.begin_adding()
        pauses = LoopPauses()
        try:
            for write, plan in zip(request.writes, plans):
                self._add(call, write, plan)
                await pauses.pause()
        finally:
            self._metrics.in_flight.value = self._writes
            call.end_adding()
        return call

    def _open_call(self, request: _WriteRequest, view: View, plans: Sequence[WriteReplicaPlan]) -> WriteCall:
        """Nothing awaits between taking the view and holding its version: a version that no request holds may be
        drained."""
        version, expires_at = view.version, request.expires_at
        self._require_space(len(plans), sum([size for _, size in request.writes]))
        call = WriteCall(version, expires_at, self._ended)
        self._view.hold(version)
        self._calls[call] = None
        if expires_at < self._deadlines.armed_at:
            self._deadlines.note(expires_at)
        return call

    def _add(self, call: WriteCall, write: tuple[Mutation, int], plan: WriteReplicaPlan) -> None:
        mutation, size = write
        on_reply = call.add(mutation, plan.rule, size).on_reply
        row = RowWrite(call.version, mutation.table, mutation.items)
        for position, box in enumerate(self._boxes_of(plan)):
            box.add(ReplicaWrite(row, size, on_reply, position, call.expires_at))
        self._writes += 1
        self._bytes += size

    def _require_space(self, writes: int, size: int) -> None:
        limits = self._limits
        if self._writes + writes > limits.writes_in_flight_max:
            raise Overloaded(f"{self._writes} writes are in flight on this shard", advice="nothing was sent; try later")
        if self._bytes + size > limits.write_bytes_in_flight_max:
            raise Overloaded(f"{self._bytes} bytes of writes are in flight on this shard", advice="try later")

    # ---- back-pressure

    async def _start_when_room(self, request: _WriteRequest) -> WriteCall:
        if self._waiting >= self._limits.waiting_writes_max:
            raise Overloaded(f"{self._waiting} requests already wait for replicas that lag", advice="try later")
        self._waiting += 1
        try:
            return await self._wait_for_room(request)
        finally:
            self._waiting -= 1

    async def _wait_for_room(self, request: _WriteRequest) -> WriteCall:
        lag_ends_at = self._loop.time() + self._limits.lag_wait_ms / 1000
        while True:
            view, plans = self._plan(request)
            full = self._full_boxes(plans)
            if not full:
                return await self._send_in_turns(request, view, plans)
            waited = self._loop.time() >= lag_ends_at
            target = target_to_wait_for(plans, {box.target: waited or box.is_stalled() for box in full})
            if target is None:
                return await self._send_without(request, view, plans, frozenset(box.target for box in full))
            if self._loop.time() >= request.expires_at:
                raise Overloaded(
                    f"shard {target.shard} of host {target.host} lags and has no room for more",
                    advice="nothing was sent; try later",
                )
            until = request.expires_at if waited else min(lag_ends_at, request.expires_at)
            try:
                async with asyncio.timeout_at(until):
                    await self._outboxes.of(target).wait_room()
            except TimeoutError:
                pass  # the next round decides what follows from it

    def _full_boxes(self, plans: Sequence[WriteReplicaPlan]) -> list[Outbox]:
        boxes = {target: self._outboxes.of(target) for plan in dict.fromkeys(plans) for target in plan.targets}
        return [box for box in boxes.values() if box.is_full]

    async def _send_without(
        self, request: _WriteRequest, view: View, plans: Sequence[WriteReplicaPlan], skipped: frozenset[Replica]
    ) -> WriteCall:
        fewer = [plan_without(plan, skipped) for plan in plans]
        call = await self._send_in_turns(request, view, fewer)
        self._metrics.skipped.add(sum(len(plan.targets) for plan in plans) - sum(len(plan.targets) for plan in fewer))
        return call

    # ---- sending again, failing

    async def _wait_acknowledged(self, request: _WriteRequest, call: WriteCall) -> None:
        """Some mutation is not acknowledged: sends it again if the topology was outdated, and raises otherwise."""
        while call.unmet:
            now = self._loop.time()
            if not call.is_stale or now >= request.expires_at:
                progress = _progress(request, call)
                if call.is_open or call.is_stale:
                    raise write_timeout(progress, round((now - request.began_at) * 1000))
                raise write_failed(progress)
            is_newer = await self._wait_newer(request, call)
            if not call.unmet:
                return
            if not is_newer:
                waited_ms = round((self._loop.time() - request.began_at) * 1000)
                raise write_timeout(_progress(request, call), waited_ms)
            call = await self._send_again(request, call)
            await self._wait_first_decided(call)

    async def _wait_newer(self, request: _WriteRequest, call: WriteCall) -> bool:
        """Whether there is a newer view. Also ends when the call is acknowledged after all."""
        newer_version = TopologyVersion(call.version + 1)
        if self._view.current.version >= newer_version:
            return True
        timeout_s = min(self._limits.refresh_ms / 1000, request.expires_at - self._loop.time())
        async with asyncio.TaskGroup() as waiting:
            newer = waiting.create_task(self._view.wait_version(newer_version, timeout_s))
            newer.add_done_callback(lambda _: call.wake())
            while call.unmet and not newer.done():
                await self._wait_decided(call)
            newer.cancel()
        return not newer.cancelled() and newer.result()

    async def _send_again(self, request: _WriteRequest, call: WriteCall) -> WriteCall:
        """Sends what is not acknowledged by the current view. The call before continues beside it and holds its own
        version until its replicas have replied."""
        self._metrics.retries.add()
        again = replace(request, writes=[(one.mutation, one.size) for one in call.lacking()])
        try:
            return self._start(again) or await self._start_when_room(again)
        except EblaError as error:
            raise write_retry_failed(_progress(request, call), error) from error

    # ---- called by calls and the timer

    def _ended(self, call: WriteCall) -> None:
        del self._calls[call]
        self._writes -= len(call.mutations)
        self._bytes -= call.size
        self._metrics.in_flight.value = self._writes
        self._view.release(call.version)

    def _expire(self, now: float) -> float:
        earliest = math.inf
        for call in list(self._calls):
            if call.expires_at <= now:
                call.wake()
            elif call.expires_at < earliest:
                earliest = call.expires_at
        return earliest


def _stopping_error(call: WriteCall | None) -> EblaError:
    if call is None:
        return Unavailable("this shard is stopping", advice="nothing was sent; send it to another node")
    return ConnectionLost(
        "this shard is stopping, and the write is not acknowledged yet",
        advice="it may be there or appear later; repeat it with the same timestamp on another node",
    )


def _set_answer(answer: "asyncio.Future[None]", error: EblaError | None) -> None:
    """The client may have given up in this same turn of the loop."""
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)


def _progress(request: _WriteRequest, call: WriteCall) -> WriteProgress:
    return WriteProgress(
        level=request.level, writes=len(request.writes), lacking=call.lacking(), failures=call.failures
    )
