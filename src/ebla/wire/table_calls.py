"""The calls by which a user's Spark job reads and writes a table. Its driver makes them over CQL.

`CALL ebla.<name>(?)` carries a `CallRequest` and returns one row with one blob, a `CallAnswer`: so errors come with
their class, outcome and advice. Every call may be repeated, at any node: the caller draws the ids.

**Reading.** `open_read` returns the ranges of the table and the nodes that have them; each node issues a ticket for a
snapshot of the table taken after the call. A ticket outlives the snapshot: used later, it takes a new one. A read opens
no session, holds no version of the topology, and nothing waits for it.

**Writing.** `open_write` opens a session, and staging at every replica. Tasks stage sorted runs of rows, each under its
own attempt id; `commit_write` names the runs that count. Each replica makes one layer of its runs and adopts it as a
write under one version of the topology, at the job's consistency level.
"""

import uuid
from dataclasses import dataclass
from typing import Generic, NewType, TypeVar

import msgspec

from ebla.model.consistency import ConsistencyLevel
from ebla.model.identity import Address, AttemptId, HostId, SessionId, TableId, TopologyVersion, TransferId
from ebla.model.records.write_jobs import WriteJobState
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.model.transfers import ScanStack, StagedFile, TransferTarget
from ebla.wire.frames import FailureFrame

ReadId = NewType("ReadId", uuid.UUID)

# ---- between the broker and the bulk process


class StackSizeEstimate(msgspec.Struct, frozen=True, array_like=True):
    """An estimate of what a node holds of a range."""

    range: TokenRange
    size_bytes: int
    rows: int


