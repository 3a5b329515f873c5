"""The in-memory twin on the simulated disk: power loss, full disk, failing syncs, rot."""

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.async_tests import runs_in
from tests.unit.journal.on_disks import Machine
from tests.unit.storage.rigs import at, key, rows

from ebla.model.errors import DiskFull, Overloaded
from ebla.sim.disk import ProcessDisk
from ebla.storage.layers.layer import Item, LayerDamaged, build_layer
from ebla.storage.layers.layer_facts import LayerFacts
from ebla.storage.layers.memory_engine import MemoryEngine

AT_US = 1_700_000_000_000_000
FOLDER = "/data/layer"
COPY = "/data/copy"


async def put_and_flush(disk: ProcessDisk, flushed: list[Item]) -> None:
    """Notes what is durable; goes on for ever."""
    engine = MemoryEngine(disk)
    layer = await engine.open(FOLDER, writable=True)
    for number in range(1_000_000):
        batch = rows([number % 50, number % 7], f"put {number}")
        layer.put_batch(batch, at(AT_US + number, 2))
        if number % 5 == 4:
            before = list(layer.scan())
            await layer.flush()
            flushed[:] = before


async def read_all(disk: ProcessDisk, folder: str = FOLDER) -> tuple[list[Item], LayerFacts]:
    layer = await MemoryEngine(disk).open(folder, writable=True)
    found = list(layer.scan()), layer.facts
    await layer.close()
    return found


@pytest.mark.parametrize("seed", range(40))
def test_power_loss_takes_only_what_was_not_flushed(seed: int) -> None:
    machine = Machine(seed)
    flushed: list[Item] = []
    machine.run_until(0.02 * (seed % 10 + 1), lambda disk: put_and_flush(disk, flushed))
    machine.lose_power()
    found, facts = machine.run(read_all)
    numbers = {name: put_number(value) for name, value in found}
    for name, value in flushed:
        assert numbers[name] >= put_number(value), "a flushed put is gone"
    if found:
        assert facts.least_us == AT_US
        assert facts.greatest_us >= AT_US + max(numbers.values())


def put_number(value: bytes) -> int:
    return int(value.split()[1])


@pytest.mark.parametrize("seed", range(10))
def test_built_layers_and_checkpoints_survive_power_loss(seed: int) -> None:
    machine = Machine(seed)

    async def build(disk: ProcessDisk) -> None:
        engine = MemoryEngine(disk)
        await build_layer(engine, FOLDER, rows(range(20)), at(AT_US, 20))
        base = await engine.open(FOLDER, writable=False)
        await base.checkpoint(COPY)

    machine.run(build)
    machine.lose_power()
    for folder in (FOLDER, COPY):
        assert machine.run(partial(read_all, folder=folder)) == (rows(range(20)), at(AT_US, 20))


def test_a_full_disk_refuses_puts_keeps_reading_and_comes_back() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        layer = await MemoryEngine(disk).open(FOLDER, writable=True)
        layer.put_batch(rows(range(10)), at(AT_US, 10))
        machine.disk.fill()
        with pytest.raises(DiskFull):
            await layer.flush()
        with pytest.raises(DiskFull):
            layer.put_batch(rows([11]), at(AT_US))
        with pytest.raises(DiskFull):
            await layer.close()
        assert list(layer.scan()) == rows(range(10))
        assert layer._unflushed_bytes > 0
        machine.disk.heal()
        await layer.flush()
        layer.put_batch(rows([11]), at(AT_US))
        await layer.close()

    machine.run(main)
    assert machine.run(read_all)[0] == rows([*range(10), 11])


def test_a_failed_sync_raises_and_the_next_flush_writes_again() -> None:
    machine = Machine(2)

    async def main(disk: ProcessDisk) -> None:
        layer = await MemoryEngine(disk).open(FOLDER, writable=True)
        layer.put_batch(rows(range(10)), at(AT_US, 10))
        machine.disk.behaviour.fail_sync = 1.0
        with pytest.raises(OSError, match="failed"):
            await layer.flush()
        layer.put_batch(rows([11]), at(AT_US))
        machine.disk.heal()
        await layer.flush()
        assert layer._unflushed_bytes == 0

    machine.run(main)
    machine.lose_power()
    assert machine.run(read_all)[0] == rows([*range(10), 11])


def test_puts_are_refused_until_a_flush() -> None:
    machine = Machine(3)

    async def main(disk: ProcessDisk) -> None:
        layer = await MemoryEngine(disk, unflushed_bytes_max=500).open(FOLDER, writable=True)
        layer.put_batch(rows(range(10)), at(AT_US, 10))
        with pytest.raises(Overloaded):
            layer.put_batch(rows([11]), at(AT_US))
        assert layer.get(key(11)) is None
        await layer.flush()
        layer.put_batch(rows([11]), at(AT_US))

    machine.run(main)


@pytest.mark.parametrize("seed", range(20))
def test_rot_is_found_when_the_layer_is_opened(seed: int) -> None:
    machine = Machine(seed)

    async def main(disk: ProcessDisk) -> None:
        await build_layer(MemoryEngine(disk), FOLDER, rows(range(20)), at(AT_US, 20))

    machine.run(main)
    assert machine.disk.rot() is not None
    with pytest.raises(LayerDamaged) as caught:
        machine.run(read_all)
    assert caught.value.folder == FOLDER


def test_a_missing_flush_is_damage() -> None:
    machine = Machine(4)

    async def main(disk: ProcessDisk) -> None:
        layer = await MemoryEngine(disk).open(FOLDER, writable=True)
        for number in range(3):
            layer.put_batch(rows([number]), at(AT_US))
            await layer.flush()
        await layer.close()
        disk.unlink(f"{FOLDER}/00000001.run")

    machine.run(main)
    with pytest.raises(LayerDamaged, match=r"00000001\.run is missing"):
        machine.run(read_all)


def test_a_killed_flush_may_be_there_wholly_or_not_at_all() -> None:
    """Killed at some hundred moments of one flush; the page cache survives."""
    outcomes = set()
    for seed in range(30):
        machine = Machine(seed)

        async def main(disk: ProcessDisk) -> None:
            layer = await MemoryEngine(disk).open(FOLDER, writable=True)
            layer.put_batch(rows(range(10)), at(AT_US, 10))
            await layer.flush()
            layer.put_batch(rows(range(5, 15), "later"), at(AT_US, 10))
            await layer.flush()
            await asyncio.sleep(1)

        machine.run_until(0.0003 * (seed + 1), main)
        outcomes.add(tuple(machine.run(read_all)[0]))
    first, both = tuple(rows(range(10))), tuple(rows(range(5)) + rows(range(5, 15), "later"))
    assert outcomes <= {(), first, both}
    assert outcomes >= {first, both}


@runs_in(lambda work: Machine(5).run(work))
async def test_a_layer_is_open_once(disk: ProcessDisk, /) -> None:
    engine: Any = MemoryEngine(disk)
    await engine.open(FOLDER, writable=True)
    with pytest.raises(AssertionError, match="already open"):
        await engine.open(FOLDER, writable=False)
