"""A node that gains a range of a table on vnodes starts it empty (INV-NODE-20), on simulated and on RocksDB layers."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.async_tests import runs_in
from tests.unit.replica.ring_of_two import (
    ALONE,
    FRESH,
    JOINED,
    JOINED_READ_NEW,
    JOINING,
    LEAVING,
    LEAVING_READ_NEW,
    LEFT,
    OLD,
    OURS,
    ROLLING_BACK,
    at,
)
from tests.unit.replica.shard_rig import OWN, ShardRig, in_shard, read_of, write_of
from tests.unit.storage.small_table import SMALL
from tests.unit.storage.store_rig import Rig, limits, open_new_store
from tests.unit.topology.small_cluster import network

from ebla.model.errors import DeadlineExceeded, Refused
from ebla.model.token import WHOLE_RING
from ebla.replica.compaction import CompactionLoop
from ebla.replica.replica_context import ReplicaLimits
from ebla.runtime.file_disk import FileDisk
from ebla.sim.rng import SimRng
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult, SwapOutcome
from ebla.storage.compaction.compactor import run_compaction
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.layer import Item
from ebla.storage.layers.rocks_engine import RocksEngine
from ebla.storage.stack import Stack
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Keyspace

GC = GcContext(now_s=0, replication_factor=1)


async def rows(shard: ShardRig, version: int) -> list[Item]:
    """As a router reads them, and as a compaction, a stream or a reader of a checkpoint merges them."""
    (stack,) = shard.stacks.served()
    found = list((await shard.server.reader.read(read_of(version=version), 1_000)).items)
    assert [item[0] for item in found] == [key for key, _ in (await shard.store.open(stack)).scan()]
    for key in (OURS[0], OLD[0], FRESH[0]):
        assert ((await shard.store.open(stack)).read(key) is not None) == (key in [one for one, _ in found])
    return found


async def compacted(shard: ShardRig) -> set[bytes]:
    """The keys that are left in the files."""
    (stack,) = shard.stacks.served()
    job = await shard.store.begin_compaction(stack, GC, whole=True)
    assert job is not None
    result = await run_compaction(shard.store.engine, shard.context.disk, job)
    assert await shard.store.finish_compaction(job, result) is SwapOutcome.SWAPPED
    return await keys_in_files(shard, stack)


async def keys_in_files(shard: ShardRig, stack: Stack) -> set[bytes]:
    keys = set()
    for base in stack.entry.bases:
        async with shard.store.layers.hold(stack.layer_ref(base)) as layer:
            keys |= {key for key, _ in layer.scan(b"", None)}
    return keys


# -- lives of one shard, on either kind of layers ----------------------------------------------------------------------


class SimulatedLives:
    """Each is killed at its end."""

    def __init__(self, _folder: Path) -> None:
        self._rig = Rig()

    def live(self, work: Callable[[ShardRig], Awaitable[None]]) -> None:
        async def with_versions(shard: ShardRig) -> None:
            shard.index_is_version = True
            await work(shard)

        in_shard(with_versions, rig=self._rig)


class RocksLives:
    """Each stops in order: a second process cannot open what the first one, in the same program, still has open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rng = SimRng("lives")

    def live(self, work: Callable[[ShardRig], Awaitable[None]]) -> None:
        asyncio.run(self._live(work))

    async def _live(self, work: Callable[[ShardRig], Awaitable[None]]) -> None:
        disk = FileDisk()
        store = await open_new_store(disk, self._rng, str(self._folder), RocksEngine(disk), limits())
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(store.run())
            shard = ShardRig(disk, store, ReplicaLimits(version_wait_ms=200), OWN, None)
            shard.index_is_version = True
            await work(shard)
            await store.close()
            running.cancel()
        disk.close()


Lives = SimulatedLives | RocksLives


@pytest.fixture(params=[SimulatedLives, RocksLives])
def lives(request: pytest.FixtureRequest, tmp_path: Path) -> Lives:
    made: Lives = request.param(tmp_path / "shard-0")
    return made


def test_a_row_deleted_while_another_node_had_its_range_does_not_come_back(lives: Lives) -> None:
    async def loses_it(shard: ShardRig) -> None:
        await shard.follow(at(2, ALONE))
        await shard.write(write_of(OURS), write_of(OLD))
        await shard.follow(at(3, JOINING))
        assert await rows(shard, 3) == sorted((OURS, OLD))
        await shard.follow(at(4, JOINED))
        # On B the row is deleted, and the tombstone is purged: nothing of that comes here.

    async def gains_it(shard: ShardRig) -> None:
        await shard.follow(at(4, JOINED))
        await shard.follow(at(5, LEAVING))
        assert await rows(shard, 5) == [OURS]
        await shard.write(write_of(FRESH, version=5))
        assert await rows(shard, 5) == sorted((OURS, FRESH))

    async def goes_on_while_pending(shard: ShardRig) -> None:
        # Its control process is still catching up.
        for version, second in ((4, JOINED), (5, LEAVING), (6, LEAVING_READ_NEW), (7, LEFT)):
            await shard.follow(at(version, second))
            assert {key for key, _ in await rows(shard, version)} >= {OURS[0]}
        assert await rows(shard, 7) == sorted((OURS, FRESH))
        await shard.stacks.confirm()
        assert await compacted(shard) == {OURS[0], FRESH[0]}
        assert await rows(shard, 7) == sorted((OURS, FRESH))

    for life in (loses_it, gains_it, goes_on_while_pending):
        lives.live(life)


