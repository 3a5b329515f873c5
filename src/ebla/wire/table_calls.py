"""How a Spark job of a user gets at a table: what its driver asks a node for after it has logged in over CQL.

`CALL ebla.<name>(?)` carries a `CallRequest` and answers one row with one blob, a `CallAnswer`: so errors come with
their class, outcome and advice. Every call may be made again, at any node: ids are drawn by whoever asks.

**Reading.** `open_read` tells which ranges there are and which nodes have them; each node that has any gives a ticket
for the table as it was at one point after the call. A ticket outlives what the node keeps for it: asked later, it
takes a new point. No session is opened, nothing waits for a reader, and no version of the topology is held.

**Writing.** `open_write` opens a session and a place in the staging of every replica. Tasks stage runs of sorted rows,
each under an attempt of its own; `commit_write` names those that count. Each replica makes one layer of its runs, and
adopts it as a write at one version of the topology, at the job's consistency level.
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

# ---- between the bulk process and whoever brokers for a job


class StackSizeEstimate(msgspec.Struct, frozen=True, array_like=True):
    """What a node holds of a range, about."""

    range: TokenRange
    size_bytes: int
    rows: int


class ReadSource(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A node's copy of a table at one point, and the right to read it."""

    host: HostId
    flight: Address
    ticket: bytes
    machine: str = ""
    """Who is on the same one may ask where the files are (`LocateQuestion`) and read them."""


class OpenTableReadRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A checkpoint of all that this node has of the table. The same read again: the same point, while it is kept."""

    read: ReadId
    table: TableId
    version: TopologyVersion
    """The shards must have installed it: writes routed by it are in the checkpoint."""
    life_ms: int
    """Of the ticket. The checkpoint itself goes when nobody has used it for a while, and is taken anew when asked."""


class OpenTableReadAnswer(msgspec.Struct, frozen=True, array_like=True):
    source: ReadSource
    stacks: tuple[StackSizeEstimate, ...]


class CloseTableReadRequest(msgspec.Struct, frozen=True, array_like=True):
    """Room that comes back early."""

    read: ReadId


# ---- over Flight, behind the ticket of a read


class CheckpointFiles(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The answer to `LocateQuestion`: where the files are, for who is on the same machine and may open them."""

    machine: str
    folder: str
    """Of the checkpoint; a file named as `machine` says stands in it."""
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
    """The certificate, as PEM, by which the nodes' Flight doors are known."""
    is_cdc_enabled: bool = False
    """Changes of it are captured (CDC): layers are refused."""


class OpenReadRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    read: ReadId
    table: TableId
    level: ConsistencyLevel
    ranges: tuple[TokenRange, ...] = ()
    """Only these; none: the whole ring."""
    life_ms: int = 86_400_000


class ReadRange(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A tablet, or a range of vnodes that have the same replicas."""

    range: TokenRange
    sources: tuple[int, ...]
    """Which of the plan's have it, the best first. Any `needed` of them, merged, are what the level asks for; of a
    level that counts by datacenter they are ordered so that the first `needed` do, and `groups` says the rest."""
    needed: int
    size_bytes: int
    rows: int
    groups: tuple[tuple[tuple[int, ...], int], ...] = ()
    """Of EACH_QUORUM: for each datacenter its sources and how many of them are needed. Empty: any `needed`."""


class TableReadPlan(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    schema: TableSchema
    version: TopologyVersion
    sources: tuple[ReadSource, ...]
    pieces: tuple[ReadRange, ...]
    authority: bytes
    now_s: int
    """By which cells have expired; a task that runs later goes by its own clock."""


class CloseReadRequest(msgspec.Struct, frozen=True, array_like=True):
    read: ReadId
    table: TableId


class OpenWriteRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    session: SessionId
    table: TableId
    level: ConsistencyLevel
    job: str
    """The same job again: the same timestamp, and nothing at all once it has ended well."""
    batch: int | None = None
    """Of a stream, whose batches are one job each and come in order: those up to the last that ended well are done."""
    life_ms: int = 0
    """0: what the node's options say."""


class StagingRoute(msgspec.Struct, frozen=True, array_like=True):
    """Rows of this range go to these targets of the plan."""

    range: TokenRange
    targets: tuple[int, ...]


class StagingPlan(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    schema: TableSchema
    state: WriteJobState
    timestamp_us: int
    """Of every cell of the job."""
    targets: tuple[TransferTarget, ...]
    routes: tuple[StagingRoute, ...]
    """Without gap or overlap, in the order of their ends."""
    authority: bytes
    deadline_ms: int = 0
    """Wall time: after it nothing of the job has an effect any more."""


class StagedRun(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Rows in key order that one attempt has staged for one transfer."""

    host: HostId
    transfer: TransferId
    attempt: AttemptId
    file: StagedFile
    rows: int = 0


class StagedRanges(msgspec.Struct, frozen=True, array_like=True):
    """What a place has all rows of, where that is not all that it is for."""

    transfer: TransferId
    ranges: tuple[TokenRange, ...]


class CommitWriteRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The same again goes on where the one before was interrupted."""

    session: SessionId
    table: TableId
    job: str
    level: ConsistencyLevel
    runs: tuple[StagedRun, ...]
    """That count. A transfer that none is for brings nothing."""
    targets: tuple[TransferTarget, ...]
    """Of the plan, and those that came later."""
    batch: int | None = None
    brought: tuple[StagedRanges, ...] = ()
    """Of a table on vnodes a place is for the whole ring, and is brought what its node was a replica of when the job
    began. If that node becomes one of further ranges, it must not count as a copy of those."""
    announces_rows: bool = False
    """Rows are about to be written over CQL, and nothing is committed by this call. A run that was overtaken is told so
    before it writes any; from then on rows of the job may be seen, whatever becomes of it."""


class MissingCopy(msgspec.Struct, frozen=True, array_like=True):
    """A replica that came while the job ran. Runs of the range are to be copied to it, and the commit asked again."""

    target: TransferTarget
    """Its place, opened for it."""
    range: TokenRange


class CommitWriteAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    lacking: tuple[MissingCopy, ...] = ()
    """Not committed yet where there are any."""
    left_to_repair: tuple[HostId, ...] = ()
    """Replicas that could not be reached in time, beyond those that the level needs."""
    layers: int = 0
    rows: int = 0
    """Merged into live layers, since they were few."""
    is_done: bool = False
    """The job had ended well before: there is nothing to write."""


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
"""Closes the session: nothing of the job has an effect afterwards. What was staged goes."""
