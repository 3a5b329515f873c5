"""Takes jobs up as they come into group 0, runs them, and says there how they go.

What to do is decided in `job_book`; here it is done. A record goes first: it names the session of a run before that is
opened, and says that the run has ended only after it was closed. So wherever this process dies, the next one knows what
to close, and nothing of a job that has ended can still happen.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, assert_never

import msgspec

from ebla.model.errors import EblaError, Stale
from ebla.model.identity import HostId, JobId, SessionId
from ebla.model.records.jobs import ENDED_STATES, JobProgress, JobRecord, JobResult, JobState, PipelineState
from ebla.observe.event_reporter import EventReporter
from ebla.pipeline.job_records import ControlCall, JobRecords, RecordLimits
from ebla.pipeline.job_run import JobHandle, NewSession
from ebla.pipeline.job_runner import is_final
from ebla.pipeline.job_scheduler import (
    UNAVAILABLE,
    ActiveJob,
    CancelJob,
    CancelWaitingJob,
    ExplainWait,
    JobEvent,
    JobStep,
    JobTransition,
    PruneJob,
    SchedulerLimits,
    SchedulerState,
    StartJob,
    TakeOverJob,
    abandoned,
    apply_transition,
    next_steps,
)
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.ports.transfer_engine import EngineState, PipelineUnavailable, TransferEngine


class JobRunnerPort(Protocol):
    """`job_runner.JobRunner` is one."""

    def draw(self) -> NewSession: ...

    async def run(self, job: JobRecord, drawn: NewSession, handle: JobHandle) -> JobResult: ...

    async def close(self, session: SessionId) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    book: SchedulerLimits = field(default_factory=SchedulerLimits)
    records: RecordLimits = field(default_factory=RecordLimits)
    poll_ms: int = 1_000
    """At the latest so often is looked what to do, and how the engine is."""
    progress_ms: int = 1_000
    """A job's progress is written at most so often."""
    backoff_first_ms: int = 2_000
    """Before a job that broke is begun again; twice as long after each further time."""
    backoff_max_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    host: HostId
    pid: int
    clock: Clock
    rng: Rng
    report: EventReporter
    limits: QueueLimits = field(default_factory=QueueLimits)


class _Seat:
    """What is at work on one job. `runs.Attendant`."""

    def __init__(self, confirm: Callable[[], Awaitable[None]], *, only_writes_record: bool) -> None:
        self._confirm = confirm
        self.only_writes_record = only_writes_record
        self.session: SessionId | None = None
        self.end = asyncio.Event()
        self.progress = JobProgress()
        self.moved = asyncio.Event()

    def as_attended(self) -> ActiveJob:
        return ActiveJob(self.session, self.end.is_set(), self.only_writes_record)

    def tell(self, progress: JobProgress) -> None:
        self.progress = progress
        self.moved.set()

    async def confirm(self) -> None:
        await self._confirm()


