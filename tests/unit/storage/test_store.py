"""A shard's store: acknowledged writes stay and refused ones raise, whatever the disk does."""

import asyncio

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.storage.small_table import (
    CELLS,
    SMALL,
    TABLE,
    clustering_of,
    head_of,
    key_of,
    prefix_of,
    small_table,
    value_of,
)
from tests.unit.storage.store_rig import FOLDER, Rig, limits, plain, row_at, small_stack

from ebla.model.errors import DiskFull, Overloaded, Stale
from ebla.model.rows import Cell, Deletion, PartitionHead, RangeDeletion, Row
from ebla.model.schema import TombstoneGc, with_column
from ebla.model.token import TOKEN_MIN, WHOLE_RING, Token, TokenRange
from ebla.options import CommitLogMode
from ebla.storage.codec.key_codec import in_spans
from ebla.storage.codec.row_codec import encode_head
from ebla.storage.commit_log import NotDurable
from ebla.storage.compaction.compaction_plan import SwapOutcome
from ebla.storage.compaction.compactor import run_compaction
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.layer import LayerDamaged, build_layer
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.manifest import layers_folder, read_manifest
from ebla.storage.merge.row_merge import facts_of
from ebla.storage.stack import Stack
from ebla.storage.stack_changes import Adoption
from ebla.storage.store import ShardStore
from ebla.storage.store_identity import StoreLost, log_folder

TERMS = GcContext(now_s=1_000, replication_factor=3)
A = CELLS[0]


def _engine(store: ShardStore) -> MemoryEngine:
    engine = store.engine
    assert isinstance(engine, MemoryEngine)
    return engine


def _is_refusing(store: ShardStore) -> bool:
    return store.log.is_full


def tombstone(timestamp_us: int, at_s: int) -> Row:
    return Row(marker=None, deletion=Deletion(timestamp_us, at_s))


def test_an_answered_write_survives_the_power() -> None:
    rig = Rig()

    async def write(store: ShardStore) -> None:
        await store.write(await small_stack(store), [plain(1, 1, 5)])

    async def read(store: ShardStore) -> Row:
        return await row_at(store, await small_stack(store), 1, 1)

    rig.life(write)
    rig.lose_power()
    assert rig.life(read).cells[A] == Cell(timestamp_us=5, value=(1).to_bytes(4))


def test_in_periodic_mode_a_write_is_answered_at_once_and_durable_soon() -> None:
    rig = Rig(bounds=limits(CommitLogMode.PERIODIC, period_ms=5))

    async def write(store: ShardStore) -> None:
        stack = await small_stack(store)
        await store.write(stack, [plain(1, 1, 5)])
        assert rig.machine.disk.behaviour.sync_ms < 5
        await asyncio.sleep(1)

    async def read(store: ShardStore) -> Row:
        return await row_at(store, await small_stack(store), 1, 1)

    rig.life(write)
    rig.lose_power()
    assert rig.life(read).cells[A].timestamp_us == 5


def test_a_write_merges_with_what_is_there_and_with_itself() -> None:
    async def main(store: ShardStore) -> Row:
        stack = await small_stack(store)
        await store.write(stack, [plain(1, 1, 5)])
        await store.write(
            stack,
            [(key_of(1, 1), value_of(Row(marker=None, deletion=None, cells={A: Cell(timestamp_us=7, value=b"new!")})))],
        )
        await store.write(stack, [plain(1, 1, 6, 6), plain(1, 1, 4, 4)])
        return await row_at(store, stack, 1, 1)

    row = Rig().life(main)
    assert {number: cell.timestamp_us for number, cell in row.cells.items()} == {CELLS[0]: 7, CELLS[1]: 6}


