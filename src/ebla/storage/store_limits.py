"""The limits of a shard's store: of its commit log, its layers and its upkeep."""

from dataclasses import dataclass

from ebla.journal.segmented_log import SEGMENT_BYTES
from ebla.options import DEFAULT_LIMITS, CommitLogMode


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    mode: CommitLogMode = CommitLogMode.SYNC
    period_ms: int = DEFAULT_LIMITS.commit_log_period_ms
    """How long a record may wait to be written to the commit log in periodic mode."""
    segment_bytes: int = SEGMENT_BYTES
    segments_max: int = 32
    """With more segments of the commit log, the layers that still need the oldest are flushed; with twice as many,
    writes are refused."""
    retry_ms: int = 500
    """After a full disk."""
    bases_max: int = 4
    """With more bases in a stack, some are compacted."""
    live_bytes_max: int = 64 << 20
    """A larger live layer is sealed."""
    layers_open_max: int = 512
    free_bytes_min: int = DEFAULT_LIMITS.free_disk_bytes_min
    """With less, writes are refused: the rest is for flushes, manifests and compactions, which make space."""
    upkeep_ms: int = 250
