"""Transfers on the wire: sessions, checkpoints, staging, the seal, adoption.

These messages go over mutual TLS between nodes, or over Unix sockets within one. The data goes over Arrow Flight, to a
client with a ticket that one of these verbs issued.
"""

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
    """The caller draws the id, so that a repeated request does not open a second session."""

    session: SessionId
    table: TableId
    job: JobId
    life_ms: int
    """After so long the leader closes it in any case."""
    known_version: TopologyVersion | None = None
    """A version that the caller knew when it drew the id. It distinguishes a late request for a session that was closed
    from a new one; without it, that is possible only while few others have been closed since."""


class OpenSessionAnswer(msgspec.Struct, frozen=True, array_like=True):
    deadline_ms: int
    """Wall time."""
    version: TopologyVersion
    """Of the topology under which it was opened."""


class CloseSessionRequest(msgspec.Struct, frozen=True, array_like=True):
    session: SessionId


class CloseSessionAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The session is closed, and has no more effect on any node but those in `down`, which are considered down. Each of
    them will find it closed before the next effect; an effect that was already under way may still complete."""

    down: tuple[HostId, ...] = ()


# ---- shards


class CheckpointRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A checkpoint of the table's stacks that overlap the range, each by hard links below `folder`. Accepted only from
    the node's own bulk process."""

    session: SessionId | None
    """None: for a read of the table, which has no session."""
    table: TableId
    range: TokenRange
    version: TopologyVersion
    """The shard waits until it has installed this version: writes routed by it are in the checkpoint."""
    folder: str


class CheckpointedStack(msgspec.Struct, frozen=True, array_like=True):
    folder: str
    """An absolute path. The folder has its own manifest."""
    range: TokenRange


class CheckpointAnswer(msgspec.Struct, frozen=True, array_like=True):
    stacks: tuple[CheckpointedStack, ...]
    version: TopologyVersion = TopologyVersion(0)
    """The version that the shard had installed when the last one was taken."""


class FindTargetRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Asks which incarnation of a stack will adopt what is about to be staged. From then on, while the session is open,
    the stack drops no tombstones. Accepted only from the node's own bulk process."""

    session: SessionId
    table: TableId
    range: TokenRange
    """Of the data; one stack must cover it all."""
    version: TopologyVersion
    transfer: TransferId | None = None
    """Whether its layers are in the stack already."""


class FindTargetAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    incarnation: int
    stack_range: TokenRange
    free_bytes: int
    is_adopted: bool = False


class AdoptRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Makes sealed staging part of the stack that it was opened for."""

    session: SessionId
    transfer: TransferId
    table: TableId
    range: TokenRange
    fence: TopologyVersion
    """The shard waits until its own fence has reached this version; 0: no wait."""
    version: TopologyVersion | None = None
    """Of a write job: it is fenced like any write routed by this version, before and after its effect. None: the data
    is a copy of what other replicas have, and needs no fence."""


class AdoptAnswer(msgspec.Struct, frozen=True, array_like=True):
    layers: int
    """New ones; none if they had been adopted before."""
    rows: int
    """Merged into the live layer."""


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
    """The same transfer again: the same staging, with a new ticket."""

    session: SessionId
    transfer: TransferId
    table: TableId
    shard: ShardNumber
    range: TokenRange
    version: TopologyVersion
    kind: StagingKind
    size_bytes: int = 0
    """The expected size, so that a disk without room refuses before it is full."""
    is_repeatable: bool = False
    """The id follows from what is transferred, and the caller releases the transfer only after it was adopted. So one
    that was adopted, or released, is done and not refused."""


class OpenStagingAnswer(msgspec.Struct, frozen=True, array_like=True):
    target: TransferTarget
    is_done: bool = False
    """Of a repeatable transfer: there is nothing left to do."""
    is_sealed: bool = False
    """It only has to be adopted."""


class SealRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Chooses the attempt that counts, if it has staged these files completely. After that no other attempt counts."""

    session: SessionId
    transfer: TransferId
    attempt: AttemptId
    files: tuple[StagedFile, ...]
    layers: tuple[TokenRange, ...] = ()
    """Of files: the range of each layer of the source's part, in its order. The files of a layer may hold more, rows
    that the replica no longer owns: only rows in the range are adopted."""
    more: tuple[tuple[AttemptId, StagedFile], ...] = ()
    """Of rows: further attempts that count too, each a sorted run. All runs become one layer, with cells of the same
    key merged as for any write."""


class SealAnswer(msgspec.Struct, frozen=True, array_like=True):
    size_bytes: int
    copied_files: int = 0
    """Files that could not be taken over by rename, because a process had them open for writing."""


