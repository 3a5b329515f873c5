"""The jobs of group 0 as this process knows them: followed by a watch, and written if nobody else has meanwhile.

Whoever writes names the revision that it has seen. So two pipelines that both believe to serve, for a moment after the
lead has passed on, cannot undo what the other wrote; the one that lost finds out and lets go.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ebla.group0.commands import Done
from ebla.model.errors import EblaError
from ebla.model.identity import JobId
from ebla.model.records.jobs import JOBS_PREFIX, PIPELINE_KEY, JobRecord, PipelineState, job_key
from ebla.model.stored_value import StoredValue, decode_stored, encode_stored
from ebla.model.transaction import Change, Condition, DeleteKey, KeyUnchanged, PutKey, Revision, Transaction
from ebla.observe.event_reporter import EventReporter
from ebla.wire.group0_messages import ExecuteRequest, Group0ReadRequest, WatchAnswer
from ebla.wire.group0_pages import WatchPager
from ebla.wire.verbs import GROUP0_EXECUTE, GROUP0_READ, GROUP0_WATCH, A, Q, Verb


class ControlCall(Protocol):
    async def __call__(self, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A: ...


@dataclass(frozen=True, slots=True)
class RecordLimits:
    watch_ms: int = 10_000
    """How long control may hold a question that has nothing to tell."""
    answer_ms: int = 10_000
    retry_ms: int = 500
    """The pause after a call that failed."""


@dataclass(frozen=True, slots=True)
class _Kept:
    stored: StoredValue[JobRecord]
    revision: Revision


class JobRecords:
    def __init__(self, ask: ControlCall, limits: RecordLimits, report: EventReporter) -> None:
        self._ask = ask
        self._limits = limits
        self._report = report
        self._kept: dict[JobId, _Kept] = {}
        self.loaded = asyncio.Event()
        self.on_change: Callable[[], None] = _nothing

    def jobs(self) -> Mapping[JobId, JobRecord]:
        return {job_id: kept.stored.value for job_id, kept in self._kept.items()}

    # ---- following

    async def follow(self) -> None:
        """Until cancelled."""
        limits = self._limits
        pages = WatchPager(JOBS_PREFIX)
        while True:
            try:
                told = await self._ask(GROUP0_WATCH, pages.request(limits.watch_ms), limits.watch_ms + limits.answer_ms)
                answer = pages.take(told)
            except EblaError:
                pages = WatchPager(JOBS_PREFIX)
                await asyncio.sleep(limits.retry_ms / 1000)
                continue
            if answer is not None:
                self._take(answer)

    def _take(self, answer: WatchAnswer) -> None:
        if answer.reset:
            there = {change.key for change in answer.changes}
            gone = [job for job, kept in self._kept.items() if job_key(job) not in there and _before(kept, answer)]
            for job in gone:
                del self._kept[job]
        for change in answer.changes:
            self._heard(change.key, change.value, Revision(answer.revision.history, change.index))
        self.loaded.set()
        self.on_change()

    def _heard(self, key: str, value: bytes | None, revision: Revision) -> None:
        """What this process wrote it knows before it is told, and is not told out of it again."""
        stored = None if value is None else self._decoded(key, value)
        job = next((job for job in self._kept if job_key(job) == key), None) if stored is None else stored.value.id
        known = None if job is None else self._kept.get(job)
        if known is not None and known.revision.history == revision.history and known.revision.index >= revision.index:
            return
        if stored is not None:
            self._kept[stored.value.id] = _Kept(stored, revision)
        elif job is not None:
            del self._kept[job]

    def _decoded(self, key: str, value: bytes) -> StoredValue[JobRecord] | None:
        """None for what a newer release has written in a way that this one cannot read: it is none of its jobs."""
        try:
            stored = decode_stored(JobRecord, value)
        except (msgspec.MsgspecError, ValueError) as error:
            self._report("jobs.unreadable", {"key": key, "cause": str(error)})
            return None
        return stored if job_key(stored.value.id) == key else None

    # ---- writing

    async def write(self, job: JobId, change: Callable[[JobRecord], JobRecord | None]) -> JobRecord | None:
        """The record as it was written; None where it is gone or `change` has no place on what it is by then. Tries
        until it knows."""
        tried: JobRecord | None = None
        while True:
            kept = self._kept.get(job)
            if kept is None:
                return None
            if tried is not None and kept.stored.value == tried:
                return tried  # an answer that was lost
            wanted = change(kept.stored.value)
            if wanted is None:
                return None
            if wanted == kept.stored.value or await self._write_once(job, kept, wanted):
                return wanted
            tried = wanted
            await self.reread(job)

    async def try_write(self, job: JobId, change: Callable[[JobRecord], JobRecord | None]) -> None:
        """Once; what comes of it the watch will tell."""
        kept = self._kept.get(job)
        wanted = None if kept is None else change(kept.stored.value)
        if kept is not None and wanted is not None and wanted != kept.stored.value:
            await self._write_once(job, kept, wanted)

    async def delete(self, job: JobId) -> None:
        kept = self._kept.get(job)
        if kept is not None:
            key = job_key(job)
            if await self._execute((KeyUnchanged(key, kept.revision),), DeleteKey(key)) is not None:
                self._kept.pop(job, None)

    async def publish_state(self, state: PipelineState) -> bool:
        return await self._execute((), PutKey(PIPELINE_KEY, encode_stored(StoredValue(state)))) is not None

    async def _write_once(self, job: JobId, kept: _Kept, wanted: JobRecord) -> bool:
        key = job_key(job)
        stored = kept.stored.with_value(wanted)
        revision = await self._execute((KeyUnchanged(key, kept.revision),), PutKey(key, encode_stored(stored)))
        if revision is None:
            return False
        self._kept[job] = _Kept(stored, revision)
        return True

    async def _execute(self, conditions: tuple[Condition, ...], change: Change) -> Revision | None:
        """None: it was not applied, or nobody knows."""
        request = ExecuteRequest(Transaction(conditions, (change,)))
        try:
            answer = (await self._ask(GROUP0_EXECUTE, request, self._limits.answer_ms)).answer
        except EblaError:
            await asyncio.sleep(self._limits.retry_ms / 1000)
            return None
        return answer.revision if isinstance(answer, Done) else None

    async def reread(self, job: JobId) -> JobRecord | None:
        """As a quorum knows it; None: it is gone."""
        key = job_key(job)
        while True:
            try:
                answer = await self._ask(GROUP0_READ, Group0ReadRequest(keys=(key,)), self._limits.answer_ms)
            except EblaError:
                await asyncio.sleep(self._limits.retry_ms / 1000)
                continue
            found = next((one for one in answer.found if one.key == key), None)
            if found is None:
                self._kept.pop(job, None)
            else:
                self._heard(key, found.value, found.revision)
            kept = self._kept.get(job)
            return None if kept is None else kept.stored.value


def _before(kept: _Kept, answer: WatchAnswer) -> bool:
    """A node that lags may not have what this process has written through it yet."""
    return kept.revision.history != answer.revision.history or kept.revision.index <= answer.revision.index


def _nothing() -> None:
    pass