def test_layers_are_merged_by_cell_and_their_heads_count_in_every_layer() -> None:
    async def main(store: ShardStore) -> list[bytes]:
        stack = await small_stack(store)
        await store.write(stack, [plain(1, 1, 5), plain(1, 2, 5), plain(1, 3, 9), plain(2, 1, 5)])
        await store.seal(stack)
        slice_ = RangeDeletion(clustering_of(2), None, Deletion(7, 0))
        await store.write(stack, [(head_of(1), encode_head(PartitionHead(None, (slice_,)), 1))])
        await store.seal(stack)
        await store.write(stack, [plain(1, 1, 4)])
        assert len(stack.entry.bases) == 2
        assert (await store.open(stack)).read(key_of(1, 2)) is None
        assert (await row_at(store, stack, 1, 3)).cells[A].timestamp_us == 9
        inside = [key for key, _ in (await store.open(stack)).scan(key_of(1, 2), prefix_of(1) + b"\xff")]
        assert inside == [key_of(1, 3)]
        return [key for key, _ in list((await store.open(stack)).scan())]

    found = Rig().life(main)
    assert sorted(found) == found
    assert set(found) == {head_of(1), key_of(1, 1), key_of(1, 3), key_of(2, 1)}


def test_rows_outside_a_layers_range_are_not_part_of_the_stack() -> None:
    async def main(store: ShardStore) -> list[int]:
        stack = await small_stack(store)
        partitions = sorted(range(8), key=prefix_of)
        middle = int.from_bytes(prefix_of(partitions[3])[:8]) + TOKEN_MIN
        items = sorted(plain(one, 1, 5) for one in partitions)
        engine = _engine(store)
        await build_layer(engine, "/data/staged", items, facts_of([value for _, value in items], SMALL))
        await store.adopt_all(stack, [Adoption("/data/staged", TokenRange(TOKEN_MIN, Token(middle)), "job")])
        read = [one for one in partitions if (await store.open(stack)).read(key_of(one, 1)) is not None]
        assert [key for key, _ in list((await store.open(stack)).scan())] == [key_of(one, 1) for one in read]
        return [partitions.index(one) for one in read]

    assert Rig().life(main) == [0, 1, 2, 3]


def test_a_replica_that_left_and_came_back_does_not_get_its_old_rows() -> None:
    rig = Rig()

    async def leave(store: ShardStore) -> None:
        stack = await small_stack(store)
        await store.write(stack, [plain(1, 1, 5)])
        await store.drop(stack)
        with pytest.raises(Stale):
            await store.write(stack, [plain(1, 1, 5)])
        back = await small_stack(store)
        assert back.incarnation != stack.incarnation
        await store.write(back, [plain(2, 1, 5)])

    async def read(store: ShardStore) -> list[bytes]:
        return [key for key, _ in (await store.open(await small_stack(store))).scan()]

    rig.life(leave)
    assert rig.life(read) == [key_of(2, 1)]


def test_what_no_manifest_names_is_swept() -> None:
    rig = Rig()

    async def leave(store: ShardStore) -> None:
        stack = await small_stack(store)
        await store.write(stack, [plain(1, 1, 5)])
        await store.seal(stack)
        await build_layer(_engine(store), f"{layers_folder(FOLDER)}/never-named", [], facts_of([], SMALL))
        job = await store.begin_compaction(stack, TERMS, whole=True)
        assert job is not None
        await run_compaction(_engine(store), _engine(store).disk, job)

    async def names(store: ShardStore) -> list[str]:
        disk = _engine(store).disk
        assert not disk.exists(f"{FOLDER}/folds")
        assert (await store.open(await small_stack(store))).read(key_of(1, 1)) is not None
        return disk.list_folder(layers_folder(FOLDER))

    rig.life(leave)
    assert len(rig.life(names)) == 1


def test_adopting_twice_is_adopting_once() -> None:
    async def main(store: ShardStore) -> int:
        stack = await small_stack(store)
        item = plain(1, 1, 5)
        await build_layer(_engine(store), "/data/staged", [item], facts_of([item[1]], SMALL))
        for _ in range(2):
            await store.adopt_all(stack, [Adoption("/data/staged", WHOLE_RING, "job")])
        assert (await store.open(stack)).read(key_of(1, 1)) == item[1]
        return len(stack.entry.bases)

    assert Rig().life(main) == 1


