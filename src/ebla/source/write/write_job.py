"""What the driver, the tasks and the commit of a write pass to each other, and the clients that a commit uses.

Spark's driver plans and commits with this alone. Arrow and everything that encodes rows is loaded only where there are
rows (`task_writer.py`, `driver_rows.py`).
"""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import AttemptId, SessionId, TableId, TransferId
from ebla.model.transfers import StagedFile, TransferTarget
from ebla.source.cql_client import BoundStatement
from ebla.wire.table_calls import StagedRun, StagingPlan, TableCall

if TYPE_CHECKING:
    import pyarrow as pa

Q = TypeVar("Q")
A = TypeVar("A")

RUN_BYTES = 64 << 20
"""Rows a task collects before it stages them. Encoding, sorting and sending hold about as much again, twice."""


class WriteTaskResult(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a task has done; its commit message."""

    session: SessionId
    rows: int = 0
    runs: tuple[StagedRun, ...] = ()
    lost: tuple[TransferId, ...] = ()
    """Transfers that lack some of the rows, because their node could not be reached."""
    small: bytes = b""
    """Rows as Spark gave them (`small_writes`); none of them is staged."""
    job: str = ""
    batch: int | None = None
    """Of a stream: its tasks are the first to know the job."""

    def of_stream(self, job: str, batch: int) -> "WriteTaskResult":
        return msgspec.structs.replace(self, job=job, batch=batch)


class WriteTaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The same for all tasks of a job."""

    plan: StagingPlan
    session: SessionId
    small_rows: int = 0
    run_bytes: int = RUN_BYTES
    uses_local_files: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    session: SessionId
    table: TableId
    job: str
    level: ConsistencyLevel
    batch: int | None = None


def new_session_id() -> SessionId:
    return SessionId(uuid.uuid4())


# ---- clients


class BatchClient(Protocol):
    """The part of `CqlClient` that writes batches."""

    def batch(
        self, statements: Sequence[BoundStatement], level: ConsistencyLevel, timeout_s: float, timestamp_us: int
    ) -> None: ...


class CommitClient(BatchClient, Protocol):
    """The part of `CqlClient` that a commit needs."""

    def call(self, call: TableCall[Q, A], request: Q, timeout_s: float) -> A: ...


class RecordSink(Protocol):
    """Stages records on nodes, for one thread at a time."""

    def put_records(self, target: TransferTarget, attempt: AttemptId, records: Iterable[bytes]) -> StagedFile: ...

    def close(self) -> None: ...


class StagedRowStream(Protocol):
    """Batches in key order."""

    is_merged: bool
    """They contain all runs of the transfer, not only the requested one."""

    def __iter__(self) -> "Iterator[pa.RecordBatch]": ...

    def cancel(self) -> None: ...


class StagingClient(RecordSink, Protocol):
    """Can also read back what was staged."""

    def get_staged(self, target: TransferTarget, attempt: AttemptId, expected: StagedFile) -> StagedRowStream: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDeps:
    client: CommitClient
    connect: Callable[[], StagingClient]
    timeout_s: float
    """For calls that are answered at once."""
    uses_local_files: bool = True
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
