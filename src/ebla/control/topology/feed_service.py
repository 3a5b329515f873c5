"""The topology feed, server side: sends the topology to the node's other processes, collects their reports, and answers
other nodes whether a barrier holds here.

Nothing is fed before this control process has done one read barrier. After a restart its store is what its disk knew to
be committed, which may be older than a version whose barrier it acknowledged before. A process fed with that would
route by it, and the replica on its own node, just as outdated, would accept, fence and all. So a node that starts
without a quorum of group 0 serves no rows; one that loses the quorum while it runs goes on.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ebla.aio.wakeup import Wakeup
from ebla.control.topology.committed_topology import CommittedTopology
from ebla.control.topology.node_barrier import barrier_waits_for
from ebla.feed.shared_barrier import SharedReadBarrier
from ebla.group0.change_feed import ChangeSet
from ebla.group0.store import Group0Store, KeyEntry
from ebla.model.errors import DeadlineExceeded, Unavailable
from ebla.model.identity import HostId, TopologyVersion
from ebla.model.transaction import Revision
from ebla.topology.keys import PREFIX
from ebla.wire.feed_messages import (
    ChildReport,
    FeedAnswer,
    FeedChange,
    FeedRequest,
    NodeBarrierAnswer,
    NodeBarrierRequest,
    ReadBarrierAnswer,
    ReadBarrierRequest,
)
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import CHILD_REPORT, FEED, NODE_BARRIER, READ_BARRIER, EmptyAnswer

PAGE_BYTES_MAX = 4 * 1024 * 1024
CATCH_UP_MS = 5_000
CATCH_UP_AGAIN_MS = 100
CHILDREN_MAX = 1024
DEPARTED_S = 5.0
"""The longest pause between two looks at who has left; a change of the topology ends it."""
FEED_SNAPSHOTS_MAX = 16
"""Feed snapshots being sent to children in several pages. With one more, the oldest starts over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedConfig:
    read_barrier: Callable[[int], Awaitable[Revision]]
    """Of group 0; takes a deadline in milliseconds."""
    down: Callable[[], tuple[HostId, ...]]
    """The nodes that this one considers down, sorted."""
    expected: Callable[[], tuple[str, ...]]
    """The children that a barrier waits for."""
    serving: Callable[[], bool]
    """False: the node is stopping."""
    page_bytes_max: int = PAGE_BYTES_MAX


