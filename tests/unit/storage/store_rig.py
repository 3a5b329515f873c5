"""A store on a machine that can lose power."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from tests.unit.journal.on_disks import Machine
from tests.unit.storage.small_table import CELLS, SMALL, key_of, value_of

from ebla.journal.recovery import make_durable_folder
from ebla.journal.segmented_log import SegmentedLog
from ebla.model.identity import StoreId
from ebla.model.rows import Cell, Row, RowMarker
from ebla.model.schema import TableSchema
from ebla.model.token import WHOLE_RING
from ebla.options import CommitLogMode
from ebla.ports.disk import Disk
from ebla.ports.rng import Rng
from ebla.sim.disk import ProcessDisk
from ebla.storage.codec.row_codec import decode_row
from ebla.storage.layers.layer import Item, LayerEngine
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.manifest import load_manifest
from ebla.storage.stack import Stack
from ebla.storage.store import ShardStore
from ebla.storage.store_identity import adopt_store, create_store, log_folder
from ebla.storage.store_limits import StoreLimits
from ebla.storage.store_recovery import open_store

T = TypeVar("T")
FOLDER = "/data/shard-0"
STORE = StoreId(uuid.UUID(int=0x570E))


def limits(mode: CommitLogMode = CommitLogMode.SYNC, **others: int) -> StoreLimits:
    small = {"segment_bytes": 4096, "retry_ms": 20, "layers_open_max": 64, "free_bytes_min": 0, "upkeep_ms": 50}
    return StoreLimits(mode=mode, **{**small, **others})


async def open_new_store(disk: Disk, rng: Rng, folder: str, engine: LayerEngine, bounds: StoreLimits) -> ShardStore:
    """Creates the store, or gives a checkpoint a log and an id, where it was not done before."""
    await make_durable_folder(disk, folder)
    if await load_manifest(disk, folder) is None:
        await create_store(disk, rng, folder, STORE)
    else:
        await (await SegmentedLog.open(disk, rng, log_folder(folder))).close()
        await adopt_store(disk, rng, folder, STORE)
    return await open_store(disk, rng, folder, engine, bounds, store_id=STORE)


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
        self.engine = MemoryEngine(disk, unflushed_bytes_max=self.unflushed_bytes_max)
        store = await open_new_store(disk, self.machine.rng, FOLDER, self.engine, self.bounds)
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
    value = (await store.open(stack)).read(key_of(partition, row))
    return Row() if value is None else decode_row(value, stack.schema.layouts)
