"""What all parts of a shard's replica side share: its stacks, the bounds of their work, and the fence.

Requests routed by a version below the fence are refused. The fence is checked three times. On arrival, so that outdated
requests cost nothing. Just before the effect, without an await in between, because the request may have waited for a
layer or a version. And again after the effect, once it is durable: a fence that rose meanwhile belongs to a barrier
that did not wait for this write, so the write must not be acknowledged, although it was made. INV-ROWS-1: no write has
an effect below the fence of a version whose barrier returned on the node.
"""

from dataclasses import dataclass

from ebla.feed.session_guards import SessionGuards
from ebla.feed.topology_view import TopologyView
from ebla.model.errors import NotFound, Outcome, Stale
from ebla.model.identity import ShardNumber, TableId, TopologyVersion
from ebla.options import DEFAULT_LIMITS
from ebla.ports.disk import Disk
from ebla.replica.replica_stacks import ReplicaStacks
from ebla.storage.store import ShardStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLimits:
    version_wait_ms: int = 2_000
    """How long a request waits for the version it was routed by, if that is newer than the installed one."""
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
    fence_wait_ms: int = 5_000
    """How long an adoption waits for the fence it needs."""
    adoptions_max: int = 64
    """In progress at once; more are refused."""
    adopt_items_max: int = 128
    """Staged rows merged before other work gets a turn on the loop."""
    adopt_bytes_max: int = 1 << 20
    """The same by their size; one row may be larger."""
    adopted_layers_max: int = DEFAULT_LIMITS.adopted_layers_max
    """Bases of a stack up to which a job may add layers; beyond, it waits for compaction."""

    def __post_init__(self) -> None:
        assert 0 < self.turn_items_max <= self.page_items_max
        assert self.page_bytes_max > 0


class OvertakenByFence(Stale):
    """The fence rose while the write was being made: it is stored, but must not be relied on."""

    outcome = Outcome.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaContext:
    view: TopologyView
    store: ShardStore
    stacks: ReplicaStacks
    guards: SessionGuards
    disk: Disk
    data_folder: str
    """Of the node. It holds staging and checkpoints, on the same file system as the shard's folder."""
    shard: ShardNumber
    limits: ReplicaLimits

    async def wait_version(self, version: TopologyVersion, deadline_ms: int) -> None:
        wait_ms = min(deadline_ms, self.limits.version_wait_ms)
        if not await self.view.wait_version(version, wait_ms / 1000):
            raise Stale(f"version {version} of the topology has not come here within {wait_ms} ms", advice="try again")

    def check_table(self, table: TableId) -> None:
        view = self.view.current
        if table not in view.snapshot.tables:
            raise NotFound(f"there is no table {table} at version {view.version}")

    def not_here(self, table: TableId, key: bytes) -> Stale:
        """The error if no stack has this key. Raises `NotFound` if there is no such table."""
        self.check_table(table)
        return Stale(
            f"this shard has no replica of key {key.hex()} at version {self.view.current.version}",
            advice="refresh and retry",
        )


def fenced_off(version: TopologyVersion, fence: TopologyVersion) -> Stale:
    """On arrival, before an effect and after a read."""
    return Stale(f"version {version} of the topology is fenced off; the fence is {fence}", advice="refresh and retry")


def overtaken(version: TopologyVersion, fence: TopologyVersion) -> OvertakenByFence:
    """After the effect."""
    return OvertakenByFence(f"version {version} was fenced off while the write was made; the fence is {fence}")
