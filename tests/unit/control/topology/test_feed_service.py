"""Control's side of the feed: whole transactions, whole states in pages, reports, read barriers and node barriers."""

import asyncio
import uuid

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.control.feed_rig import HISTORY, ControlLife, FeedStore, V, in_virtual_time, state_put

from ebla.control.topology.feed_service import changes_after
from ebla.model.errors import DeadlineExceeded, Unavailable
from ebla.model.identity import HistoryId, HostId
from ebla.model.transaction import DeleteKey, PutKey, Revision
from ebla.topology import keys
from ebla.topology.snapshot import Keyspace, Replication
from ebla.topology.states import Strategy
from ebla.wire.feed_messages import ChildReport, FeedAnswer, FeedRequest, NodeBarrierRequest, ReadBarrierRequest
from ebla.wire.verbs import CHILD_REPORT, FEED, NODE_BARRIER, READ_BARRIER

pytestmark = runs_in(in_virtual_time)

REPORT = ChildReport(
    name="shard-0",
    pid=11,
    version=V(1),
    fence=V(1),
    oldest_running=V(1),
    pending_replicas_open=True,
    serial=1,
    history=HISTORY,
)
DOWN = HostId(uuid.UUID(int=3))


def keyspace_put(name: str) -> PutKey:
    row = Keyspace(name=name, replication=Replication(Strategy.SIMPLE, (("", 1),)), on_tablets=False)
    return PutKey(keys.keyspace_key(name), keys.encode(row))


def request(after: Revision | None, **fields: object) -> FeedRequest:
    return msgspec.structs.replace(FeedRequest(name="shard-0", pid=11, after=after), **fields)


async def seconds_of(asking: "asyncio.Task[FeedAnswer]") -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asking
    return loop.time() - began


def filled(versions: int = 1) -> FeedStore:
    feed_store = FeedStore()
    for version in range(1, versions + 1):
        feed_store.version(version)
    return feed_store


# ---- the feed


async def test_a_child_that_knows_nothing_gets_everything_at_once() -> None:
    async with asyncio.TaskGroup() as tasks:
        life = ControlLife(tasks, filled())
        life.feed_store.commit(PutKey("user/a", b"1"))
        answer = await life.call(FEED, request(None))
        assert (answer.reset, answer.more) == (True, False)
        assert [change.key for change in answer.changes] == [keys.STATE]
        assert answer.changes[0].revision == Revision(HISTORY, 1)
        assert answer.revision == life.feed_store.store.revision
        life.end()


async def test_an_empty_topology_is_a_state_too() -> None:
    async with asyncio.TaskGroup() as tasks:
        feed_store = FeedStore()
        feed_store.commit(PutKey("user/a", b"1"))
        life = ControlLife(tasks, feed_store)
        answer = await life.call(FEED, request(None))
        assert answer == FeedAnswer(revision=feed_store.store.revision, reset=True)
        life.end()


async def test_changes_come_in_whole_transactions_in_order() -> None:
    async with asyncio.TaskGroup() as tasks:
        life = ControlLife(tasks, filled())
        after = life.feed_store.store.revision
        second = life.feed_store.commit(state_put(2), keyspace_put("ks"))
        life.feed_store.commit(PutKey("user/a", b"1"))
        life.feed_store.commit(state_put(3), DeleteKey(keys.keyspace_key("ks")))
        answer = await life.call(FEED, request(after))
        assert not answer.reset
        sent = [(change.key, change.value is None, change.revision.index) for change in answer.changes]
        ks = keys.keyspace_key("ks")
        assert sent == [(keys.STATE, False, 2), (ks, False, 2), (keys.STATE, False, 4), (ks, True, 4)]
        assert answer.revision == life.feed_store.store.revision
        assert answer.changes[0].revision == second
        life.end()


async def test_without_news_the_poll_waits_and_moves_on_with_the_store() -> None:
    async with asyncio.TaskGroup() as tasks:
        life = ControlLife(tasks, filled())
        after = life.feed_store.store.revision
        await life.call(FEED, request(None))
        asking = tasks.create_task(life.call(FEED, request(after, wait_ms=700)))
        await asyncio.sleep(0)
        life.feed_store.commit(PutKey("user/a", b"1"))
        assert 0.6 < await seconds_of(asking) < 0.8
        assert asking.result() == FeedAnswer(revision=life.feed_store.store.revision, reset=False)
        life.end()


