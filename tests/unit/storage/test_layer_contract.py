"""What every engine of layers does. Each test runs on RocksDB and on the in-memory twin."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.async_tests import real_time, runs_in
from tests.unit.storage.rigs import ENGINES, Rig, at, key, rows

from ebla.model.errors import EblaError, Stale
from ebla.storage.layers.layer import Layer, LayerDamaged, build_layer
from ebla.storage.layers.layer_facts import NO_FACTS, LayerFacts

pytestmark = runs_in(real_time)

AT_US = 1_700_000_000_000_000


@pytest.fixture(params=sorted(ENGINES))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(request.param, tmp_path)
    yield made
    made.close()


async def test_what_was_put_is_found(rig: Rig) -> None:
    layer = await rig.engine.open(rig.path(), writable=True)
    layer.put_batch(rows([3, 1]), at(AT_US, 2))
    layer.put_batch([(key(1), b"first"), (key(1), b"second")], at(AT_US + 1, 2))
    assert layer.get(key(1)) == b"second"
    assert layer.get(key(2)) is None
    assert layer.get_many([key(3), key(2), key(1)]) == [rows([3])[0][1], None, b"second"]
    assert layer.get_many([]) == []
    await layer.close()
    again = await rig.engine.open(rig.path(), writable=False)
    assert list(again.scan()) == [(key(1), b"second"), *rows([3])]
    await again.close()


async def test_a_scan_is_ordered_and_bounded(rig: Rig) -> None:
    layer = await rig.engine.open(rig.path(), writable=True)
    numbers = list(range(0, 6000, 2))
    random.Random(1).shuffle(numbers)
    layer.put_batch(rows(numbers), at(AT_US, len(numbers)))
    for flushed in (False, True):
        if flushed:
            await layer.flush()
        check_scans(layer)
    await layer.close()


def check_scans(layer: Layer) -> None:
    everything = rows(range(0, 6000, 2))
    assert list(layer.scan()) == everything
    assert list(layer.scan_reverse()) == everything[::-1]
    assert list(layer.scan_reverse(key(10), key(16))) == rows([14, 12, 10])
    assert list(layer.scan_reverse(key(11), key(15))) == rows([14, 12])
    assert list(layer.scan_reverse(key(5000))) == rows(range(5000, 6000, 2))[::-1]
    assert list(layer.scan_reverse(key(16), key(10))) == []
    assert list(layer.scan(key(10), key(16))) == rows([10, 12, 14])
    assert list(layer.scan(key(9), key(15))) == rows([10, 12, 14])
    assert list(layer.scan(key(5997))) == rows([5998])
    assert list(layer.scan(key(6000))) == []
    assert list(layer.scan(key(10), key(10))) == []
    assert list(layer.scan(key(16), key(10))) == []
    for rows_max in (1, 7, 16, 1024):
        batches = list(layer.scan_batches(rows_max=rows_max))
        assert [row for batch in batches for row in batch] == everything
        assert all(0 < len(batch) <= rows_max for batch in batches)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 79, 80, 81, 336])
async def test_a_scan_ends_where_its_batches_end(rig: Rig, count: int) -> None:
    layer = await rig.engine.open(rig.path(), writable=True)
    layer.put_batch(rows(range(count)), at(AT_US, count))
    assert list(layer.scan()) == rows(range(count))
    await layer.close()


async def test_a_scan_sees_the_layer_as_it_was(rig: Rig) -> None:
    layer = await rig.engine.open(rig.path(), writable=True)
    layer.put_batch(rows(range(0, 200, 2)), at(AT_US, 100))
    scan = layer.scan()
    begun = [next(scan) for _ in range(20)]
    layer.put_batch(rows(range(1, 300)), at(AT_US, 299))
    layer.put_batch(rows([60], "changed"), at(AT_US, 1))
    assert begun + list(scan) == rows(range(0, 200, 2))
    assert len(list(layer.scan())) == 300
    await layer.close()


async def test_files_appear_with_the_first_put(rig: Rig) -> None:
    layer = await rig.engine.open(rig.path(), writable=True)
    assert layer.get(key(1)) is None
    assert list(layer.scan()) == []
    assert layer.get_many([key(1), key(2)]) == [None, None]
    assert layer.size_bytes() == 0
    await layer.flush()
    await layer.close()
    assert not rig.disk.exists(rig.path())
    layer = await rig.engine.open(rig.path(), writable=True)
    layer.put_batch(rows([1]), at(AT_US))
    assert rig.disk.exists(rig.path())
    assert layer.size_bytes() > 0
    await layer.close()


async def test_files_may_be_made_before_the_first_put(rig: Rig) -> None:
    layer = await rig.engine.open(rig.path(), writable=True)
    await layer.make_files()
    await layer.make_files()
    assert layer.has_files
    assert list(layer.scan()) == []
    await layer.close()
    with pytest.raises(Stale):
        layer.put_batch(rows([1]), at(AT_US))
    layer = await rig.engine.open(rig.path(), writable=True)
    layer.put_batch(rows([1]), at(AT_US))
    await layer.close()
    layer = await rig.engine.open(rig.path(), writable=True)
    assert list(layer.scan()) == rows([1])
    await layer.close()


async def test_a_crash_takes_only_what_was_not_flushed(rig: Rig) -> None:
    layer = await rig.engine.open(rig.path(), writable=True)
    layer.put_batch(rows(range(100)), at(AT_US, 100))
    before = await rig.engine.open(rig.killed(), writable=True)
    assert len(list(before.scan())) in (0, 100)
    await layer.flush()
    layer.put_batch(rows(range(50, 150), "later"), at(AT_US + 9, 100))
    after = await rig.engine.open(rig.killed(), writable=True)
    found = dict(after.scan())
    for item in rows(range(50)):
        assert found[item[0]] == item[1]
    assert len(found) in (100, 150)
    assert after.facts.covers(at(AT_US, 1))
    after.put_batch(rows([200]), at(AT_US + 1))
    assert after.get(key(200)) == rows([200])[0][1]
    for each in (layer, before, after):
        await each.close()


async def test_facts_are_widened_and_stored(rig: Rig) -> None:
    head = LayerFacts(
        least_us=AT_US - 5,
        greatest_us=AT_US - 5,
        rows=1,
        has_heads=True,
        has_tombstones=True,
        has_expiring=False,
        all_plain=False,
    )
    expiring = LayerFacts(
        least_us=AT_US + 7,
        greatest_us=AT_US + 7,
        rows=1,
        has_heads=False,
        has_tombstones=False,
        has_expiring=True,
        all_plain=False,
    )
    layer = await rig.engine.open(rig.path(), writable=True)
    assert layer.facts == NO_FACTS
    expected = NO_FACTS
    for number, facts in enumerate((at(AT_US), at(AT_US + 1), head, expiring)):
        layer.put_batch(rows([number]), facts)
        expected = expected.widened(facts)
        assert layer.facts == expected
    assert expected == LayerFacts(
        least_us=AT_US - 5,
        greatest_us=AT_US + 7,
        rows=4,
        has_heads=True,
        has_tombstones=True,
        has_expiring=True,
        all_plain=False,
    )
    await layer.flush()
    killed = await rig.engine.open(rig.killed(), writable=True)
    assert killed.facts == expected
    await layer.close()
    again = await rig.engine.open(rig.path(), writable=False)
    assert again.facts == expected
    await again.close()
    await killed.close()


async def test_a_checkpoint_is_a_layer_of_links(rig: Rig) -> None:
    layer = await rig.engine.open(rig.path(), writable=True)
    layer.put_batch(rows(range(500)), at(AT_US, 500))
    await layer.checkpoint(rig.path("copy"))
    layer.put_batch(rows(range(500), "later"), at(AT_US + 1, 500))
    layer.put_batch(rows([900]), at(AT_US + 1))
    assert rig.links("copy") > 1
    copy = await rig.engine.open(rig.path("copy"), writable=False)
    assert list(copy.scan()) == rows(range(500))
    assert copy.facts == at(AT_US, 500)
    assert layer.get(key(3)) == rows([3], "later")[0][1]
    await layer.discard()
    await rig.engine.drop(rig.path())
    assert copy.get(key(3)) == rows([3])[0][1]
    assert copy.size_bytes() > 0
    await copy.close()


async def test_a_checkpoint_of_a_base_takes_its_sidecar(rig: Rig) -> None:
    await build_layer(rig.engine, rig.path(), rows(range(50)), at(AT_US, 50))
    rig.write("layer/rows.arrow", b"columns")
    base = await rig.engine.open(rig.path(), writable=False)
    await base.checkpoint(rig.path("copy"))
    await base.close()
    await rig.engine.drop(rig.path())
    copy = await rig.engine.open(rig.path("copy"), writable=False)
    assert list(copy.scan()) == rows(range(50))
    assert copy.facts == at(AT_US, 50)
    await copy.checkpoint(rig.path("third"))
    assert rig.read("third/rows.arrow") == b"columns"
    await copy.close()


async def test_a_checkpoint_of_nothing_is_an_empty_layer(rig: Rig) -> None:
    layer = await rig.engine.open(rig.path(), writable=True)
    await layer.checkpoint(rig.path("copy"))
    copy = await rig.engine.open(rig.path("copy"), writable=False)
    assert list(copy.scan()) == []
    assert copy.facts == NO_FACTS
    await copy.close()
    await layer.close()


async def test_a_closed_layer_says_so(rig: Rig) -> None:
    layer = await rig.engine.open(rig.path(), writable=True)
    layer.put_batch(rows(range(2000)), at(AT_US, 2000))
    begun, untouched = layer.scan(), layer.scan_batches()
    next(begun)
    await layer.close()
    await layer.close()
    assert layer.closed
    again = await rig.engine.open(rig.path(), writable=True)
    assert len(list(again.scan())) == 2000
    with pytest.raises(Stale):
        layer.get(key(1))
    with pytest.raises(Stale):
        layer.put_batch(rows([1]), at(AT_US))
    with pytest.raises(Stale):
        layer.scan()
    with pytest.raises(Stale):
        list(begun)
    with pytest.raises(Stale):
        next(untouched)
    with pytest.raises(Stale):
        await layer.flush()
    await again.close()


async def test_a_base_is_not_written_to(rig: Rig) -> None:
    await build_layer(rig.engine, rig.path(), rows([1]), at(AT_US))
    base = await rig.engine.open(rig.path(), writable=False)
    assert not base.writable
    with pytest.raises(AssertionError):
        base.put_batch(rows([2]), at(AT_US))
    await base.close()


async def test_a_base_that_is_missing_is_damage(rig: Rig) -> None:
    with pytest.raises(LayerDamaged) as caught:
        await rig.engine.open(rig.path("gone"), writable=False)
    assert caught.value.folder == rig.path("gone")
    rig.disk.make_folder(rig.path("hollow"))
    with pytest.raises(LayerDamaged):
        await rig.engine.open(rig.path("hollow"), writable=False)


async def test_building(rig: Rig) -> None:
    facts = LayerFacts(
        least_us=1,
        greatest_us=9,
        rows=30_000,
        has_heads=True,
        has_tombstones=False,
        has_expiring=False,
        all_plain=False,
    )
    await build_layer(rig.engine, rig.path(), iter(rows(range(30_000))), facts)
    base = await rig.engine.open(rig.path(), writable=False)
    assert base.facts == facts
    assert list(base.scan()) == rows(range(30_000))
    assert base.get(key(29_999)) == rows([29_999])[0][1]
    assert base.size_bytes() > 10_000
    assert not [name for name in rig.disk.list_folder(rig.path()) if name.endswith(".build")]
    await base.close()
    await build_layer(rig.engine, rig.path("empty"), [], NO_FACTS)
    empty = await rig.engine.open(rig.path("empty"), writable=False)
    assert list(empty.scan()) == []
    await empty.close()


async def test_building_refuses_rows_out_of_order(rig: Rig) -> None:
    for wrong in ([2, 1], [1, 1]):
        with pytest.raises((EblaError, AssertionError)):
            await build_layer(rig.engine, rig.path(), rows(wrong), at(AT_US))
        assert not rig.disk.exists(rig.path())
    builder = rig.engine.builder(rig.path())
    builder.add([key(1)], [b"x"])
    await builder.abandon()
    assert not rig.disk.exists(rig.path())
    await rig.engine.drop(rig.path())


async def test_puts_during_a_flush_wait_for_the_next(rig: Rig) -> None:
    layer = await rig.engine.open(rig.path(), writable=True)
    layer.put_batch(rows(range(100)), at(AT_US, 100))
    async with asyncio.TaskGroup() as group:
        flush = group.create_task(layer.flush())
        await asyncio.sleep(0)
        layer.put_batch(rows(range(100, 120)), at(AT_US + 1, 20))
        await flush
    await layer.flush()
    killed = await rig.engine.open(rig.killed(), writable=False)
    assert list(killed.scan()) == rows(range(120))
    await killed.close()
    await layer.close()


@pytest.mark.parametrize("seed", range(4))
async def test_it_is_a_sorted_dictionary(rig: Rig, seed: int) -> None:
    """Puts, flushes, reopenings and checkpoints at random, against a dictionary."""
    rng = random.Random(seed)
    layer = await rig.engine.open(rig.path("0"), writable=True)
    expected: dict[bytes, bytes] = {}
    for step in range(1, 60):
        numbers = [rng.randrange(0, 300) for _ in range(rng.randrange(1, 12))]
        batch = rows(numbers, f"step {step}")
        layer.put_batch(batch, at(AT_US + step, len(batch)))
        expected.update(batch)
        start, end = sorted((key(rng.randrange(0, 300)), key(rng.randrange(0, 301))))
        assert list(layer.scan(start, end)) == sorted(i for i in expected.items() if start <= i[0] < end)
        match rng.randrange(0, 12):
            case 0 | 1:
                await layer.flush()
            case 2:
                await layer.close()
                layer = await rig.engine.open(layer.folder, writable=True)
            case 3:
                await layer.flush()
                await layer.discard()
                layer = await rig.engine.open(layer.folder, writable=True)
            case 4:
                await layer.checkpoint(rig.path(str(step)))
                await layer.close()
                layer = await rig.engine.open(rig.path(str(step)), writable=True)
            case _:
                pass
    assert list(layer.scan()) == sorted(expected.items())
    assert layer.facts.least_us == AT_US + 1
    await layer.close()
