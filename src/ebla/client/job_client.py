"""Submits, reads, follows and cancels jobs of the pipeline.

A job is a key of group 0. The client writes it and may leave; the pipeline of the leader starts it.
"""

from collections.abc import AsyncIterator

import msgspec

from ebla.client.node_client import VerbCaller, read_all_pages
from ebla.group0.commands import CommandAnswer, ConditionFailed, Done
from ebla.model.errors import EblaError, InvalidRequest, NotFound, Outcome, Refused, Unavailable
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
from ebla.model.stored_value import StoredValue, decode_stored, encode_stored
from ebla.model.transaction import Condition, KeyMissing, KeyUnchanged, PutKey, Revision, Transaction
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.wire.group0_messages import ExecuteRequest, Group0ReadRequest
from ebla.wire.group0_pages import WatchPager
from ebla.wire.verbs import GROUP0_EXECUTE, GROUP0_WATCH

LIFETIME_DEFAULT_MS = 6 * 3_600_000
ATTEMPTS_MAX = 10
WATCH_MS = 5_000
PREFIX_LETTERS_MIN = 4


class JobClient:
    def __init__(self, call: VerbCaller, *, clock: Clock, rng: Rng, deadline_ms: int = 10_000) -> None:
        """`call` reaches the control process of any node."""
        self._call = call
        self._clock, self._rng = clock, rng
        self._deadline_ms = deadline_ms

    # ---- reading

    async def jobs(self) -> list[JobRecord]:
        """All known jobs, in the order of submission."""
        found = await read_all_pages(self._call, Group0ReadRequest(keys=(), prefixes=(JOBS_PREFIX,)), self._deadline_ms)
        jobs = [decode_stored(JobRecord, one.value).value for one in found.found]
        return sorted(jobs, key=lambda job: (job.submitted_ms, job.id))

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
        found = await read_all_pages(self._call, Group0ReadRequest(keys=(PIPELINE_KEY,)), self._deadline_ms)
        return next((decode_stored(PipelineState, one.value).value for one in found.found), None)

    async def follow(self, job: JobId) -> AsyncIterator[JobRecord]:
        """Every state of the job until it has ended. Raises `NotFound` if it was deleted."""
        pages = WatchPager(job_key(job))
        while True:
            page = await self._call(GROUP0_WATCH, pages.request(WATCH_MS), WATCH_MS + self._deadline_ms)
            answer = pages.take(page)
            if answer is None:
                continue
            if answer.reset and not answer.changes:
                raise _gone(job)
            for change in answer.changes:
                if change.value is None:
                    raise _gone(job)
                record = decode_stored(JobRecord, change.value).value
                yield record
                if record.state in ENDED_STATES:
                    return

    # ---- changing

    async def submit(self, spec: JobSpec, what: str, life_ms: int = LIFETIME_DEFAULT_MS) -> JobRecord:
        """The job is written when this returns. Its id makes it safe to repeat the write if an answer was lost."""
        submitted_ms = self._clock.wall_us() // 1000
        job = JobRecord(id=JobId(self._rng.uuid()), spec=spec, what=what, submitted_ms=submitted_ms, life_ms=life_ms)
        for number in range(ATTEMPTS_MAX):
            try:
                answer = await self._write((KeyMissing(job_key(job.id)),), StoredValue(job))
            except EblaError as error:
                if error.outcome is Outcome.NOT_APPLIED or number == ATTEMPTS_MAX - 1:
                    raise
                continue
            # An existing job with this id is this one, since ids are random.
            if isinstance(answer, Done | ConditionFailed):
                return job
            raise Refused(f"the job was not written: {answer}")
        raise AssertionError("the last try raises or returns")

    async def cancel(self, job: JobId) -> JobRecord:
        """A job that never started is cancelled when this returns, also if no pipeline runs. Any other job gets a
        cancel request, and ends some time later."""
        for _ in range(ATTEMPTS_MAX):
            stored, revision = await self._read(job)
            record = stored.value
            if record.state in ENDED_STATES:
                raise Refused(f"job {job} has ended: it is {record.state}")
            if record.cancel_requested:
                return record
            updated = msgspec.structs.replace(record, cancel_requested=True)
            if record.state is JobState.WAITING and record.session is None:
                # The pipeline writes a session before it starts a job, so nothing of this job has happened.
                ended_ms = self._clock.wall_us() // 1000
                updated = msgspec.structs.replace(updated, state=JobState.CANCELLED, ended_ms=ended_ms)
            answer = await self._write((KeyUnchanged(job_key(job), revision),), stored.with_value(updated))
            if isinstance(answer, Done):
                return updated
        raise Unavailable(f"job {job} changes too quickly to be cancelled", advice="try again")

    async def _read(self, job: JobId) -> tuple[StoredValue[JobRecord], Revision]:
        found = await read_all_pages(self._call, Group0ReadRequest(keys=(job_key(job),)), self._deadline_ms)
        if not found.found:
            raise _gone(job)
        return decode_stored(JobRecord, found.found[0].value), found.found[0].revision

    async def _write(self, conditions: tuple[Condition, ...], stored: StoredValue[JobRecord]) -> CommandAnswer:
        put = PutKey(job_key(stored.value.id), encode_stored(stored))
        request = ExecuteRequest(Transaction(conditions, (put,)))
        return (await self._call(GROUP0_EXECUTE, request, self._deadline_ms)).answer


def _gone(job: JobId) -> NotFound:
    return NotFound(f"job {job} does not exist any more", advice="only the latest ones are kept")


def has_failed(job: JobRecord) -> bool:
    return job.state in (JobState.FAILED, JobState.CANCELLED)