async def test_a_change_ends_the_wait() -> None:
    async with asyncio.TaskGroup() as tasks:
        life = ControlLife(tasks, filled())
        after = life.feed_store.store.revision
        await life.call(FEED, request(None))
        asking = tasks.create_task(life.call(FEED, request(after)))
        await asyncio.sleep(0.1)
        life.feed_store.version(2)
        assert await seconds_of(asking) < 0.05
        assert len(asking.result().changes) == 1
        life.end()


async def test_who_is_down_ends_the_wait_too() -> None:
    async with asyncio.TaskGroup() as tasks:
        life = ControlLife(tasks, filled())
        after = life.feed_store.store.revision
        await life.call(FEED, request(None))
        asking = tasks.create_task(life.call(FEED, request(after)))
        await asyncio.sleep(0.1)
        life.down = (DOWN,)
        life.feed.down_hosts_changed()
        assert await seconds_of(asking) < 0.05
        assert asking.result().down == (DOWN,)
        asking = tasks.create_task(life.call(FEED, request(after, down_seen=(DOWN,))))
        assert await seconds_of(asking) > 0.9
        life.end()


async def test_a_control_that_lags_behind_its_child_does_not_take_it_back() -> None:
    async with asyncio.TaskGroup() as tasks:
        ahead = filled(2)
        behind = ahead.copy()
        after = ahead.version(3)
        life = ControlLife(tasks, behind)
        answer = await life.call(FEED, request(after))
        assert answer == FeedAnswer(revision=after, reset=False)
        behind.version(3)
        behind.version(4)
        answer = await life.call(FEED, request(after))
        assert [change.revision.index for change in answer.changes] == [4]
        life.end()


async def test_what_the_store_no_longer_knows_is_sent_as_a_whole() -> None:
    async with asyncio.TaskGroup() as tasks:
        feed_store = filled()
        after = feed_store.store.revision
        feed_store.version(2)
        life = ControlLife(tasks, feed_store.copy())
        answer = await life.call(FEED, request(after))
        assert answer.reset
        other = Revision(HistoryId(uuid.UUID(int=99)), 1_000)
        answer = await life.call(FEED, request(other))
        assert answer.reset, "an index of another history says nothing"
        life.end()


def test_large_changes_are_cut_between_transactions() -> None:
    feed_store = filled()
    after = feed_store.store.revision
    for number in range(3):
        feed_store.commit(state_put(2 + number), keyspace_put(f"ks{number}"))
    found = changes_after(feed_store.store, after, 400)
    assert found is not None
    assert [change.revision.index for change in found.changes] == [2, 2]
    assert found.revision == Revision(HISTORY, 2)
    rest = changes_after(feed_store.store, found.revision, 10_000)
    assert rest is not None
    assert [change.revision.index for change in rest.changes] == [3, 3, 4, 4]
    assert changes_after(feed_store.store, after, 100) is None, "a transaction is never cut"


def test_changes_that_a_raft_snapshot_brought_keep_their_revisions() -> None:
    ahead = filled()
    behind = ahead.copy()
    after = behind.store.revision
    kept = ahead.commit(state_put(2), keyspace_put("ks"))
    ahead.version(3)
    behind.machine.install(ahead.copy().store)
    found = changes_after(behind.store, after, 10_000)
    assert found is not None
    assert {change.key: change.revision for change in found.changes}[keys.keyspace_key("ks")] == kept


