"""Checkpoints of the stacks that have a part of a range, for the node's bulk process."""

import asyncio
import uuid

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.replica.shard_rig import (
    DATA,
    OWN,
    ShardRig,
    in_shard,
    small_cluster,
    tablet_of,
    with_sessions,
    write_of,
)
from tests.unit.replica.staged import OPEN, SESSION, disk_of
from tests.unit.storage.small_table import SMALL
from tests.unit.storage.store_rig import Rig, open_new_store, plain
from tests.unit.topology.small_cluster import replica

from ebla.journal.recovery import make_durable_folder
from ebla.model.errors import InvalidRequest, NotFound, Refused, Stale
from ebla.model.identity import TableId, TopologyVersion
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.storage.codec.staging_format import checkpoints_folder
from ebla.storage.layers.layer import Item, LayerDamaged
from ebla.topology.tablet_map import tablet_map
from ebla.wire.transfer_messages import CheckpointRequest

pytestmark = runs_in(in_shard)

BOTH = tablet_map(SMALL.id, [(OWN,), (OWN,)])
HALVES = WHOLE_RING.split(2)
ITEMS = tuple(sorted(plain(number, 1, 5) for number in range(20)))
FOLDER = f"{checkpoints_folder(DATA)}/one"
AT_ONCE_MS = 1_000


def request_of(token_range: TokenRange = WHOLE_RING, version: int = 2, folder: str = FOLDER) -> CheckpointRequest:
    return CheckpointRequest(
        session=SESSION, table=SMALL.id, range=token_range, version=TopologyVersion(version), folder=folder
    )


async def filled(shard: ShardRig) -> None:
    await shard.follow(with_sessions(small_cluster(BOTH), OPEN))
    await shard.write(*[write_of(item) for item in ITEMS])


@pytest.mark.parametrize(
    ("token_range", "tablets"), [(WHOLE_RING, [0, 1]), (HALVES[1], [1]), (HALVES[0].split(7)[3], [0])]
)
def test_every_stack_with_a_part_of_the_range_is_there_with_all_its_rows(
    token_range: TokenRange, tablets: list[int]
) -> None:
    rig = Rig()

    async def work(shard: ShardRig) -> None:
        await filled(shard)
        answer = await shard.checkpoints.take(request_of(token_range), AT_ONCE_MS)
        assert [one.range for one in answer.stacks] == [HALVES[number] for number in tablets]
        assert shard.guards.held == 0
        assert shard.view.versions.oldest(TopologyVersion(99)) == 99, "no version is held"
        assert rig.engine is not None
        for number, made in zip(tablets, answer.stacks):
            assert made.folder.startswith(f"{FOLDER}/")
            copy = await open_new_store(disk_of(rig), rig.machine.rng, made.folder, rig.engine, rig.bounds)
            (stack,) = copy.stacks.values()
            assert list((await copy.open(stack)).scan()) == [one for one in ITEMS if tablet_of(BOTH, one) == number]

    in_shard(work, rig=rig)


async def test_for_a_reader_it_needs_no_session_holds_nothing_and_waits_for_the_version_all_the_same(
    shard: ShardRig, /
) -> None:
    await shard.follow(small_cluster(BOTH))
    await shard.write(*[write_of(item) for item in ITEMS])
    await shard.stacks.confirm()
    reading = msgspec.structs.replace(request_of(), session=None)
    answer = await shard.checkpoints.take(reading, AT_ONCE_MS)
    assert ([one.range for one in answer.stacks], answer.version) == (list(HALVES), 2)
    assert shard.guards.held == 0
    assert [stack.gc_holds for stack in shard.stacks.served()] == [set(), set()], "tombstones go as ever"
    later = msgspec.structs.replace(reading, version=TopologyVersion(3), folder=f"{FOLDER}-later")
    with pytest.raises(Stale, match="version 3 of the topology has not come"):
        await shard.checkpoints.take(later, AT_ONCE_MS)
    await shard.follow(small_cluster(BOTH, version=3))
    assert (await shard.checkpoints.take(later, AT_ONCE_MS)).version == 3
    unknown = msgspec.structs.replace(later, table=TableId(uuid.UUID(int=5)))
    with pytest.raises(NotFound):
        await shard.checkpoints.take(unknown, AT_ONCE_MS)


