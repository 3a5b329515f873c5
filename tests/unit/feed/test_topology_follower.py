"""A child of control: versions in order and whole, prepared before they are installed, reported when it matters."""

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from tests.async_tests import runs_in
from tests.unit.control.feed_rig import HOST, ControlLife, ControlSocket, FeedStore, V, in_virtual_time, state_put

from ebla.control.topology.feed_service import PAGE_BYTES_MAX
from ebla.feed.topology_follower import TopologyFollower, TopologyFollowerConfig
from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import DiskFull, Unavailable
from ebla.model.identity import HistoryId, HostId, SessionId
from ebla.model.transaction import DeleteKey, PutKey
from ebla.topology import keys
from ebla.topology.snapshot import Keyspace, Replication
from ebla.topology.states import Strategy
from ebla.wire.feed_messages import ChildReport, FeedRequest, NodeBarrierRequest, ReadBarrierRequest
from ebla.wire.verbs import NODE_BARRIER

pytestmark = runs_in(in_virtual_time)

SESSION = SessionId(uuid.UUID(int=5))


class LoopClock:
    def boot_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + 1_000

    def wall_us(self) -> int:
        raise AssertionError("not called here")


@dataclass(kw_only=True)
class Child:
    """What a shard does with versions, as far as the feed can tell."""

    view: TopologyView
    prepared: list[int] = field(default_factory=list)
    installed_versions: list[int] = field(default_factory=list)
    revisions: list[int] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    disk_is_full: bool = False
    closing: tuple[SessionId, ...] = ()
    events: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)

    async def prepare(self, view: View, before: View | None) -> None:
        assert before is None or before is self.view.current
        self.prepared.append(view.version)
        await self.gate.wait()
        if self.disk_is_full:
            raise DiskFull("no space left")

    def on_view_installed(self, view: View) -> None:
        assert self.view.current is view
        self.installed_versions.append(view.version)
        self.revisions.append(view.revision.index)

    def report_of(self, view: View) -> ChildReport:
        oldest = self.view.versions.oldest(view.version)
        return ChildReport(
            name="shard-0",
            pid=11,
            version=view.version,
            fence=view.fence,
            oldest_running=oldest,
            pending_replicas_open=True,
            closing_sessions=self.closing,
        )

    def report(self, event: str, details: Mapping[str, object]) -> None:
        self.events.append((event, details))


class Rig:
    """A child and its control, which can go and come back."""

    def __init__(self, tasks: asyncio.TaskGroup, feed_store: FeedStore) -> None:
        self.tasks = tasks
        self.socket = ControlSocket()
        self.view = TopologyView()
        self.child = Child(view=self.view)
        self.child.gate.set()
        setup = TopologyFollowerConfig(name="shard-0", pid=11, host=HOST, clock=LoopClock(), report=self.child.report)
        self.follower = TopologyFollower(self.socket, setup, self.view, self.child, self.child.report_of)
        self._running = tasks.create_task(self.follower.run())
        self.control(feed_store)

    def control(self, feed_store: FeedStore, page_bytes_max: int = PAGE_BYTES_MAX) -> ControlLife:
        self.feed_store = feed_store
        self.life = ControlLife(self.tasks, feed_store, page_bytes_max=page_bytes_max)
        self.socket.point_to(self.life)
        return self.life

    def control_dies(self) -> None:
        self.socket.point_to(None)
        self.life.end()

    def end(self) -> None:
        self._running.cancel()
        self.life.end()


def keyspace_put(name: str) -> PutKey:
    row = Keyspace(name=name, replication=Replication(Strategy.SIMPLE, (("", 1),)), on_tablets=False)
    return PutKey(keys.keyspace_key(name), keys.encode(row))


def filled(versions: int = 1) -> FeedStore:
    feed_store = FeedStore()
    for version in range(1, versions + 1):
        feed_store.version(version)
    return feed_store


async def test_each_version_is_prepared_installed_and_reported() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, filled())
        with pytest.raises(Unavailable):
            _ = rig.view.current
        assert await rig.view.wait_version(V(1), 1.0)
        for version in (2, 3):
            rig.feed_store.version(version, fence=version - 1)
            assert await rig.view.wait_version(V(version), 0.1)
        await asyncio.sleep(0.1)
        assert rig.child.prepared == rig.child.installed_versions == [1, 2, 3]
        assert [(report.version, report.fence) for report in rig.socket.reports()] == [(1, 1), (2, 1), (3, 2)]
        assert rig.view.current.fence == 2
        assert (await rig.life.call(NODE_BARRIER, NodeBarrierRequest(V(3)))).version == 3
        rig.end()