async def test_a_whole_state_comes_in_pages_of_one_revision() -> None:
    async with asyncio.TaskGroup() as tasks:
        feed_store = filled()
        for number in range(10):
            feed_store.commit(keyspace_put(f"ks{number}"))
        life = ControlLife(tasks, feed_store, page_bytes_max=400)
        page = await life.call(FEED, request(None))
        began, wanted = page.revision, feed_store.store.keys(keys.PREFIX)
        sent = [change.key for change in page.changes]
        while page.more:
            feed_store.commit(DeleteKey(keys.keyspace_key("ks9")))
            page = await life.call(FEED, request(began, after_key=sent[-1]))
            assert page.revision == began
            assert page.reset
            sent += [change.key for change in page.changes]
        assert sent == wanted
        answer = await life.call(FEED, request(began))
        assert [change.value for change in answer.changes] == [None], "what came meanwhile follows"
        life.end()


async def test_a_control_that_does_not_know_the_pages_begins_anew() -> None:
    async with asyncio.TaskGroup() as tasks:
        feed_store = filled()
        for number in range(10):
            feed_store.commit(keyspace_put(f"ks{number}"))
        life = ControlLife(tasks, feed_store, page_bytes_max=400)
        first = await life.call(FEED, request(None))
        life.end()
        life = ControlLife(tasks, feed_store, page_bytes_max=400)
        again = await life.call(FEED, request(first.revision, after_key=first.changes[-1].key))
        assert again.changes == first.changes
        life.end()


async def test_nothing_is_fed_before_control_has_caught_up() -> None:
    async with asyncio.TaskGroup() as tasks:
        life = ControlLife(tasks, filled())
        life.has_quorum = False
        with pytest.raises(Unavailable, match="not caught up"):
            await life.call(FEED, request(None))
        asking = tasks.create_task(life.call(FEED, request(None, wait_ms=60_000), 90_000))
        await asyncio.sleep(1)
        life.has_quorum = True
        await asking
        assert asking.result().reset
        life.has_quorum = False
        assert (await life.call(FEED, request(None))).reset, "one that has caught up goes on without a quorum"
        life.end()


# ---- reports


async def test_the_latest_report_counts_whoever_brings_it() -> None:
    async with asyncio.TaskGroup() as tasks:
        life = ControlLife(tasks, filled(3))
        for serial, pid, version, waits in (
            (5, 11, 2, "has version 2, not 3"),
            (4, 11, 3, "has version 2, not 3"),
            (9, 12, 1, "has version 1, not 3"),
            (6, 11, 3, "has version 1, not 3"),
        ):
            report = msgspec.structs.replace(
                REPORT, serial=serial, pid=pid, version=V(version), oldest_running=V(version)
            )
            await life.call(CHILD_REPORT, report)
            assert life.feed.waits_for(V(3))[0] == f"shard-0 {waits}"
        life.end()


async def test_a_control_that_was_not_told_asks_for_the_report() -> None:
    async with asyncio.TaskGroup() as tasks:
        life = ControlLife(tasks, filled())
        after = (await life.call(FEED, request(None))).revision
        asking = tasks.create_task(life.call(FEED, request(after, reported=7)))
        assert await seconds_of(asking) < 0.05
        assert asking.result().report_missing
        await life.call(CHILD_REPORT, msgspec.structs.replace(REPORT, serial=7))
        asking = tasks.create_task(life.call(FEED, request(after, reported=7)))
        assert await seconds_of(asking) > 0.9
        assert not asking.result().report_missing
        life.end()


async def test_a_report_of_another_history_is_none() -> None:
    async with asyncio.TaskGroup() as tasks:
        life = ControlLife(tasks, filled())
        await life.call(CHILD_REPORT, msgspec.structs.replace(REPORT, history=HistoryId(uuid.UUID(int=99))))
        assert life.feed.waits_for(V(1)) == ("shard-0 has not reported since this control process started",)
        await life.call(CHILD_REPORT, msgspec.structs.replace(REPORT, serial=2))
        assert life.feed.waits_for(V(1)) == ()
        life.end()


# ---- barriers


