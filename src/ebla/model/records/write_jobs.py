"""Write jobs of Spark users as records of group 0, so that a job that is run again is the same job.

The record holds the timestamp of all cells of the job, the run that may commit, and whether the job is done. A stream
has one record for all its batches, which come in order.

INV-BULKW-3: a job that is DONE is never written again. Each run takes over the record before it does anything else, and
closes the sessions of earlier runs before it opens its own. So a run that was overtaken finds the record changed, if it
reads it afterwards, or its own session closed, if it read it before. Once the record says DONE, no run is left that may
write.
"""

import enum
import re
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec

from ebla.model.errors import InvalidRequest, NotFound, Refused, Stale
from ebla.model.identity import JobId, SessionId, TableId

WRITES_PREFIX = "writes/"
JOB_CHARACTERS_MAX = 200
_JOB = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.:@+=-]{{0,{JOB_CHARACTERS_MAX - 1}}}", re.ASCII)
_JOB_IDS = uuid.UUID("8d5ce1a9-9a5f-4c06-bb3e-2f1a4c1d7e10")
_JOB_ID_VERSION = 5
PAST_SESSIONS_MAX = 16

DAY_MS = 86_400_000
DONE_KEPT_MS = 7 * DAY_MS
STREAM_KEPT_MS = 90 * DAY_MS
"""A stream may pause for long between two batches."""
OPEN_KEPT_MS = 30 * DAY_MS
"""Of a job that was abandoned: no one runs it again after so long."""
KEPT_MAX = 2_000
"""Done jobs of one table. Beyond that those that ended first are deleted."""


class WriteJobState(enum.StrEnum):
    OPEN = "open"
    DONE = "done"
    """The job succeeded before: there is nothing to write."""


class WriteJobRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    table: TableId
    job: str
    timestamp_us: int
    """Of every cell. INV-BULKW-2: it never changes; in the record of a stream, not within a batch."""
    state: WriteJobState
    session: SessionId
    """Of the run that may commit."""
    opened_ms: int
    ended_ms: int = 0
    closing: tuple[SessionId, ...] = ()
    """Sessions of earlier runs that are not known to be closed. They are closed before `session` is opened."""
    past: tuple[SessionId, ...] = ()
    """Sessions of earlier runs, the latest last. Calls of those runs come too late."""
    has_adopted: bool = False
    """Rows of the job may be visible: some run has begun to adopt."""
    batch: int | None = None
    """Of a stream: the batch that the fields above are about."""
    done_through: int | None = None
    """Of a stream: the last batch that is done."""


def write_key(table: TableId, job: str) -> str:
    return f"{WRITES_PREFIX}{table}/{job}"


def check_job_name(job: str) -> None:
    if not _JOB.fullmatch(job):
        raise InvalidRequest(
            f"{job[:JOB_CHARACTERS_MAX]!r} cannot be the id of a job",
            advice=f"1 to {JOB_CHARACTERS_MAX} letters, digits and _ . : @ + = -, beginning with a letter or digit",
        )


def write_job_id(table: TableId, job: str) -> JobId:
    """Marks a session as one of a write job: the ids of other jobs are random UUIDs, which have another version."""
    return JobId(uuid.uuid5(_JOB_IDS, write_key(table, job)))


def is_write_job(job: uuid.UUID | None) -> bool:
    return job is not None and job.version == _JOB_ID_VERSION


# ---- how a record changes


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRun:
    """One run of a job: what a user starts and starts again."""

    table: TableId
    job: str
    session: SessionId
    batch: int | None
    now_ms: int


def record_opened(record: WriteJobRecord | None, run: WriteRun, timestamp_us: int) -> WriteJobRecord:
    """The record with this run as the one that may commit. A record that is done, or has this run already, is returned
    unchanged."""
    if record is None:
        return WriteJobRecord(
            table=run.table,
            job=run.job,
            timestamp_us=timestamp_us,
            state=WriteJobState.OPEN,
            session=run.session,
            opened_ms=run.now_ms,
            batch=run.batch,
        )
    _check_kind(record, run)
    if is_done(record, run.batch):
        return record
    if run.session in record.past:
        raise Stale(
            f"another run of job {run.job!r} has begun since",
            advice="only one run at a time: let that one end",
        )
    if record.session == run.session and record.batch == run.batch:
        return record
    record = _taken_over(record, run)
    if record.batch == run.batch:
        return record
    return msgspec.structs.replace(
        record,
        batch=run.batch,
        timestamp_us=max(timestamp_us, record.timestamp_us + 1),
        has_adopted=False,
        state=WriteJobState.OPEN,
    )