def test_a_checkpoint_is_a_store_of_its_own_at_one_moment() -> None:
    async def main(store: ShardStore) -> list[bytes]:
        stack = await small_stack(store)
        await store.write(stack, [plain(1, 1, 5)])
        await store.seal(stack)
        await store.write(stack, [plain(1, 2, 5)])
        await store.checkpoint(stack, "/data/copy")
        await store.write(stack, [plain(1, 3, 5)])
        disk = _engine(store).disk
        manifest = await read_manifest(disk, "/data/copy")
        assert manifest is not None
        assert manifest.tables == (SMALL,)
        keys = []
        for name in disk.list_folder("/data/copy/layers"):
            layer = await _engine(store).open(f"/data/copy/layers/{name}", writable=False)
            keys += [key for key, _ in layer.scan()]
            await layer.discard()
        return sorted(keys)

    assert Rig().life(main) == [key_of(1, 1), key_of(1, 2)]


def test_the_log_goes_when_layers_are_flushed_and_layers_are_flushed_when_it_is_long() -> None:
    rig = Rig(bounds=limits(segments_max=4))

    async def main(store: ShardStore) -> int:
        stack = await small_stack(store)
        for number in range(1, 400):
            await store.write(stack, [plain(number % 50, 1, number)])
        await asyncio.sleep(1)
        names = _engine(store).disk.list_folder(log_folder(FOLDER))
        return len([name for name in names if name.endswith(".log")])

    assert rig.life(main) <= 5


def test_records_that_are_in_a_base_are_not_replayed() -> None:
    """Else a tombstone that a compaction dropped would be missing above the cell that comes back."""
    rig = Rig()
    schema = small_table(TombstoneGc.IMMEDIATE)

    async def delete(store: ShardStore) -> None:
        stack = await small_stack(store, schema)
        await store.write(stack, [plain(1, 1, 5)])
        await store.write(stack, [(key_of(1, 1), value_of(tombstone(7, 10)))])
        job = await store.begin_compaction(stack, TERMS, whole=True)
        assert job is not None
        result = await run_compaction(_engine(store), _engine(store).disk, job)
        assert result.dropped_greatest_us == 7
        assert await store.finish_compaction(job, result) is SwapOutcome.SWAPPED

    async def read(store: ShardStore) -> bytes | None:
        return (await store.open(await small_stack(store, schema))).read(key_of(1, 1))

    rig.life(delete)
    assert rig.life(read) is None


def test_sequences_that_a_crash_took_and_that_are_given_again_are_replayed() -> None:
    rig = Rig(bounds=limits(CommitLogMode.PERIODIC, period_ms=60_000))

    async def seal_before_the_log_is_written(store: ShardStore) -> None:
        stack = await small_stack(store)
        for number in range(5):
            await store.write(stack, [plain(1, 1, 5 + number)])
        await store.seal(stack)

    async def write(store: ShardStore) -> None:
        stack = await small_stack(store)
        assert (await row_at(store, stack, 1, 1)).cells[A].timestamp_us == 9
        await store.write(stack, [plain(1, 1, 20)])
        await store.sync()

    async def read(store: ShardStore) -> Row:
        return await row_at(store, await small_stack(store), 1, 1)

    rig.life(seal_before_the_log_is_written)
    rig.lose_power()
    rig.life(write)
    rig.lose_power()
    assert rig.life(read).cells[A].timestamp_us == 20


