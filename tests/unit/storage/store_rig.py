"""A store on a machine that can lose power."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from tests.unit.journal.on_disks import Machine

from ebla.journal.recovery import JournalLimits
from ebla.model.rows import Cell, Row, RowMarker
from ebla.model.schema import TableSchema
from ebla.model.token import WHOLE_RING
from ebla.options import CommitLogMode
from ebla.ports.disk import Disk
from ebla.sim.disk import ProcessDisk
from ebla.sim.workloads.small_table import CELLS, SMALL, key_of, value_of
from ebla.storage.codec.row_codec import decode_row
from ebla.storage.commit_log import CommitLogLimits
from ebla.storage.compaction.compaction_plan import CompactionLimits
from ebla.storage.layers.layer import Item
from ebla.storage.layers.memory_engine import MemoryEngine, MemoryLimits
from ebla.storage.stack import Stack
from ebla.storage.store import ShardStore, StoreLimits
from ebla.storage.store_recovery import open_store

T = TypeVar("T")
FOLDER = "/data/shard-0"
LOG = JournalLimits(segment_bytes=4096, batch_bytes_max=1 << 20, read_bytes=4096)


def limits(mode: CommitLogMode = CommitLogMode.SYNC, **log: int) -> StoreLimits:
    bounds = CommitLogLimits(mode=mode, log=LOG, retry_ms=20, **log)
    return StoreLimits(log=bounds, compaction=CompactionLimits(), layers_open_max=64, free_bytes_min=0, upkeep_ms=50)


class Rig:
    """Incarnations of one shard; each opens the store again."""

    def __init__(self, seed: int = 1, bounds: StoreLimits | None = None) -> None:
        self.machine = Machine(seed)
        self.bounds = bounds or limits()
        self.engine: MemoryEngine | None = None
        self.unflushed_bytes_max = 16 << 20

    def life(self, work: Callable[[ShardStore], Awaitable[T]]) -> T:
        """Opens the store, does the work, and is killed: nothing is flushed or closed."""

        async def main(disk: ProcessDisk) -> T:
            async with self.store(disk) as store:
                return await work(store)

        return self.machine.run(main)

    @asynccontextmanager
    async def store(self, disk: Disk) -> AsyncIterator[ShardStore]:
        self.engine = MemoryEngine(disk, MemoryLimits(unflushed_bytes_max=self.unflushed_bytes_max))
        store = await open_store(disk, self.machine.rng, FOLDER, self.engine, self.bounds)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(store.run())
            yield store
            running.cancel()

    def lose_power(self) -> None:
        self.machine.lose_power()


async def small_stack(store: ShardStore, schema: TableSchema = SMALL) -> Stack:
    await store.set_schema(schema)
    stack = await store.create(schema.id, WHOLE_RING)
    store.release_gc(stack)
    return stack


def plain(partition: int, row: int, timestamp_us: int, number: int = 1) -> Item:
    """A whole row of the plain shape."""
    cells = {column: Cell(timestamp_us=timestamp_us, value=number.to_bytes(4)) for column in CELLS}
    return key_of(partition, row), value_of(Row(marker=RowMarker(timestamp_us), deletion=None, cells=cells))


async def row_at(store: ShardStore, stack: Stack, partition: int, row: int) -> Row:
    value = await store.read(stack, key_of(partition, row))
    return Row() if value is None else decode_row(value, stack.schema.layouts)
