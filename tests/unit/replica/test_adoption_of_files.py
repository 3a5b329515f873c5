"""The files of one node's checkpoint become part of another node's stack, on real folders and both engines."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.unit.replica.shard_rig import OWN, ShardRig, small_cluster, with_sessions
from tests.unit.replica.staged import ATTEMPT, OPEN, SESSION, TRANSFER, request_of
from tests.unit.storage.rigs import ENGINES
from tests.unit.storage.small_table import SMALL, key_of, value_of
from tests.unit.storage.store_rig import limits, open_new_store, plain

from ebla.model.identity import TopologyVersion
from ebla.model.rows import Deletion, Row
from ebla.model.token import WHOLE_RING
from ebla.model.transfers import StagingKind
from ebla.replica.adoption import ShardAdoptions
from ebla.replica.replica_context import ReplicaContext, ReplicaLimits
from ebla.replica.replica_server import ShardCheckpoints
from ebla.runtime.file_disk import FileDisk
from ebla.runtime.system_rng import SystemRng
from ebla.storage.codec.staging_format import (
    SealedFile,
    SealedLayer,
    TargetFile,
    checkpoints_folder,
    staging_folder,
    transfer_folder,
    write_sealed,
    write_target,
)
from ebla.storage.columns.sidecar import open_sidecar
from ebla.storage.compaction.compaction_plan import SwapOutcome
from ebla.storage.compaction.compactor import run_compaction
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.layer import Item, LayerEngine
from ebla.storage.manifest import Incarnation, layers_folder
from ebla.storage.stack import Stack
from ebla.topology.tablet_map import tablet_map
from ebla.wire.transfer_messages import AdoptAnswer, CheckpointRequest, FindTargetRequest

VERSION = TopologyVersion(2)
WAIT_MS = 20_000
FOLDED = sorted(plain(number, 1, 5) for number in range(300))
SEALED = sorted(plain(number, 1, 7, number=9) for number in range(20, 40))
LIVE = [(key_of(2, 1), value_of(Row(marker=None, deletion=Deletion(9, 0), cells={})))]
OWN_ROWS = sorted([plain(2, 1, 4), plain(30, 1, 99, number=5), plain(1_000, 1, 5)])


@dataclass(kw_only=True)
class Node:
    data: str
    shard: ShardRig
    disk: FileDisk
    engine: LayerEngine

    @property
    def stack(self) -> Stack:
        (stack,) = self.shard.store.stacks.values()
        return stack

    @property
    def context(self) -> ReplicaContext:
        return replace(self.shard.context, disk=self.disk, data_folder=self.data)

    async def rows(self) -> list[Item]:
        return list((await self.shard.store.open(self.stack)).scan())


@asynccontextmanager
async def node(folder: Path, kind: str) -> AsyncIterator[Node]:
    disk = FileDisk()
    engine = ENGINES[kind](disk)
    store = await open_new_store(disk, SystemRng(), str(folder / "shard-0"), engine, limits())
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(store.run())
        shard = ShardRig(disk, store, ReplicaLimits(), OWN, None)
        await shard.follow(with_sessions(small_cluster(tablet_map(SMALL.id, [(OWN,)])), OPEN))
        yield Node(data=str(folder), shard=shard, disk=disk, engine=engine)
        await store.close()
        running.cancel()
    disk.close()


async def fill(source: Node) -> None:
    """A base with a sidecar, one without, and rows that only the live layer has."""
    store, stack = source.shard.store, source.stack
    await store.write(stack, FOLDED)
    job = await store.begin_compaction(stack, GcContext(now_s=0, replication_factor=3), whole=True)
    assert job is not None
    assert (
        await store.finish_compaction(job, await run_compaction(source.engine, source.disk, job)) is SwapOutcome.SWAPPED
    )
    await store.write(stack, SEALED)
    await store.seal(stack)
    await store.write(stack, LIVE)


async def stage_checkpoint(source: Node, target: Node) -> int:
    """As the bulk processes and a task on the same machine would. How many layers."""
    wanted = FindTargetRequest(session=SESSION, table=SMALL.id, range=WHOLE_RING, version=VERSION)
    found = await ShardAdoptions(target.context).find_target(wanted, WAIT_MS)
    below = f"{checkpoints_folder(source.data)}/one"
    taken = CheckpointRequest(session=SESSION, table=SMALL.id, range=WHOLE_RING, version=VERSION, folder=below)
    answer = await ShardCheckpoints(source.context).take(taken, WAIT_MS)
    folder = transfer_folder(staging_folder(target.data), SESSION, TRANSFER)
    target.disk.make_folder(f"{folder}/sealed")
    layers = []
    below = layers_folder(answer.stacks[0].folder)
    for number, name in enumerate(source.disk.list_folder(below)):
        shutil.copytree(f"{below}/{name}", f"{folder}/sealed/{number}", copy_function=os.link)
        layers.append(SealedLayer(f"sealed/{number}", WHOLE_RING))
    place = TargetFile(
        table=SMALL.id,
        shard=OWN.shard,
        incarnation=Incarnation(found.incarnation),
        range=WHOLE_RING,
        kind=StagingKind.FILES,
    )
    await write_target(target.disk, folder, place)
    await write_sealed(target.disk, folder, SealedFile(attempt=ATTEMPT, layers=tuple(layers)))
    return len(layers)


@pytest.mark.parametrize("kind", list(ENGINES))
def test_files_of_another_node_become_part_of_a_stack(tmp_path: Path, kind: str) -> None:
    # Later ones are newer, but for the own row that the deletion covers.
    newest = dict([*FOLDED, *SEALED, *OWN_ROWS, *LIVE])

    async def work() -> list[Item]:
        async with node(tmp_path / "a", kind) as source, node(tmp_path / "b", kind) as target:
            await fill(source)
            await target.shard.store.write(target.stack, OWN_ROWS)
            count = await stage_checkpoint(source, target)
            assert await ShardAdoptions(target.context).adopt(request_of(), WAIT_MS) == AdoptAnswer(count, 0)
            shutil.rmtree(staging_folder(target.data))
            shutil.rmtree(checkpoints_folder(source.data))
            folders = [target.stack.folder_of(one) for one in target.stack.entry.bases]
            assert [await open_sidecar(target.disk, folder) is not None for folder in folders].count(True) == 1
            return await target.rows()

    async def again() -> list[Item]:
        async with node(tmp_path / "b", kind) as target:
            return await target.rows()

    found = asyncio.run(work())
    assert asyncio.run(again()) == found
    assert dict(found) == newest
