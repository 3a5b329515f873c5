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
from ebla.wire.jobs import (
    ENDED,
    JOBS_KEPT_MAX,
    Compare,
    CopyTablets,
    Job,
    JobResult,
    JobState,
    Progress,
    StreamRange,
    Wish,
)

UNAVAILABLE = "pipeline unavailable"


@dataclass(frozen=True, slots=True)
class BookLimits:
    file_jobs_max: int = 2
    row_jobs_max: int = 2
    """File jobs and row jobs have places of their own: a long comparison does not keep a tablet from moving."""
    runs_max: int = 4
    """How often a job is begun before what stopped it is taken for final."""
    left_after_ms: int = 3_000
    """A run of somebody else is let alone for so long. A pipeline whose control has just lost the lead is about to end;
    two that took each other's runs over in the meantime would only use them up."""
    kept_max: int = JOBS_KEPT_MAX
    waiting_max: int = 1_000
    """Jobs that are looked at; the later ones wait unread."""


# ---- a job's record


class Happening(enum.StrEnum):
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


TRANSITIONS: Mapping[tuple[JobState, Happening], JobState] = MappingProxyType(
    {
        (JobState.WAITING, Happening.BEGUN): JobState.RUNNING,
        (JobState.WAITING, Happening.CANCELLED): JobState.CANCELLED,
        (JobState.WAITING, Happening.LEFT): JobState.WAITING,
        (JobState.RUNNING, Happening.SUCCEEDED): JobState.DONE,
        (JobState.RUNNING, Happening.BROKE): JobState.WAITING,
        (JobState.RUNNING, Happening.REFUSED): JobState.FAILED,
        (JobState.RUNNING, Happening.AWAY): JobState.WAITING,
        (JobState.RUNNING, Happening.LEFT): JobState.WAITING,
        (JobState.RUNNING, Happening.CANCELLED): JobState.CANCELLED,
    }
)
"""An ended job stays as it is: it has no row. BROKE and LEFT end a job that has used up its runs."""

COUNTED = (Happening.BROKE, Happening.LEFT)


@dataclass(frozen=True, slots=True)
class Change:
    """What has happened to a job. Every one but BEGUN is written after the session of its record was closed."""

    happening: Happening
    now_ms: int
    """Wall time."""
    cause: str = ""
    session: SessionId | None = None
    keeper: UUID | None = None
    """Of one that is BEGUN, as is its session."""
    result: JobResult | None = None


def changed(job: Job, change: Change, limits: BookLimits) -> Job | None:
    """The record after it; None where the table has no place for it: somebody else has decided otherwise."""
    following = TRANSITIONS.get((job.state, change.happening))
    if following is None:
        return None
    assert (change.session is not None) == (change.happening is Happening.BEGUN)
    cause = change.cause
    if change.happening in COUNTED and job.runs >= limits.runs_max:
        following = JobState.FAILED
        cause = f"{cause} (tried {job.runs} times)"
    # A run that the engine broke off says nothing about the job.
    runs = job.runs + {Happening.BEGUN: 1, Happening.AWAY: -1}.get(change.happening, 0)
    return msgspec.structs.replace(
        job,
        state=following,
        runs=max(runs, 0),
        session=change.session,
        keeper=change.keeper,
        cause=cause,
        started_ms=change.now_ms if change.happening is Happening.BEGUN else job.started_ms,
        ended_ms=change.now_ms if following in ENDED else 0,
        progress=job.progress if following in ENDED else Progress(),
        result=change.result if change.result is not None else job.result,
    )


def left(job: Job, now_ms: int) -> Change:
    """Of a job whose run nobody attends to, once its session is closed."""
    happening = Happening.CANCELLED if job.cancel_asked else Happening.LEFT
    return Change(happening, now_ms, "" if job.cancel_asked else "whoever ran it went away")


# ---- what a job is in the way of


@dataclass(frozen=True, slots=True)
class Claim:
    """The stacks that a job writes to. None: any host, any tablet."""

    table: TableId
    host: HostId | None = None
    tablets: tuple[int, ...] | None = None

    def meets(self, other: "Claim") -> bool:
        return (
            self.table == other.table
            and (self.host is None or other.host is None or self.host == other.host)
            and (self.tablets is None or other.tablets is None or any(one in other.tablets for one in self.tablets))
        )


def claim_of(wish: Wish) -> Claim | None:
    """None: it writes nowhere. Ranges are not looked at: those of one host may lie in one stack or in several."""
    match wish:
        case CopyTablets():
            return Claim(wish.table, wish.target, wish.tablets)
        case StreamRange():
            return Claim(wish.table, wish.target)
        case Compare():
            return Claim(wish.table) if wish.heal else None
        case _:
            assert_never(wish)


def moves_files(wish: Wish) -> bool:
    return isinstance(wish, CopyTablets)


# ---- what to do


