"""A shard's store on RocksDB, killed before every call of every stack operation, then opened again. Run by
`test_store_crash.py`.

`python store_crash.py FOLDER OPERATION…` prints one line of JSON per kill: before what, and what was wrong afterwards.
Every try begins with a store of one replica: two bases, and rows that only the commit log has.
"""

import asyncio
import gc
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from tests.cluster.kill_at_calls import Acknowledge, Workload, try_every_kill
from tests.unit.storage.store_rig import open_new_store

from ebla.model.cql_types import Scalar, ScalarType
from ebla.model.identity import TableId
from ebla.model.rows import Cell, Row, RowMarker
from ebla.model.schema import Column, ColumnKind, new_schema, with_column
from ebla.model.token import WHOLE_RING, Token, TokenRange, token_of
from ebla.options import NodeLimits
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.system_rng import SystemRng
from ebla.storage.codec.key_codec import partition_prefix, row_key
from ebla.storage.codec.row_codec import encode_row
from ebla.storage.compaction.compaction_plan import CompactionResult, SwapOutcome
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.layer import Item, build_layer
from ebla.storage.layers.rocks_engine import RocksEngine
from ebla.storage.manifest import layers_folder
from ebla.storage.merge.row_merge import facts_of
from ebla.storage.stack import Stack
from ebla.storage.stack_changes import Adoption
from ebla.storage.store import ShardStore
from ebla.storage.store_limits import StoreLimits

AT_US = 1_700_000_000_000_000
ROCKS = NodeLimits(shard_cache_bytes_max=1 << 20, shard_unflushed_bytes_max=4 << 20)
LIMITS = StoreLimits(segment_bytes=1 << 16, free_bytes_min=0, upkeep_ms=10_000)
INT = ScalarType(Scalar.INT)
TABLE = new_schema(
    TableId(UUID(int=5)),
    "ks",
    "t",
    (
        Column(name="k", type=INT, kind=ColumnKind.PARTITION_KEY),
        Column(name="v", type=ScalarType(Scalar.TEXT), kind=ColumnKind.REGULAR),
    ),
)
WIDER = with_column(TABLE, Column(name="w", type=INT, kind=ColumnKind.REGULAR))
OTHER_RANGE = TokenRange(Token(0), Token(1000))
OPENED = 1
"""The first reported step: the store is open."""
BUILT = OPENED + 2
"""The step of a compaction that builds its output; `layer_crash.py` tries that one."""
COMPACTED = 3


def rows(numbers: range, text: str, at_us: int) -> list[Item]:
    made = []
    for number in numbers:
        key = number.to_bytes(4)
        cells = {TABLE.column("v").number: Cell(timestamp_us=at_us, value=f"{text} {number}".encode())}
        value = encode_row(Row(marker=RowMarker(at_us), deletion=None, cells=cells), 1, TABLE.layouts[0])
        made.append((row_key(partition_prefix(token_of(key), key)), value))
    return sorted(made)


def merged(*parts: list[Item]) -> list[Item]:
    """Later parts are newer."""
    return sorted({key: value for part in parts for key, value in part}.items())


