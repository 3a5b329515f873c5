"""What a write acts by: the calls that it makes at nodes, and the ways on which rows go.

Spark's driver plans and commits with these alone; what rows are made with is loaded where there are any
(`task_write.py`, `driver_rows.py`).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import ConnectionLost, DeadlineExceeded, Overloaded, Unavailable, Unreachable
from ebla.model.identity import AttemptId, SessionId, TableId
from ebla.model.transfers import StagedFile, TransferTarget
from ebla.source.cql_client import BoundStatement
from ebla.wire.table_calls import TableCall

if TYPE_CHECKING:
    import pyarrow as pa

Q = TypeVar("Q")
A = TypeVar("A")

PAUSE_S, PAUSE_MOST_S = 1.0, 8.0
WORTH_ANOTHER_TRY = (Unreachable, ConnectionLost, DeadlineExceeded, Overloaded, Unavailable)


class BatchClient(Protocol):
    """`contact.Contact`, as far as batches go."""

    def batch(
        self, statements: Sequence[BoundStatement], level: ConsistencyLevel, timeout_s: float, timestamp_us: int
    ) -> None: ...


class RecordSink(Protocol):
    """A way to the nodes, for one thread at a time."""

    def put_records(self, target: TransferTarget, attempt: AttemptId, records: Iterable[bytes]) -> StagedFile: ...

    def close(self) -> None: ...


class CommitClient(BatchClient, Protocol):
    """`contact.Contact`, as far as a commit needs it."""

    def call(self, call: TableCall[Q, A], request: Q, timeout_s: float) -> A: ...


class StagingClient(RecordSink, Protocol):
    """A way to the nodes that can also bring back what was staged."""

    def get_staged(self, target: TransferTarget, attempt: AttemptId, expected: StagedFile) -> "StagedRowStream": ...


class StagedRowStream(Protocol):
    """Batches in key order."""

    is_merged: bool
    """They are those of all runs of the transfer."""

    def __iter__(self) -> "Iterator[pa.RecordBatch]": ...

    def cancel(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    session: SessionId
    table: TableId
    job: str
    level: ConsistencyLevel
    batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDeps:
    """What a commit acts by."""

    contact: CommitClient
    connect: Callable[[], StagingClient]
    timeout_s: float
    """For what is answered at once."""
    uses_local_files: bool = True
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