class ReleaseRequest(msgspec.Struct, frozen=True, array_like=True):
    """No longer needed. What is not released is removed once its session is closed."""

    session: SessionId
    checkpoints: tuple[CheckpointId, ...] = ()
    transfers: tuple[TransferId, ...] = ()


class StagingStatus(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    session: SessionId
    transfer: TransferId
    phase: str
    received_bytes: int
    """Of the attempt that has received most."""
    attempts: int


class BulkStatusRequest(msgspec.Struct, frozen=True, array_like=True):
    session: SessionId | None = None
    """None: all."""


class BulkStatusAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    stagings: tuple[StagingStatus, ...] = ()
    checkpoints: int = 0
    refused_closed_session: int = 0
    """Batches refused because their session was closed, since the process started."""
    refused_tickets: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    streams: int = 0
    """Open now."""
    reads: int = 0
    """Reads of tables with a checkpoint."""


# ---- over Flight, with a ticket


class FilesQuery(msgspec.Struct, frozen=True, array_like=True, tag="files", kw_only=True):
    """One file of a checkpoint from an offset on. Batches have one column `bytes`, with one value; the metadata of the
    last one is the CRC-32 of the whole file, as 4 bytes big-endian.

    Several files come one after the other: no value has bytes of two, a batch may have values of several, and its
    metadata is the checksums of the files that end in it, in order."""

    part: int
    layer: int
    file: str
    offset: int = 0
    more: tuple[tuple[int, str], ...] = ()
    """Further files of the part, by layer and name, each from its start."""


class StoredRowsQuery(msgspec.Struct, frozen=True, array_like=True, tag="stored_rows", kw_only=True):
    """Rows as they are stored, merged over layers, in key order: columns `key` and `value`."""

    range: TokenRange
    conditions: tuple[KeyCondition, ...] = ()
    """Rows that do not match are left out; the heads of their partitions may still come."""
    partitions: tuple[bytes, ...] = ()
    """As in `TypedRowsQuery`."""
    by_column: bool = False
    """The client can also read the rows as chunks of columns (`storage/columns.whole_shape`). A node that stores
    columns answers several times faster that way. The schema of the answer says which it is."""


class TypedRowsQuery(msgspec.Struct, frozen=True, array_like=True, tag="typed_rows", kw_only=True):
    """Rows as a user sees them, in typed columns."""

    range: TokenRange
    columns: tuple[ColumnSelector, ...]
    now_s: int
    conditions: tuple[KeyCondition, ...] = ()
    partitions: tuple[bytes, ...] = ()
    """Only these, each as the key prefix of its rows (`key_codec.partition_prefix`); empty: all."""


class HashesQuery(msgspec.Struct, frozen=True, array_like=True, tag="hashes"):
    """A hash for each of `buckets` equal parts of the range: columns `bucket`, `hash`, `rows`."""

    range: TokenRange
    buckets: int
    gc_before_s: int


class LocateQuery(msgspec.Struct, frozen=True, array_like=True, tag="locate"):
    """Where the files are: one batch with one value, a `table_calls.CheckpointFiles`. Counts as a use of the read."""

    range: TokenRange


class StagedRowsQuery(msgspec.Struct, frozen=True, array_like=True, tag="staged_rows"):
    """The rows that an attempt has staged, with the ticket of the put: batches with one column `bytes`, each one record
    of rows as it was sent; after the last one an empty batch with `flight_format.END_OF_ROWS` in its metadata. For
    replicas that joined while a job ran. Once the transfer is sealed, its attempts are one: for any of them the
    answer is the rows of all of them, merged, and begins with an empty batch with `MERGED_RUNS`. While it is being
    sealed, the answer is `Overloaded`: retry."""

    attempt: AttemptId


FlightQuery = FilesQuery | StoredRowsQuery | TypedRowsQuery | HashesQuery | LocateQuery | StagedRowsQuery


class FlightGet(msgspec.Struct, frozen=True, array_like=True):
    """The content of a Flight ticket."""

    ticket: bytes
    query: FlightQuery
    run: str = ""
    """Of a read of a table: the run of the job. The same plan may be run again hours later, and each run reads the
    table as it is then."""


class FlightPut(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The content of a Flight descriptor. Batches have one column `bytes`: parts of a file, or whole records of rows.
    `offset` is where the bytes begin: what an attempt has sent before a stream broke is kept."""

    ticket: bytes
    attempt: AttemptId
    name: str
    size_bytes: int
    offset: int = 0
    more: tuple[tuple[str, int], ...] = ()
    """Further files of the attempt, by name and size, that follow on the same stream, each from its start. No value has
    bytes of two."""


class PutAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Sent at the beginning of each put, as the offset to continue from, and at its end for each of its files."""

    received_bytes: int
    checksum: int = 0
    files: int = 1
    """At the beginning: how many of the named files this stream accepts. Fewer than all: send only the first one."""
