"""Write jobs of Spark users as they stand in group 0: so that a job that is run again is the same job.

The record says which timestamp all cells of the job have, whose run it is now, and whether it has ended well. A stream
has one record for all its batches, which come in order.
"""

import enum
import re
import uuid

import msgspec

from ebla.model.errors import InvalidRequest
from ebla.model.identity import JobId, SessionId, TableId

WRITES_PREFIX = "writes/"
JOB_CHARACTERS_MAX = 200
_JOB = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.:@+=-]{{0,{JOB_CHARACTERS_MAX - 1}}}", re.ASCII)
_JOB_IDS = uuid.UUID("8d5ce1a9-9a5f-4c06-bb3e-2f1a4c1d7e10")
_JOB_ID_VERSION = 5
PAST_SESSIONS_MAX = 16


class WriteJobState(enum.StrEnum):
    OPEN = "open"
    DONE = "done"
    """It has ended well before: there is nothing to write."""


class WriteJobRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    table: TableId
    job: str
    timestamp_us: int
    """Of every cell. INV-BULKW-2: it stays as long as the record does; of a stream, as long as the batch does."""
    state: WriteJobState
    session: SessionId
    """Of the run that may commit."""
    opened_ms: int
    ended_ms: int = 0
    closing: tuple[SessionId, ...] = ()
    """Of runs before, not known to be closed. All of them are, before the session above is opened."""
    past: tuple[SessionId, ...] = ()
    """Of runs before, the latest last: what is asked for by one of them comes too late."""
    has_adopted: bool = False
    """Rows of it may be seen: some run has begun to have them adopted."""
    batch: int | None = None
    """Of a stream: the one that the fields above are about."""
    done_through: int | None = None
    """Of a stream: the last batch that has ended well."""


def write_key(table: TableId, job: str) -> str:
    return f"{WRITES_PREFIX}{table}/{job}"


def writes_of(table: TableId) -> str:
    return f"{WRITES_PREFIX}{table}/"


def check_job_name(job: str) -> None:
    if not _JOB.fullmatch(job):
        raise InvalidRequest(
            f"{job[:JOB_CHARACTERS_MAX]!r} cannot be the id of a job",
            advice=f"1 to {JOB_CHARACTERS_MAX} letters, digits and _ . : @ + = -, beginning with a letter or digit",
        )


def write_job_id(table: TableId, job: str) -> JobId:
    """By which a session is known to be that of a write: ids of other bulk jobs are drawn, and of another version."""
    return JobId(uuid.uuid5(_JOB_IDS, write_key(table, job)))


def is_write_job(job: uuid.UUID | None) -> bool:
    return job is not None and job.version == _JOB_ID_VERSION
