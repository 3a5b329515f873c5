"""What all tasks of a write are told, and what each of them tells. Spark's driver passes it on and needs nothing of
what rows are made with."""

import uuid

import msgspec

from ebla.model.identity import SessionId, TransferId
from ebla.wire.table_calls import StagedRun, StagingPlan

RUN_BYTES = 64 << 20
"""What a task holds before it stages it. Encoding, sorting and sending hold about as much again, twice."""


class WriteTaskResult(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a task has done, as its message says."""

    session: SessionId
    rows: int = 0
    runs: tuple[StagedRun, ...] = ()
    lost: tuple[TransferId, ...] = ()
    """Which lack some of the rows, since their node could not be reached."""
    small: bytes = b""
    """Rows as Spark gave them (`small_writes`); nothing of them is staged."""
    job: str = ""
    batch: int | None = None
    """Of a stream, whose job is known to its tasks first."""

    def of_stream(self, job: str, batch: int) -> "WriteTaskResult":
        return msgspec.structs.replace(self, job=job, batch=batch)


class WriteTaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What all tasks of a job are told."""

    plan: StagingPlan
    session: SessionId
    small_rows: int = 0
    run_bytes: int = RUN_BYTES
    uses_local_files: bool = True


def new_session_id() -> SessionId:
    return SessionId(uuid.uuid4())
