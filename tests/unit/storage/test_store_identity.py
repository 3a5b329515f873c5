"""Stores are created, adopted and checked by their id; the process may die before any file operation."""

import uuid
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.journal.on_disks import Machine
from tests.unit.storage.failing_disk import Died, FailingDisk, Failure
from tests.unit.storage.small_table import SMALL

from ebla.journal.recovery import make_durable_folder
from ebla.journal.segmented_log import SegmentedLog
from ebla.model.identity import StoreId
from ebla.model.token import WHOLE_RING
from ebla.ports.disk import Disk
from ebla.ports.rng import Rng
from ebla.sim.disk import ProcessDisk
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.manifest import (
    Incarnation,
    LayerEntry,
    LayerId,
    ShardManifest,
    StackEntry,
    layer_folder,
    layers_folder,
    manifest_path,
    read_manifest,
    save_manifest,
)
from ebla.storage.store_identity import StoreLost, adopt_store, check_store, create_store, log_folder
from ebla.storage.store_limits import StoreLimits
from ebla.storage.store_recovery import open_store

FOLDER = "/data/shard-0"
STORE, OTHER = StoreId(uuid.UUID(int=7)), StoreId(uuid.UUID(int=8))
CALLS_MAX = 100
OLD_STACKS = tuple(
    StackEntry(
        incarnation=Incarnation(number),
        table=SMALL.id,
        range=WHOLE_RING,
        live=LayerEntry(id=LayerId(1), range=WHOLE_RING),
        bases=(LayerEntry(id=LayerId(2), range=WHOLE_RING),),
    )
    for number in (1, 2)
)
"""The live layer of the second one was never written."""

Step = Callable[[Disk, Rng], Awaitable[None]]


async def create(disk: Disk, rng: Rng) -> None:
    await create_store(disk, rng, FOLDER, STORE)


async def adopt(disk: Disk, rng: Rng) -> None:
    await adopt_store(disk, rng, FOLDER, STORE)


async def nothing(_disk: Disk, _rng: Rng) -> None:
    """A new folder."""


async def write_old_release(disk: Disk, rng: Rng) -> None:
    await make_durable_folder(disk, FOLDER)
    await make_durable_folder(disk, layers_folder(FOLDER))
    folders = [layer_folder(FOLDER, one.incarnation, layer.id) for one in OLD_STACKS for layer in one.layers][:3]
    for folder in folders:
        disk.make_folder(folder)
        file = disk.create(f"{folder}/file")
        await file.sync()
        file.close()
        await disk.sync_folder(folder)
    await disk.sync_folder(layers_folder(FOLDER))
    await save_manifest(disk, FOLDER, ShardManifest(tables=(SMALL,), stacks=OLD_STACKS))
    log = await SegmentedLog.open(disk, rng, log_folder(FOLDER), 4096)
    await log.append([b"acknowledged"])
    await log.close()


async def manifest_of(disk: Disk) -> ShardManifest:
    manifest = await read_manifest(disk, FOLDER)
    assert manifest is not None
    return manifest


@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize(("before", "step"), [(nothing, create), (write_old_release, adopt)])
def test_after_a_death_before_any_file_operation_the_same_call_finishes(
    before: Step, step: Step, loses_power: bool
) -> None:
    for before_call in range(CALLS_MAX):
        machine = Machine(before_call)

        async def begin(real: ProcessDisk, machine: Machine = machine, before_call: int = before_call) -> bool:
            await before(real, machine.rng)
            disk = FailingDisk(real)
            disk.arm(Failure.DEATH, before_call)
            try:
                await step(disk, machine.rng)
            except Died:
                return True
            return False

        async def again(disk: ProcessDisk, machine: Machine = machine) -> None:
            await step(disk, machine.rng)
            await check_store(disk, FOLDER, STORE)
            found = await manifest_of(disk)
            await step(disk, machine.rng)
            assert await manifest_of(disk) == found
            if before is write_old_release:
                assert [[layer.has_files for layer in stack.layers] for stack in found.stacks] == [
                    [True, True],
                    [True, False],
                ]
                log = await SegmentedLog.open(disk, machine.rng, log_folder(FOLDER), 4096)
                assert [record async for batch in log.read(1) for record in batch.records] == [b"acknowledged"]

        died = machine.run(begin)
        if loses_power:
            machine.lose_power()
        machine.run(again)
        if not died:
            assert before_call > 3
            return
    raise AssertionError("it never ended")


async def remove_manifest(disk: Disk, _rng: Rng) -> None:
    disk.unlink(manifest_path(FOLDER))


async def remove_log(disk: Disk, _rng: Rng) -> None:
    disk.remove_folder(log_folder(FOLDER))


async def make_another_log(disk: Disk, rng: Rng) -> None:
    disk.remove_folder(log_folder(FOLDER))
    await (await SegmentedLog.open(disk, rng, log_folder(FOLDER), 4096)).close()


async def remove_all(disk: Disk, _rng: Rng) -> None:
    disk.remove_folder(FOLDER)


@pytest.mark.parametrize(
    ("loss", "store", "words"),
    [
        (remove_all, STORE, "is missing"),
        (remove_manifest, STORE, "is missing"),
        (remove_log, STORE, "the commit log"),
        (make_another_log, STORE, "commit log"),
        (nothing, OTHER, str(STORE)),
    ],
)
def test_a_store_that_is_not_the_one_is_found_out(loss: Step, store: StoreId, words: str) -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        await create(disk, machine.rng)
        await loss(disk, machine.rng)
        with pytest.raises(StoreLost, match=words) as refused:
            await check_store(disk, FOLDER, store)
        assert (refused.value.folder, refused.value.store) == (FOLDER, store)

    machine.run(main)


def test_a_folder_with_another_store_is_neither_created_nor_adopted() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        await create(disk, machine.rng)
        for change in (create_store, adopt_store):
            with pytest.raises(StoreLost, match=str(STORE)):
                await change(disk, machine.rng, FOLDER, OTHER)
        await check_store(disk, FOLDER, STORE)

    machine.run(main)


def test_a_shard_never_creates_a_store() -> None:
    async def life(disk: ProcessDisk) -> None:
        engine = MemoryEngine(disk)
        with pytest.raises(StoreLost, match="is missing"):
            await open_store(disk, machine.rng, FOLDER, engine, StoreLimits(), store_id=STORE)
        assert not disk.exists(FOLDER)

    machine = Machine(1)
    machine.run(life)
