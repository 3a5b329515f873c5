"""Guards of sessions, and streams of rows under them."""

import asyncio
import uuid

import pytest
from tests.async_tests import runs_in
from tests.unit.replica.shard_rig import (
    NOW_S,
    OWN,
    ShardRig,
    in_shard,
    read_of,
    small_cluster,
    tablet_of,
    with_sessions,
    with_state,
)
from tests.unit.storage.small_table import SMALL
from tests.unit.storage.store_rig import Rig, limits, plain
from tests.unit.topology.small_cluster import replica

from ebla.model.errors import NotFound, Stale, Unavailable
from ebla.model.identity import SessionId, TableId
from ebla.options import CommitLogMode
from ebla.topology.snapshot import Session
from ebla.topology.states import SessionKind
from ebla.topology.tablet_map import tablet_map
from ebla.wire.row_messages import Item, StreamRowsRequest

pytestmark = runs_in(in_shard)

SESSION = SessionId(uuid.UUID(int=31))
OPEN = Session(id=SESSION, kind=SessionKind.REQUEST)
BOTH = tablet_map(SMALL.id, [(OWN,), (OWN,)])
ITEMS = tuple(sorted(plain(number, 0, 5) for number in range(12)))


def stream_of(*items: Item) -> StreamRowsRequest:
    return StreamRowsRequest(SESSION, SMALL.id, items)


def test_a_stream_is_merged_into_every_stack_it_touches() -> None:
    rig = Rig(bounds=limits(CommitLogMode.PERIODIC, period_ms=60_000))

    async def work(shard: ShardRig) -> None:
        await shard.follow(with_sessions(small_cluster(BOTH), OPEN))
        await shard.streams.stream(stream_of(*ITEMS), 1_000)
        assert {tablet_of(BOTH, item) for item in ITEMS} == {0, 1}
        assert (await shard.server.read(read_of(), 1_000)).items == ITEMS
        assert shard.guards.held == 0
        assert shard.barriers.asked == 1

    in_shard(work, rig=rig)
    rig.lose_power()

    async def after(shard: ShardRig) -> None:
        await shard.follow(small_cluster(BOTH))
        assert (await shard.server.read(read_of(), 1_000)).items == ITEMS, "durable before the answer, in any mode"

    in_shard(after, rig=rig)


async def test_a_closed_session_is_refused_even_by_a_shard_that_has_not_heard(shard: ShardRig, /) -> None:
    view = await shard.follow(with_sessions(small_cluster(BOTH), OPEN))
    shard.barriers.index = 2
    async with asyncio.TaskGroup() as tasks:
        late = tasks.create_task(refused(shard))
        await asyncio.sleep(0.05)
        assert not late.done(), "it waits for the revision of the barrier"
        await shard.follow(with_sessions(with_state(view.snapshot, 3, 1)))
    assert "closed" in late.result()
    assert (await shard.server.read(read_of(version=3), 1_000)).items == ()


async def refused(shard: ShardRig) -> str:
    with pytest.raises(Stale) as caught:
        await shard.streams.stream(stream_of(*ITEMS), 1_000)
    return caught.value.message


async def test_without_a_quorum_or_the_revision_nothing_is_entered(shard: ShardRig, /) -> None:
    await shard.follow(with_sessions(small_cluster(BOTH), OPEN))
    shard.barriers.index = None
    with pytest.raises(Unavailable, match="quorum"):
        await shard.streams.stream(stream_of(*ITEMS), 1_000)
    shard.barriers.index = 7
    with pytest.raises(Unavailable, match="revision 7"):
        await shard.streams.stream(stream_of(*ITEMS), 200)
    assert shard.guards.held == 0


async def test_a_job_past_its_deadline_is_refused(shard: ShardRig, /) -> None:
    job = Session(id=SESSION, kind=SessionKind.BULK_JOB, deadline_ms=NOW_S * 1000)
    await shard.follow(with_sessions(small_cluster(BOTH), job))
    with pytest.raises(Stale, match="deadline"):
        await shard.streams.stream(stream_of(*ITEMS), 1_000)


async def test_a_session_that_closes_meanwhile_waits_for_its_guards(shard: ShardRig, /) -> None:
    view = await shard.follow(with_sessions(small_cluster(BOTH), OPEN))
    async with shard.guards.hold_guard(SESSION, 1_000):
        await shard.follow(with_sessions(with_state(view.snapshot, 3, 1)))
        assert closing(shard) == [SESSION]
        assert changes(shard) == 0
    assert closing(shard) == []
    assert changes(shard) == 1


def closing(shard: ShardRig) -> list[SessionId]:
    return list(shard.guards.closing)


def changes(shard: ShardRig) -> int:
    return shard.barriers.changes


async def test_a_stream_holds_its_guard_until_it_is_durable(shard: ShardRig, /) -> None:
    await shard.follow(with_sessions(small_cluster(BOTH), OPEN))
    held: list[int] = []
    sync = shard.store.sync

    async def watched() -> None:
        held.append(shard.guards.held)
        await sync()
        held.append(shard.guards.held)

    shard.store.sync = watched  # type: ignore[method-assign] # looks on, and does the same
    await shard.streams.stream(stream_of(*ITEMS), 1_000)
    assert held == [1, 1]
    assert shard.guards.held == 0


async def test_rows_for_others_are_refused(shard: ShardRig, /) -> None:
    elsewhere = tablet_map(SMALL.id, [(OWN,), (replica(2),)])
    await shard.follow(with_sessions(small_cluster(elsewhere), OPEN))
    with pytest.raises(Stale, match="no replica"):
        await shard.streams.stream(stream_of(*ITEMS), 1_000)
    with pytest.raises(NotFound):
        await shard.streams.stream(StreamRowsRequest(SESSION, TableId(uuid.UUID(int=5)), ITEMS), 1_000)
    assert shard.guards.held == 0
    mine = (b"", b"\x80")
    assert (await shard.server.read(read_of(mine), 1_000)).items == ()