async def test_versions_that_come_while_one_is_prepared_are_taken_together() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, filled())
        await rig.view.wait_version(V(1), 1.0)
        rig.child.gate.clear()
        rig.feed_store.version(2)
        await asyncio.sleep(3)
        rig.feed_store.version(3)
        rig.feed_store.commit(state_put(4), keyspace_put("ks"))
        await asyncio.sleep(3)
        assert rig.view.current.version == 1
        assert rig.follower.silent_ms(LoopClock().boot_ms()) in range(1_100), "the poll goes on meanwhile"
        rig.child.gate.set()
        assert await rig.view.wait_version(V(4), 0.1)
        assert rig.child.installed_versions == [1, 2, 4]
        assert list(rig.view.current.snapshot.keyspaces) == ["ks"]
        rig.end()


async def test_what_cannot_be_prepared_is_told_and_tried_again() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, filled())
        await rig.view.wait_version(V(1), 1.0)
        rig.child.disk_is_full = True
        rig.feed_store.version(2)
        await asyncio.sleep(3.5)
        assert rig.child.prepared.count(2) == 4
        assert [name for name, _ in rig.child.events] == ["topology.not_prepared"]
        assert rig.life.feed.waits_for(V(2))[0] == "shard-0 has version 1, not 2: no space left"
        rig.feed_store.version(3)
        await asyncio.sleep(0.1)
        assert rig.child.prepared[-1] == 3, "a later version is tried at once"
        rig.child.disk_is_full = False
        assert await rig.view.wait_version(V(3), 2.0)
        await asyncio.sleep(0.1)
        assert rig.life.feed.waits_for(V(3)) == ()
        assert rig.socket.reports()[-1].trouble == ""
        rig.end()


async def test_only_what_a_barrier_may_wait_for_is_reported() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, filled())
        await rig.view.wait_version(V(1), 1.0)
        await asyncio.sleep(0.1)
        for _ in range(100):
            rig.view.hold(V(1))
            await asyncio.sleep(0.01)
            rig.view.release(V(1))
            rig.follower.changed()
            rig.feed_store.commit(PutKey("user/a", b"1"))
        assert len(rig.socket.reports()) == 1
        rig.view.hold(V(1))
        rig.view.hold(V(1))
        rig.feed_store.version(2)
        await rig.view.wait_version(V(2), 1.0)
        rig.view.hold(V(2))
        await asyncio.sleep(0.1)
        rig.view.release(V(1))
        await asyncio.sleep(0.1)
        assert [report.oldest_running for report in rig.socket.reports()] == [1, 1]
        barrier = tasks.create_task(rig.life.call(NODE_BARRIER, NodeBarrierRequest(V(2)), 60_000))
        await asyncio.sleep(1)
        assert not barrier.done()
        rig.view.release(V(1))
        assert (await barrier).version == 2
        assert [report.oldest_running for report in rig.socket.reports()] == [1, 1, 2]
        rig.view.release(V(2))
        await asyncio.sleep(2)
        assert len(rig.socket.reports()) == 3
        rig.end()


async def test_a_guard_that_is_released_is_reported() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, filled())
        rig.child.closing = (SESSION,)
        await rig.view.wait_version(V(1), 1.0)
        await asyncio.sleep(0.1)
        assert "guards" in rig.life.feed.waits_for(V(1))[0]
        rig.child.closing = ()
        rig.follower.changed()
        await asyncio.sleep(0.1)
        assert rig.life.feed.waits_for(V(1)) == ()
        rig.end()


async def test_a_new_control_is_told_again_and_its_lag_is_waited_for() -> None:
    async with asyncio.TaskGroup() as tasks:
        feed_store = filled(2)
        behind = feed_store.copy()
        rig = Rig(tasks, feed_store)
        feed_store.version(3)
        assert await rig.view.wait_version(V(3), 1.0)
        await asyncio.sleep(0.1)
        assert len(rig.socket.reports()) == 1
        rig.control_dies()
        await asyncio.sleep(2)
        assert rig.follower.silent_ms(LoopClock().boot_ms()) in range(2_000, 3_100)
        rig.control(behind)
        await asyncio.sleep(1)
        assert rig.follower.silent_ms(LoopClock().boot_ms()) in range(1_100)
        assert rig.view.current.version == 3
        assert rig.life.feed.waits_for(V(3)) == (), "its version was reported without a change"
        behind.version(3)
        await asyncio.sleep(2)
        assert rig.child.prepared[-1] == 3
        behind.version(4)
        assert await rig.view.wait_version(V(4), 1.0)
        versions = rig.child.installed_versions
        assert versions == sorted(versions)
        assert [report.version for report in rig.socket.reports()] == [3, 3, 4]
        rig.end()