async def test_read_barriers_are_shared_but_never_with_one_that_began_before() -> None:
    async with asyncio.TaskGroup() as tasks:
        life = ControlLife(tasks, filled())
        await life.call(FEED, request(None))
        life.barriers_asked, life.holds_barriers = 0, True
        first = tasks.create_task(life.call(READ_BARRIER, ReadBarrierRequest()))
        await asyncio.sleep(0.01)
        others = [tasks.create_task(life.call(READ_BARRIER, ReadBarrierRequest())) for _ in range(20)]
        await asyncio.sleep(0.01)
        assert life.barriers_asked == 1
        second = life.feed_store.version(2)
        life.barriers[-1].set_result(None)
        await first
        await asyncio.sleep(0.01)
        assert life.barriers_asked == 2
        assert not any(other.done() for other in others)
        life.barriers[-1].set_result(None)
        await asyncio.wait(others)
        assert {other.result().revision for other in others} == {second}
        life.end()


async def test_a_read_barrier_names_the_last_change_of_the_topology() -> None:
    async with asyncio.TaskGroup() as tasks:
        life = ControlLife(tasks, filled())
        last = life.feed_store.store.revision
        life.feed_store.commit(PutKey("user/a", b"1"))
        assert (await life.call(READ_BARRIER, ReadBarrierRequest())).revision == last
        life.end()


async def test_without_a_quorum_a_read_barrier_is_refused_in_time() -> None:
    async with asyncio.TaskGroup() as tasks:
        life = ControlLife(tasks, filled())
        await life.call(FEED, request(None))
        life.has_quorum = False
        for _ in range(2):
            with pytest.raises(Unavailable, match="read barrier"):
                await life.call(READ_BARRIER, ReadBarrierRequest(), 300)
        with pytest.raises(Unavailable):
            await life.call(NODE_BARRIER, NodeBarrierRequest(V(1)), 300)
        life.end()


async def test_a_node_barrier_waits_for_every_child_and_says_for_which() -> None:
    async with asyncio.TaskGroup() as tasks:
        life = ControlLife(tasks, filled(2), expected=("bulk", "shard-0"))
        busy = msgspec.structs.replace(REPORT, version=V(2))
        await life.call(CHILD_REPORT, busy)
        with pytest.raises(DeadlineExceeded, match=r"bulk has not reported.*shard-0 runs requests of version 1"):
            await life.call(NODE_BARRIER, NodeBarrierRequest(V(2)), 500)
        await life.call(CHILD_REPORT, msgspec.structs.replace(busy, name="bulk", version=V(5), serial=2))
        assert (await life.call(NODE_BARRIER, NodeBarrierRequest(V(2), drain=False))).version == 2
        asking = tasks.create_task(life.call(NODE_BARRIER, NodeBarrierRequest(V(2)), 60_000))
        await asyncio.sleep(1)
        drained = msgspec.structs.replace(busy, oldest_running=V(2))
        await life.call(CHILD_REPORT, msgspec.structs.replace(drained, serial=3))
        await asyncio.sleep(1)
        assert not asking.done()
        await life.call(CHILD_REPORT, msgspec.structs.replace(drained, name="bulk", serial=4))
        assert (await asking).version == 2
        life.end()


async def test_a_node_that_has_not_seen_the_version_does_not_answer_for_it() -> None:
    async with asyncio.TaskGroup() as tasks:
        life = ControlLife(tasks, filled(2))
        ready = msgspec.structs.replace(REPORT, version=V(9), oldest_running=V(9))
        await life.call(CHILD_REPORT, ready)
        with pytest.raises(DeadlineExceeded, match="this node knows version 2 of the topology, not 3"):
            await life.call(NODE_BARRIER, NodeBarrierRequest(V(3)), 500)
        asking = tasks.create_task(life.call(NODE_BARRIER, NodeBarrierRequest(V(3)), 60_000))
        await asyncio.sleep(1)
        life.feed_store.version(3)
        assert (await asking).version == 9
        life.end()


async def test_a_new_control_acknowledges_nothing_until_its_children_have_spoken() -> None:
    async with asyncio.TaskGroup() as tasks:
        life = ControlLife(tasks, filled())
        await life.call(CHILD_REPORT, REPORT)
        await life.call(NODE_BARRIER, NodeBarrierRequest(V(1)))
        life.end()
        life = ControlLife(tasks, life.feed_store)
        with pytest.raises(DeadlineExceeded, match="has not reported"):
            await life.call(NODE_BARRIER, NodeBarrierRequest(V(1)))
        life.end()
