"""The bounds of a shard's replica side."""

from dataclasses import dataclass

from ebla.options import DEFAULT_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLimits:
    version_wait_ms: int = 2_000
    """How long a request waits for the version it was routed by, if that is newer than the installed one."""
    barrier_ms: int = 5_000
    """For the read barrier of group 0 before a guard is entered."""
    page_bytes_max: int = 8 << 20
    """Of one answer, whatever the request says: it has to fit a frame."""
    page_items_max: int = 16_384
    """Stored items read for one page, including tombstones. So a page may end before it has all its rows."""
    turn_items_max: int = 512
    """Stored items read before other work gets a turn on the loop."""
    writes_waiting_max: int = 16_384
    """Batches of writes that wait, over all connections; more are refused."""
    reads_waiting_max: int = 4_096
    """Reads that take more than one turn."""
    sibling_ms: int = 2_000
    """For a write forwarded to another shard of the node."""
    fence_wait_ms: int = 5_000
    """How long an adoption waits for the fence it needs."""
    checkpoints_at_once_max: int = 2
    """Stacks of one checkpoint that are linked in parallel. More would delay requests on the disk."""
    adoptions_max: int = 64
    """In progress at once; more are refused."""
    adopt_items_max: int = 128
    """Staged rows merged before other work gets a turn on the loop."""
    adopt_bytes_max: int = 1 << 20
    """The same by their size; one row may be larger."""
    adopted_layers_max: int = DEFAULT_LIMITS.adopted_layers_max
    """Bases of a stack up to which a job may add layers; beyond, it waits for compaction."""
    drain_ms: int = 500
    """For running requests to end when the shard stops."""
    stop_ms: int = 2_000
    """For flushing when the shard stops; what is not flushed is replayed from the commit log."""

    def __post_init__(self) -> None:
        assert 0 < self.turn_items_max <= self.page_items_max
        assert self.page_bytes_max > 0
