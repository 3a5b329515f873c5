"""Sealed staging becomes part of a stack, once, under a session that is open; everything else is refused."""

import asyncio
import dataclasses
import uuid
from collections.abc import Callable, Collection, Sequence

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.replica.shard_rig import (
    OWN,
    ShardRig,
    in_shard,
    read_of,
    small_cluster,
    tablet_of,
    with_sessions,
)
from tests.unit.replica.staged import (
    AT_ONCE_MS,
    ATTEMPT,
    ITEMS,
    ONE,
    OPEN,
    SESSION,
    TRANSFER,
    Staging,
    adopted_in,
    disk_of,
    opened,
    request_of,
)
from tests.unit.storage.small_table import SMALL, key_of, value_of
from tests.unit.storage.store_rig import Rig, limits, plain
from tests.unit.topology.small_cluster import replica

from ebla.model.errors import (
    Corruption,
    EblaError,
    InvalidRequest,
    NotFound,
    Outcome,
    Overloaded,
    Refused,
    Stale,
    Unavailable,
)
from ebla.model.identity import SessionId, TableId, TopologyVersion, TransferId
from ebla.model.rows import Deletion, Row
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, WHOLE_RING, Token, TokenRange, intersect_ranges
from ebla.model.transfers import StagingKind
from ebla.options import CommitLogMode
from ebla.replica.adoption import PartialAdoption, chunks_of
from ebla.replica.replica_context import ReplicaLimits
from ebla.replica.replica_stacks import IN_TRANSITION
from ebla.storage.codec.staging_format import SealedFile, sealed_path, write_sealed
from ebla.storage.compaction.compaction_plan import SwapOutcome
from ebla.storage.compaction.compactor import run_compaction
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.layer import Item, Layer
from ebla.storage.manifest import Incarnation
from ebla.storage.stack import Stack
from ebla.storage.stack_changes import Adoption
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Session
from ebla.topology.states import SessionKind, TransitionState
from ebla.topology.tablet_map import tablet_map
from ebla.wire.transfer_messages import AdoptAnswer, FindTargetRequest

BOTH = tablet_map(SMALL.id, [(OWN,), (OWN,)])
HALVES = WHOLE_RING.split(2)
DELETED = (key_of(2, 1), value_of(Row(marker=None, deletion=Deletion(9, 0), cells={})))
TERMS = GcContext(now_s=1_000, replication_factor=1)


async def read_all(shard: ShardRig, version: int = 2) -> tuple[Item, ...]:
    return (await shard.server.read(read_of(version=version), AT_ONCE_MS)).items


pytestmark = runs_in(adopted_in)


async def test_layers_become_bases_and_asking_again_changes_nothing(
    shard: ShardRig, _rig: Rig, staging: Staging, /
) -> None:
    await staging.open(StagingKind.FILES)
    await staging.seal_layers([(WHOLE_RING, ITEMS), (WHOLE_RING, [DELETED])])
    (stack,) = shard.store.stacks.values()
    assert await shard.adoptions.adopt(request_of(), AT_ONCE_MS) == AdoptAnswer(2, 0)
    assert await shard.adoptions.adopt(request_of(), AT_ONCE_MS) == AdoptAnswer(0, 0)
    assert len(stack.entry.bases) == 2
    assert dict(await read_all(shard)) == {**dict(ITEMS), DELETED[0]: DELETED[1]}
    assert shard.guards.held == 0


def test_a_layer_counts_only_within_the_range_that_was_asked_for() -> None:
    rig = Rig()

    async def main(shard: ShardRig) -> None:
        await shard.follow(opened(BOTH))
        middle = HALVES[1].split(2)[0]
        request = request_of(middle)
        staging = Staging(rig, shard, request)
        await staging.open(StagingKind.FILES)
        await staging.seal_layers([(HALVES[1], ITEMS)])
        assert (await shard.adoptions.adopt(request, AT_ONCE_MS)).layers == 1
        quarters = tablet_map(SMALL.id, [(OWN,)] * 4)
        wanted = [item[0] for item in ITEMS if tablet_of(quarters, item) == 2]
        assert wanted
        assert [key for key, _ in await read_all(shard)] == wanted

    in_shard(main, rig=rig)


