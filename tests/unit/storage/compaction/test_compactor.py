"""A compaction gives the same as one that works row by row, and leaves nothing behind where it fails."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from tests.async_tests import real_time, runs_in
from tests.unit.journal.on_disks import Machine
from tests.unit.storage.naive_compaction import collected
from tests.unit.storage.random_rows import MIXED, Mix, RandomRows, layer_facts
from tests.unit.storage.rigs import Rig

from ebla.journal.recovery import make_durable_folder
from ebla.model.errors import DiskFull
from ebla.model.rows import NEVER_US
from ebla.model.token import TOKEN_MIN, WHOLE_RING, Token, TokenRange
from ebla.sim.disk import ProcessDisk
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.columns import sidecar
from ebla.storage.columns.chunks import KEY, stored_values, whole_shape
from ebla.storage.columns.sidecar import SidecarWriter, open_sidecar
from ebla.storage.compaction import compactor
from ebla.storage.compaction.compaction_plan import CompactionInput, CompactionJob, CompactionResult
from ebla.storage.compaction.compactor import run_compaction
from ebla.storage.compaction.tombstone_gc import KEEP_ALL, GcRule, GcSpan, TombstoneCollector
from ebla.storage.layers.layer import Item, LayerDamaged, build_layer
from ebla.storage.layers.layer_facts import LayerFacts
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.manifest import Incarnation, LayerId
from ebla.storage.merge.row_merge import merge_streams
from ebla.storage.scan import stack_scan
from ebla.storage.scan.stack_scan import ALL_KEYS

UPPER_HALF = TokenRange(Token(0), TOKEN_MIN)


def job(
    rig: Rig, ranges: Sequence[TokenRange], rule: GcRule = KEEP_ALL, whole: TokenRange = WHOLE_RING
) -> CompactionJob:
    inputs = tuple(
        CompactionInput(LayerId(number), rig.path(f"in{number}"), (token_range,))
        for number, token_range in enumerate(ranges)
    )
    return CompactionJob(
        incarnation=Incarnation(1),
        inputs=inputs,
        output=LayerId(99),
        output_folder=rig.path("out"),
        range=whole,
        rule=rule,
        schema=MIXED,
    )


async def build(rig: Rig, layers: Sequence[list[Item]]) -> None:
    for number, items in enumerate(layers):
        await build_layer(rig.engine, rig.path(f"in{number}"), items, layer_facts(MIXED, items))


async def compacted(
    rig: Rig, layers: Sequence[list[Item]], asked: CompactionJob
) -> tuple[CompactionResult, list[Item], LayerFacts]:
    await build(rig, layers)
    result = await run_compaction(rig.engine, rig.disk, asked)
    layer = await rig.engine.open(rig.path("out"), writable=False)
    items = list(layer.scan())
    facts = layer.facts
    await layer.close()
    return result, items, facts


async def sidecar_items(rig: Rig) -> list[Item]:
    opened = await open_sidecar(rig.disk, rig.path("out"))
    assert opened is not None
    shape = whole_shape(MIXED)
    items: list[Item] = []
    for chunk in opened.chunks(shape, ALL_KEYS):
        chunk.validate(full=True)
        items += zip(chunk.column(KEY).to_pylist(), stored_values(shape, chunk).to_pylist())
    assert opened.rows == len(items)
    opened.close()
    return items


@pytest.mark.parametrize(("kind", "seed"), [*(("memory", seed) for seed in range(16)), ("rocks", 1), ("rocks", 2)])
def test_a_fold_is_the_merge_less_what_may_go(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(kind, tmp_path)
    rng = Random(seed)
    if seed % 2:
        monkeypatch.setattr(stack_scan, "CHUNK_ROWS", rng.randrange(1, 6))
        monkeypatch.setattr(sidecar, "BLOCK_ROWS", rng.randrange(1, 6))
    rows = RandomRows(seed, Mix(plain=rng.choice([0.9, 0.4]), partitions=rng.choice([3, 12]), rows=60))
    layers = [rows.layer() for _ in range(rng.randrange(1, 4))]
    ranges = [rng.choice([WHOLE_RING, UPPER_HALF]) for _ in layers]
    spans = (GcSpan(rng.choice([WHOLE_RING, UPPER_HALF]), rng.randrange(20)),)
    rule = GcRule(spans, rng.randrange(1, 8)) if seed % 4 else KEEP_ALL
    asked = job(rig, ranges, rule, rng.choice([WHOLE_RING, UPPER_HALF]))
    result, items, facts = rig.run(compacted(rig, layers, asked))

    collector = TombstoneCollector(rule)
    clipped = [
        [item for item in layer if decode_token(item[0]) in token_range and decode_token(item[0]) in asked.range]
        for layer, token_range in zip(layers, ranges)
    ]
    expected = list(collected(merge_streams(clipped, MIXED), MIXED, collector))
    assert items == expected
    assert result.dropped_greatest_us == collector.dropped_greatest_us
    assert facts == result.facts == layer_facts(MIXED, expected)
    assert rig.run(sidecar_items(rig)) == expected
    rig.close()


def test_some_seed_drops_tombstones(tmp_path: Path) -> None:
    """Else the comparison above would say little."""
    rig = Rig("memory", tmp_path)
    layers = [RandomRows(3, Mix(plain=0.3, partitions=3, rows=60)).layer()]
    rule = GcRule((GcSpan(WHOLE_RING, 100),), 100)
    result, items, _ = rig.run(compacted(rig, layers, job(rig, [WHOLE_RING], rule)))
    assert result.dropped_greatest_us > NEVER_US
    assert len(items) < len(layers[0])
    assert not result.facts.has_tombstones
    assert not result.facts.has_expiring
    rig.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_fold_is_durable_when_it_returns(seed: int) -> None:
    """With its sidecar: a power cut right after it takes nothing."""
    machine = Machine(seed)
    items = RandomRows(seed, Mix(plain=0.5, partitions=5, rows=60)).layer()
    inputs = (CompactionInput(LayerId(1), "/data/in", (WHOLE_RING,)),)
    asked = CompactionJob(
        incarnation=Incarnation(1),
        inputs=inputs,
        output=LayerId(2),
        output_folder="/data/out",
        range=WHOLE_RING,
        rule=KEEP_ALL,
        schema=MIXED,
    )

    async def first(disk: ProcessDisk) -> CompactionResult:
        await make_durable_folder(disk, "/data")
        engine = MemoryEngine(disk)
        await build_layer(engine, "/data/in", items, layer_facts(MIXED, items))
        return await run_compaction(engine, disk, asked)

    async def second(disk: ProcessDisk) -> tuple[LayerFacts, list[Item], int]:
        layer = await MemoryEngine(disk).open("/data/out", writable=False)
        opened = await open_sidecar(disk, "/data/out")
        assert opened is not None
        chunks = opened.chunks(whole_shape(MIXED), ALL_KEYS)
        return layer.facts, list(layer.scan()), sum(len(chunk) for chunk in chunks)

    result = machine.run(first)
    machine.lose_power()
    facts, stored, rows = machine.run(second)
    expected = list(collected(items, MIXED, TombstoneCollector(KEEP_ALL)))
    assert (facts, stored, rows) == (result.facts, expected, len(expected))


@pytest.mark.parametrize("kind", ["memory", "rocks"])
@runs_in(real_time)
async def test_a_failed_fold_leaves_nothing(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(kind, tmp_path)
    layers = [RandomRows(3).layer(), RandomRows(4).layer()]

    def full(self: SidecarWriter, chunk: pa.RecordBatch) -> None:
        raise DiskFull("no space left")

    await build(rig, layers)
    with monkeypatch.context() as patched:
        patched.setattr(SidecarWriter, "add", full)
        with pytest.raises(DiskFull):
            await run_compaction(rig.engine, rig.disk, job(rig, [WHOLE_RING, WHOLE_RING]))
    assert not rig.disk.exists(rig.path("out"))
    with pytest.raises(LayerDamaged):
        await run_compaction(rig.engine, rig.disk, job(rig, [WHOLE_RING] * 3))
    assert not rig.disk.exists(rig.path("out"))
    await run_compaction(rig.engine, rig.disk, job(rig, [WHOLE_RING, WHOLE_RING]))
    assert rig.disk.exists(rig.path("out"))
    rig.close()


@runs_in(real_time)
async def test_a_cancelled_fold_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig("rocks", tmp_path)
    monkeypatch.setattr(stack_scan, "CHUNK_ROWS", 2)
    begun = asyncio.Event()
    add = compactor.BaseLayerWriter.add

    def add_and_tell(self: compactor.BaseLayerWriter, chunk: pa.RecordBatch) -> None:
        add(self, chunk)
        begun.set()

    monkeypatch.setattr(compactor.BaseLayerWriter, "add", add_and_tell)
    await build(rig, [RandomRows(3, Mix(rows=200)).layer()])
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run_compaction(rig.engine, rig.disk, job(rig, [WHOLE_RING])))
        await begun.wait()
        running.cancel()
    assert not rig.disk.exists(rig.path("out"))
    rig.close()
