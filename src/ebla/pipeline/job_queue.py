"""Runs the jobs in group 0 and writes their progress and result into their records.

`job_scheduler` decides; this module acts. The record is always written first: it names the session of a run before that
session is opened, and says that the run has ended only after the session was closed. So wherever this process dies, the
next one knows what to close, and a job that has ended can have no more effect.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, assert_never

import msgspec

from ebla.aio.retry import Backoff
from ebla.model.errors import EblaError, Stale
from ebla.model.identity import HostId, JobId, SessionId
from ebla.model.records.jobs import (
    ENDED_STATES,
    JOBS_PREFIX,
    PIPELINE_KEY,
    JobEvent,
    JobProgress,
    JobRecord,
    JobState,
    JobTransition,
    PipelineState,
    abandoned,
    apply_transition,
    job_key,
)
from ebla.model.stored_value import StoredValue, encode_stored
from ebla.model.transaction import PutKey, Transaction
from ebla.observe.event_reporter import EventReporter
from ebla.pipeline.job_runner import JobRunner, NewSession, is_final
from ebla.pipeline.job_scheduler import (
    UNAVAILABLE,
    ActiveJob,
    CancelJob,
    CancelWaitingJob,
    ExplainWait,
    JobLimits,
    JobStep,
    PruneJob,
    SchedulerState,
    StartJob,
    TakeOverJob,
    next_steps,
)
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.ports.transfer_engine import EngineState, PipelineUnavailable, TransferEngine
from ebla.transfers.record_store import ControlCall, WatchedRecords, WatchLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    host: HostId
    pid: int
    clock: Clock
    rng: Rng
    report: EventReporter
    limits: JobLimits = field(default_factory=JobLimits)
    records: WatchLimits = field(default_factory=WatchLimits)


class _Worker:
    """The task that works on one job. `job_runner.JobHandle`."""

    def __init__(self, confirm: Callable[[], Awaitable[None]], *, only_writes_record: bool) -> None:
        self._confirm = confirm
        self.only_writes_record = only_writes_record
        self.session: SessionId | None = None
        self.stop = asyncio.Event()
        self.progress = JobProgress()
        self.has_progress = asyncio.Event()

    def as_active(self) -> ActiveJob:
        return ActiveJob(self.session, self.stop.is_set(), self.only_writes_record)

    def report(self, progress: JobProgress) -> None:
        self.progress = progress
        self.has_progress.set()

    async def confirm(self) -> None:
        await self._confirm()


class JobQueue:
    """Runs jobs while `run` runs. A process that may no longer run jobs cancels it; the next one takes over."""

    def __init__(self, call: ControlCall, runner: JobRunner, engine: TransferEngine, config: QueueConfig) -> None:
        self._runner = runner
        self._engine = engine
        self._config = config
        self._limits = limits = config.limits
        self._backoff = Backoff(first_s=limits.backoff_first_ms / 1000, max_s=limits.backoff_max_ms / 1000)
        self._records = WatchedRecords(
            call, JobRecord, config.records, config.report, prefix=JOBS_PREFIX, key_of=lambda job: job_key(job.id)
        )
        self._workers: dict[JobId, _Worker] = {}
        self._backing_off_until: dict[JobId, int] = {}
        self._failures: dict[JobId, int] = {}
        self._wakeup = asyncio.Event()
        self._records.on_change = self._wakeup.set
        self._owner = config.rng.uuid()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._records.follow())
            tasks.create_task(self._publish_state())
            await self._records.loaded.wait()
            while True:
                self._wakeup.clear()
                for step in next_steps(self._scheduler_state(), self._limits):
                    self._take(tasks, step)
                await _wait_at_most(self._wakeup, self._limits.poll_ms)

    def _jobs(self) -> Mapping[JobId, JobRecord]:
        return {record.value.id: record.value for record in self._records.records().values()}

    # ---- steps

    def _scheduler_state(self) -> SchedulerState:
        status = self._engine.status()
        return SchedulerState(
            records=self._jobs(),
            active={job: worker.as_active() for job, worker in self._workers.items()},
            owner=self._owner,
            unavailable=None if status.state is EngineState.READY else status.cause or f"Spark is {status.state}",
            backing_off_until=self._backing_off_until,
            now_boot_ms=self._config.clock.boot_ms(),
        )

    def _take(self, tasks: asyncio.TaskGroup, step: JobStep) -> None:
        if isinstance(step, CancelJob):
            self._workers[step.job].stop.set()
            return
        assert step.job not in self._workers
        only_writes_record = not isinstance(step, StartJob | TakeOverJob)
        worker = _Worker(partial(self._confirm, step.job), only_writes_record=only_writes_record)
        self._workers[step.job] = worker
        tasks.create_task(self._work(step, worker))

    async def _work(self, step: JobStep, worker: _Worker) -> None:
        try:
            await self._do(step, worker)
        finally:
            del self._workers[step.job]
            self._wakeup.set()

    async def _do(self, step: JobStep, worker: _Worker) -> None:
        match step:
            case StartJob(job):
                await self._start(job, worker)
            case TakeOverJob(job):
                await self._take_over(job)
            case CancelWaitingJob(job):
                await self._write_event(job, lambda _: self._event(JobEvent.CANCELLED), None)
            case ExplainWait(job, cause):
                await self._records.try_change(job_key(job), lambda record: _with_cause(record, cause))
            case PruneJob(job):
                await self._records.try_delete(job_key(job))
            case CancelJob():
                raise AssertionError("handled by _take")
            case _:
                assert_never(step)

    async def _take_over(self, job: JobId) -> None:
        record = await self._records.change_until_known(job_key(job), self._with_own_id)
        if record is None:
            return
        self._config.report("job.taken_over", {"job": str(job), "session": str(record.session)})
        if record.session is not None:
            await self._runner.close(record.session)
        await self._write_event(job, lambda found: abandoned(found, self._now_ms()), record.session)

    def _with_own_id(self, record: JobRecord) -> JobRecord | None:
        return None if record.state in ENDED_STATES else msgspec.structs.replace(record, owner=self._owner)

    async def _confirm(self, job: JobId) -> None:
        """INV-XFER-1: a pipeline that takes the run over writes that before it closes the session. If it closed the
        session before it was open, the record that a quorum has now is no longer ours."""
        record = await self._records.read_until_known(job_key(job))
        if record is None or record.owner != self._owner or record.session != self._workers[job].session:
            raise Stale(f"job {job} was taken over by another pipeline")

    # ---- one run

    async def _start(self, job: JobId, worker: _Worker) -> None:
        new = self._runner.new_session()
        session = new.session
        begun = self._event(JobEvent.BEGUN, session=session, owner=self._owner)
        record = await self._records.change_until_known(
            job_key(job),
            lambda found: None if found.cancel_requested else apply_transition(found, begun, self._limits.runs_max),
        )
        if record is None:
            return
        worker.session = session
        self._config.report("job.begun", {"job": str(job), "what": record.what, "run": record.runs})
        ending = await self._run_to_end(record, new, worker)
        await self._runner.close(session)
        await self._write_event(job, lambda _: ending, session)
        self._config.report("job.ended", {"job": str(job), "how": str(ending.event), "cause": ending.cause})
        self._back_off_after(job, ending.event)

    async def _run_to_end(self, job: JobRecord, new: NewSession, worker: _Worker) -> JobTransition:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self._outcome(job, new, worker))
            stopping = tasks.create_task(worker.stop.wait())
            writing = tasks.create_task(self._write_progress(job.id, new.session, worker))
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                # The session first: from then on nothing that the engine still does for the job has an effect.
                await self._runner.close(new.session)
            was_done = running.done()
            for each in (running, stopping, writing):
                each.cancel()
        # If the run ended before the stop, or while the session was being closed, its own outcome counts. If it failed
        # because its session was closed, it was cancelled.
        if was_done and (not worker.stop.is_set() or running.result().event is JobEvent.SUCCEEDED):
            return running.result()
        return self._event(JobEvent.CANCELLED)

    async def _outcome(self, job: JobRecord, new: NewSession, worker: _Worker) -> JobTransition:
        try:
            result = await self._runner.run(job, new, worker)
        except PipelineUnavailable as error:
            return self._event(JobEvent.AWAY, cause=f"{UNAVAILABLE}: {error}")
        except EblaError as error:
            return self._event(JobEvent.REFUSED if is_final(error) else JobEvent.BROKE, cause=str(error))
        return self._event(JobEvent.SUCCEEDED, result=result)

    async def _write_progress(self, job: JobId, session: SessionId, worker: _Worker) -> None:
        def with_progress(found: JobRecord) -> JobRecord | None:
            is_ours = found.session == session and found.state is JobState.RUNNING
            return msgspec.structs.replace(found, progress=worker.progress) if is_ours else None

        while True:
            await worker.has_progress.wait()
            worker.has_progress.clear()
            await self._records.try_change(job_key(job), with_progress)
            await asyncio.sleep(self._limits.progress_ms / 1000)

    def _back_off_after(self, job: JobId, event: JobEvent) -> None:
        if event not in (JobEvent.BROKE, JobEvent.AWAY):
            self._failures.pop(job, None)
            self._backing_off_until.pop(job, None)
            return
        known = self._jobs()
        self._failures = {each: failures for each, failures in self._failures.items() if each in known}
        self._backing_off_until = {each: at_ms for each, at_ms in self._backing_off_until.items() if each in known}
        failures = self._failures[job] = self._failures.get(job, 0) + 1
        pause_ms = int(self._backoff.pause_s(failures) * 1000)
        self._backing_off_until[job] = self._config.clock.boot_ms() + pause_ms

    async def _write_event(
        self, job: JobId, event_of: Callable[[JobRecord], JobTransition], session: SessionId | None
    ) -> None:
        """Unless the record belongs to another run by now."""

        def changed(found: JobRecord) -> JobRecord | None:
            if found.session != session or (session is not None and found.owner != self._owner):
                return None
            return apply_transition(found, event_of(found), self._limits.runs_max)

        await self._records.change_until_known(job_key(job), changed)

    def _event(self, event: JobEvent, **fields: Any) -> JobTransition:
        return JobTransition(event=event, now_ms=self._now_ms(), **fields)

    # ---- the state of the pipeline

    async def _publish_state(self) -> None:
        published: PipelineState | None = None
        while True:
            status, config = self._engine.status(), self._config
            state = PipelineState(
                host=config.host,
                pid=config.pid,
                state=status.state,
                cause=status.cause,
                master=status.master,
                version=status.version,
                user_interface=status.user_interface,
            )
            if state != published:
                value = encode_stored(StoredValue(msgspec.structs.replace(state, reported_ms=self._now_ms())))
                put = Transaction((), (PutKey(PIPELINE_KEY, value),))
                published = state if await self._records.attempt(partial(self._records.execute, put)) else None
                self._wakeup.set()
            await asyncio.sleep(self._limits.poll_ms / 1000)

    def _now_ms(self) -> int:
        return self._config.clock.wall_us() // 1000


def _with_cause(job: JobRecord, cause: str) -> JobRecord | None:
    return msgspec.structs.replace(job, cause=cause) if job.state is JobState.WAITING else None


async def _wait_at_most(event: asyncio.Event, milliseconds: int) -> None:
    try:
        async with asyncio.timeout(milliseconds / 1000):
            await event.wait()
    except TimeoutError:
        pass