def _taken_over(record: WriteJobRecord, run: WriteRun) -> WriteJobRecord:
    if record.session == run.session:
        raise InvalidRequest(f"session {run.session} belongs to another batch", advice="use a new id for each batch")
    closing = (*record.closing, record.session)
    if len(closing) > PAST_SESSIONS_MAX:
        raise Refused(f"{len(closing)} runs of job {run.job!r} are not known to have ended", advice="try again later")
    return msgspec.structs.replace(
        record,
        session=run.session,
        opened_ms=run.now_ms,
        closing=closing,
        past=(*record.past, record.session)[-PAST_SESSIONS_MAX:],
    )


def _check_kind(record: WriteJobRecord, run: WriteRun) -> None:
    if (record.batch is None) is not (run.batch is None):
        kinds = ("a single job", "a stream")
        before, now = kinds if record.batch is None else kinds[::-1]
        raise InvalidRequest(f"{run.job!r} is the id of {before}, not of {now}", advice="use another id")
    is_late = run.batch is not None and record.batch is not None and run.batch < record.batch
    if is_late and not is_done(record, run.batch):
        raise InvalidRequest(
            f"batch {run.batch} of stream {run.job!r} comes after batch {record.batch} was begun",
            advice="a stream's batches come in order; two streams need two ids",
        )


def is_done(record: WriteJobRecord, batch: int | None) -> bool:
    if batch is None:
        return record.state is WriteJobState.DONE
    return record.done_through is not None and batch <= record.done_through


def require_current_run(record: WriteJobRecord | None, run: WriteRun) -> WriteJobRecord:
    """The record, if this run may commit or the job is done. Raises `Stale` if another run has taken over."""
    if record is None:
        raise NotFound(f"job {run.job!r} is not known here", advice="open it first")
    _check_kind(record, run)
    if not is_done(record, run.batch) and (record.session, record.batch) != (run.session, run.batch):
        raise Stale(f"another run of job {run.job!r} has taken over", advice="let that one end, or run the job again")
    return record


def record_sessions_closed(record: WriteJobRecord, sessions: Collection[SessionId]) -> WriteJobRecord:
    """These sessions are known to be closed. Later calls of their runs are refused by `past`."""
    left = tuple(session for session in record.closing if session not in sessions)
    return msgspec.structs.replace(record, closing=left)


def record_adopting(record: WriteJobRecord) -> WriteJobRecord:
    return record if record.has_adopted else msgspec.structs.replace(record, has_adopted=True)


def record_done(record: WriteJobRecord, run: WriteRun) -> WriteJobRecord:
    return msgspec.structs.replace(
        record, state=WriteJobState.DONE, ended_ms=run.now_ms, closing=(), done_through=run.batch
    )


def expired_records(records: Iterable[WriteJobRecord], tables: Iterable[TableId], now_ms: int) -> list[WriteJobRecord]:
    """Those that no run will need again."""
    known = frozenset(tables)
    expired: list[WriteJobRecord] = []
    done: dict[TableId, list[WriteJobRecord]] = {}
    for record in records:
        if record.table not in known or now_ms - max(record.opened_ms, record.ended_ms) > _kept_ms(record):
            expired.append(record)
        elif record.state is WriteJobState.DONE and record.batch is None:
            done.setdefault(record.table, []).append(record)
    for of_table in done.values():
        of_table.sort(key=lambda record: (record.ended_ms, record.job))
        expired += of_table[: max(0, len(of_table) - KEPT_MAX)]
    return expired


def _kept_ms(record: WriteJobRecord) -> int:
    if record.batch is not None:
        return STREAM_KEPT_MS
    return DONE_KEPT_MS if record.state is WriteJobState.DONE else OPEN_KEPT_MS