def test_rows_are_merged_in_pieces_and_durable() -> None:
    rig = Rig(bounds=limits(CommitLogMode.PERIODIC, period_ms=60_000))
    newer = plain(3, 1, 9, number=7)

    async def main(shard: ShardRig) -> None:
        await shard.follow(opened())
        await shard.store.write(shard.stacks.overlapping(SMALL.id, WHOLE_RING)[0], [newer])
        staging = Staging(rig, shard, request_of())
        await staging.open(StagingKind.ROWS)
        await staging.seal_rows(ITEMS[:7], ITEMS[7:])
        for _ in range(2):
            assert await shard.adoptions.adopt(request_of(), AT_ONCE_MS) == AdoptAnswer(0, len(ITEMS))

    async def look(shard: ShardRig) -> tuple[Item, ...]:
        await shard.follow(small_cluster(ONE))
        return await read_all(shard)

    in_shard(main, rig=rig, bounds=ReplicaLimits(adopt_items_max=3))
    rig.lose_power()
    assert dict(in_shard(look, rig=rig)) == {**dict(ITEMS), newer[0]: newer[1]}


@runs_in(adopted_in, adopt_bytes_max=300)
async def test_rows_wait_for_a_live_layer_that_takes_nothing(shard: ShardRig, rig: Rig, staging: Staging, /) -> None:
    await staging.open(StagingKind.ROWS)
    await staging.seal_rows(ITEMS)
    taken: list[int] = []
    write_open = shard.store.write_open

    def refuse_some(stack: Stack, live: Layer, items: Sequence[Item]) -> int:
        taken.append(1)
        if len(taken) in (1, 3):
            raise Overloaded("full")
        return write_open(stack, live, items)

    shard.store.write_open = refuse_some  # type: ignore[method-assign] # only when it takes them is the test's
    assert (await shard.adoptions.adopt(request_of(), AT_ONCE_MS)).rows == len(ITEMS)
    shard.store.write_open = write_open  # type: ignore[method-assign] # back
    assert await read_all(shard) == ITEMS
    assert disk_of(rig).exists(staging.folder), "it stays the bulk process's"


@runs_in(adopted_in, adopt_items_max=4)
async def test_merging_leaves_half_of_the_time_to_others_however_many_merge(
    shard: ShardRig, _rig: Rig, staging: Staging, /
) -> None:
    took_s = 0.01
    await staging.open(StagingKind.ROWS)
    await staging.seal_rows(ITEMS)
    loop = asyncio.get_running_loop()
    write_open, time = shard.store.write_open, loop.time
    ended_at: list[float] = []

    def write_slowly(stack: Stack, live: Layer, items: Sequence[Item]) -> int:
        assert not ended_at or loop.time() - ended_at[-1] > 0.99 * took_s
        sequence = write_open(stack, live, items)
        busy_s = (len(ended_at) + 1) * took_s
        loop.time = lambda: time() + busy_s  # type: ignore[method-assign] # it took that long
        ended_at.append(loop.time())
        return sequence

    shard.store.write_open = write_slowly  # type: ignore[method-assign] # only how long it takes is the test's
    both = (shard.adoptions.adopt(request_of(), 10 * AT_ONCE_MS) for _ in range(2))
    assert [answer.rows for answer in await asyncio.gather(*both)] == [len(ITEMS)] * 2
    assert len(ended_at) == 2 * len(ITEMS) / 4


@runs_in(adopted_in, adopt_items_max=4)
async def test_an_adoption_that_breaks_among_its_rows_says_so(shard: ShardRig, _rig: Rig, staging: Staging, /) -> None:
    await staging.open(StagingKind.ROWS)
    await staging.seal_rows(ITEMS)
    write_open = shard.store.write_open
    taken: list[int] = []

    def break_at_second(stack: Stack, live: Layer, items: Sequence[Item]) -> int:
        taken.append(1)
        if len(taken) > 1:
            raise Overloaded("full")
        return write_open(stack, live, items)

    shard.store.write_open = break_at_second  # type: ignore[method-assign] # only when it takes them is the test's
    with pytest.raises(PartialAdoption) as caught:
        await shard.adoptions.adopt(request_of(), 50)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert shard.guards.held == 0
    shard.store.write_open = write_open  # type: ignore[method-assign] # back
    assert (await shard.adoptions.adopt(request_of(), AT_ONCE_MS)).rows == len(ITEMS)


