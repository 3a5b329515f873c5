"""What the record of a write job becomes, when it is opened, adopted from, ended or forgotten. Pure.

INV-BULKW-3: a job that is DONE is never written again. Each run takes the record over before it does anything else, and
closes the sessions of the runs before it has one itself. So a run that was overtaken finds either the record changed,
if it looks afterwards, or its own session closed, if it looked before; and once the record says DONE there is nobody
left who may write.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec

from ebla.model.errors import InvalidRequest, NotFound, Refused, Stale
from ebla.model.identity import SessionId, TableId
from ebla.model.records.write_jobs import PAST_SESSIONS_MAX, WriteJobRecord, WriteJobState

DAY_MS = 86_400_000
DONE_KEPT_MS = 7 * DAY_MS
STREAM_KEPT_MS = 90 * DAY_MS
"""A stream may rest for long between two batches."""
OPEN_KEPT_MS = 30 * DAY_MS
"""Of a job that was given up: nobody is going to run it again after so long."""
KEPT_MAX = 2_000
"""Ended ones of one table; more go, the oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRun:
    """Somebody's attempt at a job."""

    table: TableId
    job: str
    session: SessionId
    batch: int | None
    now_ms: int


def record_opened(record: WriteJobRecord | None, run: WriteRun, timestamp_us: int) -> WriteJobRecord | None:
    """The record with this run in it; None: it has ended well, and there is nothing to do. The same run again: the same
    record."""
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
        return None
    if run.session in record.past:
        raise Stale(
            f"another run of job {run.job!r} has begun since",
            advice="only one at a time: let that one end",
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
        raise InvalidRequest(f"session {run.session} was drawn for another batch", advice="draw one for each")
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


def record_sessions_closed(record: WriteJobRecord | None, sessions: Collection[SessionId]) -> WriteJobRecord | None:
    """These are known to have ended. What a run of them asks for afterwards is refused by the record itself."""
    if record is None:
        return None
    left = tuple(session for session in record.closing if session not in sessions)
    return msgspec.structs.replace(record, closing=left)


def _check_kind(record: WriteJobRecord, run: WriteRun) -> None:
    if (record.batch is None) is not (run.batch is None):
        kinds = ("a job of its own", "a stream")
        before, now = kinds if record.batch is None else kinds[::-1]
        raise InvalidRequest(f"{run.job!r} is known as {before}, and asked for as {now}", advice="take another id")
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
    """The record that a run commits by. Raises `Stale` where it is not this run's."""
    if record is None:
        raise NotFound(f"job {run.job!r} is not known here", advice="open it first")
    _check_kind(record, run)
    if not is_done(record, run.batch) and (record.session, record.batch) != (run.session, run.batch):
        raise Stale(f"another run of job {run.job!r} has taken over", advice="let that one end, or run the job again")
    return record


def record_adopting(record: WriteJobRecord) -> WriteJobRecord:
    return record if record.has_adopted else msgspec.structs.replace(record, has_adopted=True)


def record_done(record: WriteJobRecord, run: WriteRun) -> WriteJobRecord:
    return msgspec.structs.replace(
        record, state=WriteJobState.DONE, ended_ms=run.now_ms, closing=(), done_through=run.batch
    )


def expired_records(records: Iterable[WriteJobRecord], tables: Iterable[TableId], now_ms: int) -> list[WriteJobRecord]:
    """What nobody will ask for any more."""
    known = frozenset(tables)
    forgotten: list[WriteJobRecord] = []
    kept: dict[TableId, list[WriteJobRecord]] = {}
    for record in records:
        if record.table not in known or now_ms - max(record.opened_ms, record.ended_ms) > _kept_ms(record):
            forgotten.append(record)
        elif record.state is WriteJobState.DONE and record.batch is None:
            kept.setdefault(record.table, []).append(record)
    for of_table in kept.values():
        of_table.sort(key=lambda record: (record.ended_ms, record.job))
        forgotten += of_table[: max(0, len(of_table) - KEPT_MAX)]
    return forgotten


def _kept_ms(record: WriteJobRecord) -> int:
    if record.batch is not None:
        return STREAM_KEPT_MS
    return DONE_KEPT_MS if record.state is WriteJobState.DONE else OPEN_KEPT_MS