def test_a_rolled_back_gain_hides_what_was_taken_meanwhile_when_the_range_comes_again(lives: Lives) -> None:
    async def life(shard: ShardRig) -> None:
        await shard.follow(at(2, JOINED))
        await shard.follow(at(3, LEAVING))
        await shard.write(write_of(OLD, version=3))
        await shard.follow(at(4, ROLLING_BACK))
        await shard.follow(at(5, LEAVING))
        assert await rows(shard, 5) == []

    lives.live(life)


@pytest.mark.parametrize("last_seen", [2, 3, 4, 5])
def test_a_shard_that_was_down_at_the_loss_misses_no_gain(lives: Lives, last_seen: int) -> None:
    """It is started again after B has joined and begun to leave, and gets only the newest view."""
    views = {2: ALONE, 3: JOINING, 4: JOINED_READ_NEW, 5: JOINED}

    async def goes_down(shard: ShardRig) -> None:
        await shard.follow(at(2, ALONE))
        await shard.write(write_of(OURS), write_of(OLD))
        for version in range(3, last_seen + 1):
            await shard.follow(at(version, views[version]))

    async def comes_back(shard: ShardRig) -> None:
        await shard.follow(at(9, LEAVING))
        assert await rows(shard, 9) == [OURS]
        await shard.write(write_of(FRESH, version=9))

    async def comes_back_again(shard: ShardRig) -> None:
        for version, second in ((9, LEAVING), (10, LEAVING_READ_NEW), (11, LEFT)):
            await shard.follow(at(version, second))
            assert await rows(shard, version) == sorted((OURS, FRESH))

    for life in (goes_down, comes_back, comes_back_again):
        lives.live(life)


def test_a_second_leave_is_another_gain_even_where_the_rollback_was_skipped(lives: Lives) -> None:
    async def life(shard: ShardRig) -> None:
        await shard.follow(at(2, JOINED))
        await shard.follow(at(3, LEAVING, 1))
        await shard.write(write_of(OLD, version=3))
        await shard.follow(at(7, LEAVING, 2))
        assert await rows(shard, 7) == []

    lives.live(life)


def test_a_wider_replication_gives_ranges_too(lives: Lives) -> None:
    async def life(shard: ShardRig) -> None:
        await shard.follow(at(2, ALONE))
        await shard.write(write_of(OURS), write_of(OLD))
        await shard.follow(at(3, JOINING))
        await shard.follow(at(4, JOINED))
        keyspace = Keyspace(name="ks", replication=network(dc1=2), on_tablets=False)
        await shard.follow(dataclasses.replace(at(5, JOINED), keyspaces=FrozenMap({"ks": keyspace})))
        assert await rows(shard, 5) == [OURS]

    lives.live(life)


def test_a_folder_of_the_previous_release_holds_what_the_node_holds_now(lives: Lives) -> None:
    async def of_the_previous_release(shard: ShardRig) -> None:
        await shard.store.set_schema(SMALL)
        stack = await shard.store.create(SMALL.id, WHOLE_RING)
        await shard.store.write(stack, [OURS, OLD])
        assert stack.entry.held is None

    async def upgraded(shard: ShardRig) -> None:
        await shard.follow(at(2, ALONE))
        assert await rows(shard, 2) == sorted((OURS, OLD))
        for version, second in ((3, JOINING), (4, JOINED), (5, LEAVING)):
            await shard.follow(at(version, second))
        assert await rows(shard, 5) == [OURS]

    for life in (of_the_previous_release, upgraded):
        lives.live(life)


def test_compaction_drops_what_the_node_lost_once_no_operation_runs(lives: Lives) -> None:
    async def life(shard: ShardRig) -> None:
        await shard.follow(at(2, ALONE))
        await shard.write(write_of(OURS), write_of(OLD))
        await shard.follow(at(3, JOINING))
        await shard.stacks.confirm()
        assert await compacted(shard) == {OURS[0], OLD[0]}
        await shard.follow(at(4, JOINED))
        await shard.follow(at(5, ROLLING_BACK))  # of some operation; B holds the range all the time
        assert await compacted(shard) == {OURS[0], OLD[0]}
        await shard.follow(at(6, JOINED))
        assert await compacted(shard) == {OURS[0]}

    lives.live(life)


