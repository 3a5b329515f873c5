"""Bulk work on the wire: sessions for it, checkpoints, staging, the seal, adoption.

These go over mutual TLS between nodes, or over Unix sockets within one. The bytes themselves go over Arrow Flight, to
whoever holds a ticket that one of these verbs gave out.
"""

import enum

import msgspec

from ebla.model.identity import (
    AttemptId,
    CheckpointId,
    HostId,
    JobId,
    SessionId,
    ShardNumber,
    TableId,
    TopologyVersion,
    TransferId,
)
from ebla.model.selection import ColumnSelector, KeyCondition
from ebla.model.token import TokenRange
from ebla.model.transfers import StagedFile, StagingKind, TransferSource, TransferTarget

# ---- control


class OpenSessionRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The id is drawn by whoever asks, so that asking again does not open a second one."""

    session: SessionId
    table: TableId
    job: JobId
    life_ms: int
    """After so long the leader closes it, whatever its owner does."""
    known_version: TopologyVersion | None = None
    """A version that the asker knew of when it drew the id. By it a request that arrives after the session was closed,
    however late, is told from a new one; without it, only if few others were closed since then."""


class OpenSessionAnswer(msgspec.Struct, frozen=True, array_like=True):
    deadline_ms: int
    """Wall time."""
    version: TopologyVersion
    """Of the topology that it was opened on."""


class CloseSessionRequest(msgspec.Struct, frozen=True, array_like=True):
    session: SessionId


class CloseSessionAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Closed, and every effect of it is over on every node but those named, which are held to be down: each of them
    will find it closed before it has another effect, and one that was already in the middle of one may end it."""

    down: tuple[HostId, ...] = ()


# ---- shards


class CheckpointRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Of the stacks of this table that have a part of the range, each by hard links below `folder`. From the node's own
    bulk process alone."""

    session: SessionId | None
    """None: for whoever reads the table, under no session."""
    table: TableId
    range: TokenRange
    version: TopologyVersion
    """The shard must have installed it: writes routed by it are in the checkpoint."""
    folder: str


class CheckpointedStack(msgspec.Struct, frozen=True, array_like=True):
    folder: str
    """Absolute; it has a manifest of its own."""
    range: TokenRange


class CheckpointAnswer(msgspec.Struct, frozen=True, array_like=True):
    stacks: tuple[CheckpointedStack, ...]
    version: TopologyVersion = TopologyVersion(0)
    """The one the shard had installed when the last of them was taken."""


class FindTargetRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Which life of a stack will take what is about to be staged. From then on, and as long as the session is open,
    nothing is collected there. From the node's own bulk process alone."""

    session: SessionId
    table: TableId
    range: TokenRange
    """Of the data; one stack must cover it."""
    version: TopologyVersion


class FindTargetAnswer(msgspec.Struct, frozen=True, array_like=True):
    incarnation: int
    stack_range: TokenRange
    free_bytes: int


class AdoptRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Sealed staging becomes part of the stack that it was opened for."""

    session: SessionId
    transfer: TransferId
    table: TableId
    range: TokenRange
    fence: TopologyVersion
    """The shard's own fence must be there, or the shard waits until it is; 0: any."""
    version: TopologyVersion | None = None
    """Of a job's write: it is fenced like any write routed by this version, before and after its effect. None: what is
    brought is a copy of what other replicas have, and no version is below it."""


class AdoptAnswer(msgspec.Struct, frozen=True, array_like=True):
    layers: int
    """That it brought; none where they had been adopted before."""
    rows: int
    """That were merged."""


# ---- bulk


class TakeCheckpointRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    session: SessionId
    table: TableId
    range: TokenRange
    version: TopologyVersion
    shard: ShardNumber | None = None
    """None: all shards of the node."""


class TakeCheckpointAnswer(msgspec.Struct, frozen=True, array_like=True):
    source: TransferSource


class OpenStagingRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Again for the same transfer: the same place, with a new ticket."""

    session: SessionId
    transfer: TransferId
    table: TableId
    shard: ShardNumber
    range: TokenRange
    version: TopologyVersion
    kind: StagingKind
    size_bytes: int = 0
    """About what will come, so that a disk without room says so before it is full."""


class OpenStagingAnswer(msgspec.Struct, frozen=True, array_like=True):
    target: TransferTarget


class SealRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """This attempt counts, if it has brought these files whole; from then on no other does."""

    session: SessionId
    transfer: TransferId
    attempt: AttemptId
    files: tuple[StagedFile, ...]
    layers: tuple[TokenRange, ...] = ()
    """Of files: the range of each layer of the source's part, in its order. A layer's files may hold more than that,
    rows that its replica has long given away: only what is in its range is adopted."""
    more: tuple[tuple[AttemptId, StagedFile], ...] = ()
    """Of rows: further attempts that count besides, each a run in key order. They become one layer, cells of the same
    key merged by the rule of all writes."""


class SealAnswer(msgspec.Struct, frozen=True, array_like=True):
    size_bytes: int
    copied_files: int = 0
    """Which could not be taken over as they were, because somebody had them open for writing."""


class ReleaseRequest(msgspec.Struct, frozen=True, array_like=True):
    """What is not needed any more. What nobody releases is swept once its session is closed."""

    session: SessionId
    checkpoints: tuple[CheckpointId, ...] = ()
    transfers: tuple[TransferId, ...] = ()


class StagingPhase(enum.StrEnum):
    OPEN = "open"
    SEALED = "sealed"


class StagingStatus(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    session: SessionId
    transfer: TransferId
    phase: str
    received_bytes: int
    """Of the attempt that has come furthest."""
    attempts: int


class BulkStatusRequest(msgspec.Struct, frozen=True, array_like=True):
    session: SessionId | None = None
    """None: all."""


class BulkStatusAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    stagings: tuple[StagingStatus, ...] = ()
    checkpoints: int = 0
    refused_closed_session: int = 0
    """Pieces that came for a session that was closed, since the process started."""
    refused_tickets: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    streams: int = 0
    """Under way now."""
    reads: int = 0
    """Of tables, that a checkpoint is kept for."""


# ---- what goes over Flight, behind a ticket


class FilesQuery(msgspec.Struct, frozen=True, array_like=True, tag="files", kw_only=True):
    """One file of a checkpoint from an offset on. Batches have one column `bytes`, a value each; the last carries the
    CRC-32 of all the file's bytes, as 4 bytes big-endian, in its metadata.

    Several files come one behind the other: no value has bytes of two, a batch may have values of many, and its
    metadata are the checksums of those that end in it, in their order."""

    part: int
    layer: int
    file: str
    offset: int = 0
    more: tuple[tuple[int, str], ...] = ()
    """Further files of the part, by layer and name, each from its beginning."""


class StoredRowsQuery(msgspec.Struct, frozen=True, array_like=True, tag="stored_rows", kw_only=True):
    """Rows as they are stored, merged over layers, in key order: columns `key` and `value`."""

    range: TokenRange
    conditions: tuple[KeyCondition, ...] = ()
    """Rows that do not meet them are left out; the heads of their partitions may come all the same."""
    partitions: tuple[bytes, ...] = ()
    """As of `TypedRowsQuery`."""
    by_column: bool = False
    """Whoever asks can take the same rows as chunks of columns (`storage/columns.whole_shape`), by which a node that
    has them answers several times faster. The answer's schema tells which it is."""


class TypedRowsQuery(msgspec.Struct, frozen=True, array_like=True, tag="typed_rows", kw_only=True):
    """What a user sees, in typed columns."""

    range: TokenRange
    columns: tuple[ColumnSelector, ...]
    now_s: int
    conditions: tuple[KeyCondition, ...] = ()
    partitions: tuple[bytes, ...] = ()
    """Only these, each as the part of its rows' keys up to the kind (`key_codec.partition_prefix`); none: all."""


class HashesQuery(msgspec.Struct, frozen=True, array_like=True, tag="hashes"):
    """A hash for each of so many equal parts of the range: columns `bucket`, `hash`, `rows`."""

    range: TokenRange
    buckets: int
    gc_before_s: int


class LocateQuery(msgspec.Struct, frozen=True, array_like=True, tag="locate"):
    """Where the files are. One batch with one value: a `table_access.Located`. Counts as a use of what is kept."""

    range: TokenRange


class StagedRowsQuery(msgspec.Struct, frozen=True, array_like=True, tag="staged_rows"):
    """What an attempt has staged, behind the ticket by which it was put: batches with one column `bytes`, a record of
    rows each, as they were sent; behind the last one an empty batch with `flight_forms.END_OF_ROWS` in its metadata.
    For replicas that came while a job ran. Of a transfer that is sealed all that count are one: whichever of them is
    asked for, the answer is the rows of all of them, merged, and begins with an empty batch with `MERGED_RUNS`. One
    that is just being sealed is `Overloaded`: ask again."""

    attempt: AttemptId


FlightQuery = FilesQuery | StoredRowsQuery | TypedRowsQuery | HashesQuery | LocateQuery | StagedRowsQuery


class FlightGet(msgspec.Struct, frozen=True, array_like=True):
    """What stands in a Flight ticket."""

    ticket: bytes
    query: FlightQuery
    run: str = ""
    """Of a read of a table: which run of the job asks. What was planned once may be run again, hours later, and each
    run reads the table as it is then."""


class FlightPut(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What stands in a Flight descriptor. Batches have one column `bytes`: pieces of a file, or whole records of rows.
    `offset` is where the bytes begin: what an attempt has brought before a stream broke stays."""

    ticket: bytes
    attempt: AttemptId
    name: str
    size_bytes: int
    offset: int = 0
    more: tuple[tuple[str, int], ...] = ()
    """Further files of the attempt, by name and size, that come on the same stream behind the first one, each from its
    beginning. No value has bytes of two."""


class PutAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Sent back at the end of each put, for each of its files, and at its begin as where to go on."""

    received_bytes: int
    checksum: int = 0
    files: int = 1
    """At the begin: how many of those that were named are taken on this stream. Fewer than all: send the first one
    alone."""
