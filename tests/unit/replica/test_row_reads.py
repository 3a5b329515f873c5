"""Reads are fenced, bounded, and leave the loop to others."""

import asyncio
import uuid

import pytest
from tests.async_tests import runs_in
from tests.unit.replica.shard_rig import (
    OWN,
    ShardRig,
    in_shard,
    read_of,
    small_cluster,
    tablet_of,
    with_state,
    write_of,
)
from tests.unit.storage.small_table import SMALL, head_of, key_of, prefix_of, value_of
from tests.unit.storage.store_rig import plain
from tests.unit.topology.small_cluster import replica

from ebla.aio.eager import Suspended, run_eagerly
from ebla.model.errors import InvalidRequest, NotFound, Overloaded, Stale
from ebla.model.identity import TableId, TopologyVersion
from ebla.model.rows import Deletion, PartitionHead, Row
from ebla.options import CommitLogMode
from ebla.replica.replica_context import ReplicaLimits
from ebla.storage.codec.key_codec import prefix_end, row_key
from ebla.storage.codec.row_codec import encode_head
from ebla.storage.stack import OpenStack, Stack
from ebla.topology.tablet_map import tablet_map

pytestmark = runs_in(in_shard)

ONE = tablet_map(SMALL.id, [(OWN,)])
TWO = tablet_map(SMALL.id, [(OWN,), (replica(2),)])
ROW = plain(1, 1, 5)
POINT = (ROW[0], ROW[0] + b"\0")


async def test_an_outdated_version_is_refused_on_arrival(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(ONE, version=4, fence=3))
    with pytest.raises(Stale, match="fence"):
        run_eagerly(shard.server.read(read_of(POINT, version=2), 1_000))
    with pytest.raises(Stale, match="fence"):
        await shard.server.read(read_of(version=2), 1_000)


async def test_a_fence_that_rises_during_a_read_is_noticed(shard: ShardRig, /) -> None:
    view = await shard.follow(small_cluster(ONE, version=4, fence=3))
    opening = shard.store.open

    async def open_late(stack: Stack) -> OpenStack:
        await shard.follow(with_state(view.snapshot, 5, 4))
        return await opening(stack)

    shard.store.open = open_late  # type: ignore[method-assign] # as a layer that takes its time
    with pytest.raises(Stale, match="fence is 4"):
        await shard.server.read(read_of(version=3), 1_000)


async def test_a_newer_version_is_waited_for(shard: ShardRig, /) -> None:
    view = await shard.follow(small_cluster(ONE))
    await shard.write(write_of(ROW))
    with pytest.raises(Stale, match="not come here"):
        await shard.server.read(read_of(POINT, version=3), 100)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(shard.server.read(read_of(POINT, version=3), 1_000))
        await asyncio.sleep(0.05)
        await shard.follow(with_state(view.snapshot, 3, 1))
    assert reading.result().items == (ROW,)


async def test_a_point_read_needs_no_waiting_once_layers_are_open(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(ONE))
    first = run_eagerly(shard.server.read(read_of(POINT, rows_max=1), 1_000))
    assert isinstance(first, Suspended)
    assert (await first).items == ()
    await shard.write(write_of(ROW))
    found = run_eagerly(shard.server.read(read_of(POINT, rows_max=1), 1_000))
    assert not isinstance(found, Suspended)
    assert (found.items, found.is_whole, found.live_rows) == ((ROW,), True, 1)


async def test_what_is_not_here_is_told(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(TWO))
    items = [plain(number, 0, 5) for number in range(40)]
    there = next(item for item in items if tablet_of(TWO, item) == 1)
    with pytest.raises(Stale, match="no replica"):
        run_eagerly(shard.server.read(read_of((there[0], there[0] + b"\0")), 1_000))
    with pytest.raises(Stale, match="no replica"):
        await shard.server.read(read_of((there[0], None)), 100)
    with pytest.raises(NotFound):
        await shard.server.read(read_of(table=TableId(uuid.UUID(int=5))), 100)
    with pytest.raises(InvalidRequest):
        await shard.server.read(read_of(rows_max=0), 100)
    here = await shard.server.read(read_of(), 100)
    assert not here.is_whole, "a page ends before a tablet that is elsewhere"
    assert here.last_key == b"\x80" + bytes(7)


@runs_in(in_shard, mode=CommitLogMode.PERIODIC, bounds=ReplicaLimits(turn_items_max=20, page_items_max=100))
async def test_many_tombstones_end_a_page_and_not_the_turn_of_others(shard: ShardRig, /) -> None:
    dead = value_of(Row(marker=None, deletion=Deletion(5, 900)))
    items = [(key_of(1, row), dead) for row in range(128)]
    await shard.follow(small_cluster(ONE))
    await shard.write(write_of(*items))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(count_turns())
        page = await shard.server.read(read_of(rows_max=10), 1_000)
        counting.cancel()
    assert turns > 1
    assert not page.is_whole
    assert page.live_rows == 0
    assert 0 < len(page.items) <= 100
    assert page.last_key == page.items[-1][0]


@runs_in(in_shard, mode=CommitLogMode.PERIODIC, bounds=ReplicaLimits(turn_items_max=20, page_items_max=60))
async def test_rows_that_their_head_deletes_are_counted_as_looked_at(shard: ShardRig, /) -> None:
    """They leave nothing behind, and a page of them must end all the same."""
    head = (head_of(1), encode_head(PartitionHead(Deletion(50, 900)), SMALL.version))
    inside = (row_key(prefix_of(1)), prefix_end(prefix_of(1)))
    await shard.follow(small_cluster(ONE))
    await shard.write(write_of(head, *[plain(1, row, 5) for row in range(128)]))
    page = await shard.server.read(read_of(inside, rows_max=10), 1_000)
    assert (page.items, page.is_whole) == ((), False)
    assert page.last_key > inside[0]


@runs_in(in_shard, bounds=ReplicaLimits(reads_waiting_max=1))
async def test_so_many_reads_may_wait(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(ONE))
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(shard.server.read(read_of(version=9), 1_000))
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded):
            await shard.server.read(read_of(version=9), 1_000)
        waiting.cancel()
    assert shard.server.reader.waiting == 0


async def test_a_read_holds_no_version(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(ONE))
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(shard.server.read(read_of(version=9), 1_000))
        await asyncio.sleep(0.05)
        assert shard.view.versions.oldest(TopologyVersion(7)) == 7
        waiting.cancel()