def test_compaction_drops_nothing_by_a_view_that_may_be_old(lives: Lives) -> None:
    async def gains(shard: ShardRig) -> None:
        for version, second in ((2, JOINED), (3, LEAVING), (4, LEFT)):
            await shard.follow(at(version, second))
        await shard.write(write_of(FRESH, version=4))

    async def catches_up(shard: ShardRig) -> None:
        await shard.follow(at(2, JOINED))
        assert await compacted(shard) == {FRESH[0]}

    for life in (gains, catches_up):
        lives.live(life)


# -- cleanup -----------------------------------------------------------------------------------------------------------


class Compactions:
    """In place of the bulk process; `during` happens while the first one runs."""

    def __init__(self, shard: ShardRig, during: Callable[[], Awaitable[None]] | None = None) -> None:
        self._shard = shard
        self._during = during
        self.jobs = 0

    async def compact(self, job: CompactionJob) -> CompactionResult:
        self.jobs += 1
        during, self._during = self._during, None
        if during is not None:
            await during()
        return await run_compaction(self._shard.store.engine, self._shard.context.disk, job)

    @property
    def loop(self) -> CompactionLoop:
        return CompactionLoop(self._shard.store, self._shard.stacks, self.compact, lambda _stack: GC)


async def lost(shard: ShardRig) -> None:
    """The node holds a half, and its files hold both."""
    await shard.follow(at(2, ALONE))
    await shard.write(write_of(OURS), write_of(OLD))
    await shard.follow(at(3, JOINING))
    await shard.stacks.confirm()
    await shard.follow(at(4, JOINED))


def test_cleanup_leaves_what_the_node_holds_and_does_it_once(lives: Lives) -> None:
    async def life(shard: ShardRig) -> None:
        await lost(shard)
        (stack,) = shard.stacks.served()
        compactions = Compactions(shard)
        cleaned = await compactions.loop.clean_up(10_000)
        assert await keys_in_files(shard, stack) == {OURS[0]}
        assert cleaned.after_bytes == shard.store.bytes_of(stack)
        assert cleaned.before_bytes > 0
        assert await rows(shard, 4) == [OURS]

    lives.live(life)


@runs_in(in_shard)
async def test_cleanup_of_what_is_clean_does_nothing(shard: ShardRig, /) -> None:
    await shard.follow(at(2, ALONE))
    await shard.write(write_of(OURS), write_of(OLD))
    await shard.stacks.confirm()
    compactions = Compactions(shard)
    cleaned = await compactions.loop.clean_up(10_000)
    assert (compactions.jobs, cleaned.before_bytes) == (0, cleaned.after_bytes)


@runs_in(in_shard)
async def test_cleanup_drops_what_a_gain_has_hidden(shard: ShardRig, /) -> None:
    await lost(shard)
    for version, second in ((5, LEAVING), (6, LEFT)):
        await shard.follow(at(version, second))
    (stack,) = shard.stacks.served()
    assert await keys_in_files(shard, stack) == {OURS[0], OLD[0]}
    await Compactions(shard).loop.clean_up(10_000)
    assert await keys_in_files(shard, stack) == {OURS[0]}
    assert not any(base.hidden for base in stack.entry.bases)


@runs_in(in_shard)
async def test_cleanup_is_refused_while_an_operation_runs_and_by_a_view_that_may_be_old(shard: ShardRig, /) -> None:
    await shard.follow(at(2, JOINED))
    with pytest.raises(Refused, match="does not know yet"):
        await Compactions(shard).loop.clean_up(10_000)
    await shard.stacks.confirm()
    await shard.follow(at(3, LEAVING))
    with pytest.raises(Refused, match=r"the cleanup stops: .*decommissioning"):
        await Compactions(shard).loop.clean_up(10_000)


@runs_in(in_shard)
async def test_cleanup_is_repeated_where_a_gain_came_in_between(shard: ShardRig, /) -> None:
    """The compaction began when the node did not hold the range, so it drops it; what comes after stays."""
    await lost(shard)

    async def gains() -> None:
        for version, second in ((5, LEAVING), (6, LEFT)):
            await shard.follow(at(version, second))
        await shard.write(write_of(FRESH, version=6))

    await Compactions(shard, gains).loop.clean_up(10_000)
    assert await rows(shard, 6) == sorted((OURS, FRESH))


@runs_in(in_shard)
async def test_cleanup_waits_for_a_compaction_that_runs_and_not_for_ever(shard: ShardRig, /) -> None:
    await lost(shard)
    (stack,) = shard.stacks.served()
    job = await shard.store.begin_compaction(stack, GC, whole=True)
    assert job is not None
    with pytest.raises(DeadlineExceeded, match="was not cleaned up in time"):
        await Compactions(shard).loop.clean_up(3_000)
    async with asyncio.TaskGroup() as tasks:
        cleaning = tasks.create_task(Compactions(shard).loop.clean_up(60_000))
        await asyncio.sleep(5)
        assert not cleaning.done()
        await shard.store.abandon_compaction(job)
    assert await keys_in_files(shard, stack) == {OURS[0]}