FIRST, SECOND = rows(range(20), "first", AT_US), rows(range(10, 30), "second", AT_US + 1)
LOGGED = rows(range(25, 35), "logged", AT_US + 2)
BEFORE = merged(FIRST, SECOND, LOGGED)
WRITTEN = [rows(range(number, number + 2), "written", AT_US + 3) for number in (30, 60, 90)]
ADOPTED, NEWER = rows(range(100, 110), "adopted", AT_US), rows(range(105, 115), "newer", AT_US + 1)
STAGED = {"staged-0": ADOPTED, "staged-1": NEWER}
"""Two layers of one transfer: with only the first, old values would be visible."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    folder: str
    disk: FileDisk
    engine: RocksEngine
    store: ShardStore

    def stack(self) -> Stack | None:
        return self.store.find(TABLE.id, WHOLE_RING)

    async def content(self) -> list[Item] | None:
        stack = self.stack()
        return None if stack is None else list((await self.store.open(stack)).scan())


@dataclass(frozen=True)
class Operation:
    act: Callable[[Shard, Stack, Acknowledge], Awaitable[None]]
    """May be repeated, whatever its earlier outcome."""
    check: Callable[[Shard, int], Awaitable[None]]
    """Takes how many of its steps were reported."""


async def do_nothing(_shard: Shard, _stack: Stack, _acknowledge: Acknowledge) -> None:
    return


async def write(shard: Shard, stack: Stack, acknowledge: Acknowledge) -> None:
    for items in WRITTEN:
        await shard.store.write(stack, items)
        acknowledge()


async def create(shard: Shard, _stack: Stack, acknowledge: Acknowledge) -> None:
    await shard.store.create(TABLE.id, OTHER_RANGE)
    acknowledge()


async def flush(shard: Shard, stack: Stack, acknowledge: Acknowledge) -> None:
    await shard.store.flush(stack)
    acknowledge()


async def seal(shard: Shard, stack: Stack, acknowledge: Acknowledge) -> None:
    await shard.store.seal(stack)
    acknowledge()


async def adopt(shard: Shard, stack: Stack, acknowledge: Acknowledge) -> None:
    adoptions = [Adoption(f"{shard.folder}/{name}", WHOLE_RING, "job 1") for name in STAGED]
    assert await shard.store.adopt_all(stack, adoptions) in (0, len(STAGED))
    acknowledge()


async def checkpoint(shard: Shard, stack: Stack, acknowledge: Acknowledge) -> None:
    folder = f"{shard.folder}/checkpoint"
    if not shard.disk.exists(f"{folder}/manifest"):
        shard.disk.remove_folder(folder)
        await shard.store.checkpoint(stack, folder)
    acknowledge()


async def compact(shard: Shard, stack: Stack, acknowledge: Acknowledge) -> None:
    """The shard's part of a compaction. The output that a worker would build from the checkpoints is put in place."""
    job = await shard.store.begin_compaction(stack, GcContext(now_s=0, replication_factor=3), whole=True)
    assert job is not None
    acknowledge()
    facts = facts_of([value for _, value in BEFORE], TABLE)
    await build_layer(shard.engine, job.output_folder, BEFORE, facts)
    acknowledge()
    assert await shard.store.finish_compaction(job, CompactionResult(facts)) is SwapOutcome.SWAPPED
    acknowledge()


async def drop(shard: Shard, stack: Stack, acknowledge: Acknowledge) -> None:
    await shard.store.drop(stack)
    acknowledge()


async def alter(shard: Shard, _stack: Stack, acknowledge: Acknowledge) -> None:
    await shard.store.set_schema(WIDER)
    acknowledge()


async def close(shard: Shard, _stack: Stack, acknowledge: Acknowledge) -> None:
    await shard.store.close()
    acknowledge()


async def all_there(shard: Shard, _answered: int) -> None:
    assert await shard.content() == BEFORE


async def writes_there(shard: Shard, answered: int) -> None:
    found = await shard.content()
    may_be = [merged(BEFORE, *WRITTEN[:count]) for count in (answered, min(answered + 1, len(WRITTEN)))]
    assert found in may_be, f"{answered} writes were answered"


async def created(shard: Shard, answered: int) -> None:
    await all_there(shard, answered)
    assert not answered or shard.store.find(TABLE.id, OTHER_RANGE) is not None


async def adopted(shard: Shard, answered: int) -> None:
    found = await shard.content()
    after = merged(BEFORE, ADOPTED, NEWER)
    assert found in ([after] if answered else [BEFORE, after])


async def compacted(shard: Shard, answered: int) -> None:
    await all_there(shard, answered)
    stack = shard.stack()
    assert stack is not None
    assert answered < COMPACTED or len(stack.entry.bases) == 1
    scratch = f"{shard.folder}/shard/folds"
    assert not shard.disk.exists(scratch) or not shard.disk.list_folder(scratch)


async def dropped(shard: Shard, answered: int) -> None:
    found = await shard.content()
    assert found is None if answered else found in (None, BEFORE)


async def altered(shard: Shard, answered: int) -> None:
    await all_there(shard, answered)
    assert shard.store.tables in ([(WIDER,)] if answered else [(TABLE,), (WIDER,)])


