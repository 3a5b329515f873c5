"""What the pipeline does next about the jobs that stand in group 0. Pure: records in, steps out.

A record tells which session its job runs under before that session is opened, and a job leaves RUNNING only after the
session was closed. So whoever finds a job RUNNING that it does not run itself knows what to close, and a job that has
ended can have no effect any more.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import assert_never
from uuid import UUID

import msgspec

from ebla.model.identity import HostId, JobId, SessionId, TableId
from ebla.model.records.jobs import (
    ENDED_JOBS_KEPT_MAX,
    ENDED_STATES,
    CompareReplicas,
    CopyTablets,
    JobProgress,
    JobRecord,
    JobResult,
    JobSpec,
    JobState,
    StreamRange,
)

UNAVAILABLE = "pipeline unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    file_jobs_max: int = 2
    row_jobs_max: int = 2
    """File jobs and row jobs have places of their own: a long comparison does not keep a tablet from moving."""
    runs_max: int = 4
    """How often a job is begun before what stopped it is taken for final."""
    abandoned_after_ms: int = 3_000
    """A run of somebody else is let alone for so long. A pipeline whose control has just lost the lead is about to end;
    two that took each other's runs over in the meantime would only use them up."""
    ended_kept_max: int = ENDED_JOBS_KEPT_MAX
    waiting_max: int = 1_000
    """Jobs that are looked at; the later ones wait unread."""


# ---- a job's record


class JobEvent(enum.StrEnum):
    BEGUN = "begun"
    SUCCEEDED = "succeeded"
    BROKE = "broke"
    """Something was in the way that another try may not find there."""
    REFUSED = "refused"
    """What was asked for cannot be done."""
    AWAY = "away"
    """The engine went away under it, or was not there."""
    LEFT = "left"
    """Nobody runs it any more."""
    CANCELLED = "cancelled"


TRANSITIONS: Mapping[tuple[JobState, JobEvent], JobState] = MappingProxyType(
    {
        (JobState.WAITING, JobEvent.BEGUN): JobState.RUNNING,
        (JobState.WAITING, JobEvent.CANCELLED): JobState.CANCELLED,
        (JobState.WAITING, JobEvent.LEFT): JobState.WAITING,
        (JobState.RUNNING, JobEvent.SUCCEEDED): JobState.DONE,
        (JobState.RUNNING, JobEvent.BROKE): JobState.WAITING,
        (JobState.RUNNING, JobEvent.REFUSED): JobState.FAILED,
        (JobState.RUNNING, JobEvent.AWAY): JobState.WAITING,
        (JobState.RUNNING, JobEvent.LEFT): JobState.WAITING,
        (JobState.RUNNING, JobEvent.CANCELLED): JobState.CANCELLED,
    }
)
"""An ended job stays as it is: it has no row. BROKE and LEFT end a job that has used up its runs."""

COUNTED_EVENTS = (JobEvent.BROKE, JobEvent.LEFT)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTransition:
    """What has happened to a job. Every one but BEGUN is written after the session of its record was closed."""

    event: JobEvent
    now_ms: int
    """Wall time."""
    cause: str = ""
    session: SessionId | None = None
    owner: UUID | None = None
    """Of one that is BEGUN, as is its session."""
    result: JobResult | None = None


def apply_transition(job: JobRecord, change: JobTransition, limits: SchedulerLimits) -> JobRecord | None:
    """The record after it; None where the table has no place for it: somebody else has decided otherwise."""
    following = TRANSITIONS.get((job.state, change.event))
    if following is None:
        return None
    assert (change.session is not None) == (change.event is JobEvent.BEGUN)
    cause = change.cause
    if change.event in COUNTED_EVENTS and job.runs >= limits.runs_max:
        following = JobState.FAILED
        cause = f"{cause} (tried {job.runs} times)"
    # A run that the engine broke off says nothing about the job.
    runs = job.runs + {JobEvent.BEGUN: 1, JobEvent.AWAY: -1}.get(change.event, 0)
    return msgspec.structs.replace(
        job,
        state=following,
        runs=max(runs, 0),
        session=change.session,
        owner=change.owner,
        cause=cause,
        started_ms=change.now_ms if change.event is JobEvent.BEGUN else job.started_ms,
        ended_ms=change.now_ms if following in ENDED_STATES else 0,
        progress=job.progress if following in ENDED_STATES else JobProgress(),
        result=change.result if change.result is not None else job.result,
    )


