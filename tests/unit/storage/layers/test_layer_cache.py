"""The bound on open layers: who is closed, who is not, and what happens at the bound."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.async_tests import runs_in
from tests.unit.journal.on_disks import Machine
from tests.unit.storage.rigs import at, key, rows

from ebla.model.errors import DiskFull, Overloaded
from ebla.sim.disk import ProcessDisk
from ebla.storage.layers.layer import LayerDamaged
from ebla.storage.layers.layer_cache import LayerCache, LayerRef
from ebla.storage.layers.memory_engine import MemoryEngine

AT_US = 1_700_000_000_000_000


def place(number: int) -> LayerRef:
    return LayerRef(f"/data/{number}", writable=True)


def run(main: Callable[[LayerCache], Awaitable[None]], *, open_max: int = 2, machine: Machine | None = None) -> None:
    async def start(disk: ProcessDisk) -> None:
        await main(LayerCache(MemoryEngine(disk), open_max=open_max))

    (machine or Machine(1)).run(start)


pytestmark = runs_in(run)


async def wait_not_found(layers: LayerCache, folder: str) -> None:
    while layers.find(folder) is not None:  # noqa: ASYNC110  # there is no event for this
        await asyncio.sleep(0)


async def test_the_one_idle_longest_gives_way_with_its_rows_flushed(layers: LayerCache, /) -> None:
    for number in (1, 2):
        (layer,) = await layers.open_all([place(number)])
        layer.put_batch(rows([number]), at(AT_US))
    assert layers.find(place(1).folder) is not None
    await layers.open_all([place(3)])
    assert len(layers) == 2
    assert layers.find(place(2).folder) is None
    assert layers.find(place(1).folder) is not None
    (again,) = await layers.open_all([place(2)])
    assert again.get(key(2)) == rows([2])[0][1]


async def test_held_layers_stay_open(layers: LayerCache, /) -> None:
    async with layers.hold(place(1)) as held:
        await layers.open_all([place(2)])
        await layers.open_all([place(3)])
        assert layers.find(place(1).folder) is held
        async with layers.hold(place(2)):
            with pytest.raises(Overloaded):
                await layers.open_all([place(3)])
        await layers.open_all([place(3)])
    with pytest.raises(Overloaded):
        await layers.open_all([place(1), place(2), place(3)])
    assert len(await layers.open_all([place(1), place(2)])) == 2


@runs_in(run, open_max=3)
async def test_many_ask_for_one_layer_and_it_is_opened_once(layers: LayerCache, /) -> None:
    async def use(number: int) -> None:
        async with layers.hold(place(number % 3)) as layer:
            layer.put_batch(rows([number]), at(AT_US))
            await layer.flush()
            assert not layer.closed

    for _ in range(5):
        async with asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(use(number))
    assert len(layers) == 3
    for number in range(12):
        (layer,) = await layers.open_all([place(number % 3)])
        assert layer.get(key(number)) == rows([number])[0][1]
    await layers.close_all()
    assert len(layers) == 0


async def test_a_layer_asked_for_while_it_is_closed_is_opened_again(layers: LayerCache, /) -> None:
    (layer,) = await layers.open_all([place(1)])
    layer.put_batch(rows([1]), at(AT_US))
    async with asyncio.TaskGroup() as group:
        closing = group.create_task(layers.close(place(1).folder))
        await wait_not_found(layers, place(1).folder)
        assert not closing.done()
        (again,) = await layers.open_all([place(1)])
        assert closing.done()
    assert again is not layer
    assert again.get(key(1)) == rows([1])[0][1]
    await layers.close(place(9).folder)


async def test_what_cannot_be_opened_takes_no_room(layers: LayerCache, /) -> None:
    for number in range(5):
        with pytest.raises(LayerDamaged):
            await layers.open_all([LayerRef(f"/data/{number}", writable=False)])
    assert len(layers) == 0
    assert len(await layers.open_all([place(1), place(2)])) == 2


def test_one_that_cannot_be_flushed_is_passed_over() -> None:
    machine = Machine(7)

    async def main(layers: LayerCache) -> None:
        (full,) = await layers.open_all([place(1)])
        full.put_batch(rows([1]), at(AT_US))
        await layers.open_all([place(2)])
        machine.disk.fill()
        await layers.open_all([place(3)])
        assert layers.find(place(2).folder) is None
        with pytest.raises(DiskFull):
            await layers.close(place(1).folder)
        assert layers.find(place(1).folder) is full
        async with layers.hold(place(3)):
            with pytest.raises(Overloaded):
                await layers.open_all([place(2)])
        await layers.close(place(1).folder, flush=False)
        assert len(layers) == 1

    run(main, machine=machine)


async def test_a_cancelled_waiter_leaves_no_trace(layers: LayerCache, /) -> None:
    (layer,) = await layers.open_all([place(1)])
    layer.put_batch(rows([1]), at(AT_US))
    async with asyncio.TaskGroup() as group:
        closing = group.create_task(layers.close(place(1).folder))
        await wait_not_found(layers, place(1).folder)
        waiter = group.create_task(layers.open_all([place(1)]))
        await asyncio.sleep(0.0001)
        waiter.cancel()
        assert not closing.done()
    assert waiter.cancelled()
    assert len(layers) == 0
    assert len(await layers.open_all([place(1), place(2)])) == 2


async def test_a_held_layer_is_not_closed_by_name(layers: LayerCache, /) -> None:
    async with layers.hold(place(1)):
        with pytest.raises(AssertionError, match="still held"):
            await layers.close(place(1).folder)
