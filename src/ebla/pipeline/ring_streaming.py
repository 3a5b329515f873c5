"""Streams the ranges that nodes gain by a ring change, by order of the topology coordinator.

It runs under the session of the topology's request, which commits of the coordinator open and close. It repeats what
failed until everything is adopted, and reports how far it is. What to do about an error that no repeat can cure is for
the coordinator to decide.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from ebla.aio.retry import Backoff
from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import Corruption, DeadlineExceeded, DiskFull, EblaError, Fault, Stale, leaf_errors
from ebla.model.identity import JobId, TopologyVersion, TransferId
from ebla.model.records.jobs import JobProgress
from ebla.pipeline.ring_copies import ring_copies
from ebla.ports.transfer_engine import EngineState, PipelineUnavailable, SourceDamaged, TransferEngine, WorkFailed
from ebla.topology.snapshot import Snapshot
from ebla.transfers.token_ranges import format_range
from ebla.transfers.transfer_client import TransferClient
from ebla.transfers.transfer_run import (
    ProgressMeter,
    RowCopy,
    TransferObserver,
    TransferPlace,
    TransferRun,
    TransferStep,
    TransferTotals,
)
from ebla.wire.topology_messages import (
    StreamOrder,
    StreamProgress,
    StreamResult,
    StreamWatchAnswer,
    StreamWatchRequest,
)

BACKOFF = Backoff(first_s=1.0, max_s=30.0)
"""Between repeats of what failed."""
VERSION_WAIT_S = 30.0
ENGINE_WAIT_S = 0.5
"""Between two looks at Spark while it is unavailable."""
BATCH_COPIES = 64
"""With staging and checkpoints at the same time."""
JOB_BYTES = 48 << 20
"""Of one job of Spark: the next leader moves again what two of them had in progress."""
WATCH_RETRY_S = 0.2
CANCEL_AGAIN_S = 1.0
HOLD_MS = 1_000
"""Of a watch, and so the time between two reports of progress."""
FAULT_PAUSE_MS = 610_000
"""For a call that a fault point of control may delay."""
_FINAL_CAUSES = (DiskFull.__name__, SourceDamaged.__name__)
"""Of a task that failed. Its sources are only read, so the disk that is full is that of its target."""


class PlanOutdated(EblaError):
    """A node was excluded or recovered, or a table dropped: plan again. What was adopted stays adopted."""

    fault = Fault.US
    is_transient = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamContext:
    client: TransferClient
    engine: TransferEngine
    topology: TopologyView


class RingStreaming(TransferObserver):
    """One order, from its plan to the last adoption."""

    def __init__(
        self, context: StreamContext, order: StreamOrder, reach: Callable[[TransferStep], Awaitable[None]]
    ) -> None:
        self._context = context
        self._order = order
        self._reach = reach
        self._done: dict[TransferId, None] = {}
        self._copies: tuple[RowCopy, ...] = ()
        self._remaining: tuple[RowCopy, ...] = ()
        """When the current attempt began."""
        self._attempt = JobProgress()
        """Of the current attempt."""
        self._adopted_bytes = self._adopted_before = 0
        """In all, and before the current attempt."""
        self._failed: list[tuple[TransferPlace, EblaError]] = []
        self.result = StreamResult(session=order.session, progress=StreamProgress())

    async def run(self) -> None:
        """Until everything is adopted, or an error is final. `result` says which."""
        failures = 0
        while True:
            done_before, self._failed = len(self._done), []
            try:
                await self._stream()
            except PlanOutdated:
                continue
            except PipelineUnavailable as error:
                self._update(unavailable=error.message)
                await asyncio.sleep(ENGINE_WAIT_S)
                continue
            except EblaError as error:
                failures = 1 if len(self._done) > done_before else failures + 1
                is_final = self._is_final(error)
                self._update(error=self._describe(error), is_final=is_final)
                if is_final:
                    return
            else:
                self._update(is_done=True, error="", progress=self._progress(self._attempt))
                return
            await asyncio.sleep(BACKOFF.pause_s(failures))

    # ---- one attempt

    async def _stream(self) -> None:
        """Raises `PlanOutdated`, `PipelineUnavailable`, and any other `EblaError` if a transfer failed."""
        context, order = self._context, self._order
        if not await context.topology.wait_version(order.version, VERSION_WAIT_S):
            raise DeadlineExceeded(f"version {order.version} of the topology has not reached the pipeline in time")
        view = context.topology.current
        if view.snapshot.state.session != order.session:
            raise Stale(f"session {order.session} is not that of the topology any more", advice="the operation is over")
        self._copies = ring_copies(view.snapshot, tuple(view.schemas), order.session)
        self._remaining = tuple(copy for copy in self._copies if copy.transfers[0] not in self._done)
        self._attempt, self._adopted_before = JobProgress(), self._adopted_bytes
        if not self._remaining:
            return
        status = context.engine.status()
        if status.state is not EngineState.READY:
            raise PipelineUnavailable(status.cause, advice="it is restarted automatically")
        self._update(unavailable="", progress=self._progress(self._attempt))
        run = TransferRun(
            job=JobId(order.request),
            session=order.session,
            client=context.client,
            engine=context.engine,
            topology=context.topology,
            meter=ProgressMeter(self._moved),
            ranges_at_once_max=BATCH_COPIES,
            job_bytes_max=JOB_BYTES,
            observer=self,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch_plan(view))
                await run.copy_rows(self._remaining, "streaming ranges")
                watching.cancel()
        except BaseExceptionGroup as group:
            raise next(leaf_errors(group)) from group

    async def _watch_plan(self, planned: View) -> None:
        """Otherwise: a source is excluded because it is dead, and the run waits for its answer until it gives up."""
        view = planned
        while True:
            await self._context.topology.wait_version(TopologyVersion(view.version + 1), VERSION_WAIT_S)
            view = self._context.topology.current
            if is_outdated(planned.snapshot, view.snapshot, self._remaining):
                raise PlanOutdated(f"the plan of version {planned.version} is outdated")

    # ---- what the run reports

    async def reach(self, step: TransferStep) -> None:
        await self._reach(step)

    def copied(self, copies: Sequence[RowCopy], totals: TransferTotals) -> None:
        self._done |= dict.fromkeys(copy.transfers[0] for copy in copies)
        self._adopted_bytes += totals.size_bytes
        self._update(error="", progress=self._progress(self._attempt))

    def failed(self, place: TransferPlace, error: EblaError) -> None:
        self._failed.append((place, error))

    def _moved(self, progress: JobProgress) -> None:
        self._attempt = progress
        self._update(progress=self._progress(progress))

    def _progress(self, attempt: JobProgress) -> StreamProgress:
        """Of the bytes of all transfers only those that have begun are known; the others are taken to be like them."""
        begun_max = len([copy for copy in self._remaining if self._is_done(copy)]) + BATCH_COPIES
        begun, all_ranges = _ranges(self._remaining[:begun_max]), _ranges(self._remaining)
        expected = attempt.bytes_total * all_ranges // begun if begun else 0
        return StreamProgress(
            bytes_moved=self._adopted_before + attempt.bytes_done,
            bytes_total=self._adopted_before + max(expected, attempt.bytes_done),
            ranges_done=_ranges([copy for copy in self._copies if self._is_done(copy)]),
            ranges_total=_ranges(self._copies),
        )

    def _is_done(self, copy: RowCopy) -> bool:
        return copy.transfers[0] in self._done

    def _update(self, **changes: object) -> None:
        self.result = msgspec.structs.replace(self.result, **changes)

    # ---- errors

    def _place_of(self, error: EblaError) -> TransferPlace | None:
        if isinstance(error, WorkFailed):
            copy = next((one for one in self._copies if str(one.transfers[0]) == error.transfer), None)
            if copy is None:
                return None
            return TransferPlace(table=copy.table, range=copy.range, host=copy.targets[0].host, is_source=False)
        return next((place for place, raised in self._failed if raised is error), None)

    def _is_final(self, error: EblaError) -> bool:
        """No room on the disk of a target, or damaged data of a source. What was damaged on its way is sent again."""
        if isinstance(error, WorkFailed):
            return error.cause in _FINAL_CAUSES
        place = self._place_of(error)
        if place is None:
            return False
        return isinstance(error, Corruption if place.is_source else DiskFull)

    def _describe(self, error: EblaError) -> str:
        place = self._place_of(error)
        if place is None:
            return str(error)
        snapshot = self._context.topology.current.snapshot
        table, node = snapshot.tables.get(place.table), snapshot.nodes.get(place.host)
        name = str(place.table) if table is None else table.full_name
        host = str(place.host) if node is None else node.address
        return f"{name} {format_range(place.range)} {'from' if place.is_source else 'to'} {host}: {error}"


def _ranges(copies: Sequence[RowCopy]) -> int:
    return sum(len(copy.parts) for copy in copies)


def is_outdated(planned: Snapshot, current: Snapshot, copies: Sequence[RowCopy]) -> bool:
    """Whether a plan of these copies would be another one now."""
    if planned.state.ignored_nodes != current.state.ignored_nodes:
        return True
    return any(copy.table not in current.tables for copy in copies)


CallControl = Callable[[StreamWatchRequest, int], Awaitable[StreamWatchAnswer]]
"""With the time for the call in ms."""


class StreamWatcher:
    """Follows the orders of the node's own control, runs them, and reports."""

    def __init__(self, context: StreamContext, control: CallControl, pid: int) -> None:
        self._context = context
        self._control = control
        self._pid = pid
        self._number = 0
        self._order: StreamOrder | None = None
        self._streaming: RingStreaming | None = None
        self._running: asyncio.Task[None] | None = None
        self._fault_points: tuple[str, ...] = ()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            try:
                while True:
                    await self._watch(tasks)
            except asyncio.CancelledError:
                await self._end_run()
                raise

    async def _watch(self, tasks: asyncio.TaskGroup) -> None:
        try:
            answer = await self._control(self._request(self._streaming, HOLD_MS), 2 * HOLD_MS)
        except EblaError:
            await asyncio.sleep(WATCH_RETRY_S)
            return
        self._fault_points = answer.fault_points
        if answer.number == self._number and answer.order == self._order:
            return
        await self._end_run()
        self._number, self._order = answer.number, answer.order
        if answer.order is not None:
            self._streaming = RingStreaming(self._context, answer.order, self._reach)
            self._running = tasks.create_task(self._stream(self._streaming))

    async def _end_run(self) -> None:
        """Cancels it until it has ended: a task group whose tasks fail in the turn in which it is cancelled raises
        their errors, and the cancellation is lost. That happens when the permit ends: calls fail for that, too."""
        while self._running is not None and not self._running.done():
            self._running.cancel()
            await asyncio.wait([self._running], timeout=CANCEL_AGAIN_S)
        self._streaming = self._running = None

    async def _stream(self, streaming: RingStreaming) -> None:
        await streaming.run()
        # At once: the watch may be in the middle of its hold. It reports again, should this fail.
        try:
            await self._control(self._request(streaming, 0), 2 * HOLD_MS)
        except EblaError:
            pass

    async def _reach(self, step: TransferStep) -> None:
        """Control has the fault points of the node. The answer may take as long as a test wants, so nothing is sent
        where no point is set: the run would wait as long for an answer that is lost."""
        point = f"stream.{step}"
        if point in self._fault_points:
            await self._control(msgspec.structs.replace(self._request(None, 0), reached=point), FAULT_PAUSE_MS)

    def _request(self, streaming: RingStreaming | None, hold_ms: int) -> StreamWatchRequest:
        return StreamWatchRequest(
            pid=self._pid,
            result=None if streaming is None else streaming.result,
            seen=self._number,
            hold_ms=hold_ms,
        )
