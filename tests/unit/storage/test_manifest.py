"""The manifest: either the old one or the new one holds, and the next change knows which."""

import asyncio
from functools import partial

import msgspec
import pytest
from tests.unit.journal.on_disks import Machine
from tests.unit.storage.small_table import SMALL, TABLE

from ebla.journal.checked_file import replace_file
from ebla.model.errors import Corruption, DiskFull, Refused
from ebla.model.token import WHOLE_RING
from ebla.sim.disk import ProcessDisk
from ebla.storage.manifest import (
    Incarnation,
    LayerEntry,
    LayerId,
    ManifestFailed,
    ManifestWriter,
    ShardManifest,
    StackEntry,
    load_manifest,
    manifest_path,
    save_manifest,
    with_stack,
    with_table,
    without_stack,
    without_table,
)

FOLDER = "/data"


def stack(number: int) -> StackEntry:
    return StackEntry(
        incarnation=Incarnation(number),
        table=TABLE,
        range=WHOLE_RING,
        live=LayerEntry(id=LayerId(number), range=WHOLE_RING),
    )


def test_changes_are_pure_and_can_be_made_twice() -> None:
    manifest = with_table(ShardManifest(), SMALL)
    manifest = with_stack(with_stack(with_stack(manifest, stack(1)), stack(2)), stack(1))
    assert [one.incarnation for one in manifest.stacks] == [2, 1]
    assert without_stack(without_stack(manifest, Incarnation(2)), Incarnation(2)).stacks == (stack(1),)
    assert without_table(manifest, TABLE) == ShardManifest()


def test_what_was_changed_is_there_after_a_power_cut() -> None:
    machine = Machine(1)

    async def change(disk: ProcessDisk) -> None:
        writer = ManifestWriter(disk, FOLDER, ShardManifest())
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(writer.run())
            changes = [tasks.create_task(writer.change(partial(with_stack, entry=stack(one)))) for one in range(5)]
            await asyncio.wait(changes)
            running.cancel()
        assert writer.current.generation <= 2

    machine.run(change)
    machine.lose_power()
    found = machine.run(lambda disk: load_manifest(disk, FOLDER))
    assert found is not None
    assert sorted(one.incarnation for one in found.stacks) == [0, 1, 2, 3, 4]


def test_a_full_disk_leaves_the_old_one_and_the_next_change_is_tried() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        writer = ManifestWriter(disk, FOLDER, ShardManifest())
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(writer.run())
            machine.disk.fill(10)
            with pytest.raises(DiskFull):
                await writer.change(partial(with_stack, entry=stack(1)))
            assert writer.current == ShardManifest()
            machine.disk.heal()
            await writer.change(partial(with_stack, entry=stack(2)))
            running.cancel()
        assert writer.current.stacks == (stack(2),)

    machine.run(main)


def test_a_failing_disk_ends_the_writer_since_either_manifest_may_hold() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        writer = ManifestWriter(disk, FOLDER, ShardManifest())
        machine.disk.behaviour.fail_sync = 1.0
        results = await asyncio.gather(
            writer.run(), writer.change(partial(with_stack, entry=stack(1))), return_exceptions=True
        )
        assert [type(result) for result in results] == [ManifestFailed, ManifestFailed]
        with pytest.raises(ManifestFailed):
            await writer.change(partial(with_stack, entry=stack(1)))

    machine.run(main)


def test_a_cancelled_caller_learns_first_which_one_stands() -> None:
    machine = Machine(1)

    async def main(disk: ProcessDisk) -> None:
        writer = ManifestWriter(disk, FOLDER, ShardManifest())
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(writer.run())
            change = tasks.create_task(writer.change(partial(with_stack, entry=stack(1))))
            await asyncio.sleep(0)
            change.cancel()
            await asyncio.wait([change])
            assert change.cancelled()
            assert writer.current.stacks == (stack(1),)
            running.cancel()

    machine.run(main)


def test_one_left_in_the_page_cache_is_made_durable_before_anybody_acts_on_it() -> None:
    """A process is killed between the rename and the folder's sync; the next one sweeps by what it finds; power cut."""
    for seed in range(20):
        machine = Machine(seed)
        machine.run(lambda disk: save_manifest(disk, FOLDER, ShardManifest(stacks=(stack(1),))))
        left = msgspec.msgpack.encode(ShardManifest(generation=2))

        async def leave(disk: ProcessDisk, left: bytes = left) -> None:
            await replace_file(disk, f"{FOLDER}/elsewhere", left)
            disk.rename(f"{FOLDER}/elsewhere", manifest_path(FOLDER))

        machine.run(leave)
        found = machine.run(lambda disk: load_manifest(disk, FOLDER))
        machine.lose_power()
        assert machine.run(lambda disk: load_manifest(disk, FOLDER)) == found


def test_one_of_a_newer_release_is_refused_and_one_that_is_none_is_told() -> None:
    machine = Machine(1)

    def save(content: object) -> None:
        machine.run(lambda disk: replace_file(disk, manifest_path(FOLDER), msgspec.msgpack.encode(content)))

    save([9, "whatever this may be"])
    with pytest.raises(Refused, match="format 9"):
        machine.run(lambda disk: load_manifest(disk, FOLDER))
    for nonsense in ([], [1, 2, 3], "text"):
        save(nonsense)
        with pytest.raises(Corruption):
            machine.run(lambda disk: load_manifest(disk, FOLDER))