class TopologyFeedService:
    def __init__(self, state: CommittedTopology, config: FeedConfig) -> None:
        self._state = state
        self._config = config
        self._reports: dict[str, ChildReport] = {}
        self._reported = Wakeup()
        self._snapshots: dict[str, FeedSnapshot] = {}
        self._read_barriers = SharedReadBarrier(self._one_read_barrier)
        self._caught_up = False
        self._for_peers: list[Server] = []
        """They refuse the connections of hosts that have left."""
        self._loop = asyncio.get_running_loop()

    def serve_children(self, server: Server) -> None:
        server.serve(FEED, self._feed)
        server.serve(CHILD_REPORT, self._child_report)
        server.serve(READ_BARRIER, self._read_barrier)

    def serve_peers(self, server: Server) -> None:
        server.serve(NODE_BARRIER, self._node_barrier)
        self._for_peers.append(server)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read_barriers.run())
            tasks.create_task(self._catch_up())
            tasks.create_task(self._refuse_departed())

    async def _refuse_departed(self) -> None:
        while True:
            for server in self._for_peers:
                server.exclude(frozenset(), frozenset(self._state.snapshot.departed_hosts))
            await self._state.changed.wait(DEPARTED_S)

    def down_hosts_changed(self) -> None:
        """The set of down hosts may have changed."""
        self._state.changed.wake()

    async def read_barrier(self, deadline_ms: int) -> Revision:
        """A revision that includes every change of the topology that was answered before this call. Raises
        `Unavailable` without a quorum."""
        return await self._read_barriers.wait(deadline_ms)

    async def node_barrier(self, version: TopologyVersion, deadline_ms: int, *, drain: bool = True) -> TopologyVersion:
        """Waits until the barrier of `version` holds on this node (with `drain` off: until every process has installed
        the version). Returns the version that all processes have. Raises `Unavailable` without a quorum, or
        `DeadlineExceeded` with what it waits for."""
        expires_at = self._loop.time() + deadline_ms / 1000
        # A node that lags must not confirm a version it has not seen.
        await self.read_barrier(deadline_ms)
        if not await self._state.wait_version(version, expires_at - self._loop.time()):
            trouble = f": {self._state.trouble}" if self._state.trouble else ""
            raise DeadlineExceeded(
                f"this node knows version {self._state.snapshot.version} of the topology, not {version}{trouble}"
            )
        while waits := self.waits_for(version, drain=drain):
            if not await self._reported.wait(expires_at - self._loop.time()):
                raise DeadlineExceeded("; ".join(waits))
        reports = self.reports()
        versions = [reports[name].version for name in self._config.expected()]
        return min(versions, default=self._state.snapshot.version)

    def waits_for(self, version: TopologyVersion, *, drain: bool = True) -> tuple[str, ...]:
        """What the barrier of this version waits for on this node, for people."""
        return barrier_waits_for(version, self._config.expected(), self.reports(), drain=drain)

    # ---- the feed

    async def _feed(self, request: FeedRequest, call: IncomingCall) -> FeedAnswer:
        expires_at = self._loop.time() + min(request.wait_ms, call.work_ms()) / 1000
        while (answer := self._update_for(request)) is None:
            if not await self._state.changed.wait(expires_at - self._loop.time()):
                return self._update_for(request) or self._empty_update_for(request)
        return answer

    def _update_for(self, request: FeedRequest) -> FeedAnswer | None:
        """None: the child knows everything."""
        store, revision, after = self._state.store, self._state.revision, request.after
        if store is None or revision is None or not self._caught_up:
            return None
        if after is None or request.after_key or after.history != revision.history:
            return self._page_for(request, store)
        if after.index < revision.index:
            found = changes_after(store, after, self._config.page_bytes_max)
            if found is None:
                return self._page_for(request, store)
            return self._answer(request, found.revision, found.changes)
        if self._config.down() != request.down_seen or self._lacks_report(request):
            return self._empty_update_for(request)
        return None

    def _empty_update_for(self, request: FeedRequest) -> FeedAnswer:
        """The revision advances with the store, so that the child stays within the changes that the store still has. A
        store behind the child (control has just started) does not move it back."""
        store, after = self._state.store, request.after
        if store is None or after is None or not self._caught_up:
            raise Unavailable("this node has not caught up with group 0 since it started", advice="try again")
        here = store.revision
        return self._answer(request, here if here.index > after.index else after)

    def _page_for(self, request: FeedRequest, store: Group0Store) -> FeedAnswer:
        held, after_key = self._snapshots.pop(request.name, None), request.after_key
        if held is None or not after_key or held.revision != request.after:
            held, after_key = take_feed_snapshot(store), ""
        changes, more = held.page(after_key, self._config.page_bytes_max)
        if more:
            self._snapshots[request.name] = held
            if len(self._snapshots) > FEED_SNAPSHOTS_MAX:
                del self._snapshots[next(iter(self._snapshots))]
        return self._answer(request, held.revision, changes, more=more, reset=True)

    def _answer(
        self,
        request: FeedRequest,
        revision: Revision,
        changes: tuple[FeedChange, ...] = (),
        *,
        more: bool = False,
        reset: bool = False,
    ) -> FeedAnswer:
        return FeedAnswer(
            revision=revision,
            reset=reset,
            changes=changes,
            more=more,
            down=self._config.down(),
            serving=self._config.serving(),
            report_missing=self._lacks_report(request),
        )

    # ---- reports

    def _child_report(self, report: ChildReport, _call: IncomingCall) -> EmptyAnswer:
        last = self._reports.get(report.name)
        if last is None or report.serial > last.serial:
            self._reports[report.name] = report
            if len(self._reports) > CHILDREN_MAX:
                del self._reports[next(iter(self._reports))]
            self._reported.wake()
        return EmptyAnswer()

    def _lacks_report(self, request: FeedRequest) -> bool:
        last = self._reports.get(request.name)
        return request.reported > (0 if last is None else last.serial)

    def reports(self) -> dict[str, ChildReport]:
        """The latest of each child. A child that has not switched to the current history has not reported."""
        revision = self._state.revision
        if revision is None:
            return {}
        return {name: report for name, report in self._reports.items() if report.history == revision.history}

    # ---- barriers

    async def _read_barrier(self, _request: ReadBarrierRequest, call: IncomingCall) -> ReadBarrierAnswer:
        return ReadBarrierAnswer(await self.read_barrier(call.work_ms()))

    async def _node_barrier(self, request: NodeBarrierRequest, call: IncomingCall) -> NodeBarrierAnswer:
        return NodeBarrierAnswer(await self.node_barrier(request.version, call.work_ms(), drain=request.drain))

    async def _one_read_barrier(self, deadline_ms: int) -> Revision:
        """The revision of the topology, not of the store. The store may be ahead by other keys, which the feed never
        sends: children would wait for a revision that does not come."""
        await self._config.read_barrier(deadline_ms)
        revision = self._state.revision
        if revision is None:
            raise Unavailable("this node waits for its first state of group 0")
        if not self._caught_up:
            self._caught_up = True
            self._state.changed.wake()
        return revision

    async def _catch_up(self) -> None:
        while not self._caught_up:
            try:
                await self.read_barrier(CATCH_UP_MS)
            except Unavailable:
                await asyncio.sleep(CATCH_UP_AGAIN_MS / 1000)