@dataclass(frozen=True, slots=True)
class Begin:
    """Write that it runs under a new session, then run it."""

    job: JobId


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Write that its run is ours to end, close the session, then write that it was left.

    The first is for a pipeline that may still be at work on it. It opens its session and then looks whether the record
    is its own: either the session is there to be closed, or it finds that it is not."""

    job: JobId


@dataclass(frozen=True, slots=True)
class Cancel:
    """Close the session of a run of ours, then end the run: somebody asks for it, or its record is no longer ours."""

    job: JobId


@dataclass(frozen=True, slots=True)
class EndWaiting:
    """Cancelled before it ran."""

    job: JobId


@dataclass(frozen=True, slots=True)
class Explain:
    """Write what it waits for."""

    job: JobId
    cause: str


@dataclass(frozen=True, slots=True)
class Prune:
    job: JobId


Step = Begin | TakeOver | Cancel | EndWaiting | Explain | Prune


@dataclass(frozen=True, slots=True)
class Attended:
    """Something in this process is at work on a job."""

    session: SessionId | None = None
    """That it runs under, once the record says so."""
    told_to_end: bool = False
    only_writes: bool = False
    """Its record is written and nothing else is done: it takes no place."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that is decided by."""

    records: Mapping[JobId, Job]
    attended: Mapping[JobId, Attended]
    keeper: UUID
    """Who decides."""
    unavailable: str | None = None
    """Why the engine cannot run anything now."""
    resting: Mapping[JobId, int] = field(default_factory=dict)
    """Jobs that broke lately: not before this time, by the boot clock."""
    now_boot_ms: int = 0
    seen_ms: Mapping[JobId, int] = field(default_factory=dict)
    """Since when, by the boot clock, a job that somebody else runs has been known to be run by that one."""


def next_steps(scene: Scene, limits: BookLimits) -> tuple[Step, ...]:
    """At most one for each job."""
    ordered = sorted(scene.records.values(), key=lambda job: (job.asked_ms, job.id))
    return (
        *_about_running(ordered, scene, limits),
        *_about_waiting(ordered, scene, limits),
        *_to_prune(ordered, scene, limits),
    )


def _about_running(ordered: list[Job], scene: Scene, limits: BookLimits) -> Iterator[Step]:
    for job_id, own in sorted(scene.attended.items()):
        record = scene.records.get(job_id)
        ours = record is not None and (record.session, record.keeper) == (own.session, scene.keeper)
        lost = record is None or (own.session is not None and not ours)
        if not own.told_to_end and (lost or (record is not None and record.cancel_asked)):
            yield Cancel(job_id)
    for job in ordered:
        if job.state in ENDED or job.id in scene.attended:
            continue
        if job.session is not None or job.state is JobState.RUNNING:
            if scene.now_boot_ms - scene.seen_ms.get(job.id, scene.now_boot_ms) >= limits.left_after_ms:
                yield TakeOver(job.id)
        elif job.cancel_asked:
            yield EndWaiting(job.id)


def _about_waiting(ordered: list[Job], scene: Scene, limits: BookLimits) -> Iterator[Step]:
    busy = [job for job in ordered if _is_busy(job, scene)]
    # What waits for others keeps its place: jobs that came later and write to a part of it would pass it for ever.
    in_front: list[Job] = []
    for job in [job for job in ordered if _waits(job, scene)][: limits.waiting_max]:
        cause = _obstacle(job, scene) or _rival(job, (*busy, *in_front)) or _no_place(job, busy, limits)
        if not cause:
            busy.append(job)
            yield Begin(job.id)
            continue
        if not is_resting(job, scene):
            in_front.append(job)
            if cause != job.cause:
                yield Explain(job.id, cause)


def _is_busy(job: Job, scene: Scene) -> bool:
    own = scene.attended.get(job.id)
    return (job.session is not None and job.state not in ENDED) if own is None else not own.only_writes


def _waits(job: Job, scene: Scene) -> bool:
    return (
        job.state is JobState.WAITING and job.session is None and not job.cancel_asked and job.id not in scene.attended
    )


def is_resting(job: Job, scene: Scene) -> bool:
    return scene.now_boot_ms < scene.resting.get(job.id, 0)


def _obstacle(job: Job, scene: Scene) -> str:
    if scene.unavailable is not None:
        return f"{UNAVAILABLE}: {scene.unavailable}"
    return "it broke a moment ago" if is_resting(job, scene) else ""


def _rival(job: Job, others: Iterable[Job]) -> str:
    claim = claim_of(job.wish)
    for other in others:
        theirs = claim_of(other.wish)
        if claim is not None and theirs is not None and claim.meets(theirs):
            return f"waits for job {other.id}, which writes to the same place"
    return ""


def _no_place(job: Job, busy: list[Job], limits: BookLimits) -> str:
    alike = sum(moves_files(other.wish) == moves_files(job.wish) for other in busy)
    full = alike >= (limits.file_jobs_max if moves_files(job.wish) else limits.row_jobs_max)
    return "waits for its turn" if full else ""


def _to_prune(ordered: list[Job], scene: Scene, limits: BookLimits) -> Iterator[Step]:
    ended = sorted((job for job in ordered if job.state in ENDED), key=lambda job: (job.ended_ms, job.id))
    for job in ended[: max(0, len(ended) - limits.kept_max)]:
        if job.id not in scene.attended:
            yield Prune(job.id)
