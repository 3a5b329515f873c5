"""Hidden ranges of a stack (INV-NODE-20): in checkpoints, in scans of columns, with adoptions, and on disk."""

import uuid

import msgspec
import pytest
from tests.unit.storage.small_table import SMALL, partition_token
from tests.unit.storage.store_rig import FOLDER, Rig, plain, row_at, small_stack

from ebla.model.identity import HistoryId
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.model.transaction import Revision
from ebla.model.transfers import ScanStack
from ebla.storage.codec.key_codec import FEW_SPANS, clip_span, decode_token, in_spans, key_spans
from ebla.storage.columns.chunks import KEY
from ebla.storage.compaction.compaction_plan import SwapOutcome
from ebla.storage.compaction.compactor import run_compaction
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.layer import build_layer
from ebla.storage.manifest import HeldRanges, LayerEntry, LayerId, ShardManifest, layer_folder, read_manifest
from ebla.storage.merge.row_merge import facts_of
from ebla.storage.scan.scan_columns import select_values
from ebla.storage.scan.stack_scan import ScanQuery, open_checkpoint
from ebla.storage.stack import Stack
from ebla.storage.stack_changes import Adoption
from ebla.storage.store import ShardStore

OURS, GAINED = WHOLE_RING.split(2)
PARTITIONS = range(12)
THERE = [one for one in PARTITIONS if partition_token(one) in GAINED]
HERE = [one for one in PARTITIONS if partition_token(one) in OURS]
GC = GcContext(now_s=0, replication_factor=3)


def held(index: int, *ranges: TokenRange) -> HeldRanges:
    return HeldRanges(ranges, Revision(HistoryId(uuid.UUID(int=3)), index))


async def filled(store: ShardStore) -> Stack:
    """All rows, in a base with columns."""
    stack = await small_stack(store)
    await store.hold_ranges(stack, held(1, WHOLE_RING))
    await store.write(stack, [plain(partition, 0, 5) for partition in PARTITIONS])
    await compact(store, stack)
    return stack


async def compact(store: ShardStore, stack: Stack) -> None:
    job = await store.begin_compaction(stack, GC, whole=True)
    assert job is not None
    result = await run_compaction(store.engine, store.disk, job)
    assert await store.finish_compaction(job, result) is SwapOutcome.SWAPPED


async def lose_and_gain(store: ShardStore, stack: Stack) -> None:
    await store.hold_ranges(stack, held(12, OURS))
    await store.hold_ranges(stack, held(13, WHOLE_RING))


def test_a_scan_of_a_checkpoint_shows_nothing_hidden_by_row_or_by_column() -> None:
    async def life(store: ShardStore) -> None:
        stack = await filled(store)
        await lose_and_gain(store, stack)
        await store.write(stack, [plain(THERE[0], 1, 9)])
        (entry,) = (await store.checkpoint(stack, "/data/copy")).stacks
        layers = [
            (layer_folder("/data/copy", entry.incarnation, base.id), visible)
            for base in entry.bases
            for visible in base.visible
        ]
        stacks = (ScanStack(WHOLE_RING, tuple(layers)),)
        query = ScanQuery(schema=SMALL, columns=select_values(("k", "c")), now_s=0)
        expected = sorted([(partition, 0) for partition in HERE] + [(THERE[0], 1)])
        async with open_checkpoint(store.engine, store.disk, SMALL, stacks) as scan:
            assert scan.has_columns()
            typed = [row for batch in scan.typed(WHOLE_RING, query) for row in batch.to_pylist()]
            assert sorted((row["k"], row["c"]) for row in typed) == expected
            stored = [key for batch in scan.stored(WHOLE_RING) for key in batch.column(KEY).to_pylist()]
            assert stored == sorted(stored)
            assert len(stored) == len(expected)
            by_column = [key for chunk in scan.by_column(WHOLE_RING) for key in chunk.column(KEY).to_pylist()]
            assert by_column == stored
            hashed = scan.hashes(GAINED, 1, 0).column("rows").to_pylist()
            assert hashed == [1]

    Rig().life(life)


@pytest.mark.parametrize("gains", [1, 2])
def test_a_compaction_that_began_before_brings_nothing_back(gains: int) -> None:
    """Written between the two gains, a row is hidden by the second one alone."""
    rig = Rig()

    async def life(store: ShardStore) -> None:
        stack = await filled(store)
        for number in range(gains - 1):
            await store.hold_ranges(stack, held(3 + number, OURS))
            await store.hold_ranges(stack, held(5 + number, WHOLE_RING))
            await store.write(stack, [plain(THERE[0], 0, 9)])
        job = await store.begin_compaction(stack, GC, whole=True)
        assert job is not None
        result = await run_compaction(store.engine, store.disk, job)
        await lose_and_gain(store, stack)
        await store.write(stack, [plain(THERE[1], 1, 10)])
        assert await store.finish_compaction(job, result) is SwapOutcome.SWAPPED
        await check(store)

    async def check(store: ShardStore) -> None:
        (stack,) = store.stacks.values()
        for partition in PARTITIONS:
            assert ((await row_at(store, stack, partition, 0)).marker is None) == (partition in THERE)
        assert (await row_at(store, stack, THERE[1], 1)).marker is not None

    rig.life(life)
    rig.life(check)


