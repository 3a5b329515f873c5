"""Layers that others built become part of a stack: all of them or none, and once, whatever happens. INV-XFER-3."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.async_tests import real_time, runs_in
from tests.unit.storage.failing_disk import Died, FailingDisk, Failure
from tests.unit.storage.rigs import ENGINES
from tests.unit.storage.small_table import SMALL, key_of, value_of
from tests.unit.storage.store_rig import FOLDER, Rig, limits, open_new_store, plain, small_stack

from ebla.model.errors import DiskFull, Overloaded
from ebla.model.rows import Deletion, Row
from ebla.model.token import WHOLE_RING
from ebla.ports.disk import Disk
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.system_rng import SystemRng
from ebla.sim.disk import ProcessDisk
from ebla.storage.compaction.compaction_plan import SwapOutcome
from ebla.storage.compaction.compactor import run_compaction
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.layer import Item, LayerDamaged, LayerEngine, build_layer
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.manifest import ADOPTED_MAX, layer_folder, layers_folder, read_manifest
from ebla.storage.merge.row_merge import facts_of
from ebla.storage.stack import Stack
from ebla.storage.stack_changes import Adoption
from ebla.storage.store import ShardStore

DELETED = [(key_of(2, 1), value_of(Row(marker=None, deletion=Deletion(9, 0), cells={})))]
"""Covers what the other layer has: a reader of that one alone sees a row that was deleted long ago."""
STAGED = {"/data/staged-rows": sorted([plain(1, 1, 5), plain(2, 1, 5)]), "/data/staged-deletes": DELETED}
OWN = plain(3, 1, 5)
JOB = [Adoption(folder, WHOLE_RING, "job") for folder in STAGED]


async def stage(engine: LayerEngine, staged: dict[str, list[Item]]) -> None:
    for folder, items in staged.items():
        await build_layer(engine, folder, items, facts_of([value for _, value in items], SMALL))


def engine_of(rig: Rig) -> MemoryEngine:
    assert rig.engine is not None
    return rig.engine


def folders_of(disk: Disk, stack: Stack) -> tuple[list[str], list[str]]:
    """Those on disk, and those of the bases. A live layer has none before it is flushed."""
    bases = [layer_folder(FOLDER, stack.incarnation, one.id) for one in stack.entry.bases]
    return [f"{layers_folder(FOLDER)}/{name}" for name in disk.list_folder(layers_folder(FOLDER))], sorted(bases)


async def keys_of(store: ShardStore, stack: Stack) -> list[bytes]:
    return [key for key, _ in list((await store.open(stack)).scan())]


async def deletion_of(store: ShardStore, stack: Stack) -> bytes | None:
    return (await store.open(stack)).read(key_of(2, 1))


async def filled(rig: Rig, store: ShardStore) -> Stack:
    stack = await small_stack(store)
    await store.write(stack, [OWN])
    await store.seal(stack)
    await stage(engine_of(rig), STAGED)
    return stack


def test_layers_that_belong_together_come_by_one_write_of_the_manifest() -> None:
    rig = Rig()

    async def work(store: ShardStore) -> None:
        stack = await filled(rig, store)
        disk = engine_of(rig).disk
        before = await read_manifest(disk, FOLDER)
        assert await store.adopt_all(stack, JOB) == 2
        after = await read_manifest(disk, FOLDER)
        assert before is not None
        assert after is not None
        assert after.generation == before.generation + 1
        assert [one.origin for one in after.stacks[0].bases] == ["", "job", "job"]
        assert after.stacks[0].adopted == ("job",)
        facts = facts_of([value for _, value in DELETED], SMALL)
        assert stack.entry.bases[2].facts == facts, "the layer's own facts"
        assert await deletion_of(store, stack) == DELETED[0][1]

    rig.life(work)


def test_the_same_origin_is_not_adopted_twice_even_after_a_compaction() -> None:
    rig = Rig()

    async def first(store: ShardStore) -> None:
        stack = await filled(rig, store)
        assert await store.adopt_all(stack, JOB) == 2
        assert await store.adopt_all(stack, JOB) == 0
        job = await store.begin_compaction(stack, GcContext(now_s=0, replication_factor=3), whole=True)
        assert job is not None
        result = await run_compaction(engine_of(rig), engine_of(rig).disk, job)
        assert await store.finish_compaction(job, result) is SwapOutcome.SWAPPED
        assert len(stack.entry.bases) == 1
        assert await store.adopt_all(stack, JOB) == 0
        other = [Adoption("/data/staged-rows", WHOLE_RING, "other"), *JOB]
        assert await store.adopt_all(stack, other) == 1, "what is new among them"

    async def second(store: ShardStore) -> None:
        assert await store.adopt_all(await small_stack(store), JOB) == 0

    rig.life(first)
    rig.lose_power()
    rig.life(second)


def test_origins_are_remembered_as_long_as_they_may_come_again_and_not_without_bound() -> None:
    rig = Rig()

    async def work(store: ShardStore) -> None:
        stack = await filled(rig, store)
        many = [Adoption("/data/staged-rows", WHOLE_RING, f"job {number}") for number in range(ADOPTED_MAX + 1)]
        with pytest.raises(Overloaded):
            await store.adopt_all(stack, many)
        assert not stack.entry.adopted
        assert await store.adopt_all(stack, many[:3]) == 3
        assert await store.adopt_all(stack, many[3:4], forget=("job 0", "job 2")) == 1
        assert stack.entry.adopted == ("job 1", "job 3")

    rig.life(work)


def test_a_layer_that_cannot_be_read_keeps_the_others_out() -> None:
    rig = Rig()

    async def work(store: ShardStore) -> None:
        stack = await filled(rig, store)
        before = stack.entry
        with pytest.raises(LayerDamaged):
            await store.adopt_all(stack, [*JOB, Adoption("/data/nothing", WHOLE_RING, "job")])
        assert stack.entry is before
        on_disk, named = folders_of(engine_of(rig).disk, stack)
        assert on_disk == named
        assert await keys_of(store, stack) == [OWN[0]]
        assert await store.adopt_all(stack, JOB) == 2

    rig.life(work)


def test_no_reader_sees_one_layer_without_the_other() -> None:
    rig = Rig()
    seen: list[bytes | None] = []

    async def look(store: ShardStore, stack: Stack, done: asyncio.Event) -> None:
        while not done.is_set():
            seen.append(await deletion_of(store, stack))
            await asyncio.sleep(0.001)

    async def work(store: ShardStore) -> None:
        stack = await filled(rig, store)
        rig.machine.disk.behaviour.sync_ms = 20  # so that a layer that comes alone is opened before the next one
        done = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(look(store, stack, done))
            await store.adopt_all(stack, JOB)
            await asyncio.sleep(0.1)
            done.set()

    rig.life(work)
    assert seen[0] is None
    assert seen[-1] == DELETED[0][1]
    assert set(seen) == {None, DELETED[0][1]}


def test_one_that_is_given_up_at_any_moment_is_there_or_not() -> None:
    ends: list[int] = []
    for tenths_ms in range(0, 120, 3):
        rig = Rig(seed=tenths_ms)

        async def work(store: ShardStore, rig: Rig = rig, wait_s: float = tenths_ms / 10_000) -> int:
            stack = await filled(rig, store)
            async with asyncio.TaskGroup() as tasks:
                adopting = tasks.create_task(store.adopt_all(stack, JOB))
                await asyncio.sleep(wait_s)
                adopting.cancel()
                await asyncio.wait([adopting])
            on_disk, named = folders_of(engine_of(rig).disk, stack)
            assert on_disk == named
            bases = len(stack.entry.bases)
            assert await store.adopt_all(stack, JOB) == (2 if bases == 1 else 0)
            assert await deletion_of(store, stack) == DELETED[0][1]
            return bases

        ends.append(rig.life(work))
    assert set(ends) == {1, 3}, "some were given up in time and some too late"


class FailingRig(Rig):
    """One of whose disk calls fails."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, limits())
        self.calls: list[str] = []

    def adopt_failing(self, failure: Failure, before_call: int) -> bool:
        """One life; whether the call was reached."""

        async def main(real: ProcessDisk) -> None:
            disk = FailingDisk(real)
            async with self.store(disk) as store:
                stack = await filled(self, store)
                disk.arm(failure, before_call)
                self.calls = disk.calls
                try:
                    await store.adopt_all(stack, JOB)
                except DiskFull:
                    on_disk, named = folders_of(disk, stack)
                    assert on_disk == named
                    assert await keys_of(store, stack) == [OWN[0]]
                    assert await store.adopt_all(stack, JOB) == 2, "asked again, once there is space"
                assert await deletion_of(store, stack) == DELETED[0][1]

        try:
            self.machine.run(main)
        except (Died, BaseExceptionGroup):
            assert failure is Failure.DEATH
        return len(self.calls) > before_call


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_crash_before_any_call_leaves_all_of_it_or_nothing(loses_power: bool) -> None:
    found: list[int] = []
    for before_call in range(100):
        rig = FailingRig(before_call)
        is_reached = rig.adopt_failing(Failure.DEATH, before_call)
        if loses_power:
            rig.lose_power()

        async def look(store: ShardStore, rig: Rig = rig) -> int:
            stack = await small_stack(store)
            on_disk, named = folders_of(engine_of(rig).disk, stack)
            assert on_disk == named, "what no manifest names is swept"
            bases = len(stack.entry.bases)
            assert (await deletion_of(store, stack) is not None) == (bases == 3)
            assert await keys_of(store, stack) == sorted(
                [OWN[0], *([key_of(1, 1), key_of(2, 1)] if bases == 3 else [])]
            )
            assert await store.adopt_all(stack, JOB) == (0 if bases == 3 else 2)
            return bases

        found.append(rig.life(look))
        if not is_reached:
            break
    assert found[0] == 1
    assert found[-1] == 3
    assert set(found) == {1, 3}
    assert len(found) > 10