@pytest.mark.parametrize("held", [False, True])
def test_a_fold_is_looked_at_again_before_it_is_swapped_in(held: bool) -> None:
    """`INV-LAYER-GC` (b) and (c)."""

    async def main(store: ShardStore) -> tuple[SwapOutcome, bytes | None]:
        stack = await small_stack(store, small_table(TombstoneGc.IMMEDIATE))
        await store.write(stack, [(key_of(1, 1), value_of(tombstone(7, 10)))])
        job = await store.begin_compaction(stack, TERMS, whole=True)
        assert job is not None
        result = await run_compaction(_engine(store), _engine(store).disk, job)
        if held:
            await store.hold_gc(stack, "staging")
        else:
            await store.write(stack, [plain(1, 1, 5)])
        return await store.finish_compaction(job, result), (await store.open(stack)).read(key_of(1, 1))

    end, value = Rig().life(main)
    assert end is (SwapOutcome.HELD if held else SwapOutcome.OLDER_CELLS)
    assert value is not None
    assert value == value_of(tombstone(7, 10))


def test_after_a_fold_that_was_thrown_away_comes_one_that_drops_nothing() -> None:
    """Else writes with old timestamps would keep a stack from ever being compacted."""

    async def compact(store: ShardStore, stack: Stack, late: int) -> SwapOutcome:
        job = await store.begin_compaction(stack, TERMS, whole=True)
        assert job is not None
        result = await run_compaction(_engine(store), _engine(store).disk, job)
        await store.write(stack, [plain(1, late, 5)])
        return await store.finish_compaction(job, result)

    async def main(store: ShardStore) -> list[SwapOutcome]:
        stack = await small_stack(store, small_table(TombstoneGc.IMMEDIATE))
        await store.write(stack, [(key_of(1, 1), value_of(tombstone(7, 10)))])
        return [await compact(store, stack, late) for late in range(3)]

    assert Rig().life(main) == [SwapOutcome.OLDER_CELLS, SwapOutcome.SWAPPED, SwapOutcome.OLDER_CELLS]


def test_a_write_that_a_swap_would_uncover_is_refused_while_it_lasts() -> None:
    rig = Rig()

    async def main(store: ShardStore) -> None:
        stack = await small_stack(store, small_table(TombstoneGc.IMMEDIATE))
        await store.write(stack, [(key_of(1, 1), value_of(tombstone(7, 10)))])
        job = await store.begin_compaction(stack, TERMS, whole=True)
        assert job is not None
        result = await run_compaction(_engine(store), _engine(store).disk, job)
        async with asyncio.TaskGroup() as tasks:
            swap = tasks.create_task(store.finish_compaction(job, result))
            async with asyncio.timeout(5):
                while stack.reject_upto_us < 0:  # noqa: ASYNC110  # nothing announces the moment
                    await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                await store.write(stack, [plain(1, 1, 5)])
            await store.write(stack, [plain(1, 2, 8)])
        assert swap.result() is SwapOutcome.SWAPPED
        await store.write(stack, [plain(1, 1, 5)])

    rig.life(main)


def test_a_fold_of_layers_that_are_gone_is_thrown_away() -> None:
    async def main(store: ShardStore) -> SwapOutcome:
        stack = await small_stack(store)
        await store.write(stack, [plain(1, 1, 5)])
        job = await store.begin_compaction(stack, TERMS, whole=True)
        assert job is not None
        assert await store.begin_compaction(stack, TERMS, whole=True) is None
        result = await run_compaction(_engine(store), _engine(store).disk, job)
        await store.drop(stack)
        end = await store.finish_compaction(job, result)
        assert not _engine(store).disk.exists(job.output_folder)
        assert not _engine(store).disk.exists(job.scratch_folder)
        return end

    assert Rig().life(main) is SwapOutcome.INPUTS_GONE


