"""One shard's store under every fault of disk and power, judged by what it has answered. Its process does everything at
once: writes, reads, seals, compactions, adoptions, checkpoints, and replicas that leave and return."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from ebla.journal.segmented_log import LogFailed
from ebla.model.errors import DiskFull, EblaError, Outcome
from ebla.model.identity import StoreId, TableId
from ebla.model.schema import TableOptions, TombstoneGc, new_schema
from ebla.model.token import WHOLE_RING
from ebla.ports.environment import Environment
from ebla.sim.checkers.store import AttemptedStoreWrite, Cell, StoredVersion, StoreLedger
from ebla.sim.faults import devices, processes
from ebla.sim.faults.harsh import InjectedFault, harsh
from ebla.sim.scenario import Scenario
from ebla.sim.workloads.rows_table import COLUMNS, VALUE, clustering_of, item_of, keys_of, partition_token
from ebla.sim.world import EXPECTED_ERRORS, World
from ebla.storage.codec.row_codec import decode_head, decode_row
from ebla.storage.compaction.compactor import run_compaction
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.layer import Item, Layer, build_layer
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.manifest import ManifestFailed, ShardManifest, layer_folder
from ebla.storage.merge.row_merge import facts_of, merge_all
from ebla.storage.stack import OpenStack, Stack
from ebla.storage.stack_changes import Adoption
from ebla.storage.store import ShardStore
from ebla.storage.store_identity import create_store
from ebla.storage.store_limits import StoreLimits
from ebla.storage.store_recovery import open_store

FOLDER = "/data/shard-0"
STORE = StoreId(uuid.UUID(int=1))
STAGING = "/data/staging"
RANGES = WHOLE_RING.split(2)
PARTITIONS = 60
ROWS = 4
GRACE_S = 2
"""Short enough that tombstones are dropped while a cell is idle, and that older cells arrive after that."""
LAG_S_MAX = 9
TABLE = TableId(uuid.UUID(int=7))
SCHEMA = new_schema(TABLE, "ks", "t", COLUMNS, TableOptions(gc_grace_s=GRACE_S, tombstone_gc=TombstoneGc.TIMEOUT))
COLUMN = SCHEMA.column("a").number
WRITERS = 3

LIMITS = StoreLimits(
    segment_bytes=6000,
    segments_max=4,
    retry_ms=100,
    bases_max=2,
    live_bytes_max=4000,
    layers_open_max=24,
    free_bytes_min=600,
    upkeep_ms=100,
)


@dataclass(frozen=True, slots=True)
class StoreShardLoad:
    """What outlives the process."""

    ledger: StoreLedger
    now_us: Callable[[], int]
    fail: Callable[[str], None]


async def store_shard(environment: Environment, load: StoreShardLoad) -> None:
    """Runs until it is killed, or its disk fails."""
    environment.disk.remove_folder(STAGING)
    environment.disk.make_folder(STAGING)
    engine = MemoryEngine(environment.disk, unflushed_bytes_max=6000)
    await create_store(environment.disk, environment.rng, FOLDER, STORE)
    store = await open_store(environment.disk, environment.rng, FOLDER, engine, LIMITS, store_id=STORE)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(store.run())
        shard = _Shard(environment, load, store, engine)
        await shard.begin()
        for _ in range(WRITERS):
            tasks.create_task(shard.keep_doing(shard.write, 0.02))
        tasks.create_task(shard.keep_doing(shard.observe, 0.2))
        tasks.create_task(shard.keep_doing(shard.seal, 0.5))
        tasks.create_task(shard.keep_doing(shard.compact, 0.3))
        tasks.create_task(shard.keep_doing(shard.adopt, 2.5))
        tasks.create_task(shard.keep_doing(shard.copy, 1.0))
        tasks.create_task(shard.keep_doing(shard.leave_and_come_back, 8.0))


class _Shard:
    def __init__(self, environment: Environment, load: StoreShardLoad, store: ShardStore, engine: MemoryEngine) -> None:
        self._environment = environment
        self._rng = environment.rng
        self._load = load
        self._ledger = load.ledger
        self._store = store
        self._engine = engine

    @property
    def now_s(self) -> int:
        return self._load.now_us() // 1_000_000

    async def begin(self) -> None:
        """What is read now came from the disk, so it must stay."""
        self._found(self._ledger.check_replicas(list(self._store.stacks)))
        for stack in self._store.stacks.values():
            self._store.release_gc(stack)
            await self._check(stack, durable=True)
        await self._store.set_schema(SCHEMA)
        for token_range in RANGES:
            await self._create(token_range.end)

    async def _create(self, end: int) -> None:
        token_range = next(one for one in RANGES if one.end == end)
        stack = await self._store.create(TABLE, token_range)
        self._ledger.made(stack.incarnation)
        self._store.release_gc(stack)

    async def keep_doing(self, work: Callable[[Stack], Awaitable[None]], pause_s: float) -> None:
        """Refusals are expected. Failures of the device end the process through its store."""
        while True:
            await asyncio.sleep(pause_s * (0.2 + 2 * self._rng.random()))
            stacks = list(self._store.stacks.values())
            if not stacks:
                continue
            try:
                await work(self._rng.choice(stacks))
            except EblaError:
                continue

    # -- rows ------------------------------------------------------------------------------------------------------

    async def write(self, stack: Stack) -> None:
        cell, item, tried = self._draw(stack)
        opened = await self._store.open(stack)
        self._tries(cell, tried, opened)
        try:
            sequence = self._store.write_open(stack, opened.live, [item])
        except EblaError:
            self._ledger.refused(cell, tried.timestamp_us)
            raise
        await self._store.wait_durable(sequence)
        self._ledger.answered(cell, tried.timestamp_us)

    def _tries(self, cell: Cell, tried: AttemptedStoreWrite, opened: OpenStack) -> None:
        self._found(self._ledger.tries(cell, tried, stored_version(cell, opened.get), self.now_s))

    def _draw(self, stack: Stack, late: float = 0.12) -> tuple[Cell, Item, AttemptedStoreWrite]:
        """Values and deletions of cells, rows and slices, most with the current time, some much older."""
        mine = [one for one in range(PARTITIONS) if partition_token(one) in stack.entry.range]
        cell = (stack.incarnation, self._rng.choice(mine), self._rng.randrange(0, ROWS))
        lag_s = self._rng.randrange(0, LAG_S_MAX) if self._rng.random() < late else 0
        at_us = self._ledger.unique_us(self._load.now_us() - lag_s * 1_000_000)
        kind = self._rng.randrange(0, 7)
        tried = AttemptedStoreWrite(timestamp_us=at_us, deletes=kind < VALUE, at_s=self.now_s)
        return cell, item_of(SCHEMA, cell, at_us, kind, tried.at_s), tried

    async def observe(self, stack: Stack) -> None:
        await self._check(stack)
        self._ledger.checks += 1

    async def _check(self, stack: Stack, *, durable: bool = False) -> None:
        opened = await self._store.open(stack)
        for cell in self._ledger.cells(stack.incarnation):
            seen = stored_version(cell, opened.get)
            self._found(self._ledger.check(cell, seen, self.now_s, durable=durable))

    def _found(self, problem: str | None) -> None:
        if problem is not None:
            self._load.fail(problem)

    # -- the stack -------------------------------------------------------------------------------------------------

    async def seal(self, stack: Stack) -> None:
        await self._store.seal(stack)

    async def compact(self, stack: Stack) -> None:
        """In production this runs in another process, so it takes some time."""
        terms = GcContext(now_s=self.now_s, replication_factor=3)
        job = await self._store.begin_compaction(stack, terms, whole=self._rng.random() < 0.7)
        if job is None:
            return
        try:
            await asyncio.sleep(self._rng.random() * 0.5)
            result = await run_compaction(self._engine, self._environment.disk, job)
            await asyncio.sleep(self._rng.random() * 0.5)
            await self._store.finish_compaction(job, result)
        except EblaError:
            await self._store.abandon_compaction(job)
            raise

    async def adopt(self, stack: Stack) -> None:
        """Stages a layer with old rows, which takes a while, and adopts it."""
        folder = f"{STAGING}/{self._rng.bytes(8).hex()}"
        await self._store.hold_gc(stack, folder)
        try:
            drawn = await self._stage(stack, folder)
            await asyncio.sleep(self._rng.random() * 2)
            await self._take_over(stack, folder, drawn)
        finally:
            self._store.release_gc(stack, folder)
            self._environment.disk.remove_folder(folder)

    async def _stage(self, stack: Stack, folder: str) -> list[tuple[Cell, AttemptedStoreWrite]]:
        opened = await self._store.open(stack)
        drawn: dict[bytes, tuple[Cell, Item, AttemptedStoreWrite]] = {}
        for _ in range(3):
            cell, _, tried = self._draw(stack, late=1.0)
            tried.deletes = False
            item = item_of(SCHEMA, cell, tried.timestamp_us)
            drawn[item[0]] = (cell, item, tried)
        for cell, _, tried in drawn.values():
            self._tries(cell, tried, opened)
        items = sorted(item for _, item, _ in drawn.values())
        staged = [(cell, tried) for cell, _, tried in drawn.values()]
        try:
            await build_layer(self._engine, folder, items, facts_of([value for _, value in items], SCHEMA))
        except DiskFull:
            self._withdraw(staged)
            raise
        return staged

    async def _take_over(self, stack: Stack, folder: str, staged: list[tuple[Cell, AttemptedStoreWrite]]) -> None:
        try:
            await self._store.adopt_all(stack, [Adoption(folder, stack.entry.range, folder)])
        except EblaError as failure:
            if failure.outcome is Outcome.NOT_APPLIED:
                self._withdraw(staged)
            raise
        for cell, tried in staged:
            self._ledger.answered(cell, tried.timestamp_us)

    def _withdraw(self, staged: list[tuple[Cell, AttemptedStoreWrite]]) -> None:
        for cell, tried in staged:
            self._ledger.refused(cell, tried.timestamp_us)

    async def copy(self, stack: Stack) -> None:
        """A checkpoint has everything that was answered before it began."""
        folder = f"{STAGING}/copy-{self._rng.bytes(8).hex()}"
        newest = self._ledger.newest_answered_us()
        try:
            manifest = await self._store.checkpoint(stack, folder)
            await self._check_copy(folder, manifest, newest)
        finally:
            self._environment.disk.remove_folder(folder)

    async def _check_copy(self, folder: str, manifest: ShardManifest, newest: dict[Cell, int]) -> None:
        entry = manifest.stacks[0]
        async with AsyncExitStack() as opened:
            layers: list[Layer] = []
            for one in entry.bases:
                path = layer_folder(folder, entry.incarnation, one.id)
                layer = await self._engine.open(path, writable=False)
                opened.push_async_callback(layer.discard)
                layers.append(layer)
            for cell in [one for one in newest if one[0] == entry.incarnation]:
                seen = stored_version(cell, partial(_merged, layers))
                self._found(self._ledger.check_copy(cell, seen, newest[cell], self.now_s))

    async def leave_and_come_back(self, stack: Stack) -> None:
        self._ledger.dropping(stack.incarnation)
        await self._store.drop(stack)
        self._ledger.dropped(stack.incarnation)
        await self._create(stack.entry.range.end)


def stored_version(cell: Cell, get: Callable[[bytes], bytes | None]) -> StoredVersion | None:
    """The newest version of the cell in its row or its partition's head."""
    row_value, head_value = map(get, keys_of(SCHEMA, cell))
    seen: list[StoredVersion] = []
    if head_value is not None:
        above = decode_head(head_value).deletion_of(clustering_of(SCHEMA, cell[2]))
        seen += [StoredVersion(above.timestamp_us, deletes=True)] if above is not None else []
    if row_value is not None:
        row = decode_row(row_value, SCHEMA.layouts)
        seen += [StoredVersion(row.deletion.timestamp_us, deletes=True)] if row.deletion is not None else []
        stored = row.cells.get(COLUMN)
        seen += [StoredVersion(stored.timestamp_us, stored.value is None)] if stored is not None else []
    return max(seen, key=lambda one: one.timestamp_us, default=None)