# -- refusals, each with nothing changed


async def expect_refused(shard: ShardRig, kind: type[EblaError], words: str, **fields: object) -> None:
    (stack,) = shard.store.stacks.values()
    before, holds = stack.entry, set(stack.gc_holds)
    with pytest.raises(kind, match=words) as caught:
        await shard.adoptions.adopt(msgspec.structs.replace(request_of(), **fields), AT_ONCE_MS)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert stack.entry is before
    assert stack.gc_holds == holds
    assert list((await shard.store.open(stack)).scan()) == []
    assert shard.guards.held == 0


async def staged(staging: Staging) -> None:
    await staging.open(StagingKind.FILES)
    await staging.seal_layers([(WHOLE_RING, ITEMS)])


async def test_a_session_that_is_closed_or_cannot_be_asked_about(
    shard: ShardRig, _rig: Rig, staging: Staging, /
) -> None:
    await staged(staging)
    shard.barriers.index = None
    await expect_refused(shard, Unavailable, "no quorum")
    shard.barriers.index = 1
    await expect_refused(shard, Stale, "is closed", session=SessionId(uuid.UUID(int=77)))
    await shard.follow(small_cluster(ONE, version=3))
    await expect_refused(shard, Stale, "is closed")


async def test_a_session_past_its_deadline_or_for_another_table(
    shard: ShardRig, _rig: Rig, staging: Staging, /
) -> None:
    await staged(staging)
    ended = msgspec.structs.replace(OPEN, deadline_ms=shard.clock.now_ms)
    await shard.follow(with_sessions(small_cluster(ONE), ended))
    await expect_refused(shard, Stale, "past its deadline")
    other = msgspec.structs.replace(OPEN, table=TableId(uuid.UUID(int=5)))
    await shard.follow(with_sessions(small_cluster(ONE), other))
    await expect_refused(shard, InvalidRequest, "is for table")


async def test_a_session_that_holds_nothing(shard: ShardRig, _rig: Rig, staging: Staging, /) -> None:
    """A request's session names no table; it counts only where its tablets or its ring are in transition."""
    await staged(staging)
    await shard.stacks.confirm()
    await shard.follow(with_sessions(small_cluster(ONE), Session(id=SESSION, kind=SessionKind.REQUEST)))
    await expect_refused(shard, Refused, "holds nothing")


async def test_what_is_not_staged_or_not_sealed(shard: ShardRig, _rig: Rig, staging: Staging, /) -> None:
    await expect_refused(shard, Refused, "nothing is staged", transfer=TransferId(uuid.UUID(int=99)))
    await staging.open(StagingKind.FILES)
    await expect_refused(shard, Refused, "is not sealed")


async def test_staging_that_was_opened_for_something_else(shard: ShardRig, _rig: Rig, staging: Staging, /) -> None:
    await staging.open(StagingKind.FILES, shard=3)
    await staging.seal_layers([(WHOLE_RING, ITEMS)])
    await expect_refused(shard, InvalidRequest, "for something else")
    await staging.open(StagingKind.FILES, range=HALVES[0])
    await expect_refused(shard, InvalidRequest, "for something else")
    await staging.open(StagingKind.FILES, incarnation=Incarnation(1))
    await expect_refused(shard, Stale, "was staged for replica 0000000000000001")


async def test_a_replica_that_left_and_came_back_takes_nothing_of_before(
    shard: ShardRig, _rig: Rig, staging: Staging, /
) -> None:
    await staged(staging)
    elsewhere = tablet_map(SMALL.id, [(replica(2),)])
    await shard.follow(opened(elsewhere, version=3))
    with pytest.raises(Stale, match="covers the tokens"):
        await shard.adoptions.adopt(request_of(), AT_ONCE_MS)
    await shard.follow(opened(version=4))
    await expect_refused(shard, Stale, "was staged for replica")


