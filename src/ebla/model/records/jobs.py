"""Transfer jobs as records of group 0: what to do, how far it is, how it ended.

A client writes a job; the pipeline process of the leader runs it and writes its progress and result into the same
record. So a job outlives the process that runs it, and every node can be asked about it. The next leader runs it again
under a new session, after it has closed the old one.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

import msgspec

from ebla.model.identity import HostId, JobId, SessionId, TableId
from ebla.model.token import TokenRange

JOBS_PREFIX = "jobs/"
PIPELINE_KEY = "pipeline/state"
ENDED_JOBS_KEPT_MAX = 200
"""Beyond that the jobs that ended first are deleted."""


def job_key(job: JobId) -> str:
    return f"{JOBS_PREFIX}{job}"


class CopyTablets(msgspec.Struct, frozen=True, array_like=True, tag="copy_tablets", kw_only=True):
    """Copies the files of tablets from one replica to another, natural or pending."""

    table: TableId
    tablets: tuple[int, ...]
    source: HostId
    target: HostId
    short_cut: bool = True
    """Link the files where source and target are on one machine."""


class StreamRange(msgspec.Struct, frozen=True, array_like=True, tag="stream_range", kw_only=True):
    """Streams the rows of a range, merged from these replicas (one: a copy; several: a rebuild), to another."""

    table: TableId
    range: TokenRange
    sources: tuple[HostId, ...]
    target: HostId


class CompareReplicas(msgspec.Struct, frozen=True, array_like=True, tag="compare"):
    """Compares all replicas of a table, or of a range of it, by hashes; with `heal`, repairs what differs."""

    table: TableId
    range: TokenRange | None = None
    heal: bool = False


JobSpec = CopyTablets | StreamRange | CompareReplicas


class JobState(enum.StrEnum):
    WAITING = "waiting"
    """For the pipeline, or for other jobs; `cause` says which."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED_STATES = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


class JobProgress(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    step: str = ""
    """What the run is doing, in words."""
    bytes_done: int = 0
    bytes_total: int = 0
    tasks_done: int = 0
    tasks_total: int = 0


class Difference(msgspec.Struct, frozen=True, array_like=True):
    range: TokenRange
    replicas: tuple[tuple[HostId, str, int], ...]
    """Host, hash in hex, rows."""


class JobResult(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    bytes_moved: int = 0
    rows: int = 0
    layers: int = 0
    ranges_compared: int = 0
    differences: tuple[Difference, ...] = ()
    """The first ones; `differences_total` counts all."""
    differences_total: int = 0
    healed_rows: int = 0
    short_cut: bool = False
    """Files were linked."""


class JobRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    id: JobId
    spec: JobSpec
    what: str
    """For people: the table's name and what is done with it."""
    submitted_ms: int
    life_ms: int
    """How long one run may take; then the job fails."""
    state: JobState = JobState.WAITING
    cancel_requested: bool = False
    runs: int = 0
    """How often it was started."""
    session: SessionId | None = None
    started_ms: int = 0
    ended_ms: int = 0
    cause: str = ""
    progress: JobProgress = JobProgress()
    result: JobResult | None = None
    owner: UUID | None = None
    """The pipeline that runs the job or ends its run. Each pipeline draws a new id when it begins to run jobs."""


class PipelineState(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The last report of the leader's pipeline about itself."""

    host: HostId
    pid: int
    state: str
    """An `EngineState`, or a state that a newer release knows."""
    cause: str = ""
    master: str = ""
    version: str = ""
    user_interface: str = ""
    reported_ms: int = 0


# ---- how a record changes


class JobEvent(enum.StrEnum):
    BEGUN = "begun"
    SUCCEEDED = "succeeded"
    BROKE = "broke"
    """The run failed; another run may succeed."""
    REFUSED = "refused"
    """The job cannot be done."""
    AWAY = "away"
    """The engine was lost during the run, or was not available."""
    LEFT = "left"
    """No process runs it any more."""
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
"""An ended job has no row: it does not change. BROKE and LEFT end a job that has used up its runs."""

COUNTED_EVENTS = (JobEvent.BROKE, JobEvent.LEFT)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTransition:
    """An event of a job. Every event but BEGUN is written after the session of the record was closed."""

    event: JobEvent
    now_ms: int
    """Wall time."""
    cause: str = ""
    session: SessionId | None = None
    """Of a run that has BEGUN, like `owner`."""
    owner: UUID | None = None
    result: JobResult | None = None


def apply_transition(job: JobRecord, change: JobTransition, runs_max: int) -> JobRecord | None:
    """The record after the event; None if the table has no row for it: another process has decided otherwise."""
    following = TRANSITIONS.get((job.state, change.event))
    if following is None:
        return None
    assert (change.session is not None) == (change.event is JobEvent.BEGUN)
    cause = change.cause
    if change.event in COUNTED_EVENTS and job.runs >= runs_max:
        following = JobState.FAILED
        cause = f"{cause} (tried {job.runs} times)"
    # A run that ended because the engine was lost says nothing about the job.
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
    """The event of a run that no process attends to, once its session is closed."""
    if job.cancel_requested:
        return JobTransition(event=JobEvent.CANCELLED, now_ms=now_ms)
    return JobTransition(event=JobEvent.LEFT, now_ms=now_ms, cause="the pipeline that ran it went away")
