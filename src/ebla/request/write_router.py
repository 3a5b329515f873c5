"""Writes on their way through a router.

A write takes the view that holds, keeps to it, and goes to every replica that is up. Its client is answered as soon as
the level is reached or cannot be; the version stays held until the last copy has ended, whatever became of the client.
Copies end by callbacks (`outbox.py`): no task runs per write.

A replica that refuses a write as stale knows a newer topology. The write then waits for that version here and goes
again, whole and with the timestamps it had, so that it does not matter what the first try left behind.

INV-ROWS-5: a read at a level that overlaps with the one of an acknowledged write shows it, or something newer.
INV-ROWS-12: whatever became of a request, the last of its copies ends in time and nothing of it is held after that.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ebla.aio.deadline_timer import DeadlineTimer
from ebla.feed.topology_view import View
from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import EblaError, InternalError, InvalidRequest, Overloaded, TooLarge
from ebla.model.identity import Replica, TopologyVersion
from ebla.observe.metrics import CounterSeries
from ebla.request.outbox import Outbox, OutboxDeps, Outboxes
from ebla.request.router_types import Mutation, RouterDeps
from ebla.request.write_call import WriteCall
from ebla.request.write_errors import WriteProgress, write_failed, write_retry_failed, write_timeout
from ebla.request.write_plan import (
    PLANS_MAX,
    FullTarget,
    SkipTargets,
    WritePlanCache,
    WriteReplicaPlan,
    choose_when_full,
    plan_without,
    too_few_replicas,
)
from ebla.wire.errors import failure_frame
from ebla.wire.row_messages import RowWrite

_DEADLINE_SLACK_MS = 5
_WRITE_OVERHEAD_BYTES = 64
"""Of a write besides its keys and values."""

SizedMutations = list[tuple[Mutation, int]]
"""Mutations with their bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """What a client asked for; `began_at` and `expires_at` by the loop's clock."""

    writes: SizedMutations
    level: ConsistencyLevel
    began_at: float
    expires_at: float


class WriteMetrics:
    """What people see of a router's writes."""

    def __init__(self, parts: RouterDeps) -> None:
        metrics = parts.metrics
        self._ended = metrics.counter("router_writes_total", "Write requests by how they ended.", labels=("end",))
        self._acknowledged = self._ended.series("acknowledged")
        self.retries: CounterSeries = metrics.counter(
            "router_write_retries_total", "Write requests sent again by a newer topology."
        ).series()
        self.left_out: CounterSeries = metrics.counter(
            "router_write_copies_left_out_total", "Copies not sent because a replica that was not needed lagged."
        ).series()
        self.in_flight = metrics.gauge("router_writes_in_flight", "Writes with a copy still under way.").series()
        self.seconds = metrics.histogram("router_write_seconds", "From request to answer.").series()

    def acknowledged(self, seconds: float) -> None:
        self._acknowledged.value += 1
        self.seconds.observe(seconds)

    def failed(self, error: EblaError) -> None:
        self._ended.series(failure_frame(0, error).error).add()