class ReadSource(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A node's snapshot of a table, and the right to read it."""

    host: HostId
    flight: Address
    ticket: bytes
    machine: str = ""
    """A client on the same machine may ask where the files are (`LocateQuery`) and read them."""


class OpenTableReadRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A checkpoint of all that this node has of the table. The same read again: the same one, while it is kept."""

    read: ReadId
    table: TableId
    version: TopologyVersion
    """The shards wait until they have installed it: writes routed by it are in the checkpoint."""
    life_ms: int
    """Of the ticket. The checkpoint is dropped when it has not been used for a while, and taken again on demand."""


class OpenTableReadAnswer(msgspec.Struct, frozen=True, array_like=True):
    source: ReadSource
    stacks: tuple[StackSizeEstimate, ...]


class CloseTableReadRequest(msgspec.Struct, frozen=True, array_like=True):
    """Frees disk space early."""

    read: ReadId


# ---- over Flight, with the ticket of a read


class CheckpointFiles(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The answer to `LocateQuery`: where the files are, for a client on the same machine that may open them."""

    machine: str
    folder: str
    """Of the checkpoint; it contains a file named after `machine`."""
    stacks: tuple[ScanStack, ...]
    """With absolute folders."""
    schema: TableSchema


# ---- calls of a job's driver


class CallRequest(msgspec.Struct, frozen=True, array_like=True):
    deadline_ms: int
    request: bytes


class CallAnswer(msgspec.Struct, frozen=True, array_like=True):
    failure: FailureFrame | None
    answer: bytes = b""


class DescribeTableRequest(msgspec.Struct, frozen=True, array_like=True):
    keyspace: str
    table: str


class DescribeTableAnswer(msgspec.Struct, frozen=True, array_like=True):
    schema: TableSchema
    authority: bytes
    """The certificate, as PEM, that the nodes' Flight servers are checked against."""
    is_cdc_enabled: bool = False
    """Changes are captured (CDC): write jobs are refused."""


class OpenReadRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    read: ReadId
    table: TableId
    level: ConsistencyLevel
    ranges: tuple[TokenRange, ...] = ()
    """Only these; empty: the whole ring."""
    life_ms: int = 86_400_000


class ReadRange(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A tablet, or a range of vnodes with the same replicas."""

    range: TokenRange
    sources: tuple[int, ...]
    """The sources that have it, as positions in the plan, the best first. Any `needed` of them, merged, satisfy the
    level. For a level that counts by datacenter the first `needed` do, and `groups` says which others may."""
    needed: int
    size_bytes: int
    rows: int
    groups: tuple[tuple[tuple[int, ...], int], ...] = ()
    """For EACH_QUORUM: the sources of each datacenter and how many of them are needed. Empty: any `needed`."""


class TableReadPlan(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    schema: TableSchema
    version: TopologyVersion
    sources: tuple[ReadSource, ...]
    pieces: tuple[ReadRange, ...]
    authority: bytes
    now_s: int
    """Decides which cells have expired; a task that runs later uses its own clock."""


class CloseReadRequest(msgspec.Struct, frozen=True, array_like=True):
    read: ReadId
    table: TableId


class OpenWriteRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    session: SessionId
    table: TableId
    level: ConsistencyLevel
    job: str
    """The same job again: the same timestamp, and nothing to do once it is done."""
    batch: int | None = None
    """Of a stream, whose batches are one job each and come in order: those up to the last done one are done."""
    life_ms: int = 0
    """0: the default of the node's options."""


class StagingRoute(msgspec.Struct, frozen=True, array_like=True):
    """The targets for rows of this range, as positions in the plan."""

    range: TokenRange
    targets: tuple[int, ...]


class StagingPlan(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    schema: TableSchema
    state: WriteJobState
    timestamp_us: int
    """Of every cell of the job."""
    targets: tuple[TransferTarget, ...]
    routes: tuple[StagingRoute, ...]
    """Without gap or overlap, ordered by their ends."""
    authority: bytes
    deadline_ms: int = 0
    """Wall time. After it the job has no more effect."""


class StagedRun(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Sorted rows that one attempt has staged for one transfer."""

    host: HostId
    transfer: TransferId
    attempt: AttemptId
    file: StagedFile
    rows: int = 0


class StagedRanges(msgspec.Struct, frozen=True, array_like=True):
    """The ranges of which a transfer has all rows, if that is not its whole range."""

    transfer: TransferId
    ranges: tuple[TokenRange, ...]


class CommitWriteRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The same request again continues where the one before was interrupted."""

    session: SessionId
    table: TableId
    job: str
    level: ConsistencyLevel
    runs: tuple[StagedRun, ...]
    """The runs that count. A transfer without any has no rows."""
    targets: tuple[TransferTarget, ...]
    """Of the plan, and those opened later."""
    batch: int | None = None
    brought: tuple[StagedRanges, ...] = ()
    """On vnodes a target is for the whole ring, and gets the rows of which its node was a replica when the job began.
    If the node becomes a replica of further ranges, it must not count as a copy of those."""
    announces_rows: bool = False
    """Rows are about to be written over CQL, and this call commits nothing. A run that was overtaken gets an error
    before it writes any. From then on rows of the job may be visible, whatever becomes of it."""


class MissingCopy(msgspec.Struct, frozen=True, array_like=True):
    """A replica that joined while the job ran. The caller copies the rows of the range to it, and commits again."""

    target: TransferTarget
    """Staging that was opened for it."""
    range: TokenRange


class CommitWriteAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    lacking: tuple[MissingCopy, ...] = ()
    """If there are any, the job is not committed yet."""
    left_to_repair: tuple[HostId, ...] = ()
    """Replicas that could not be reached in time, and that the level does not need."""
    layers: int = 0
    rows: int = 0
    """Merged into live layers, because they were few."""
    is_done: bool = False
    """The job was done before: there is nothing to write."""


class AbortWriteRequest(msgspec.Struct, frozen=True, array_like=True):
    session: SessionId
    table: TableId
    job: str


class CallDone(msgspec.Struct, frozen=True, array_like=True):
    pass


Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class TableCall(Generic[Q, A]):
    name: str
    request: type[Q]
    answer: type[A]


DESCRIBE_TABLE = TableCall("describe_table", DescribeTableRequest, DescribeTableAnswer)
OPEN_READ = TableCall("open_read", OpenReadRequest, TableReadPlan)
CLOSE_READ = TableCall("close_read", CloseReadRequest, CallDone)
OPEN_WRITE = TableCall("open_write", OpenWriteRequest, StagingPlan)
COMMIT_WRITE = TableCall("commit_write", CommitWriteRequest, CommitWriteAnswer)
ABORT_WRITE = TableCall("abort_write", AbortWriteRequest, CallDone)
"""Closes the session: the run has no more effect afterwards. What was staged is removed."""
