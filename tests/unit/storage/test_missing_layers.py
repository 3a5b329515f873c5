"""Layers whose files are gone: damage, unless the commit log still has all of their rows."""

import asyncio

import pytest
from tests.unit.storage.small_table import key_of
from tests.unit.storage.store_rig import Rig, limits, plain, small_stack

from ebla.sim.disk import ProcessDisk
from ebla.storage.layers.layer import LayerDamaged
from ebla.storage.store import ShardStore


@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_layer_whose_files_are_gone_is_damaged_once_the_log_does_not_have_its_rows(
    sealed: bool, emptied: bool
) -> None:
    rig = Rig(bounds=limits(segments_max=4))

    async def write(store: ShardStore) -> str:
        stack = await small_stack(store)
        for number in range(1, 400):
            await store.write(stack, [plain(number % 50, 1, number)])
        await asyncio.sleep(1)
        assert store.log.segments[0] > 1, "the log has dropped records"
        if sealed:
            await store.seal(stack)
        return stack.folder_of(stack.entry.layers[0])

    async def after(store: ShardStore) -> None:
        (stack,) = store.stacks.values()
        for access in (store.open(stack), store.write(stack, [plain(1, 1, 900)])):
            with pytest.raises(LayerDamaged, match="its files are missing"):
                await access
        await store.drop(stack)
        assert list((await store.open(await small_stack(store))).scan()) == []

    folder = rig.life(write)

    async def remove(disk: ProcessDisk) -> None:
        disk.remove_folder(folder)
        if emptied:
            disk.make_folder(folder)

    rig.machine.run(remove)
    rig.life(after)


def test_a_live_layer_without_durable_files_is_none_and_the_log_has_its_rows() -> None:
    rig = Rig()

    async def write(store: ShardStore) -> str:
        stack = await small_stack(store)
        await store.write(stack, [plain(1, 1, 5)])
        return stack.folder_of(stack.live)

    async def read(store: ShardStore) -> list[bytes]:
        return [key for key, _ in (await store.open(await small_stack(store))).scan()]

    folder = rig.life(write)

    async def remove(disk: ProcessDisk) -> None:
        disk.remove_folder(folder)

    rig.machine.run(remove)
    assert rig.life(read) == [key_of(1, 1)]