async def checkpointed(shard: Shard, answered: int) -> None:
    await all_there(shard, answered)
    if shard.disk.exists(f"{shard.folder}/checkpoint/manifest"):
        # Opened as a separate store, which never happens to a checkpoint in use.
        copied = f"{shard.folder}/copy-{answered}-{len(shard.disk.list_folder(shard.folder))}"
        os.rename(f"{shard.folder}/checkpoint", copied)
        copy = await open_new_store(shard.disk, SystemRng(), copied, shard.engine, LIMITS)
        (stack,) = copy.stacks.values()
        assert list((await copy.open(stack)).scan()) == BEFORE
    else:
        assert not answered


OPERATIONS = {
    "open": Operation(do_nothing, all_there),
    "write": Operation(write, writes_there),
    "create": Operation(create, created),
    "flush": Operation(flush, all_there),
    "seal": Operation(seal, all_there),
    "adopt": Operation(adopt, adopted),
    "checkpoint": Operation(checkpoint, checkpointed),
    "compact": Operation(compact, compacted),
    "drop": Operation(drop, dropped),
    "alter": Operation(alter, altered),
    "close": Operation(close, all_there),
}


async def with_shard(folder: str, main: Callable[[Shard], Awaitable[None]]) -> None:
    disk = FileDisk()
    engine = RocksEngine(disk, ROCKS)
    store = await open_new_store(disk, SystemRng(), f"{folder}/shard", engine, LIMITS)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(store.run())
        await main(Shard(folder=folder, disk=disk, engine=engine, store=store))
        running.cancel()
    disk.close()


async def fill(shard: Shard) -> None:
    await shard.store.set_schema(TABLE)
    stack = await shard.store.create(TABLE.id, WHOLE_RING)
    for items in (FIRST, SECOND):
        await shard.store.write(stack, items)
        await shard.store.seal(stack)
    await shard.store.write(stack, LOGGED)
    for name, items in STAGED.items():
        await build_layer(shard.engine, f"{shard.folder}/{name}", items, facts_of([one for _, one in items], TABLE))


async def operate(operation: Operation, acknowledge: Acknowledge, shard: Shard) -> None:
    stack = shard.stack()
    assert stack is not None
    acknowledge()
    await operation.act(shard, stack, acknowledge)


async def check_and_repeat(operation: Operation, answered: int, shard: Shard) -> None:
    """Repeats the operation, as a caller without an answer would."""
    named = [one for stack in shard.store.stacks.values() for one in stack.layer_entries]
    assert len(shard.disk.list_folder(layers_folder(f"{shard.folder}/shard"))) <= len(named), "something was not swept"
    await operation.check(shard, max(answered - OPENED, 0))
    stack = shard.stack()
    if stack is not None:
        steps: list[None] = []
        await operation.act(shard, stack, lambda: steps.append(None))
        if operation.act is not close:
            await operation.check(shard, len(steps))


def make_filled(folder: str) -> None:
    """In a process that exits without closing the store, so that the log still has what was not flushed."""
    child = os.fork()
    if child == 0:
        os.makedirs(folder)
        asyncio.run(with_shard(folder, fill_and_vanish))
    assert os.waitpid(child, 0)[1] == 0


async def fill_and_vanish(shard: Shard) -> None:
    await fill(shard)
    os._exit(0)


def workload_of(name: str, filled: str) -> Workload:
    operation = OPERATIONS[name]

    def work(folder: str, acknowledge: Acknowledge) -> None:
        asyncio.run(with_shard(folder, partial(operate, operation, acknowledge)))

    def check(folder: str, answered: int) -> None:
        asyncio.run(with_shard(folder, partial(check_and_repeat, operation, answered)))

    def prepare(folder: str) -> None:
        shutil.copytree(filled, folder, dirs_exist_ok=True)

    return Workload(
        work=work,
        check=check,
        prepare=prepare,
        name=name,
        kill_from_step=0 if name == "open" else OPENED,
        sampled_step=BUILT if name == "compact" else None,
    )


def main(folder: str, names: list[str]) -> None:
    filled = f"{folder}/filled"
    make_filled(filled)
    for name in names:
        try_every_kill(f"{folder}/{name}", workload_of(name, filled))


if __name__ == "__main__":
    gc.freeze()  # so that a collection in a child does not copy every page of this process
    main(sys.argv[1], sys.argv[2:] or list(OPERATIONS))