def abandoned(job: JobRecord, now_ms: int) -> JobTransition:
    """Of a job whose run nobody attends to, once its session is closed."""
    event = JobEvent.CANCELLED if job.cancel_requested else JobEvent.LEFT
    return JobTransition(event=event, now_ms=now_ms, cause="" if job.cancel_requested else "whoever ran it went away")


# ---- what a job is in the way of


@dataclass(frozen=True, slots=True)
class WriteClaim:
    """The stacks that a job writes to. None: any host, any tablet."""

    table: TableId
    host: HostId | None = None
    tablets: tuple[int, ...] | None = None

    def meets(self, other: "WriteClaim") -> bool:
        return (
            self.table == other.table
            and (self.host is None or other.host is None or self.host == other.host)
            and (self.tablets is None or other.tablets is None or any(one in other.tablets for one in self.tablets))
        )


def claim_of(spec: JobSpec) -> WriteClaim | None:
    """None: it writes nowhere. Ranges are not looked at: those of one host may lie in one stack or in several."""
    match spec:
        case CopyTablets():
            return WriteClaim(spec.table, spec.target, spec.tablets)
        case StreamRange():
            return WriteClaim(spec.table, spec.target)
        case CompareReplicas():
            return WriteClaim(spec.table) if spec.heal else None
        case _:
            assert_never(spec)


def moves_files(spec: JobSpec) -> bool:
    return isinstance(spec, CopyTablets)


# ---- what to do


@dataclass(frozen=True, slots=True)
class StartJob:
    """Write that it runs under a new session, then run it."""

    job: JobId


@dataclass(frozen=True, slots=True)
class TakeOverJob:
    """Write that its run is ours to end, close the session, then write that it was left.

    The first is for a pipeline that may still be at work on it. It opens its session and then looks whether the record
    is its own: either the session is there to be closed, or it finds that it is not."""

    job: JobId


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Close the session of a run of ours, then end the run: somebody asks for it, or its record is no longer ours."""

    job: JobId


@dataclass(frozen=True, slots=True)
class CancelWaitingJob:
    """Cancelled before it ran."""

    job: JobId


@dataclass(frozen=True, slots=True)
class ExplainWait:
    """Write what it waits for."""

    job: JobId
    cause: str


@dataclass(frozen=True, slots=True)
class PruneJob:
    job: JobId


JobStep = StartJob | TakeOverJob | CancelJob | CancelWaitingJob | ExplainWait | PruneJob


@dataclass(frozen=True, slots=True)
class ActiveJob:
    """Something in this process is at work on a job."""

    session: SessionId | None = None
    """That it runs under, once the record says so."""
    is_stopping: bool = False
    only_writes_record: bool = False
    """Its record is written and nothing else is done: it takes no place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """Everything that is decided by."""

    records: Mapping[JobId, JobRecord]
    active: Mapping[JobId, ActiveJob]
    owner: UUID
    """Who decides."""
    unavailable: str | None = None
    """Why the engine cannot run anything now."""
    backing_off_until: Mapping[JobId, int] = field(default_factory=dict)
    """Jobs that broke lately: not before this time, by the boot clock."""
    now_boot_ms: int = 0
    foreign_since_ms: Mapping[JobId, int] = field(default_factory=dict)
    """Since when, by the boot clock, a job that somebody else runs has been known to be run by that one."""


