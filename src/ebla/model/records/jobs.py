"""Jobs of the pipeline as they stand in group 0: what was asked for, how far it is, how it ended.

Whoever wants something moved writes a job; the pipeline of the leader takes it up, and says in the same place how it
goes. So a job outlives the process that runs it, and anyone can ask any node. Run again by the next leader, it gets a
new session; the one before is closed first.
"""

import enum
from uuid import UUID

import msgspec

from ebla.model.identity import HostId, JobId, SessionId, TableId
from ebla.model.token import TokenRange

JOBS_PREFIX = "jobs/"
PIPELINE_KEY = "pipeline/state"
ENDED_JOBS_KEPT_MAX = 200
"""Ended ones beyond that go, the oldest first."""


def job_key(job: JobId) -> str:
    return f"{JOBS_PREFIX}{job}"


class CopyTablets(msgspec.Struct, frozen=True, array_like=True, tag="copy_tablets"):
    """The files of one replica of tablets to another of their replicas, natural or pending."""

    table: TableId
    tablets: tuple[int, ...]
    source: HostId
    target: HostId
    short_cut: bool = True


class StreamRange(msgspec.Struct, frozen=True, array_like=True, tag="stream_range", kw_only=True):
    """Rows of a range, merged from these replicas (one: a plain copy; several: a rebuild), to another."""

    table: TableId
    range: TokenRange
    sources: tuple[HostId, ...]
    target: HostId


class CompareReplicas(msgspec.Struct, frozen=True, array_like=True, tag="compare"):
    """All replicas of a table, or of a range of it, by hashes; with `heal`, they exchange what differs."""

    table: TableId
    range: TokenRange | None = None
    heal: bool = False


JobSpec = CopyTablets | StreamRange | CompareReplicas


class JobState(enum.StrEnum):
    WAITING = "waiting"
    """For the pipeline, or its turn; `cause` says what for."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED_STATES = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


class JobProgress(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """`step` is what is being done now, in words."""

    step: str = ""
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


class JobRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    id: JobId
    spec: JobSpec
    what: str
    """For people: the table's name and what is done with it."""
    submitted_ms: int
    life_ms: int
    """From its start; then it is given up."""
    state: JobState = JobState.WAITING
    cancel_requested: bool = False
    runs: int = 0
    """How often it was begun."""
    session: SessionId | None = None
    started_ms: int = 0
    ended_ms: int = 0
    cause: str = ""
    progress: JobProgress = JobProgress()
    result: JobResult | None = None
    owner: UUID | None = None
    """Drawn anew by each pipeline that takes jobs up: the one that attends to this run, or to its end."""


class PipelineState(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What the pipeline of the leader last said of itself."""

    host: HostId
    pid: int
    state: str
    """An `EngineState`, or a newer release's word."""
    cause: str = ""
    master: str = ""
    version: str = ""
    user_interface: str = ""
    reported_ms: int = 0