async def test_a_table_that_was_dropped_or_emptied(shard: ShardRig, _rig: Rig, staging: Staging, /) -> None:
    """Emptying a table gives it another id."""
    await staged(staging)
    emptied = msgspec.structs.replace(SMALL, id=TableId(uuid.UUID(int=8)))
    tablets = tablet_map(emptied.id, [(OWN,)])
    await shard.follow(with_sessions(small_cluster(tablets, version=3, schema=emptied), OPEN))
    await shard.stacks.settle()
    with pytest.raises(NotFound):
        await shard.adoptions.adopt(request_of(), AT_ONCE_MS)


async def test_damage_in_what_was_sealed(shard: ShardRig, rig: Rig, staging: Staging, /) -> None:
    await staging.open(StagingKind.FILES)
    await staging.seal_layers([(WHOLE_RING, ITEMS), (WHOLE_RING, [DELETED])])
    disk = disk_of(rig)
    disk.remove_folder(f"{staging.folder}/sealed/1")
    await expect_refused(shard, Corruption, "cannot be read")
    assert not shard.store.stacks[next(iter(shard.store.stacks))].damage, "the stack itself is well"
    file = disk.open(sealed_path(staging.folder))
    file.write(30, b"?")
    file.close()
    await expect_refused(shard, Corruption, "SEALED is damaged")


@runs_in(adopted_in, adopt_items_max=2)
async def test_damage_in_the_rows_that_were_sealed_is_found_before_any_is_merged(
    shard: ShardRig, rig: Rig, staging: Staging, /
) -> None:
    await staging.open(StagingKind.ROWS)
    await staging.seal_rows(ITEMS[:5], ITEMS[5:])
    disk = disk_of(rig)
    path = f"{staging.folder}/sealed/rows"
    file = disk.open(path)
    file.write(file.size() - 3, b"?")
    await expect_refused(shard, Corruption, "checksum")
    file.truncate(file.size() - 40)
    await expect_refused(shard, Corruption, "ends within a record")
    file.close()
    disk.unlink(path)
    await expect_refused(shard, Corruption, "missing")
    await staging.seal_rows(ITEMS, rows=len(ITEMS) + 1)
    await expect_refused(shard, Corruption, "21 were sealed")


async def test_a_seal_of_nothing_is_adopted_as_nothing(shard: ShardRig, rig: Rig, staging: Staging, /) -> None:
    await staging.open(StagingKind.ROWS)
    await write_sealed(disk_of(rig), staging.folder, SealedFile(attempt=ATTEMPT))
    assert await shard.adoptions.adopt(request_of(), AT_ONCE_MS) == AdoptAnswer(0, 0)


@runs_in(adopted_in, adoptions_max=0)
async def test_too_many_at_once(shard: ShardRig, _rig: Rig, staging: Staging, /) -> None:
    await staged(staging)
    await expect_refused(shard, Overloaded, "adoptions run already")


# -- the fence


async def test_an_adoption_waits_for_the_fence_it_needs_and_not_for_ever(
    shard: ShardRig, _rig: Rig, staging: Staging, /
) -> None:
    await staged(staging)
    await expect_refused(shard, Stale, "fence has not come to version 3", fence=TopologyVersion(3))
    async with asyncio.TaskGroup() as tasks:
        adopting = tasks.create_task(shard.adoptions.adopt(request_of(fence=3), AT_ONCE_MS))
        await asyncio.sleep(0.05)
        assert not adopting.done()
        assert shard.guards.held == 0, "the end of the session need not wait for the fence"
        await shard.follow(opened(version=3, fence=3))
    assert adopting.result().layers == 1


# -- interleavings


class HeldAdoption:
    """The store takes what is brought only when the test lets it."""

    def __init__(self, shard: ShardRig) -> None:
        self.begun = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self._adopt_all = shard.store.adopt_all
        shard.store.adopt_all = self._held  # type: ignore[method-assign] # only when it happens is the test's

    async def _held(
        self,
        stack: Stack,
        adoptions: Sequence[Adoption],
        forget: Collection[str] = (),
        check: Callable[[], None] = lambda: None,
    ) -> int:
        self.begun.set()
        await self.may_go_on.wait()
        return await self._adopt_all(stack, adoptions, forget, check)