CHANGE_BYTES = 64
"""The size of a change in a frame besides its key and value."""


@dataclass(frozen=True, slots=True)
class FeedChanges:
    """All changes up to the revision, in whole transactions."""

    revision: Revision
    changes: tuple[FeedChange, ...]


def changes_after(store: Group0Store, after: Revision, bytes_max: int) -> FeedChanges | None:
    """As many transactions as fit. None: the store no longer has them all, or the first alone is too large (a Raft
    snapshot is one change set), so the whole state must be sent."""
    assert after.history == store.revision.history, "revisions of two histories are not comparable"
    steps = store.recent.after(after.index, PREFIX)
    if steps is None:
        return None
    changes: list[FeedChange] = []
    size, reached = 0, after.index
    for step in steps:
        size += step.size_bytes + CHANGE_BYTES * len(step.changes)
        if size > bytes_max:
            return FeedChanges(Revision(after.history, reached), tuple(changes)) if changes else None
        changes.extend(_changes_of(store, step))
        reached = step.index
    return FeedChanges(store.revision, tuple(changes))


def _changes_of(store: Group0Store, step: ChangeSet) -> list[FeedChange]:
    """A change set of a Raft snapshot names keys that changed at earlier indexes."""
    history = store.revision.history
    found = []
    for change in step.changes:
        entry = store.get(change.key)
        exact = entry is not None and change.value is not None and entry.revision.index <= step.index
        revision = entry.revision if entry is not None and exact else Revision(history, step.index)
        found.append(FeedChange(change.key, change.value, revision))
    return found


@dataclass(frozen=True, slots=True)
class FeedSnapshot:
    """Every key at one revision. The store changes meanwhile, so the immutable entries are kept here."""

    revision: Revision
    keys: tuple[str, ...]
    entries: tuple[KeyEntry, ...]

    def page(self, after_key: str, bytes_max: int) -> tuple[tuple[FeedChange, ...], bool]:
        """The keys after this one, at least one if there are any, and whether more follow."""
        start = bisect_right(self.keys, after_key) if after_key else 0
        page: list[FeedChange] = []
        size = 0
        for key, entry in zip(self.keys[start:], self.entries[start:], strict=True):
            size += len(key) + len(entry.value) + CHANGE_BYTES
            if page and size > bytes_max:
                return tuple(page), True
            page.append(FeedChange(key, entry.value, entry.revision))
        return tuple(page), False


def take_feed_snapshot(store: Group0Store) -> FeedSnapshot:
    keys = tuple(store.keys(PREFIX))
    return FeedSnapshot(store.revision, keys, tuple(store.entries[key] for key in keys))
