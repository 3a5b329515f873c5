"""Batches of writes: each succeeds or fails by itself, and is fenced three times."""

import asyncio
import dataclasses
import uuid

import pytest
from tests.async_tests import runs_in
from tests.unit.replica.shard_rig import (
    OWN,
    HeldSyncs,
    ShardRig,
    in_shard,
    read_of,
    small_cluster,
    tablet_of,
    with_state,
    write_of,
)
from tests.unit.storage.small_table import SMALL
from tests.unit.storage.store_rig import plain
from tests.unit.topology.small_cluster import replica, with_transition

from ebla.aio.eager import Suspended, run_eagerly
from ebla.model.errors import Overloaded
from ebla.model.identity import ShardNumber, TableId, TopologyVersion
from ebla.options import CommitLogMode
from ebla.replica.replica_context import ReplicaLimits
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.states import TabletStage, TransitionKind
from ebla.topology.tablet_map import TabletTransition, tablet_map
from ebla.wire.row_messages import RowWrite, WriteFailure, WriteRowsAnswer, WriteRowsRequest

pytestmark = runs_in(in_shard)

TWO = tablet_map(SMALL.id, [(OWN,), (replica(2),)])
ITEMS = [plain(number, 0, 5) for number in range(40)]
HERE = [item for item in ITEMS if tablet_of(TWO, item) == 0]
THERE = next(item for item in ITEMS if tablet_of(TWO, item) == 1)


async def stored(shard: ShardRig, version: int = 2) -> tuple[tuple[bytes, bytes], ...]:
    return (await shard.server.read(read_of((b"", b"\x80"), version=version), 1_000)).items


def oldest_running(shard: ShardRig) -> int:
    return shard.view.versions.oldest(TopologyVersion(9))


def failures_of(answer: WriteRowsAnswer) -> list[tuple[int, str, str]]:
    return [(one.index, one.error, one.outcome) for one in answer.failures]


async def test_each_write_of_a_batch_stands_for_itself(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(TWO, version=5, fence=3))
    newer = (HERE[1][0], HERE[1][1][:2] + (9).to_bytes(2) + HERE[1][1][4:])
    other_table = RowWrite(TopologyVersion(5), TableId(uuid.UUID(int=55)), (HERE[0],))
    answer = await shard.write(
        write_of(HERE[0], version=5),
        write_of(HERE[1], version=2),
        write_of(THERE, version=5),
        other_table,
        write_of(newer, version=5),
        write_of(version=5),
        write_of(HERE[2], HERE[3], version=3),
    )
    assert failures_of(answer) == [
        (1, "stale", "not_applied"),
        (2, "stale", "not_applied"),
        (3, "not_found", "not_applied"),
        (5, "invalid_request", "not_applied"),
        (4, "stale", "not_applied"),
    ]
    assert await stored(shard, 5) == tuple(sorted([HERE[0], HERE[2], HERE[3]]))


@runs_in(in_shard, mode=CommitLogMode.PERIODIC)
async def test_with_open_layers_a_periodic_batch_needs_no_task(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(TWO))
    request = WriteRowsRequest((write_of(HERE[0]), write_of(HERE[1])))
    first = run_eagerly(shard.writer.write(request, 1_000))
    assert isinstance(first, Suspended), "the layer is not open yet"
    assert (await first).failures == ()
    assert run_eagerly(shard.writer.write(request, 1_000)) == WriteRowsAnswer()


async def test_in_sync_mode_a_write_is_acknowledged_when_it_is_durable(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(TWO))
    syncs = HeldSyncs(shard.store)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(shard.write(write_of(HERE[0])))
        await syncs.begun.wait()
        assert len(await stored(shard)) == 1, "the effect does not wait for the sync"
        assert oldest_running(shard) == 2
        assert not running.done()
        syncs.may_end.set()
    assert running.result().failures == ()
    assert oldest_running(shard) == 9


async def test_a_fence_that_rises_during_the_sync_is_noticed(shard: ShardRig, /) -> None:
    view = await shard.follow(small_cluster(TWO))
    syncs = HeldSyncs(shard.store)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(shard.write(write_of(HERE[1])))
        await syncs.begun.wait()
        await shard.follow(with_state(view.snapshot, 4, 3))
        syncs.may_end.set()
    assert failures_of(running.result()) == [(0, "stale", "unknown")]
    assert len(await stored(shard, 4)) == 1


async def test_a_fence_that_rises_before_the_effect_prevents_it(shard: ShardRig, /) -> None:
    view = await shard.follow(small_cluster(TWO))
    rest = run_eagerly(shard.writer.write(WriteRowsRequest((write_of(HERE[0]),)), 1_000))
    assert isinstance(rest, Suspended), "the layer must be opened first"
    await shard.follow(with_state(view.snapshot, 4, 3))
    assert failures_of(await rest) == [(0, "stale", "not_applied")]
    assert await stored(shard, 4) == ()