def test_a_full_disk_refuses_writes_keeps_reads_and_comes_back_by_itself() -> None:
    rig = Rig()

    async def main(store: ShardStore) -> None:
        stack = await small_stack(store)
        await store.write(stack, [plain(1, 1, 5)])
        rig.machine.disk.fill(0)
        refusals: list[type[BaseException]] = []
        for number in range(200):
            try:
                await store.write(stack, [plain(1, 2, 100 + number)])
            except (DiskFull, NotDurable) as failure:
                refusals.append(type(failure))
        assert NotDurable in refusals
        assert refusals[-1] is DiskFull
        assert _is_refusing(store)
        assert (await store.open(stack)).read(key_of(1, 1)) is not None
        rig.machine.disk.heal()
        await asyncio.sleep(1)
        assert not _is_refusing(store)
        await store.write(stack, [plain(1, 3, 7)])

    async def read(store: ShardStore) -> tuple[Row, Row]:
        stack = await small_stack(store)
        return await row_at(store, stack, 1, 2), await row_at(store, stack, 1, 3)

    rig.life(main)
    rig.lose_power()
    second, third = rig.life(read)
    assert second.cells[A].timestamp_us >= 100
    assert third.cells[A].timestamp_us == 7


def test_too_little_space_is_told_before_it_is_none() -> None:
    rig = Rig(bounds=limits(free_bytes_min=10_000))

    async def main(store: ShardStore) -> None:
        stack = await small_stack(store)
        rig.machine.disk.fill(9_000)
        await asyncio.sleep(0.2)
        with pytest.raises(DiskFull, match="writes need"):
            await store.write(stack, [plain(1, 1, 5)])
        rig.machine.disk.heal()
        await asyncio.sleep(0.2)
        await store.write(stack, [plain(1, 1, 5)])

    rig.life(main)


def test_a_seal_that_found_the_disk_full_is_finished_later() -> None:
    rig = Rig()

    async def main(store: ShardStore) -> None:
        stack = await small_stack(store)
        await store.write(stack, [plain(1, 1, 5)])
        await store.flush(stack)
        await store.write(stack, [plain(1, 2, 6)])
        rig.machine.disk.fill(0)
        with pytest.raises(DiskFull):
            await store.seal(stack)
        rig.machine.disk.heal()
        await store.seal(stack)
        await store.write(stack, [plain(1, 3, 7)])
        assert len(stack.entry.bases) == 1

    async def keys(store: ShardStore) -> list[bytes]:
        return [key for key, _ in (await store.open(await small_stack(store))).scan()]

    rig.life(main)
    rig.lose_power()
    assert rig.life(keys) == [key_of(1, 1), key_of(1, 2), key_of(1, 3)]


def test_a_layer_that_refuses_puts_is_flushed() -> None:
    rig = Rig()
    rig.unflushed_bytes_max = 2_000

    async def main(store: ShardStore) -> int:
        stack = await small_stack(store)
        refused = 0
        for number in range(100):
            try:
                await store.write(stack, [plain(number, 1, 5)])
            except Overloaded:
                refused += 1
                await asyncio.sleep(0.2)
        return refused

    assert 1 <= rig.life(main) <= 10


def test_a_damaged_layer_stops_its_replica_and_no_other_and_is_kept_for_people() -> None:
    rig = Rig()

    async def write(store: ShardStore) -> None:
        await store.set_schema(SMALL)
        for half in WHOLE_RING.split(2):
            stack = await store.create(TABLE, half)
            for number in range(20):
                if in_spans(key_of(number, 1), stack.spans):
                    await store.write(stack, [plain(number, 1, 5)])
            await store.seal(stack)

    async def damage(store: ShardStore) -> tuple[int, int]:
        stacks = [await store.create(TABLE, half) for half in WHOLE_RING.split(2)]
        folder = stacks[0].folder_of(stacks[0].entry.bases[0])
        file = _engine(store).disk.open(f"{folder}/00000000.run")
        file.write(30, b"\xff\xff\xff")
        file.close()
        with pytest.raises(LayerDamaged):
            await store.open(stacks[0])
        await asyncio.sleep(0.5)
        assert stacks[0].damage
        return len(stacks[0].entry.bases), len(list((await store.open(stacks[1])).scan()))

    async def after(store: ShardStore) -> None:
        stacks = [await store.create(TABLE, half) for half in WHOLE_RING.split(2)]
        with pytest.raises(LayerDamaged, match="rebuild"):
            await store.write(stacks[0], [plain(1, 1, 9)])
        await store.drop(stacks[0])
        assert _engine(store).disk.list_folder(f"{FOLDER}/damaged") != []
        await store.create(TABLE, WHOLE_RING.split(2)[0])

    rig.life(write)
    bases, others = rig.life(damage)
    assert bases == 1
    assert others > 0
    rig.life(after)


