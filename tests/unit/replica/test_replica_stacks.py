"""Stacks are opened before a view is installed and removed when they are no longer needed."""

import asyncio
import dataclasses
import uuid

import msgspec
from tests.async_tests import runs_in
from tests.unit.replica.shard_rig import (
    HISTORY,
    OWN,
    ShardRig,
    in_shard,
    read_of,
    small_cluster,
    tablet_of,
    with_sessions,
    with_state,
    write_of,
)
from tests.unit.storage.small_table import SMALL, key_of, value_of
from tests.unit.storage.store_rig import Rig, plain
from tests.unit.topology.small_cluster import replica, with_transition

from ebla.feed.topology_view import view_of
from ebla.model.identity import SessionId, TableId, TopologyVersion
from ebla.model.rows import Deletion, Row
from ebla.model.token import WHOLE_RING
from ebla.model.transaction import Revision
from ebla.replica.replica_stacks import BULK_SESSION, IN_TRANSITION
from ebla.storage.compaction.compaction_plan import SwapOutcome
from ebla.storage.compaction.compactor import run_compaction
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.stack import Stack
from ebla.storage.store import GC_HOLD_AT_START
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Session
from ebla.topology.states import SessionKind, TabletStage, TransitionKind
from ebla.topology.tablet_map import TabletTransition, tablet_map

pytestmark = runs_in(in_shard)

RANGES = WHOLE_RING.split(2)
SESSION = SessionId(uuid.UUID(int=31))
OTHER = TableId(uuid.UUID(int=32))
BOTH = tablet_map(SMALL.id, [(OWN,), (OWN,)])
SECOND_ONLY = tablet_map(SMALL.id, [(replica(2),), (OWN,)])
ITEMS = [plain(number, 0, 5) for number in range(40)]
FIRST = next(item for item in ITEMS if tablet_of(BOTH, item) == 0)
SECOND = next(item for item in ITEMS if tablet_of(BOTH, item) == 1)


def strangers(shard: ShardRig) -> bool:
    return shard.stacks.has_unowned


async def test_a_key_finds_the_stack_of_its_tablet(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(BOTH))
    for item in ITEMS:
        stack = shard.stacks.find(SMALL.id, item[0])
        assert stack is not None
        assert stack.entry.range == RANGES[tablet_of(BOTH, item)]
    await shard.follow(small_cluster(SECOND_ONLY, version=3))
    assert shard.stacks.find(SMALL.id, FIRST[0]) is None
    assert shard.stacks.find(SMALL.id, SECOND[0]) is not None


async def test_a_doomed_stack_stays_while_an_older_request_runs(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(BOTH))
    await shard.write(write_of(FIRST))
    shard.view.hold(TopologyVersion(2))
    await shard.follow(small_cluster(SECOND_ONLY, version=3))
    await asyncio.sleep(1)
    assert len(shard.store.stacks) == 2
    shard.view.release(TopologyVersion(2))
    await shard.stacks.settle()
    assert [one.entry.range for one in shard.store.stacks.values()] == [RANGES[1]]
    assert [event for event, _ in shard.reports] == ["replica.dropped"]


async def test_a_replica_that_comes_back_begins_empty(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(BOTH))
    await shard.write(write_of(FIRST))
    shard.view.hold(TopologyVersion(2))
    await shard.follow(small_cluster(SECOND_ONLY, version=3))
    await shard.follow(small_cluster(BOTH, version=4))
    assert (await shard.server.read(read_of(version=4), 100)).items == ()
    shard.view.release(TopologyVersion(2))


async def test_a_dropped_table_goes_with_all_it_has(shard: ShardRig, /) -> None:
    await shard.follow(small_cluster(BOTH))
    await shard.write(write_of(FIRST))
    bare = dataclasses.replace(small_cluster(BOTH, version=3), tables=FrozenMap(), tablets=FrozenMap())
    await shard.follow(bare)
    await shard.stacks.settle()
    assert not shard.store.stacks
    assert not shard.store.tables
    assert shard.reports == [("table.dropped", {"table": str(SMALL.id), "replicas": 2})], "one for all its tablets"