async def test_a_newer_version_is_waited_for_and_not_for_ever(shard: ShardRig, /) -> None:
    view = await shard.follow(small_cluster(TWO))
    assert failures_of(await shard.write(write_of(HERE[0], version=3))) == [(0, "stale", "not_applied")]
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(shard.write(write_of(HERE[0], version=3)))
        await asyncio.sleep(0.05)
        await shard.follow(with_state(view.snapshot, 3, 1))
    assert running.result().failures == ()


async def test_a_write_that_is_given_up_releases_its_version(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(TWO))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(shard.write(write_of(HERE[0], version=7), write_of(HERE[1])))
        await asyncio.sleep(0.05)
        assert oldest_running(shard) == 2
        running.cancel()
    assert oldest_running(shard) == 9
    assert shard.writer.waiting == 0


@runs_in(in_shard, bounds=ReplicaLimits(writes_waiting_max=1, version_wait_ms=1000))
async def test_so_many_batches_may_wait(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(TWO))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(shard.write(write_of(HERE[0], version=7)))
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded):
            await shard.write(write_of(HERE[1]))
        running.cancel()
    assert await stored(shard) == ()


async def test_a_full_disk_is_told_per_write(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(TWO))
    await shard.write(write_of(HERE[0]))
    shard.store.shortage = Overloaded("no room")  # type: ignore[assignment]  # any refusal of the store will do
    assert failures_of(await shard.write(write_of(HERE[1]), write_of(HERE[2]))) == [
        (0, "overloaded", "not_applied"),
        (1, "overloaded", "not_applied"),
    ]


async def test_a_replica_that_leaves_while_its_layer_opens_takes_nothing(shard: ShardRig, /) -> None:
    view = await shard.follow(small_cluster(TWO))
    rest = run_eagerly(shard.writer.write(WriteRowsRequest((write_of(HERE[0]),)), 1_000))
    assert isinstance(rest, Suspended)
    gone = dataclasses.replace(
        with_state(view.snapshot, 3, 1), tablets=FrozenMap({SMALL.id: tablet_map(SMALL.id, [(replica(2),)] * 2)})
    )
    await shard.follow(gone)
    assert failures_of(await rest) == [(0, "stale", "not_applied")]


class RecordingSibling:
    """Its `write` is a `row_writes.ForwardWrites`."""

    def __init__(self, *failures: WriteFailure) -> None:
        self.failures = failures
        self.got: list[tuple[ShardNumber, WriteRowsRequest]] = []

    async def write(self, shard: ShardNumber, request: WriteRowsRequest, deadline_ms: int) -> WriteRowsAnswer:
        assert deadline_ms > 0
        self.got.append((shard, request))
        return WriteRowsAnswer(self.failures)


@pytest.mark.parametrize("mode", list(CommitLogMode))
@pytest.mark.parametrize(("stage", "kept"), [(TabletStage.WRITE_BOTH_READ_OLD, True), (TabletStage.USE_NEW, False)])
def test_a_tablet_that_moves_inside_the_node_is_written_on_both_shards(
    stage: TabletStage, kept: bool, mode: CommitLogMode
) -> None:
    sibling = RecordingSibling()
    move = TabletTransition(kind=TransitionKind.INTRANODE_MIGRATION, stage=stage, new_replicas=(replica(1, 1),))

    async def work(shard: ShardRig) -> None:
        await shard.follow(small_cluster(with_transition(TWO, 0, move)))
        for item in HERE[:2]:
            assert (await shard.write(write_of(item))).failures == ()
        assert sibling.got == [(1, WriteRowsRequest((write_of(item),))) for item in HERE[:2]]
        assert await stored(shard) == (tuple(sorted(HERE[:2])) if kept else ())

    in_shard(work, forward=sibling.write, mode=mode)


@pytest.mark.parametrize(
    ("stage", "outcome"), [(TabletStage.WRITE_BOTH_READ_OLD, "unknown"), (TabletStage.USE_NEW, "not_applied")]
)
def test_what_the_other_shard_refuses_is_not_acknowledged(stage: TabletStage, outcome: str) -> None:
    sibling = RecordingSibling(WriteFailure(index=0, error="stale", outcome="not_applied", message="no"))
    move = TabletTransition(kind=TransitionKind.INTRANODE_MIGRATION, stage=stage, new_replicas=(replica(1, 1),))

    async def work(shard: ShardRig) -> None:
        await shard.follow(small_cluster(with_transition(TWO, 0, move)))
        for item in HERE[:2]:
            assert failures_of(await shard.write(write_of(item))) == [(0, "stale", outcome)]

    in_shard(work, forward=sibling.write)