def _merged(layers: Sequence[Layer], key: bytes) -> bytes | None:
    values = [value for layer in layers if (value := layer.get(key)) is not None]
    return merge_all(values, SCHEMA) if values else None


# ---- the scenario

CALM_S = 8.0
START_US = 1_000_000_000

FAULTS = (
    InjectedFault("crash", 3.0, processes.crash),
    InjectedFault("crash and back", 3.0, processes.crash_and_restart),
    InjectedFault("crash in sync", 3.0, processes.crash_during_sync),
    InjectedFault("kill", 2.0, processes.kill),
    InjectedFault("pause", 0.5, processes.pause),
    InjectedFault("start the down", 4.0, processes.restart_down),
    InjectedFault("slow sync", 1.0, devices.slow_sync),
    InjectedFault("failing sync", 1.0, devices.failing_sync),
    InjectedFault("full", 2.0, devices.full),
)


async def run(world: World) -> None:
    ledger = StoreLedger(grace_s=GRACE_S)
    load = StoreShardLoad(ledger, lambda: START_US + int(world.now() * 1_000_000), world.fail)
    shard = world.unit("shard", partial(store_shard, load=load))
    shard.expected_errors = (*EXPECTED_ERRORS, LogFailed, ManifestFailed)
    shard.start()
    await harsh(world, [shard], world.seconds, FAULTS, pause_s=1.5)
    answers, checks = ledger.answers, ledger.checks
    await asyncio.sleep(CALM_S)
    world.check(shard.running, "the shard ended although its disk works")
    world.check(ledger.answers > answers, "no write is answered although all was healed")
    world.check(ledger.checks > checks, "nothing is read although all was healed")
    world.log("scenario", f"{ledger.answers} answered writes are kept, checked {ledger.checks} times")


SCENARIO = Scenario(
    name="store", summary="a shard's store keeps what it answered and revives nothing", seconds=30.0, run=run
)