def test_strangers_on_disk_wait_for_a_read_barrier() -> None:
    """The first view after a start may be older than the life before: dropping by it could lose a replica."""
    rig = Rig()

    async def first(shard: ShardRig) -> None:
        await shard.follow(small_cluster(BOTH, version=9))
        await shard.write(write_of(FIRST, version=9), write_of(SECOND, version=9))

    async def second(shard: ShardRig) -> None:
        await shard.follow(small_cluster(SECOND_ONLY, version=8))
        assert strangers(shard)
        assert len(shard.store.stacks) == 2
        assert shard.stacks.find(SMALL.id, FIRST[0]) is None
        await shard.follow(small_cluster(BOTH, version=9))
        assert not strangers(shard)
        await shard.stacks.confirm()
        found = await shard.server.read(read_of(version=9), 100)
        assert sorted(found.items) == sorted([FIRST, SECOND])

    async def third(shard: ShardRig) -> None:
        await shard.follow(small_cluster(SECOND_ONLY, version=10))
        await shard.stacks.confirm()
        assert [one.entry.range for one in shard.store.stacks.values()] == [RANGES[1]]

    in_shard(first, rig=rig)
    in_shard(second, rig=rig)
    in_shard(third, rig=rig)


async def test_tombstones_are_kept_in_transition_and_before_a_barrier(shard: ShardRig, /) -> None:
    moving = with_transition(
        BOTH,
        0,
        TabletTransition(
            kind=TransitionKind.MIGRATION, stage=TabletStage.ALLOW_WRITE_BOTH_READ_OLD, new_replicas=(replica(2),)
        ),
    )
    await shard.follow(small_cluster(BOTH))
    stacks = {stack.entry.range: stack for stack in shard.store.stacks.values()}
    first, second = stacks[RANGES[0]], stacks[RANGES[1]]
    assert first.gc_holds == second.gc_holds == {GC_HOLD_AT_START}
    await shard.stacks.confirm()
    assert first.gc_holds == second.gc_holds == set()
    await shard.follow(small_cluster(moving, version=3))
    assert first.gc_holds == {IN_TRANSITION}
    assert second.gc_holds == set()
    await shard.follow(small_cluster(BOTH, version=4))
    assert first.gc_holds == set()


def test_tombstones_are_kept_while_a_bulk_session_of_their_table_is_open() -> None:
    """INV-LAYER-GC: also by a shard that starts again in the middle, and no longer than that."""
    rig = Rig()
    opened = with_sessions(small_cluster(BOTH), Session(id=SESSION, kind=SessionKind.BULK_JOB, table=SMALL.id))
    another = with_sessions(small_cluster(BOTH), Session(id=SESSION, kind=SessionKind.BULK_JOB, table=OTHER))

    async def first(shard: ShardRig) -> None:
        await shard.follow(small_cluster(BOTH))
        await shard.stacks.confirm()
        await shard.follow(another)
        assert [stack.gc_holds for stack in shard.store.stacks.values()] == [set(), set()]
        await shard.follow(opened)
        assert [stack.gc_holds for stack in shard.store.stacks.values()] == [{BULK_SESSION}] * 2

    async def second(shard: ShardRig) -> None:
        await shard.follow(small_cluster(BOTH))  # older than what the last life had seen
        assert [stack.gc_holds for stack in shard.store.stacks.values()] == [{GC_HOLD_AT_START}] * 2
        await shard.follow(opened)
        await shard.stacks.confirm()
        assert [stack.gc_holds for stack in shard.store.stacks.values()] == [{BULK_SESSION}] * 2
        await shard.follow(small_cluster(BOTH, version=3))
        assert [stack.gc_holds for stack in shard.store.stacks.values()] == [set(), set()]

    in_shard(first, rig=rig)
    in_shard(second, rig=rig)


