"""Transfers between nodes: sources, targets, tasks, and the results that tasks report. Data only.

A *transfer* brings data into one stack. A task (on Spark) reads from *sources*, which are checkpoints on other nodes,
and writes into the *staging* folder of the target node, with an attempt id of its own. Nothing has effect before the
attempt is sealed, and nothing is visible before the shard adopts it.
"""

import enum

import msgspec

from ebla.model.identity import Address, AttemptId, CheckpointId, HostId, SessionId, ShardNumber, TableId, TransferId
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange, subtract_ranges

ROWS_NAME = "rows"
"""The name of the file of staged rows. It has records of `storage/codec/row_file.py`, one for each batch; every other
name is `<layer>/<file>`."""


class StagingKind(enum.StrEnum):
    FILES = "files"
    """Files of layers, unchanged."""
    ROWS = "rows"
    """Stored rows in key order."""


class CheckpointFile(msgspec.Struct, frozen=True, array_like=True):
    name: str
    size_bytes: int
    inode: int = 0
    """On the source's file system, for hard links: a link has the same number."""


class CheckpointLayer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    folder: str
    """Below the checkpoint's folder."""
    range: TokenRange
    """Rows outside of it do not belong to the stack."""
    files: tuple[CheckpointFile, ...]
    hidden: tuple[TokenRange, ...] = ()
    """Rows there do not belong to it either."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def visible(self) -> tuple[TokenRange, ...]:
        """The ranges whose rows belong to the stack."""
        return subtract_ranges((self.range,), self.hidden) if self.hidden else (self.range,)


class CheckpointPart(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One stack of the source, as it was when the checkpoint was taken. Oldest layer first."""

    shard: ShardNumber
    range: TokenRange
    layers: tuple[CheckpointLayer, ...]
    rows: int = 0
    """An estimate: the sum over the layers."""
    incarnation: int = 0
    """The incarnation of the replica."""

    @property
    def size_bytes(self) -> int:
        return sum(layer.size_bytes for layer in self.layers)


class ScanStack(msgspec.Struct, frozen=True, array_like=True):
    """A stack of a checkpoint as a scan reads it: its layers by folder, each with its range. A layer of which only some
    ranges belong to the stack is listed with each of them."""

    range: TokenRange
    layers: tuple[tuple[str, TokenRange], ...]


class TransferSource(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A checkpoint on a node, and the right to read it."""

    host: HostId
    checkpoint: CheckpointId
    table: TableId
    parts: tuple[CheckpointPart, ...]
    ticket: bytes
    """Signed by that node's bulk process; names the checkpoint and its expiry."""
    flight: Address
    machine: str = ""
    """The machine it is on; a task on the same machine may use hard links."""
    folder: str = ""
    """Of the checkpoint, for hard links. It contains a file named after `machine`, so that an equal path on another
    machine, or in another container, is not mistaken for it."""

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    def estimate_bytes(self, wanted: TokenRange) -> int:
        """What it holds of a range: each stack counts by the share of its tokens that are in the range."""
        overlapping = [part for part in self.parts if part.range.overlaps(wanted)]
        return sum(part.size_bytes * min(wanted.width, part.range.width) // part.range.width for part in overlapping)


class TransferTarget(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The staging folder of one transfer on a node, and the right to write there."""

    host: HostId
    shard: ShardNumber
    session: SessionId
    transfer: TransferId
    kind: StagingKind
    range: TokenRange
    """Of the data; rows outside of it are refused."""
    ticket: bytes
    flight: Address
    machine: str = ""
    folder: str = ""
    """Of the transfer, for hard links: an attempt creates a folder with its own name in it."""


class StagedFile(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A file that a task has sent. The name is `<layer>/<file>` with the layer's position in the checkpoint, or
    `rows`."""

    name: str
    size_bytes: int
    checksum: int = 0
    """CRC-32 of the source's bytes."""
    inode: int = 0
    """For a linked file: that of the source. The same inode means the same bytes."""


class FileMove(msgspec.Struct, frozen=True, array_like=True, tag="file_move"):
    """The layers of one part of a checkpoint, as files."""

    source: TransferSource
    part: int
    target: TransferTarget

    @property
    def size_bytes(self) -> int:
        return self.source.parts[self.part].size_bytes


class RowTarget(msgspec.Struct, frozen=True, array_like=True):
    target: TransferTarget
    own: int | None = None
    """The index of the source on this node: rows it already has are not written again. None: all are written."""


class RowPart(msgspec.Struct, frozen=True, array_like=True):
    range: TokenRange
    sources: tuple[int, ...]
    """Indexes of the move's sources: the replicas of this range."""


class RowMove(msgspec.Struct, frozen=True, array_like=True, tag="row_move", kw_only=True):
    """Rows of a range, merged cell by cell from one or several replicas, to those that lack them."""

    range: TokenRange
    sources: tuple[TransferSource, ...]
    targets: tuple[RowTarget, ...]
    schema: TableSchema | None = None
    """Needed to merge cells; a single source needs none. Rows written by a newer schema are refused, and the move is
    repeated with that one."""
    parts: tuple[RowPart, ...] = ()
    """If only parts of the range are moved: ascending and disjoint. Empty: all of it, from all sources."""

    @property
    def row_parts(self) -> tuple[RowPart, ...]:
        return self.parts or (RowPart(self.range, tuple(range(len(self.sources)))),)

    @property
    def estimated_bytes(self) -> int:
        """What the sources hold of it."""
        return sum(
            self.sources[number].estimate_bytes(part.range) for part in self.row_parts for number in part.sources
        )


class ComparisonTask(msgspec.Struct, frozen=True, array_like=True, tag="range_to_compare", kw_only=True):
    """Compares a range on all its replicas by hashes of `buckets` equal parts."""

    range: TokenRange
    sources: tuple[TransferSource, ...]
    buckets: int
    gc_before_s: int
    """Older tombstones and expired cells are ignored: one replica may have dropped them."""


TransferTask = FileMove | RowMove | ComparisonTask


class MoveResult(msgspec.Struct, frozen=True, array_like=True, tag="moved", kw_only=True):
    """What one attempt at a transfer has staged. Several attempts may be reported; one of them is sealed."""

    transfer: TransferId
    attempt: AttemptId
    files: tuple[StagedFile, ...]
    rows: int = 0
    size_bytes: int = 0
    short_cut: bool = False
    """By hard links on one machine instead of Flight."""


class BucketDifference(msgspec.Struct, frozen=True, array_like=True, tag="different"):
    """A bucket that differs between replicas: for each of them its hash and number of rows."""

    range: TokenRange
    replicas: tuple[tuple[HostId, bytes, int], ...]


class ComparisonResult(msgspec.Struct, frozen=True, array_like=True, tag="compared"):
    """A range that was compared; its `BucketDifference`s are reported separately."""

    range: TokenRange
    buckets: int
    rows: int


TransferResult = MoveResult | BucketDifference | ComparisonResult
