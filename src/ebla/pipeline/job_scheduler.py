"""Decides what the pipeline does next with the jobs in group 0. Pure: records in, steps out.

A record names the session of its run before that session is opened, and a job leaves RUNNING only after the session was
closed. So a pipeline that finds a job RUNNING that it does not run itself knows what to close, and a job that has ended
can have no more effect.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import assert_never
from uuid import UUID

from ebla.model.identity import HostId, JobId, SessionId, TableId
from ebla.model.records.jobs import (
    ENDED_JOBS_KEPT_MAX,
    ENDED_STATES,
    CompareReplicas,
    CopyTablets,
    JobRecord,
    JobSpec,
    JobState,
    StreamRange,
)

UNAVAILABLE = "pipeline unavailable"


WAITING_MAX = 1_000
"""Waiting jobs that are considered; later ones wait without an explanation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """Of the queue, the scheduler, and the runs of jobs."""

    file_jobs_max: int = 2
    row_jobs_max: int = 2
    """File jobs and row jobs have separate slots: a long comparison does not keep a tablet from moving."""
    runs_max: int = 4
    """How often a job is started before its failure is final."""
    ended_kept_max: int = ENDED_JOBS_KEPT_MAX
    poll_ms: int = 1_000
    """How often, at least, the scheduler runs and the state of the engine is checked."""
    progress_ms: int = 1_000
    """The shortest interval between two writes of a job's progress."""
    backoff_first_ms: int = 2_000
    """Before a job that failed is started again; twice as long after each further failure."""
    backoff_max_ms: int = 60_000
    topology_ms: int = 30_000
    """How long this process may take to receive the version that a session was opened on."""
    compare_pause_ms: int = 500
    """Before a comparison's second pass; twice as long before each further one."""
    bucket_bytes: int = 256 << 10
    """Of the buckets whose hashes are compared."""
    buckets_min: int = 16
    buckets_max: int = 4_096


# ---- conflicts between jobs


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
    """None: the job writes nothing. Ranges do not matter: ranges of one host may be in one stack or in several."""
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


# ---- steps


@dataclass(frozen=True, slots=True)
class StartJob:
    """Write that the job runs under a new session, then run it."""

    job: JobId


@dataclass(frozen=True, slots=True)
class TakeOverJob:
    """Write that this pipeline ends the run, close the session, then write that the run was left.

    The first write stops another pipeline that may still be working on the job. That one opens its session and then
    checks that the record is still its own. Either its session was open in time to be closed here, or the check
    fails."""

    job: JobId


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Close the session of an own run, then end the run: the user cancelled it, or its record is no longer ours."""

    job: JobId


@dataclass(frozen=True, slots=True)
class CancelWaitingJob:
    """The user cancelled it before it ran."""

    job: JobId


@dataclass(frozen=True, slots=True)
class ExplainWait:
    """Write what the job waits for."""

    job: JobId
    cause: str


@dataclass(frozen=True, slots=True)
class PruneJob:
    job: JobId


JobStep = StartJob | TakeOverJob | CancelJob | CancelWaitingJob | ExplainWait | PruneJob


@dataclass(frozen=True, slots=True)
class ActiveJob:
    """A job that this process works on."""

    session: SessionId | None = None
    """Of its run, once the record names it."""
    is_stopping: bool = False
    only_writes_record: bool = False
    """Only its record is being written: it takes no slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """The input of every decision."""

    records: Mapping[JobId, JobRecord]
    active: Mapping[JobId, ActiveJob]
    owner: UUID
    """This pipeline."""
    unavailable: str | None = None
    """Why the engine cannot run anything now."""
    backing_off_until: Mapping[JobId, int] = field(default_factory=dict)
    """Jobs that failed lately are not started before this time, by the boot clock."""
    now_boot_ms: int = 0


def next_steps(state: SchedulerState, limits: JobLimits) -> tuple[JobStep, ...]:
    """At most one step for each job."""
    ordered = sorted(state.records.values(), key=lambda job: (job.submitted_ms, job.id))
    return (
        *_running_steps(ordered, state),
        *_waiting_steps(ordered, state, limits),
        *_prune_steps(ordered, state, limits),
    )


def _running_steps(ordered: list[JobRecord], state: SchedulerState) -> Iterator[JobStep]:
    for job_id, own in sorted(state.active.items()):
        record = state.records.get(job_id)
        ours = record is not None and (record.session, record.owner) == (own.session, state.owner)
        lost = record is None or (own.session is not None and not ours)
        if not own.is_stopping and (lost or (record is not None and record.cancel_requested)):
            yield CancelJob(job_id)
    for job in ordered:
        if job.state in ENDED_STATES or job.id in state.active:
            continue
        if job.session is not None or job.state is JobState.RUNNING:
            yield TakeOverJob(job.id)  # a pipeline that may act is the only one that may
        elif job.cancel_requested:
            yield CancelWaitingJob(job.id)


def _waiting_steps(ordered: list[JobRecord], state: SchedulerState, limits: JobLimits) -> Iterator[JobStep]:
    busy = [job for job in ordered if _is_busy(job, state)]
    # A job that waits for others keeps its position. Otherwise later jobs that write to a part of the same stacks would
    # overtake it forever.
    queued: list[JobRecord] = []
    for job in [job for job in ordered if _waits(job, state)][:WAITING_MAX]:
        cause = _obstacle(job, state) or _conflict(job, (*busy, *queued)) or _no_slot(job, busy, limits)
        if not cause:
            busy.append(job)
            yield StartJob(job.id)
            continue
        if not is_backing_off(job, state):
            queued.append(job)
            if cause != job.cause:
                yield ExplainWait(job.id, cause)


def _is_busy(job: JobRecord, state: SchedulerState) -> bool:
    own = state.active.get(job.id)
    return (job.session is not None and job.state not in ENDED_STATES) if own is None else not own.only_writes_record


def _waits(job: JobRecord, state: SchedulerState) -> bool:
    return (
        job.state is JobState.WAITING
        and job.session is None
        and not job.cancel_requested
        and job.id not in state.active
    )


def is_backing_off(job: JobRecord, state: SchedulerState) -> bool:
    return state.now_boot_ms < state.backing_off_until.get(job.id, 0)


def _obstacle(job: JobRecord, state: SchedulerState) -> str:
    if state.unavailable is not None:
        return f"{UNAVAILABLE}: {state.unavailable}"
    return "the last run failed a moment ago" if is_backing_off(job, state) else ""


def _conflict(job: JobRecord, others: Iterable[JobRecord]) -> str:
    claim = claim_of(job.spec)
    for other in others:
        theirs = claim_of(other.spec)
        if claim is not None and theirs is not None and claim.meets(theirs):
            return f"waits for job {other.id}, which writes to the same stacks"
    return ""


def _no_slot(job: JobRecord, busy: list[JobRecord], limits: JobLimits) -> str:
    alike = sum(moves_files(other.spec) == moves_files(job.spec) for other in busy)
    full = alike >= (limits.file_jobs_max if moves_files(job.spec) else limits.row_jobs_max)
    return "waits for a free slot" if full else ""


def _prune_steps(ordered: list[JobRecord], state: SchedulerState, limits: JobLimits) -> Iterator[JobStep]:
    ended = sorted((job for job in ordered if job.state in ENDED_STATES), key=lambda job: (job.ended_ms, job.id))
    for job in ended[: max(0, len(ended) - limits.ended_kept_max)]:
        if job.id not in state.active:
            yield PruneJob(job.id)
