"""What the parts of a node's transfers share: the process's ports, its view of the topology, limits and folders."""

from dataclasses import dataclass
from typing import Protocol

from ebla.bulk.tickets import TicketSigner
from ebla.bulk.transfer_limits import TransferLimits
from ebla.bulk.transfer_metrics import TransferMetrics
from ebla.feed.session_guards import SessionGuards
from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import DiskFull, NotFound
from ebla.model.identity import HostId, ShardNumber, TableId
from ebla.model.schema import TableSchema
from ebla.observe.event_reporter import EventReporter
from ebla.ports.clock import Clock
from ebla.ports.disk import Disk
from ebla.ports.rng import Rng
from ebla.storage.compaction.layer_build import BuildJob, BuildResult
from ebla.wire.verbs import A, Q, Verb


class ShardCaller(Protocol):
    """`feed.local_shards.LocalShardClients`."""

    async def call(self, shard: ShardNumber, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A: ...


class Isolation(Protocol):
    """What transfers need of the file system beyond the disk port. Blocks: called off the loop."""

    def inode(self, path: str) -> int: ...

    def size_bytes(self, path: str) -> int:
        """Without opening it."""
        ...

    def has_no_writer(self, path: str) -> bool:
        """True only where no process has the file open for writing, under any name. False also where the kernel cannot
        say."""
        ...


class RowLayerBuilder(Protocol):
    """Builds a layer from staged rows. Cancelled, late or failed, it leaves no output folder and no running process."""

    async def build(self, job: BuildJob, deadline_s: float) -> BuildResult: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferContext:
    disk: Disk
    rng: Rng
    clock: Clock
    report: EventReporter
    limits: TransferLimits
    metrics: TransferMetrics
    view: TopologyView
    guards: SessionGuards
    tickets: TicketSigner
    shards: ShardCaller
    host: HostId
    machine: str
    """Each checkpoint's and each target's folder contains a file of this name."""
    isolation: Isolation
    building: RowLayerBuilder
    staging_folder: str
    checkpoints_folder: str

    def wall_ms(self) -> int:
        return self.clock.wall_us() // 1000

    def check_space(self, size_bytes: int) -> None:
        """Raises `DiskFull` where so many more bytes would take the reserve of the shards."""
        free = self.disk.free_bytes(self.staging_folder)
        if free - size_bytes < self.limits.free_bytes_min:
            raise DiskFull(
                f"staging of {size_bytes} bytes does not fit: {free} bytes are free on this node and "
                f"{self.limits.free_bytes_min} stay so",
                advice="free space on its file system, and start the job again",
            )

    def schema_of(self, table: TableId, view: View | None = None) -> TableSchema:
        """In this view, or in the current one."""
        schema = (view or self.view.current).schemas.get(table)
        if schema is None:
            raise NotFound(f"there is no table {table}", advice="it was dropped; the job has nothing to do")
        return schema

    def shard_numbers(self) -> tuple[ShardNumber, ...]:
        """Of this node."""
        node = self.view.current.snapshot.nodes.get(self.host)
        return tuple(ShardNumber(number) for number in range(0 if node is None else node.shard_count))