def test_one_of_a_session_outlasts_a_power_loss_and_one_of_a_reader_is_never_synced() -> None:
    rig = Rig()

    async def work(shard: ShardRig) -> None:
        await filled(shard)
        disk = disk_of(rig)
        await make_durable_folder(disk, checkpoints_folder(DATA))
        await make_durable_folder(disk, FOLDER)
        await shard.checkpoints.take(request_of(), AT_ONCE_MS)
        synced: list[str] = []
        sync_folder = disk.sync_folder

        async def note_sync(path: str) -> None:
            synced.append(path)
            await sync_folder(path)

        disk.sync_folder = note_sync  # type: ignore[method-assign] # only what it is called for is the test's
        reading = msgspec.structs.replace(request_of(folder=f"{FOLDER}-read"), session=None)
        await shard.checkpoints.take(reading, AT_ONCE_MS)
        assert not [path for path in synced if path.startswith(f"{FOLDER}-read")]

    async def look(shard: ShardRig) -> list[Item]:
        assert rig.engine is not None
        disk, found = disk_of(rig), list[Item]()
        for name in disk.list_folder(FOLDER):
            copy = await open_new_store(disk, rig.machine.rng, f"{FOLDER}/{name}", rig.engine, rig.bounds)
            (stack,) = copy.stacks.values()
            found += list((await copy.open(stack)).scan())
        return sorted(found)

    in_shard(work, rig=rig)
    rig.lose_power()
    assert in_shard(look, rig=rig) == list(ITEMS)


async def test_a_shard_without_a_part_of_it_has_nothing_to_show(shard: ShardRig, /) -> None:
    elsewhere = tablet_map(SMALL.id, [(replica(2),)])
    await shard.follow(with_sessions(small_cluster(elsewhere), OPEN))
    assert (await shard.checkpoints.take(request_of(), AT_ONCE_MS)).stacks == ()


async def test_it_waits_for_the_version_whose_writes_must_be_in_it_and_not_for_ever(shard: ShardRig, /) -> None:
    await filled(shard)
    with pytest.raises(Stale, match="version 3 of the topology has not come"):
        await shard.checkpoints.take(request_of(version=3), AT_ONCE_MS)
    async with asyncio.TaskGroup() as tasks:
        taking = tasks.create_task(shard.checkpoints.take(request_of(version=3), AT_ONCE_MS))
        await asyncio.sleep(0.05)
        assert not taking.done()
        await shard.follow(with_sessions(small_cluster(BOTH, version=3), OPEN))
    assert len(taking.result().stacks) == 2


def test_what_is_refused() -> None:
    rig = Rig()

    async def work(shard: ShardRig) -> None:
        await filled(shard)
        for folder in (f"{DATA}/shard-0/layers/x", f"{FOLDER}/../../staging/x", checkpoints_folder(DATA), "/etc/x"):
            with pytest.raises(InvalidRequest, match="where checkpoints go"):
                await shard.checkpoints.take(request_of(folder=folder), AT_ONCE_MS)
        unknown = msgspec.structs.replace(request_of(), table=TableId(uuid.UUID(int=5)))
        with pytest.raises(NotFound):
            await shard.checkpoints.take(unknown, AT_ONCE_MS)
        await shard.checkpoints.take(request_of(), AT_ONCE_MS)
        with pytest.raises(Refused, match="is there already"):
            await shard.checkpoints.take(request_of(), AT_ONCE_MS)
        await shard.follow(small_cluster(BOTH, version=3))
        other = f"{checkpoints_folder(DATA)}/other"
        with pytest.raises(Stale, match="is closed"):
            await shard.checkpoints.take(request_of(folder=other), AT_ONCE_MS)
        assert not disk_of(rig).exists(other)
        assert shard.guards.held == 0

    in_shard(work, rig=rig)


def test_damage_is_told_and_sets_the_replica_aside() -> None:
    rig = Rig()

    async def fill(shard: ShardRig) -> None:
        await filled(shard)
        for stack in shard.stacks.served():
            await shard.store.seal(stack)

    async def take(shard: ShardRig) -> None:
        await shard.follow(with_sessions(small_cluster(BOTH), OPEN))
        first, second = shard.stacks.overlapping(SMALL.id, WHOLE_RING)
        disk = disk_of(rig)
        disk.remove_folder(first.folder_of(first.entry.bases[0]))
        with pytest.raises(LayerDamaged):
            await shard.checkpoints.take(request_of(), AT_ONCE_MS)
        await asyncio.sleep(1)
        assert first.damage
        assert not second.damage
        again = request_of(HALVES[1], folder=f"{FOLDER}-again")
        assert len((await shard.checkpoints.take(again, AT_ONCE_MS)).stacks) == 1

    in_shard(fill, rig=rig)
    in_shard(take, rig=rig)
