"""What the driver, the tasks and the commit of a write pass to each other, and the clients that a commit uses.

Spark's driver plans and commits with this alone. Arrow and everything that encodes rows is loaded only where there are
rows (`task_writer.py`, `driver_rows.py`).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import SessionId, TableId, TransferId
from ebla.source.contact_points import CqlClient
from ebla.wire.table_calls import StagedRun, StagingPlan

if TYPE_CHECKING:
    from ebla.transfers.flight_client import FlightClient

RUN_BYTES = 64 << 20
"""Rows a task collects before it stages them. Encoding, sorting and sending hold about as much again, twice."""


class WriteJob(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A write in one session. A job that is run again has another session and the same name."""

    session: SessionId
    table: TableId
    job: str
    level: ConsistencyLevel
    batch: int | None = None
    """Of a stream, whose batches are jobs of one name."""


class WriteTaskResult(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a task has done; its commit message."""

    job: WriteJob
    """The tasks of a stream are the first to know it."""
    rows: int = 0
    runs: tuple[StagedRun, ...] = ()
    lost: tuple[TransferId, ...] = ()
    """Transfers that lack some of the rows, because their node could not be reached."""
    small: bytes = b""
    """Rows as Spark gave them (`small_writes`); none of them is staged."""


class WriteTaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The same for all tasks of a job."""

    plan: StagingPlan
    job: WriteJob
    small_rows: int = 0
    run_bytes: int = RUN_BYTES
    uses_local_files: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDeps:
    client: CqlClient
    connect: "Callable[[], FlightClient]"
    timeout_s: float
    """For calls that are answered at once."""
    uses_local_files: bool = True
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