@runs_in(lambda work: Rig().life(work))
async def test_rows_of_an_unknown_schema_version_or_range_are_refused(store: ShardStore, /) -> None:
    await small_stack(store)
    half = WHOLE_RING.split(2)[0]
    stack = await store.create(TABLE, half)
    outside = next(number for number in range(99) if not in_spans(key_of(number, 1), stack.spans))
    inside = next(number for number in range(99) if in_spans(key_of(number, 1), stack.spans))
    with pytest.raises(Stale, match="range"):
        await store.write(stack, [plain(outside, 1, 5)])
    newer = with_column(SMALL, msgspec.structs.replace(SMALL.column("a"), name="z"))
    item = (
        key_of(inside, 1),
        value_of(Row(marker=None, deletion=None, cells={A: Cell(timestamp_us=5, value=b"")}), newer),
    )
    with pytest.raises(Stale, match="version"):
        await store.write(stack, [item])
    await store.set_schema(newer)
    await store.write(stack, [item])
    with pytest.raises(Stale):
        await store.set_schema(SMALL)


def test_layers_without_a_manifest_are_not_taken_for_a_new_store() -> None:
    rig = Rig()

    async def write(store: ShardStore) -> None:
        stack = await small_stack(store)
        await store.write(stack, [plain(1, 1, 5)])
        await store.flush(stack)
        _engine(store).disk.unlink(f"{FOLDER}/manifest")

    async def nothing(store: ShardStore) -> None:
        raise AssertionError

    rig.life(write)
    with pytest.raises(StoreLost, match="layers without a manifest"):
        rig.life(nothing)


def test_an_orderly_end_leaves_nothing_to_replay() -> None:
    rig = Rig()

    async def write(store: ShardStore) -> None:
        stack = await small_stack(store)
        await store.write(stack, [plain(1, 1, 5)])
        await store.close()

    async def read(store: ShardStore) -> None:
        stack = await small_stack(store)
        assert (await store.open(stack)).read(key_of(1, 1)) is not None

    rig.life(write)
    rig.life(read)


def test_a_close_waits_for_the_upkeep_that_holds_layers() -> None:
    rig = Rig()

    async def write_and_close(store: ShardStore) -> None:
        stack = await small_stack(store)
        await store.write(stack, [plain(1, 1, 5)])

        held = asyncio.Event()

        async def upkeep() -> None:
            async with store.layers.hold(stack.layer_ref(stack.live)):
                held.set()
                await asyncio.sleep(1)

        store._upkeep = upkeep  # type: ignore[method-assign]  # a turn that is slow
        store._upkeep_wanted.set()
        await held.wait()
        await store.close()

    async def read(store: ShardStore) -> Row:
        return await row_at(store, await small_stack(store), 1, 1)

    rig.life(write_and_close)
    assert rig.life(read).cells[A] == Cell(timestamp_us=5, value=(1).to_bytes(4))


def test_the_load_is_that_of_the_layers_and_the_commit_log() -> None:
    rig = Rig()

    async def grow(store: ShardStore) -> tuple[int, int, int]:
        stack = await small_stack(store)
        empty = store.load_bytes
        await store.write(stack, [plain(1, 1, 5)])
        written = store.load_bytes
        await store.seal(stack)
        return empty, written, store.load_bytes

    empty, written, sealed = rig.life(grow)
    assert 0 < empty < written < sealed, "a record of the log, then a base beside it"

    async def load(store: ShardStore) -> int:
        return store.load_bytes - store.log.size_bytes

    assert rig.life(load) > 0, "bases count at once after a restart"