async def test_the_end_of_a_session_waits_for_its_adoption_and_so_does_collecting(
    shard: ShardRig, rig: Rig, staging: Staging, /
) -> None:
    """INV-XFER-1 by the guard, INV-LAYER-GC by the adoption's own hold: the session's is gone with its key."""
    assert rig.engine is not None
    await shard.stacks.confirm()
    (stack,) = shard.store.stacks.values()
    await shard.store.write(stack, [DELETED])
    await staging.open(StagingKind.FILES)
    await staging.seal_layers([(WHOLE_RING, ITEMS)])
    held = HeldAdoption(shard)
    async with asyncio.TaskGroup() as tasks:
        adopting = tasks.create_task(shard.adoptions.adopt(request_of(), AT_ONCE_MS))
        await held.begun.wait()
        await shard.follow(small_cluster(ONE, version=3))
        assert SESSION in shard.guards.closing, "a barrier waits for it"
        job = await shard.store.begin_compaction(stack, TERMS, whole=True)
        assert job is not None
        result = await run_compaction(rig.engine, rig.engine.disk, job)
        assert await shard.store.finish_compaction(job, result) is SwapOutcome.SWAPPED
        held.may_go_on.set()
    assert adopting.result().layers == 1
    assert not shard.guards.closing
    assert (await shard.store.open(stack)).read(DELETED[0]) == DELETED[1], "the deleted row has not come back"
    assert stack.gc_holds == set()


async def expect_stale(shard: ShardRig) -> None:
    with pytest.raises(Stale, match="left this shard meanwhile"):
        await shard.adoptions.adopt(request_of(), AT_ONCE_MS)


async def test_a_replica_that_leaves_meanwhile_is_not_answered_for(
    shard: ShardRig, _rig: Rig, staging: Staging, /
) -> None:
    await staged(staging)
    held = HeldAdoption(shard)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(expect_stale(shard))
        await held.begun.wait()
        shard.view.hold(TopologyVersion(2))  # so that it waits to be dropped
        await shard.follow(opened(tablet_map(SMALL.id, [(replica(2),)]), version=3))
        held.may_go_on.set()


async def test_what_is_asked_for_twice_at_once_is_adopted_once(shard: ShardRig, _rig: Rig, staging: Staging, /) -> None:
    await staged(staging)
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(shard.adoptions.adopt(request_of(), AT_ONCE_MS)) for _ in range(3)]
    assert sorted(one.result().layers for one in asked) == [0, 0, 1]


async def test_only_origins_of_open_sessions_are_remembered(shard: ShardRig, rig: Rig, staging: Staging, /) -> None:
    other = SessionId(uuid.UUID(int=32))
    await staged(staging)
    (stack,) = shard.store.stacks.values()
    assert (await shard.adoptions.adopt(request_of(), AT_ONCE_MS)).layers == 1
    both = with_sessions(small_cluster(ONE), OPEN, msgspec.structs.replace(OPEN, id=other))
    await shard.follow(both)
    second = request_of(transfer=TransferId(uuid.UUID(int=42)))
    for request in (second, request_of(session=other)):
        again = Staging(rig, shard, request)
        await again.open(StagingKind.FILES)
        await again.seal_layers([(WHOLE_RING, ITEMS)])
    assert (await shard.adoptions.adopt(second, AT_ONCE_MS)).layers == 1
    remembered = [stack.entry.adopted]
    await shard.follow(with_sessions(small_cluster(ONE), msgspec.structs.replace(OPEN, id=other)))
    assert (await shard.adoptions.adopt(request_of(session=other), AT_ONCE_MS)).layers == 1
    remembered.append(stack.entry.adopted)
    assert [len(one) for one in remembered] == [2, 1]
    assert remembered[1] == (f"{other}/{TRANSFER}",)


# -- finding the target


def find_of(token_range: TokenRange = WHOLE_RING, version: int = 2) -> FindTargetRequest:
    return FindTargetRequest(session=SESSION, table=SMALL.id, range=token_range, version=TopologyVersion(version))