def test_a_job_that_adopts_again_after_a_gain_brings_its_rows_back() -> None:
    """They were adopted before the range was lost. The job is not over, and routes them to the node once more."""

    async def life(store: ShardStore) -> None:
        stack = await filled(store)
        items = [plain(THERE[0], 3, 7)]
        await build_layer(store.engine, "/data/staged", items, facts_of([items[0][1]], SMALL))
        adoptions = [Adoption("/data/staged", WHOLE_RING, "job/one")]
        assert await store.adopt_all(stack, adoptions) == 1
        assert await store.adopt_all(stack, adoptions) == 0
        await lose_and_gain(store, stack)
        assert (await row_at(store, stack, THERE[0], 3)).marker is None
        assert await store.adopt_all(stack, adoptions) == 1
        assert (await row_at(store, stack, THERE[0], 3)).marker is not None

    Rig().life(life)


def test_a_gain_is_one_seal_at_most_and_none_where_there_is_nothing() -> None:
    async def life(store: ShardStore) -> None:
        stack = await small_stack(store)
        await store.hold_ranges(stack, held(1, OURS))
        await store.hold_ranges(stack, held(2, WHOLE_RING))
        assert not stack.entry.bases
        generation = store.manifest.current.generation
        for index in (1, 2, 3):
            await store.hold_ranges(stack, held(index, WHOLE_RING))
        assert store.manifest.current.generation == generation, "nothing new, nothing written"
        await store.write(stack, [plain(HERE[0], 0, 5)])
        await lose_and_gain(store, stack)
        assert [base.hidden for base in stack.entry.bases] == [(GAINED,)]
        assert store.manifest.current.generation == generation + 3, "a loss, a seal, a gain"

    Rig().life(life)


def test_what_is_pending_by_one_operation_is_hidden_once() -> None:
    async def life(store: ShardStore) -> None:
        stack = await filled(store)
        half, rest = GAINED.split(2)
        await store.hold_ranges(stack, HeldRanges((OURS, half), held(12).at, "leave"), (half,))
        early = next(one for one in THERE if partition_token(one) in half)
        late = next(one for one in THERE if partition_token(one) in rest)
        await store.write(stack, [plain(early, 1, 9)])
        await store.hold_ranges(stack, HeldRanges((WHOLE_RING,), held(13).at, "leave"), (GAINED,))
        assert (await row_at(store, stack, early, 1)).marker is not None
        assert (await row_at(store, stack, early, 0)).marker is None
        assert (await row_at(store, stack, late, 0)).marker is None
        await store.hold_ranges(stack, HeldRanges((WHOLE_RING,), held(14).at, "another leave"), (GAINED,))
        assert (await row_at(store, stack, early, 1)).marker is None

    Rig().life(life)


def test_an_interrupted_seal_is_finished_and_the_rows_after_it_are_hidden_too() -> None:
    async def life(store: ShardStore) -> None:
        stack = await filled(store)
        await store.write(stack, [plain(THERE[0], 1, 6)])
        stack.begin_seal(store.new_layer_id(), store.log.next_sequence)  # and its caller was cancelled
        await store.write(stack, [plain(THERE[0], 2, 7)])
        await lose_and_gain(store, stack)
        for row in (0, 1, 2):
            assert (await row_at(store, stack, THERE[0], row)).marker is None

    Rig().life(life)


def test_a_manifest_of_the_previous_release_hides_nothing_and_knows_no_ranges() -> None:
    rig = Rig()

    async def life(store: ShardStore) -> None:
        await filled(store)

    rig.life(life)

    async def look(disk: object) -> ShardManifest | None:
        return await read_manifest(disk, FOLDER)  # type: ignore[arg-type]  # what the machine gives

    manifest = rig.machine.run(look)
    assert manifest is not None
    (stack,) = manifest.stacks
    assert stack.held == held(1, WHOLE_RING)
    as_array = msgspec.to_builtins(stack)
    layer = msgspec.to_builtins(stack.live)
    assert msgspec.convert(as_array[:-1], type(stack)).held is None
    assert msgspec.convert(layer[:-1], LayerEntry).visible == (WHOLE_RING,)


@pytest.mark.parametrize("count", [1, FEW_SPANS, FEW_SPANS + 1, 64])
def test_many_spans_are_searched_as_few_are(count: int) -> None:
    parts = WHOLE_RING.split(2 * count)[::2]
    spans = [span for part in parts for span in key_spans(part)]
    keys = [plain(partition, 0, 1)[0] for partition in range(60)]
    for key in keys:
        assert in_spans(key, spans) == any(decode_token(key) in part for part in parts)
    for start, end in zip(sorted(keys), [*sorted(keys)[5:], None]):
        one_by_one = [part for span in spans for part in clip_span((start, end), (span,))]
        assert clip_span((start, end), spans) == one_by_one


def test_what_is_visible_of_a_layer_is_its_range_without_the_hidden_ones() -> None:
    layer = LayerEntry(id=LayerId(1), range=OURS, hidden=(GAINED,))
    assert layer.visible == (OURS,)
    assert msgspec.structs.replace(layer, hidden=(OURS,)).visible == ()