def test_without_space_at_any_call_nothing_is_left() -> None:
    before_call = 0
    while FailingRig(before_call).adopt_failing(Failure.NO_SPACE, before_call):
        before_call += 1
    assert before_call > 5


# -- on real layers


async def real_store(folder: Path, engine: LayerEngine, disk: FileDisk) -> ShardStore:
    return await open_new_store(disk, SystemRng(), str(folder / "shard-0"), engine, limits())


@pytest.mark.parametrize("kind", list(ENGINES))
@runs_in(real_time)
async def test_files_of_a_checkpoint_become_bases_with_all_that_stands_beside_them(tmp_path: Path, kind: str) -> None:
    """On both engines: the stack of one store is checkpointed, and its layers adopted by another one."""
    items: Sequence[Item] = sorted(plain(number, 1, 5) for number in range(20))
    disk = FileDisk()
    engine = ENGINES[kind](disk)
    source = await real_store(tmp_path / "a", engine, disk)
    target = await real_store(tmp_path / "b", engine, disk)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(source.run()), tasks.create_task(target.run())]
        taken, given = await small_stack(source), await small_stack(target)
        await source.write(taken, items)
        await source.seal(taken)
        await source.write(taken, DELETED)
        await target.write(given, [plain(2, 1, 5), OWN])
        manifest = await source.checkpoint(taken, str(tmp_path / "checkpoint"))
        (entry,) = manifest.stacks
        folders = [layer_folder(str(tmp_path / "checkpoint"), entry.incarnation, one.id) for one in entry.bases]
        (Path(folders[0]) / "columns.index").write_bytes(b"beside it")
        adoptions = [Adoption(folder, WHOLE_RING, "job") for folder in folders]
        assert await target.adopt_all(given, adoptions) == 2
        merged = dict((await target.open(given)).scan())
        assert set(merged) == {key for key, _ in items}
        assert (await source.open(taken)).read(key_of(2, 1)) == merged[key_of(2, 1)] == DELETED[0][1]
        adopted = Path(layer_folder(str(tmp_path / "b" / "shard-0"), given.incarnation, given.entry.bases[0].id))
        assert (adopted / "columns.index").read_bytes() == b"beside it"
        for one in (source, target):
            await one.close()
        for task in running:
            task.cancel()
    disk.close()