def test_a_ring_change_brings_ranges_and_tombstones_stay_until_it_ends() -> None:
    """INV-LAYER-GC, c: the session of a topology operation has no table, and the transition holds all vnode stacks."""
    rig = Rig(bounds=limits(CommitLogMode.PERIODIC, period_ms=60_000))
    request = Session(id=SESSION, kind=SessionKind.REQUEST)

    async def main(shard: ShardRig) -> None:
        idle = with_sessions(small_cluster(), request)
        query = FindTargetRequest(
            session=SESSION, table=SMALL.id, range=HALVES[0], version=TopologyVersion(2), transfer=TRANSFER
        )
        await shard.follow(idle)
        await shard.stacks.confirm()
        with pytest.raises(Refused):
            await shard.adoptions.find_target(query, AT_ONCE_MS)
        moving = msgspec.structs.replace(
            idle.state, version=TopologyVersion(3), transition=TransitionState.WRITE_BOTH_READ_OLD, session=SESSION
        )
        await shard.follow(dataclasses.replace(idle, state=moving))
        (stack,) = shard.store.stacks.values()
        assert stack.gc_holds == {IN_TRANSITION}
        assert not (await shard.adoptions.find_target(query, AT_ONCE_MS)).is_adopted
        adopting = request_of(HALVES[0])
        staging = Staging(rig, shard, adopting)
        await staging.open(StagingKind.ROWS)
        await staging.seal_layers([(HALVES[0], ITEMS)])
        assert (await shard.adoptions.adopt(adopting, AT_ONCE_MS)).layers == 1
        assert (await shard.adoptions.find_target(query, AT_ONCE_MS)).is_adopted
        later = msgspec.structs.replace(moving, version=TopologyVersion(4), transition=None, session=None)
        await shard.follow(dataclasses.replace(idle, state=later, sessions=FrozenMap()))
        assert stack.gc_holds == set()

    in_shard(main, rig=rig)


def test_the_stack_that_will_take_it_is_told_and_held() -> None:
    rig = Rig()

    async def main(shard: ShardRig) -> None:
        await shard.follow(small_cluster(BOTH))
        await shard.stacks.confirm()
        with pytest.raises(Stale, match="is closed"):
            await shard.adoptions.find_target(find_of(HALVES[0]), AT_ONCE_MS)
        await shard.follow(opened(BOTH))
        for token_range in (HALVES[1], HALVES[1].split(3)[1]):
            answer = await shard.adoptions.find_target(find_of(token_range), AT_ONCE_MS)
            stack = shard.store.stacks[Incarnation(answer.incarnation)]
            assert stack.entry.range == answer.stack_range == HALVES[1]
            assert stack.gc_holds
            assert answer.free_bytes == shard.store.free_bytes > 0
        with pytest.raises(Stale, match="covers the tokens"):
            await shard.adoptions.find_target(find_of(), AT_ONCE_MS)
        with pytest.raises(Stale, match="version 9 of the topology has not come"):
            await shard.adoptions.find_target(find_of(HALVES[0], version=9), AT_ONCE_MS)
        assert shard.guards.held == 0

    in_shard(main, rig=rig)


# -- pure parts


@pytest.mark.parametrize(
    ("token_range", "within", "parts"),
    [
        ((0, 10), (0, 10), [(0, 10)]),
        ((2, 5), (0, 10), [(2, 5)]),
        ((0, 10), (2, 5), [(2, 5)]),
        ((0, 10), (5, 15), [(5, 10)]),
        ((0, 5), (5, 9), []),
        ((0, 0), (5, 9), [(5, 9)]),
        ((90, 10), (5, 95), [(5, 10), (90, 95)]),
        ((90, 10), (95, 20), [(95, TOKEN_MAX), (TOKEN_MIN, 10)]),
    ],
)
def test_what_of_a_range_is_in_another(
    token_range: tuple[int, int], within: tuple[int, int], parts: list[tuple[int, int]]
) -> None:
    found = intersect_ranges(_range(token_range), _range(within))
    assert sorted(found) == sorted(_range(one) for one in parts)


def _range(ends: tuple[int, int]) -> TokenRange:
    return TokenRange(Token(ends[0]), Token(ends[1]))


def test_pieces_have_all_items_and_keep_to_the_bound() -> None:
    items = [(bytes(8), bytes(size)) for size in (0, 90, 1, 1, 200, 5, 0)]
    pieces = list(chunks_of(items, 100))
    assert [item for piece in pieces for item in piece] == items
    assert [len(piece) for piece in pieces] == [1, 1, 2, 1, 2]
    assert list(chunks_of([], 100)) == []