async def test_a_view_confirmed_while_the_next_is_prepared_releases_nothing_that_the_next_one_holds(
    shard: ShardRig, /
) -> None:
    opened = with_sessions(small_cluster(BOTH), Session(id=SESSION, kind=SessionKind.BULK_JOB, table=SMALL.id))
    before = await shard.follow(small_cluster(BOTH))
    stacks = list(shard.store.stacks.values())
    async with asyncio.TaskGroup() as tasks:
        view = view_of(opened, Revision(HISTORY, 2), before)
        async with stacks[1].changing:
            preparing = tasks.create_task(shard.stacks.prepare(view))
            await asyncio.sleep(0.1)
            assert BULK_SESSION in stacks[0].gc_holds
            await shard.stacks.confirm()
        await preparing
        shard.install(view)
    assert [stack.gc_holds for stack in stacks] == [{BULK_SESSION}] * 2


def test_a_fold_collects_before_and_after_a_bulk_session_and_not_meanwhile() -> None:
    rig = Rig()
    session = Session(id=SESSION, kind=SessionKind.BULK_JOB, table=SMALL.id)

    async def folded(shard: ShardRig, stack: Stack) -> int:
        """How many items are left of a row that is long deleted."""
        assert rig.engine is not None
        await shard.store.write(stack, [(key_of(1, 1), value_of(Row(marker=None, deletion=Deletion(9, 0), cells={})))])
        job = await shard.store.begin_compaction(stack, GcContext(now_s=1_000, replication_factor=1), whole=True)
        assert job is not None
        result = await run_compaction(rig.engine, rig.engine.disk, job)
        assert await shard.store.finish_compaction(job, result) is SwapOutcome.SWAPPED
        return len(list((await shard.store.open(stack)).scan()))

    async def work(shard: ShardRig) -> None:
        await shard.follow(small_cluster())
        await shard.stacks.confirm()
        (stack,) = shard.store.stacks.values()
        assert await folded(shard, stack) == 0
        await shard.follow(with_sessions(small_cluster(), session))
        assert await folded(shard, stack) == 1
        await shard.follow(small_cluster(version=3))
        assert await folded(shard, stack) == 0

    in_shard(work, rig=rig)


async def test_a_pending_replica_is_there_before_its_version_is_installed(shard: ShardRig, /) -> None:
    pending = with_transition(
        SECOND_ONLY,
        0,
        TabletTransition(
            kind=TransitionKind.MIGRATION, stage=TabletStage.ALLOW_WRITE_BOTH_READ_OLD, new_replicas=(OWN,)
        ),
    )
    await shard.follow(small_cluster(SECOND_ONLY))
    assert shard.stacks.pending_replicas_open
    await shard.follow(small_cluster(pending, version=3))
    assert shard.stacks.pending_replicas_open
    assert (await shard.write(write_of(FIRST, version=3))).failures == ()


async def test_a_later_revision_of_the_same_version_changes_nothing(shard: ShardRig, /) -> None:
    view = await shard.follow(small_cluster(BOTH))
    layout = shard.stacks.layout
    shard.install(dataclasses.replace(view, revision=dataclasses.replace(view).revision))
    assert shard.stacks.layout is layout
    await shard.follow(with_state(view.snapshot, 3, 1))
    assert shard.stacks.layout[SMALL.id] is layout[SMALL.id]


async def test_what_was_made_for_a_view_that_was_given_up_goes(shard: ShardRig, /) -> None:
    view = await shard.follow(small_cluster(SECOND_ONLY))
    await shard.stacks.confirm()
    given_up = view_of(small_cluster(BOTH, version=3), Revision(HISTORY, 7), view)
    await shard.stacks.prepare(given_up)
    assert len(shard.store.stacks) == 2
    await shard.follow(small_cluster(SECOND_ONLY, version=4))
    await shard.stacks.settle()
    assert [one.entry.range for one in shard.store.stacks.values()] == [RANGES[1]]


async def test_a_table_whose_columns_are_not_known_has_no_stack(shard: ShardRig, /) -> None:
    snapshot = small_cluster(BOTH)
    bare = {table: msgspec.structs.replace(one, definition=b"") for table, one in snapshot.tables.items()}
    await shard.follow(dataclasses.replace(snapshot, tables=FrozenMap(bare)))
    assert not shard.store.stacks
    assert shard.stacks.find(SMALL.id, FIRST[0]) is None
    await shard.follow(small_cluster(BOTH, version=3))
    assert shard.stacks.find(SMALL.id, FIRST[0]) is not None
