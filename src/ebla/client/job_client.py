"""Submits, reads, follows and cancels jobs of the pipeline.

A job is a key of group 0. The client writes it and may leave; the pipeline of the leader starts it.
"""

from collections.abc import AsyncIterator

import msgspec

from ebla.model.errors import InvalidRequest, NotFound, Refused
from ebla.model.identity import JobId
from ebla.model.records.jobs import (
    ENDED_STATES,
    JOBS_PREFIX,
    PIPELINE_KEY,
    JobRecord,
    JobSpec,
    JobState,
    PipelineState,
    job_key,
)
from ebla.model.stored_value import decode_stored
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.transfers.record_store import ControlCall, RecordStore
from ebla.wire.group0_pages import WatchPager
from ebla.wire.verbs import GROUP0_WATCH

LIFETIME_DEFAULT_MS = 6 * 3_600_000
WATCH_MS = 5_000
PREFIX_LETTERS_MIN = 4


class JobClient:
    def __init__(self, call: ControlCall, *, clock: Clock, rng: Rng, deadline_ms: int = 10_000) -> None:
        """`call` reaches the control process of any node."""
        self._call = call
        self._clock, self._rng = clock, rng
        self._deadline_ms = deadline_ms
        self._records = RecordStore(call, JobRecord, deadline_ms)

    # ---- reading

    async def jobs(self) -> list[JobRecord]:
        """All known jobs, in the order of submission."""
        records = await self._records.list(JOBS_PREFIX)
        return sorted((one.value for one in records.values()), key=lambda job: (job.submitted_ms, job.id))

    async def find(self, text: str) -> JobRecord:
        """By its id, or its first letters."""
        if len(text) < PREFIX_LETTERS_MIN:
            raise InvalidRequest(
                f"{text!r} is too little of a job's id", advice=f"name {PREFIX_LETTERS_MIN} letters of it or more"
            )
        alike = [job for job in await self.jobs() if str(job.id).startswith(text.lower())]
        if not alike:
            raise NotFound(f"there is no job {text!r}", advice="see `ebla pipeline jobs --all`")
        if len(alike) > 1:
            raise InvalidRequest(f"{len(alike)} jobs begin with {text!r}", advice="name more of the id")
        return alike[0]

    async def pipeline(self) -> PipelineState | None:
        """The last stored state of the pipeline; None: none has ever run."""
        found = await RecordStore(self._call, PipelineState, self._deadline_ms).read(PIPELINE_KEY)
        return None if found is None else found.value

    async def follow(self, job: JobId) -> AsyncIterator[JobRecord]:
        """Every state of the job until it has ended. Raises `NotFound` if it was deleted."""
        pages = WatchPager(job_key(job))
        while True:
            page = await self._call(GROUP0_WATCH, pages.request(WATCH_MS), WATCH_MS + self._deadline_ms)
            answer = pages.take(page)
            if answer is None:
                continue
            if answer.reset and not answer.changes:
                raise _job_not_found(job)
            for change in answer.changes:
                if change.value is None:
                    raise _job_not_found(job)
                record = decode_stored(JobRecord, change.value).value
                yield record
                if record.state in ENDED_STATES:
                    return

    # ---- changing

    async def submit(self, spec: JobSpec, what: str, life_ms: int = LIFETIME_DEFAULT_MS) -> JobRecord:
        """The job is written when this returns. Its id makes it safe to repeat the write if an answer was lost."""
        submitted_ms = self._clock.wall_us() // 1000
        job = JobRecord(id=JobId(self._rng.uuid()), spec=spec, what=what, submitted_ms=submitted_ms, life_ms=life_ms)
        # An existing job with this id is this one, since ids are random.
        await self._records.change(job_key(job.id), lambda found: job if found is None else found)
        return job

    async def cancel(self, job: JobId) -> JobRecord:
        """A job that never started is cancelled when this returns, also if no pipeline runs. Any other job gets a
        cancel request, and ends some time later."""
        written: JobRecord | None = None

        def decide(record: JobRecord | None) -> JobRecord:
            nonlocal written
            if record is None:
                raise _job_not_found(job)
            if record == written:
                return record
            if record.state in ENDED_STATES:
                raise Refused(f"job {job} has ended: it is {record.state}")
            if record.cancel_requested:
                return record
            written = msgspec.structs.replace(record, cancel_requested=True)
            if record.state is JobState.WAITING and record.session is None:
                # The pipeline writes a session before it starts a job, so nothing of this job has happened.
                ended_ms = self._clock.wall_us() // 1000
                written = msgspec.structs.replace(written, state=JobState.CANCELLED, ended_ms=ended_ms)
            return written

        cancelled = await self._records.change(job_key(job), decide)
        assert cancelled is not None, "it is never declined"
        return cancelled


def _job_not_found(job: JobId) -> NotFound:
    return NotFound(f"job {job} does not exist any more", advice="only the latest ones are kept")


def has_failed(job: JobRecord) -> bool:
    return job.state in (JobState.FAILED, JobState.CANCELLED)