class WriteRouter:
    def __init__(self, parts: RouterDeps) -> None:
        self._parts = parts
        self._limits = parts.limits
        self._view = parts.view
        self._loop = asyncio.get_running_loop()
        self._outboxes = Outboxes(OutboxDeps(parts.clients, parts.tasks, parts.limits))
        self._counts = WriteMetrics(parts)
        self._book: WritePlanCache | None = None
        self._boxes: dict[WriteReplicaPlan, tuple[Outbox, ...]] = {}
        self._undecided: dict[WriteCall, None] = {}
        self._deadlines = DeadlineTimer(self._loop, _DEADLINE_SLACK_MS, self._expire)
        self._writes = 0
        self._bytes = 0
        self._waiting = 0

    async def write(self, mutations: Sequence[Mutation], level: ConsistencyLevel, timeout_ms: int) -> None:
        """Returns when every mutation is acknowledged at the level. Raises `TooFewReplicas` and `Overloaded` where
        nothing was sent, `WriteTimeout` and `WriteFailed` where something may be written."""
        await self.begin(mutations, level, timeout_ms)

    def begin(self, mutations: Sequence[Mutation], level: ConsistencyLevel, timeout_ms: int) -> "asyncio.Future[None]":
        """As `write`, without a task of its own: what can be refused at once raises here. Cancelling the future gives
        up waiting; what was sent goes on."""
        began_at = self._loop.time()
        try:
            request = WriteRequest(
                writes=self._sized(mutations), level=level, began_at=began_at, expires_at=began_at + timeout_ms / 1000
            )
            attempt = self._start(request)
        except EblaError as error:
            self._counts.failed(error)
            raise
        answer: asyncio.Future[None] = self._loop.create_future()
        if attempt is None:
            self._finish_in_task(request, None, answer)
        else:
            attempt.look = partial(self._looked, request, answer)
        return answer

    def _looked(self, request: WriteRequest, answer: "asyncio.Future[None]", attempt: WriteCall) -> None:
        if answer.done():
            return  # its client gave up
        if attempt.unmet:
            self._finish_in_task(request, attempt, answer)
        else:
            self._counts.acknowledged(self._loop.time() - request.began_at)
            answer.set_result(None)

    def _finish_in_task(self, request: WriteRequest, attempt: WriteCall | None, answer: "asyncio.Future[None]") -> None:
        """The few that need more than one look."""
        work = self._finish(request, attempt, answer)
        try:
            task = self._parts.tasks.create_task(work)
        except RuntimeError:  # the group takes no more tasks
            work.close()
            answer.set_exception(InternalError("this shard is stopping"))
            return
        answer.add_done_callback(lambda _: task.cancel())
        task.add_done_callback(lambda _: answer.cancel())

    async def _finish(self, request: WriteRequest, attempt: WriteCall | None, answer: "asyncio.Future[None]") -> None:
        try:
            if attempt is None:
                attempt = await self._start_when_room(request)
                await self._look(attempt)
            await self._carry_on(request, attempt)
        except EblaError as error:
            self._counts.failed(error)
            _tell(answer, error)
        except Exception as error:  # a defect must fail this write, not the shard
            _tell(answer, InternalError(f"a write broke: {error!r}"))
        else:
            self._counts.acknowledged(self._loop.time() - request.began_at)
            _tell(answer, None)

    async def _look(self, attempt: WriteCall) -> None:
        """Returns when it is decided. To be called in the step in which it was seen undecided."""
        decided: asyncio.Future[None] = self._loop.create_future()
        attempt.look = partial(_give, decided)
        await decided

    @property
    def in_flight(self) -> int:
        return self._writes

    # ---- starting

    def _sized(self, mutations: Sequence[Mutation]) -> SizedMutations:
        limits = self._limits
        if not 0 < len(mutations) <= limits.request_writes_max:
            raise InvalidRequest(f"a request has 1 to {limits.request_writes_max} writes, not {len(mutations)}")
        sized: SizedMutations = []
        for mutation in mutations:
            size = _WRITE_OVERHEAD_BYTES
            for key, value in mutation.items:
                size += len(key) + len(value)
            if size > limits.write_bytes_max:
                raise TooLarge(f"a write of {size} bytes is over the limit of {limits.write_bytes_max}")
            sized.append((mutation, size))
        return sized

    def _start(self, request: WriteRequest) -> WriteCall | None:
        """None: some replica has no room."""
        view, plans = self._plan(request)
        for plan in plans:
            for box in self._boxes_of(plan):
                if box.is_full:
                    return None
        return self._send(request, view, plans)

    def _boxes_of(self, plan: WriteReplicaPlan) -> tuple[Outbox, ...]:
        found = self._boxes.get(plan)
        if found is None:
            if len(self._boxes) >= PLANS_MAX:
                self._boxes.clear()
            found = self._boxes[plan] = tuple([self._outboxes.of(target) for target in plan.targets])
        return found

    def _plan(self, request: WriteRequest) -> tuple[View, list[WriteReplicaPlan]]:
        book = self._current_book()
        plans = []
        for mutation, _ in request.writes:
            plan = book.plan(mutation.table, mutation.token, request.level)
            if not plan.is_available:
                raise too_few_replicas(plan, request.level)
            plans.append(plan)
        return book.view, plans

    def _current_book(self) -> WritePlanCache:
        view, down, refused = self._view.current, self._view.down, self._parts.clients.refused
        book = self._book
        if book is None or not book.is_for(view, down, refused):
            book = self._book = WritePlanCache(view, self._parts.datacenter, down, refused)
            self._boxes.clear()
            self._outboxes.sweep()
        return book

    def _send(self, request: WriteRequest, view: View, plans: Sequence[WriteReplicaPlan]) -> WriteCall:
        """No await between the look at the view and the hold: a version that nobody holds may be drained."""
        version, expires_at = view.version, request.expires_at
        size = sum([size for _, size in request.writes])
        self._require_space(len(plans), size)
        attempt = WriteCall(self, version, expires_at)
        self._view.hold(version)
        for (mutation, size), plan in zip(request.writes, plans):
            write = attempt.add(mutation, plan.rule, size)
            row = RowWrite(version, mutation.table, mutation.items)
            for position, box in enumerate(self._boxes_of(plan)):
                box.add((row, size, write, position, expires_at))
        self._writes += len(plans)
        self._bytes += attempt.size
        self._counts.in_flight.value = self._writes
        self._undecided[attempt] = None
        if expires_at < self._deadlines.armed_at:
            self._deadlines.note(expires_at)
        return attempt

    def _require_space(self, writes: int, size: int) -> None:
        limits = self._limits
        if self._writes + writes > limits.writes_in_flight_max:
            raise Overloaded(f"{self._writes} writes are in flight on this shard", advice="nothing was sent; try later")
        if self._bytes + size > limits.write_bytes_in_flight_max:
            raise Overloaded(f"{self._bytes} bytes of writes are in flight on this shard", advice="try later")

    # ---- back-pressure

    async def _start_when_room(self, request: WriteRequest) -> WriteCall:
        if self._waiting >= self._limits.waiting_writes_max:
            raise Overloaded(f"{self._waiting} requests already wait for replicas that lag", advice="try later")
        self._waiting += 1
        try:
            return await self._wait_for_room(request)
        finally:
            self._waiting -= 1

    async def _wait_for_room(self, request: WriteRequest) -> WriteCall:
        lag_ends_at = self._loop.time() + self._limits.lag_wait_ms / 1000
        while True:
            view, plans = self._plan(request)
            full = self._full_boxes(plans)
            if not full:
                return self._send(request, view, plans)
            waited = self._loop.time() >= lag_ends_at
            choice = choose_when_full(plans, [FullTarget(box.target, waited or box.is_stalled()) for box in full])
            if isinstance(choice, SkipTargets):
                return self._send_without(request, view, plans, choice.targets)
            if self._loop.time() >= request.expires_at:
                raise Overloaded(
                    f"shard {choice.target.shard} of host {choice.target.host} lags and has no room for more",
                    advice="nothing was sent; try later",
                )
            until = request.expires_at if waited else min(lag_ends_at, request.expires_at)
            try:
                async with asyncio.timeout_at(until):
                    await self._outboxes.of(choice.target).wait_room()
            except TimeoutError:
                pass  # what follows from it is decided above

    def _full_boxes(self, plans: Sequence[WriteReplicaPlan]) -> list[Outbox]:
        boxes = {target: self._outboxes.of(target) for plan in plans for target in plan.targets}
        return [box for box in boxes.values() if box.is_full]

    def _send_without(
        self, request: WriteRequest, view: View, plans: Sequence[WriteReplicaPlan], left_out: frozenset[Replica]
    ) -> WriteCall:
        fewer = [plan_without(plan, left_out) for plan in plans]
        attempt = self._send(request, view, fewer)
        self._counts.left_out.add(sum(len(plan.targets) for plan in plans) - sum(len(plan.targets) for plan in fewer))
        return attempt

    # ---- what becomes of them

    async def _carry_on(self, request: WriteRequest, attempt: WriteCall) -> None:
        """Some write is not acknowledged: goes again where the topology was outdated, and raises otherwise."""
        while attempt.unmet:
            now = self._loop.time()
            if not attempt.is_stale or now >= request.expires_at:
                standing = _standing(request, attempt)
                if attempt.is_open or attempt.is_stale:
                    raise write_timeout(standing, round((now - request.began_at) * 1000))
                raise write_failed(standing)
            is_newer = await self._wait_newer(request, attempt)
            if not attempt.unmet:
                return
            if not is_newer:
                waited_ms = round((self._loop.time() - request.began_at) * 1000)
                raise write_timeout(_standing(request, attempt), waited_ms)
            attempt = await self._start_again(request, attempt)
            await self._look(attempt)

    async def _wait_newer(self, request: WriteRequest, attempt: WriteCall) -> bool:
        """Whether there is a newer view. Ends as well when the attempt is acknowledged after all."""
        wanted = TopologyVersion(attempt.version + 1)
        if self._view.current.version >= wanted:
            return True
        timeout_s = min(self._limits.refresh_ms / 1000, request.expires_at - self._loop.time())
        async with asyncio.TaskGroup() as waiting:
            newer = waiting.create_task(self._view.wait_version(wanted, timeout_s))
            newer.add_done_callback(lambda _: self.decided(attempt))
            while attempt.unmet and not newer.done():
                await self._look(attempt)
            newer.cancel()
        return not newer.cancelled() and newer.result()

    async def _start_again(self, request: WriteRequest, attempt: WriteCall) -> WriteCall:
        """Those that are not acknowledged, by the view that holds now. The attempt before goes on beside it and keeps
        its own version until its copies have ended."""
        self._counts.retries.add()
        again = replace(request, writes=[(write.mutation, write.size) for write in attempt.lacking()])
        try:
            return self._start(again) or await self._start_when_room(again)
        except EblaError as error:
            raise write_retry_failed(_standing(request, attempt), error) from error

    # ---- called by attempts and the clock

    def decided(self, attempt: WriteCall) -> None:
        self._undecided.pop(attempt, None)
        look, attempt.look = attempt.look, None
        if look is not None:
            look(attempt)

    def ended(self, attempt: WriteCall) -> None:
        self._undecided.pop(attempt, None)
        self._writes -= len(attempt.writes)
        self._bytes -= attempt.size
        self._counts.in_flight.value = self._writes
        self._view.release(attempt.version)

    def _expire(self, now: float) -> float:
        earliest = math.inf
        for attempt in list(self._undecided):
            if attempt.expires_at <= now:
                self.decided(attempt)
            elif attempt.expires_at < earliest:
                earliest = attempt.expires_at
        return earliest


def _tell(answer: "asyncio.Future[None]", error: EblaError | None) -> None:
    """Its client may have given up in this very turn of the loop."""
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)


def _give(decided: "asyncio.Future[None]", _attempt: WriteCall) -> None:
    if not decided.done():
        decided.set_result(None)


def _standing(request: WriteRequest, attempt: WriteCall) -> WriteProgress:
    acks = [write.acks for write in attempt.lacking()]
    return WriteProgress(level=request.level, writes=len(request.writes), lacking=acks, failures=attempt.failures)