class JobQueue:
    """Acts as long as `run` runs: whoever may not act any more cancels it, and the next one takes over."""

    def __init__(self, ask: ControlCall, runner: JobRunnerPort, transfers: TransferEngine, setup: QueueConfig) -> None:
        self._runner = runner
        self._transfers = transfers
        self._setup = setup
        self._limits = setup.limits
        self._records = JobRecords(ask, setup.limits.records, setup.report)
        self._seats: dict[JobId, _Seat] = {}
        self._resting: dict[JobId, int] = {}
        self._broken: dict[JobId, int] = {}
        self._seen: dict[JobId, tuple[object, int]] = {}
        """Runs of others: whose, and since when."""
        self._woken = asyncio.Event()
        self._records.on_change = self._woken.set
        self._keeper = setup.rng.uuid()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._records.follow())
            tasks.create_task(self._tell_state())
            await self._records.loaded.wait()
            while True:
                self._woken.clear()
                for step in next_steps(self._scene(), self._limits.book):
                    self._take(tasks, step)
                await _set_within(self._woken, self._limits.poll_ms)

    # ---- what to do

    def _scene(self) -> SchedulerState:
        status, jobs, now_ms = self._transfers.status(), self._records.jobs(), self._setup.clock.boot_ms()
        runs = {job: (record.session, record.owner) for job, record in jobs.items() if job not in self._seats}
        known = {job: self._seen.get(job, (None, 0)) for job in runs}
        self._seen = {job: known[job] if known[job][0] == run else (run, now_ms) for job, run in runs.items()}
        return SchedulerState(
            records=jobs,
            active={job: seat.as_attended() for job, seat in self._seats.items()},
            owner=self._keeper,
            unavailable=None if status.state is EngineState.READY else status.cause or f"Spark is {status.state}",
            backing_off_until=self._resting,
            now_boot_ms=now_ms,
            foreign_since_ms={job: since_ms for job, (_, since_ms) in self._seen.items()},
        )

    def _take(self, tasks: asyncio.TaskGroup, step: JobStep) -> None:
        if isinstance(step, CancelJob):
            self._seats[step.job].end.set()
            return
        assert step.job not in self._seats
        only_writes_record = not isinstance(step, StartJob | TakeOverJob)
        seat = self._seats[step.job] = _Seat(partial(self._confirm, step.job), only_writes_record=only_writes_record)
        tasks.create_task(self._seated(step, seat))

    async def _seated(self, step: JobStep, seat: _Seat) -> None:
        try:
            await self._do(step, seat)
        finally:
            del self._seats[step.job]
            self._woken.set()

    async def _do(self, step: JobStep, seat: _Seat) -> None:
        match step:
            case StartJob(job):
                await self._attend(job, seat)
            case TakeOverJob(job):
                await self._take_over(job)
            case CancelWaitingJob(job):
                await self._note(job, JobTransition(event=JobEvent.CANCELLED, now_ms=self._now_ms()), None)
            case ExplainWait(job, cause):
                await self._records.try_write(job, lambda record: _explained(record, cause))
            case PruneJob(job):
                await self._records.delete(job)
            case CancelJob():
                raise AssertionError("it is taken at once")
            case _:
                assert_never(step)

    async def _take_over(self, job: JobId) -> None:
        record = await self._records.write(job, self._ours_to_end)
        if record is None:
            return
        self._setup.report("job.taken_over", {"job": str(job), "session": str(record.session)})
        if record.session is not None:
            await self._runner.close(record.session)
        await self._note(job, lambda found: abandoned(found, self._now_ms()), record.session)

    def _ours_to_end(self, record: JobRecord) -> JobRecord | None:
        return None if record.state in ENDED_STATES else msgspec.structs.replace(record, owner=self._keeper)

    async def _confirm(self, job: JobId) -> None:
        """INV-XFER-1: a pipeline that took the run over has written so before it closed the session. If it did that
        before the session was there to be closed, the record, as a quorum knows it now, is no longer ours."""
        record = await self._records.reread(job)
        if record is None or record.owner != self._keeper or record.session != self._seats[job].session:
            raise Stale(f"job {job} was taken over by another pipeline")

    # ---- one run

    async def _attend(self, job: JobId, seat: _Seat) -> None:
        drawn = self._runner.draw()
        session = drawn.session
        begun = JobTransition(event=JobEvent.BEGUN, now_ms=self._now_ms(), session=session, owner=self._keeper)
        record = await self._records.write(
            job, lambda found: None if found.cancel_requested else apply_transition(found, begun, self._limits.book)
        )
        if record is None:
            return
        seat.session = session
        self._setup.report("job.begun", {"job": str(job), "what": record.what, "run": record.runs})
        ending = await self._run_to_end(record, drawn, seat)
        await self._runner.close(session)
        await self._note(job, ending, session)
        self._setup.report("job.ended", {"job": str(job), "how": str(ending.event), "cause": ending.cause})
        self._rest_after(job, ending.event)

    async def _run_to_end(self, job: JobRecord, drawn: NewSession, seat: _Seat) -> JobTransition:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self._outcome(job, drawn, seat))
            asked = tasks.create_task(seat.end.wait())
            writing = tasks.create_task(self._write_progress(job.id, drawn.session, seat))
            await asyncio.wait((running, asked), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                # First the session: from then on what the engine still does for the job, for however long, is void.
                await self._runner.close(drawn.session)
            was_done = running.done()
            for each in (running, asked, writing):
                each.cancel()
        # A run that had come to its end before it was asked to stop, or while the session was being closed, is what
        # has happened. One that the closed session broke is what was asked for.
        if was_done and (not seat.end.is_set() or running.result().event is JobEvent.SUCCEEDED):
            return running.result()
        return JobTransition(event=JobEvent.CANCELLED, now_ms=self._now_ms())

    async def _outcome(self, job: JobRecord, drawn: NewSession, seat: _Seat) -> JobTransition:
        try:
            result = await self._runner.run(job, drawn, seat)
        except PipelineUnavailable as error:
            return JobTransition(event=JobEvent.AWAY, now_ms=self._now_ms(), cause=f"{UNAVAILABLE}: {error}")
        except EblaError as error:
            event = JobEvent.REFUSED if is_final(error) else JobEvent.BROKE
            return JobTransition(event=event, now_ms=self._now_ms(), cause=str(error))
        return JobTransition(event=JobEvent.SUCCEEDED, now_ms=self._now_ms(), result=result)

    async def _write_progress(self, job: JobId, session: SessionId, seat: _Seat) -> None:
        def with_progress(found: JobRecord) -> JobRecord | None:
            ours = found.session == session and found.state is JobState.RUNNING
            return msgspec.structs.replace(found, progress=seat.progress) if ours else None

        while True:
            await seat.moved.wait()
            seat.moved.clear()
            await self._records.try_write(job, with_progress)
            await asyncio.sleep(self._limits.progress_ms / 1000)

    def _rest_after(self, job: JobId, event: JobEvent) -> None:
        if event not in (JobEvent.BROKE, JobEvent.AWAY):
            self._broken.pop(job, None)
            self._resting.pop(job, None)
            return
        known = self._records.jobs()
        self._broken = {each: times for each, times in self._broken.items() if each in known}
        self._resting = {each: until_ms for each, until_ms in self._resting.items() if each in known}
        times = self._broken[job] = self._broken.get(job, 0) + 1
        rest_ms = min(self._limits.backoff_max_ms, self._limits.backoff_first_ms << min(times - 1, 20))
        self._resting[job] = self._setup.clock.boot_ms() + rest_ms

    async def _note(
        self, job: JobId, change: JobTransition | Callable[[JobRecord], JobTransition], session: SessionId | None
    ) -> None:
        """Unless the record is another run's by now."""

        def noted(found: JobRecord) -> JobRecord | None:
            if found.session != session or (session is not None and found.owner != self._keeper):
                return None
            return apply_transition(found, change(found) if callable(change) else change, self._limits.book)

        await self._records.write(job, noted)

    # ---- how the pipeline is

    async def _tell_state(self) -> None:
        told: PipelineState | None = None
        while True:
            status, setup = self._transfers.status(), self._setup
            state = PipelineState(
                host=setup.host,
                pid=setup.pid,
                state=status.state,
                cause=status.cause,
                master=status.master,
                version=status.version,
                user_interface=status.user_interface,
            )
            if state != told:
                now = msgspec.structs.replace(state, reported_ms=self._now_ms())
                told = state if await self._records.publish_state(now) else None
                self._woken.set()
            await asyncio.sleep(self._limits.poll_ms / 1000)

    def _now_ms(self) -> int:
        return self._setup.clock.wall_us() // 1000


def _explained(job: JobRecord, cause: str) -> JobRecord | None:
    return msgspec.structs.replace(job, cause=cause) if job.state is JobState.WAITING else None


async def _set_within(event: asyncio.Event, milliseconds: int) -> None:
    try:
        async with asyncio.timeout(milliseconds / 1000):
            await event.wait()
    except TimeoutError:
        pass
