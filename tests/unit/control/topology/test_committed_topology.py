"""Control's own snapshot: each committed version, also across installed snapshots, histories and unreadable keys."""

import asyncio
import uuid
from collections.abc import Mapping

from tests.async_tests import runs_in
from tests.unit.control.feed_rig import FeedStore, V, in_virtual_time, state_put
from tests.unit.topology.world import cluster

from ebla.control.topology.committed_topology import CommittedTopology
from ebla.group0.store import Group0Store, HistoryStart
from ebla.model.identity import HistoryId
from ebla.model.transaction import DeleteKey, PutKey
from ebla.observe.event_reporter import discard_event
from ebla.topology import keys
from ebla.topology.snapshot import Keyspace, Replication, Snapshot
from ebla.topology.snapshot_builder import from_group0
from ebla.topology.states import Strategy


def keyspace_put(name: str) -> PutKey:
    row = Keyspace(name=name, replication=Replication(Strategy.SIMPLE, (("", 1),)), on_tablets=False)
    return PutKey(keys.keyspace_key(name), keys.encode(row))


def attached(feed_store: FeedStore) -> CommittedTopology:
    state = CommittedTopology(discard_event)
    state.attach(feed_store.machine)
    return state


def test_without_a_topology_it_is_empty() -> None:
    state = CommittedTopology(discard_event)
    assert state.snapshot == Snapshot()
    assert state.revision is None
    feed_store = FeedStore()
    state.attach(feed_store.machine)
    assert state.revision is None, "a node that waits for its first state knows nothing"
    feed_store.commit(PutKey("user/a", b"1"))
    assert state.snapshot == Snapshot()
    assert state.revision is not None


def test_each_step_is_a_version_and_other_keys_change_nothing() -> None:
    feed_store = FeedStore()
    feed_store.version(1)
    state = attached(feed_store)
    second = feed_store.commit(state_put(2), keyspace_put("ks"))
    assert state.snapshot.version == 2
    assert list(state.snapshot.keyspaces) == ["ks"]
    assert state.snapshot.revisions[keys.STATE] == second
    before = state.snapshot
    feed_store.commit(PutKey("user/a", b"1"))
    assert state.snapshot is before
    assert state.revision == second
    feed_store.commit(state_put(3), DeleteKey(keys.keyspace_key("ks")))
    assert not state.snapshot.keyspaces


def test_a_step_of_a_large_table_shares_the_rest() -> None:
    world, _ = cluster(3)
    world.create_table(1024, 3)
    feed_store = FeedStore()
    feed_store.commit(*(PutKey(key, value) for key, (value, _) in world.group0.values.items()))
    state = attached(feed_store)
    assert state.snapshot == world.snapshot
    table, before = next(iter(state.snapshot.tablets.items()))
    feed_store.commit(state_put(state.snapshot.version + 1))
    assert state.snapshot.tablets[table] is before


def test_an_installed_snapshot_is_read_as_a_whole_with_its_own_revisions() -> None:
    ahead = FeedStore()
    ahead.version(1)
    first = ahead.copy()
    state = attached(first)
    kept = ahead.commit(state_put(2), keyspace_put("ks"))
    ahead.commit(state_put(3), keyspace_put("gone"))
    ahead.commit(state_put(4), DeleteKey(keys.keyspace_key("gone")))
    first.machine.install(ahead.copy().store)
    assert state.snapshot.version == 4
    assert list(state.snapshot.keyspaces) == ["ks"]
    assert state.snapshot.revisions[keys.keyspace_key("ks")] == kept
    assert state.revision == ahead.store.revision
    values = {key: (entry.value, entry.revision) for key, entry in ahead.store.entries.items()}
    assert state.snapshot == from_group0(values)


def test_a_store_replaced_without_a_changed_key_is_noticed() -> None:
    feed_store = FeedStore()
    feed_store.version(1)
    state = attached(feed_store)
    other = Group0Store((HistoryStart(HistoryId(uuid.UUID(int=7)), 0), HistoryStart(HistoryId(uuid.UUID(int=8)), 1)))
    other.entries = dict(feed_store.store.entries)
    other.index = 2
    other.rebuild_indexes()
    feed_store.machine.install(other)
    assert state.revision == other.revision
    assert state.snapshot.version == 1


def test_keys_that_cannot_be_read_are_told_and_leave_what_was_there() -> None:
    events: list[str] = []

    def report(event: str, _details: Mapping[str, object]) -> None:
        events.append(event)

    feed_store = FeedStore()
    feed_store.version(1)
    state = CommittedTopology(report)
    state.attach(feed_store.machine)
    feed_store.commit(state_put(2), PutKey("topology/what/is-this", b"?"))
    feed_store.commit(PutKey("topology/what/is-this", b"!"))
    assert state.snapshot.version == 1
    assert state.revision == feed_store.store.revision
    assert state.trouble
    assert events == ["topology.unreadable"]
    feed_store.commit(DeleteKey("topology/what/is-this"))
    assert state.snapshot.version == 2, "what came meanwhile is not lost"
    assert not state.trouble


@runs_in(in_virtual_time)
async def test_waiting_for_a_version_and_for_a_change() -> None:
    feed_store = FeedStore()
    feed_store.version(1)
    state = attached(feed_store)
    assert await state.wait_version(V(1), 0.0)
    assert not await state.wait_version(V(2), 0.5)
    after = state.revision
    async with asyncio.TaskGroup() as tasks:
        third = tasks.create_task(state.wait_version(V(3), 60.0))
        change = tasks.create_task(state.wait_change(after, 60.0))
        await asyncio.sleep(0.1)
        feed_store.version(2)
        await asyncio.sleep(0.1)
        assert change.done()
        assert not third.done()
        feed_store.version(3)
    assert third.result()
    assert change.result()
    assert not await state.wait_change(state.revision, 0.5)
