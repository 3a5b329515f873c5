"""What is moved between nodes, from where, to where, and what a task says it has done. Data only.

A *transfer* brings data into one stack. Whoever runs it (a Spark task) reads from *sources*, which are checkpoints on
other nodes, and writes into the *staging* of the target node under an attempt of its own. Nothing of it counts before
the attempt is named at the seal, and nothing is seen before the shard adopts it.
"""

import enum

import msgspec

from ebla.model.identity import Address, AttemptId, CheckpointId, HostId, SessionId, ShardNumber, TableId, TransferId
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange

ROWS_NAME = "rows"
"""The one thing that is put where rows are staged. Its bytes are records of `storage/codec/row_file.py`, one for
each batch that came; every other name is `<layer>/<file>`."""


class StagingKind(enum.StrEnum):
    FILES = "files"
    """Layers as they are on the source."""
    ROWS = "rows"
    """Stored rows in key order."""


class CheckpointFile(msgspec.Struct, frozen=True, array_like=True):
    name: str
    size_bytes: int
    inode: int = 0
    """On the source's file system, where the short cut links it; a link has the same number."""


class CheckpointLayer(msgspec.Struct, frozen=True, array_like=True):
    folder: str
    """Below the checkpoint's own."""
    range: TokenRange
    """Rows outside of it are no part of the stack."""
    files: tuple[CheckpointFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class CheckpointPart(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One stack of the source, as it was when the checkpoint was taken. Oldest layer first."""

    shard: ShardNumber
    range: TokenRange
    layers: tuple[CheckpointLayer, ...]
    rows: int = 0
    """About: those of the layers, each counted by itself."""
    incarnation: int = 0
    """Which life of the replica it is of."""

    @property
    def size_bytes(self) -> int:
        return sum(layer.size_bytes for layer in self.layers)


class ScanStack(msgspec.Struct, frozen=True, array_like=True):
    """A stack of a checkpoint as a scan reads it: its layers by folder, each with its range."""

    range: TokenRange
    layers: tuple[tuple[str, TokenRange], ...]


class TransferSource(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint on a node, and the right to read it."""

    host: HostId
    checkpoint: CheckpointId
    table: TableId
    parts: tuple[CheckpointPart, ...]
    ticket: bytes
    """Signed by that node's bulk process; names the checkpoint and when it ends."""
    flight: Address
    machine: str = ""
    """Which machine it is on; who is on the same one may try the short cut."""
    folder: str = ""
    """Of the checkpoint, for the short cut. It holds a file named as `machine` says, so that a path that happens to be
    there on another machine, or in another container, is not taken for it."""

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    def estimate_bytes(self, wanted: TokenRange) -> int:
        """What it holds of a range: each stack counts by the share of its tokens that are in the range."""
        overlapping = [part for part in self.parts if part.range.overlaps(wanted)]
        return sum(part.size_bytes * min(wanted.width, part.range.width) // part.range.width for part in overlapping)


class TransferTarget(msgspec.Struct, frozen=True, array_like=True):
    """A place in the staging of a node for one transfer, and the right to write there."""

    host: HostId
    shard: ShardNumber
    session: SessionId
    transfer: TransferId
    kind: StagingKind
    range: TokenRange
    """Of the data that is brought; nothing outside of it is taken."""
    ticket: bytes
    flight: Address
    machine: str = ""
    folder: str = ""
    """Of the transfer's staging, for the short cut: an attempt makes a folder named after itself in it."""


class StagedFile(msgspec.Struct, frozen=True, array_like=True):
    """What a task has brought. The name is `<layer>/<file>` with the layer's place in the checkpoint, or `rows`."""

    name: str
    size_bytes: int
    checksum: int = 0
    """CRC-32 of the source's bytes."""
    inode: int = 0
    """Where it was linked: the source's. The bytes are the same because the file is."""


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
    """Which of the sources is this node's own: what it has already is not written again. None: everything is."""


class RowMove(msgspec.Struct, frozen=True, array_like=True, tag="row_move", kw_only=True):
    """Rows of a range, merged cell by cell from one or several replicas, to those that lack them."""

    range: TokenRange
    sources: tuple[TransferSource, ...]
    targets: tuple[RowTarget, ...]
    schema: TableSchema | None = None
    """Of the table, by which cells are merged; a single source needs none. Rows written by a newer one are refused, and
    the move is made again with that."""


class ComparisonTask(msgspec.Struct, frozen=True, array_like=True, tag="range_to_compare", kw_only=True):
    """A range on all its replicas, by hashes of `buckets` equal parts of it."""

    range: TokenRange
    sources: tuple[TransferSource, ...]
    buckets: int
    gc_before_s: int
    """Tombstones and expired cells from before that count for nothing: one replica may have collected them."""


TransferTask = FileMove | RowMove | ComparisonTask


class MoveResult(msgspec.Struct, frozen=True, array_like=True, tag="moved", kw_only=True):
    """What one attempt at a transfer has staged. Several of one transfer may be told of; one of them is sealed."""

    transfer: TransferId
    attempt: AttemptId
    files: tuple[StagedFile, ...]
    rows: int = 0
    size_bytes: int = 0
    short_cut: bool = False
    """By links on one machine rather than over Flight."""


class BucketDifference(msgspec.Struct, frozen=True, array_like=True, tag="different"):
    """A bucket that is not the same on all replicas: for each of them its hash and how many rows it holds."""

    range: TokenRange
    replicas: tuple[tuple[HostId, bytes, int], ...]


class ComparisonResult(msgspec.Struct, frozen=True, array_like=True, tag="compared"):
    """A range that was compared; the `BucketDifference` ones of it are told of apart."""

    range: TokenRange
    buckets: int
    rows: int


TransferResult = MoveResult | BucketDifference | ComparisonResult