async def test_a_lost_answer_to_a_report_is_no_loss() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, filled())
        await rig.view.wait_version(V(1), 1.0)
        rig.socket.point_to(None)
        rig.child.closing = (SESSION,)
        rig.follower.changed()
        await asyncio.sleep(1)
        rig.socket.point_to(rig.life)
        await asyncio.sleep(1)
        assert "guards" in rig.life.feed.waits_for(V(1))[0]
        rig.end()


async def test_pages_make_one_state_even_where_control_starts_over() -> None:
    async with asyncio.TaskGroup() as tasks:
        feed_store = filled(3)
        for number in range(20):
            feed_store.commit(keyspace_put(f"ks{number:02}"))
        rig = Rig(tasks, FeedStore())
        rig.control_dies()
        rig.control(feed_store, page_bytes_max=400)
        await rig.socket.paged.wait()
        rig.control_dies()
        feed_store.commit(DeleteKey(keys.keyspace_key("ks00")))
        rig.control(feed_store, page_bytes_max=400)
        assert await rig.view.wait_version(V(3), 5.0)
        assert list(rig.view.current.snapshot.keyspaces) == [f"ks{number:02}" for number in range(1, 20)]
        rig.end()


async def test_another_history_takes_over_with_a_lower_version() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, filled(3))
        assert await rig.view.wait_version(V(3), 1.0)
        rig.control_dies()
        other = FeedStore(HistoryId(uuid.UUID(int=8)))
        other.version(2)
        rig.control(other)
        await asyncio.sleep(1)
        assert rig.view.current.version == 2
        assert rig.view.current.revision == other.store.revision
        assert rig.life.feed.waits_for(V(2)) == ()
        rig.end()


async def test_a_row_that_cannot_be_read_is_told_and_outlived() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, filled())
        await rig.view.wait_version(V(1), 1.0)
        rig.feed_store.commit(state_put(2), PutKey("topology/what/is-this", b"?"))
        await asyncio.sleep(5)
        assert rig.view.current.version == 1
        assert [name for name, _ in rig.child.events] == ["topology.unreadable"]
        polls = sum(isinstance(call, FeedRequest) for call in rig.socket.calls)
        assert polls < 15, "a state that cannot be read is not asked for in a loop"
        rig.feed_store.commit(DeleteKey("topology/what/is-this"))
        assert await rig.view.wait_version(V(2), 2.0)
        rig.end()


async def test_read_barriers_are_shared_and_the_feed_gets_there() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, filled())
        await rig.view.wait_version(V(1), 1.0)
        rig.feed_store.version(2)
        rig.feed_store.commit(PutKey("user/a", b"1"))
        barriers = [tasks.create_task(rig.follower.read_barrier(1_000)) for _ in range(50)]
        revision = (await barriers[0]).index
        assert await rig.view.wait_revision(barriers[0].result(), 0.05)
        assert rig.view.current.version == 2
        await asyncio.wait(barriers)
        assert {one.result().index for one in barriers} == {revision}
        assert sum(isinstance(call, ReadBarrierRequest) for call in rig.socket.calls) == 1
        rig.life.has_quorum = False
        with pytest.raises(Unavailable):
            await rig.follower.read_barrier(500)
        rig.control_dies()
        with pytest.raises(Unavailable, match="no read barrier"):
            await rig.follower.read_barrier(500)
        rig.end()


async def test_after_a_restart_of_control_its_revision_is_reached_though_nothing_changed() -> None:
    async with asyncio.TaskGroup() as tasks:
        feed_store = filled()
        rig = Rig(tasks, feed_store)
        await rig.view.wait_version(V(1), 1.0)
        rig.control_dies()
        for _ in range(5):
            feed_store.commit(PutKey("user/a", b"1"))
        rig.control(feed_store.copy())
        await asyncio.sleep(0.5)
        revision = await rig.follower.read_barrier(1_000)
        assert revision == feed_store.store.revision
        assert await rig.view.wait_revision(revision, 0.05)
        assert rig.child.prepared == [1], "nothing to prepare for"
        assert rig.child.revisions == [1, 6]
        rig.end()


async def test_who_is_down_is_known() -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = Rig(tasks, filled())
        await rig.view.wait_version(V(1), 1.0)
        down = (HostId(uuid.UUID(int=3)), HostId(uuid.UUID(int=2)))
        rig.life.down = tuple(sorted(down))
        rig.life.feed.down_hosts_changed()
        await asyncio.sleep(0.1)
        assert rig.view.down == frozenset(down)
        polls = len(rig.socket.calls)
        await asyncio.sleep(3)
        assert len(rig.socket.calls) - polls <= 7
        rig.end()