def next_steps(scene: SchedulerState, limits: SchedulerLimits) -> tuple[JobStep, ...]:
    """At most one for each job."""
    ordered = sorted(scene.records.values(), key=lambda job: (job.submitted_ms, job.id))
    return (
        *_about_running(ordered, scene, limits),
        *_about_waiting(ordered, scene, limits),
        *_to_prune(ordered, scene, limits),
    )


def _about_running(ordered: list[JobRecord], scene: SchedulerState, limits: SchedulerLimits) -> Iterator[JobStep]:
    for job_id, own in sorted(scene.active.items()):
        record = scene.records.get(job_id)
        ours = record is not None and (record.session, record.owner) == (own.session, scene.owner)
        lost = record is None or (own.session is not None and not ours)
        if not own.is_stopping and (lost or (record is not None and record.cancel_requested)):
            yield CancelJob(job_id)
    for job in ordered:
        if job.state in ENDED_STATES or job.id in scene.active:
            continue
        if job.session is not None or job.state is JobState.RUNNING:
            if scene.now_boot_ms - scene.foreign_since_ms.get(job.id, scene.now_boot_ms) >= limits.abandoned_after_ms:
                yield TakeOverJob(job.id)
        elif job.cancel_requested:
            yield CancelWaitingJob(job.id)


def _about_waiting(ordered: list[JobRecord], scene: SchedulerState, limits: SchedulerLimits) -> Iterator[JobStep]:
    busy = [job for job in ordered if _is_busy(job, scene)]
    # What waits for others keeps its place: jobs that came later and write to a part of it would pass it for ever.
    in_front: list[JobRecord] = []
    for job in [job for job in ordered if _waits(job, scene)][: limits.waiting_max]:
        cause = _obstacle(job, scene) or _rival(job, (*busy, *in_front)) or _no_place(job, busy, limits)
        if not cause:
            busy.append(job)
            yield StartJob(job.id)
            continue
        if not is_backing_off(job, scene):
            in_front.append(job)
            if cause != job.cause:
                yield ExplainWait(job.id, cause)


def _is_busy(job: JobRecord, scene: SchedulerState) -> bool:
    own = scene.active.get(job.id)
    return (job.session is not None and job.state not in ENDED_STATES) if own is None else not own.only_writes_record


def _waits(job: JobRecord, scene: SchedulerState) -> bool:
    return (
        job.state is JobState.WAITING
        and job.session is None
        and not job.cancel_requested
        and job.id not in scene.active
    )


def is_backing_off(job: JobRecord, scene: SchedulerState) -> bool:
    return scene.now_boot_ms < scene.backing_off_until.get(job.id, 0)


def _obstacle(job: JobRecord, scene: SchedulerState) -> str:
    if scene.unavailable is not None:
        return f"{UNAVAILABLE}: {scene.unavailable}"
    return "it broke a moment ago" if is_backing_off(job, scene) else ""


def _rival(job: JobRecord, others: Iterable[JobRecord]) -> str:
    claim = claim_of(job.spec)
    for other in others:
        theirs = claim_of(other.spec)
        if claim is not None and theirs is not None and claim.meets(theirs):
            return f"waits for job {other.id}, which writes to the same place"
    return ""


def _no_place(job: JobRecord, busy: list[JobRecord], limits: SchedulerLimits) -> str:
    alike = sum(moves_files(other.spec) == moves_files(job.spec) for other in busy)
    full = alike >= (limits.file_jobs_max if moves_files(job.spec) else limits.row_jobs_max)
    return "waits for its turn" if full else ""


def _to_prune(ordered: list[JobRecord], scene: SchedulerState, limits: SchedulerLimits) -> Iterator[JobStep]:
    ended = sorted((job for job in ordered if job.state in ENDED_STATES), key=lambda job: (job.ended_ms, job.id))
    for job in ended[: max(0, len(ended) - limits.ended_kept_max)]:
        if job.id not in scene.active:
            yield PruneJob(job.id)
