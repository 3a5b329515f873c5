"""Follows the topology in a process of a node: polls control, prepares for each version, installs it, reports.

Four tasks run at once, so that none delays another: the poll, which also measures control's silence; the preparation of
the newest version, which may take long or fail; the reports, which a barrier may wait for; and read barriers. Versions
that arrive during a preparation are skipped in favour of the newest.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from ebla.feed.shared_barrier import SharedReadBarrier
from ebla.feed.topology_view import TopologyView, View, view_of
from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.model.transaction import Revision
from ebla.observe.event_reporter import EventReporter
from ebla.ports.clock import Clock
from ebla.topology.snapshot import Snapshot
from ebla.topology.snapshot_builder import FeedEntry, advance
from ebla.wire.feed_messages import ChildReport, FeedAnswer, FeedChange, FeedRequest, ReadBarrierRequest
from ebla.wire.verbs import CHILD_REPORT, FEED, READ_BARRIER, A, Q, Verb

SERIALS_PER_MS = 1 << 20
"""Far more reports than a process can send, so that its successor on the same machine starts above them all."""


class TopologySubscriber(Protocol):
    """What a process does with new versions."""

    async def prepare(self, view: View, before: View | None) -> None:
        """Prepares for a version that is about to be installed. It may fail and be called again, with the same version
        or a later one, so it must cope with work that is half done."""
        ...

    def on_view_installed(self, view: View) -> None:
        """Called right after each install, in the same step. Also if only the revision has moved."""
        ...


class FeedControlClient(Protocol):
    """`Peers` is one."""

    async def call(self, host: HostId, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyFollowerConfig:
    name: str
    """The process name that control knows: `shard-0`, `bulk`."""
    pid: int
    host: HostId
    """Of this node: control is called by it."""
    clock: Clock
    report: EventReporter
    poll_ms: int = 500
    """How long control may hold a poll without news. An answer proves that control was alive when the request was sent,
    so even a healthy control seems silent for up to twice this."""
    answer_ms: int = 1_000
    """How long an answer may take beyond that."""
    again_ms: int = 100
    """The pause after a call that failed."""
    prepare_again_ms: int = 1_000
    """The pause after a failed preparation."""


class TopologyFollower:
    """`report_of` returns the progress of the process with an installed view; serial, history and trouble are filled in
    here. It sets `view.on_release`."""

    def __init__(
        self,
        control: FeedControlClient,
        setup: TopologyFollowerConfig,
        view: TopologyView,
        follower: TopologySubscriber,
        report_of: Callable[[View], ChildReport],
    ) -> None:
        self._control = control
        self._setup = setup
        self._view = view
        self._follower = follower
        self._report_of = report_of
        self._mirror = TopologyMirror()
        self._moved = asyncio.Event()
        self._to_report = asyncio.Event()
        self._read_barriers = SharedReadBarrier(self._ask_read_barrier)
        self._serial = setup.clock.boot_ms() * SERIALS_PER_MS
        self._reported: ChildReport | None = None
        """The last report that control accepted, without its serial."""
        self._reported_serial = 0
        self._draining = False
        self._trouble = ""
        self.last_heard_ms: int | None = None
        """When the last request was sent that control answered, by the boot clock. None: never."""
        self.is_node_serving = False
        """False: control has not answered yet, or the node is stopping."""
        view.on_release = self._released

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._poll())
            tasks.create_task(self._install_versions())
            tasks.create_task(self._send_reports())
            tasks.create_task(self._read_barriers.run())

    def changed(self) -> None:
        """The result of `report_of` may have changed: a guard was released, a replica opened."""
        self._to_report.set()

    def silent_ms(self, now_ms: int) -> int | None:
        """How long control has been silent; None: it never answered."""
        return None if self.last_heard_ms is None else now_ms - self.last_heard_ms

    async def read_barrier(self, deadline_ms: int) -> Revision:
        """Once `view.wait_revision` has reached the returned revision, the process knows every topology change that was
        answered anywhere before the call. Raises `Unavailable` without a quorum."""
        return await self._read_barriers.wait(deadline_ms)

    # ---- the poll

    async def _poll(self) -> None:
        setup = self._setup
        while True:
            asked_ms = setup.clock.boot_ms()
            after, after_key = self._mirror.position()
            down = tuple(sorted(self._view.down))
            request = FeedRequest(
                name=setup.name,
                pid=setup.pid,
                after=after,
                down_seen=down,
                wait_ms=setup.poll_ms,
                after_key=after_key,
                reported=self._reported_serial,
            )
            try:
                answer = await self._control.call(setup.host, FEED, request, setup.poll_ms + setup.answer_ms)
            except EblaError:
                # The length of the silence counts, not its cause.
                await asyncio.sleep(setup.again_ms / 1000)
                continue
            self._note_answer(answer, asked_ms)
            if not self._take(answer):
                await asyncio.sleep(setup.prepare_again_ms / 1000)

    def _note_answer(self, answer: FeedAnswer, asked_ms: int) -> None:
        self.last_heard_ms = asked_ms
        self.is_node_serving = answer.serving
        self._view.down = frozenset(answer.down)
        if answer.report_missing:
            self._reported = None
            self._reported_serial = 0
            self._to_report.set()

    def _take(self, answer: FeedAnswer) -> bool:
        """False: the answer cannot be read, and polling again at once would not help."""
        try:
            if self._mirror.take(answer):
                self._moved.set()
        except EblaError as error:
            self._mirror.start_over()
            self._note_trouble("topology.unreadable", error)
            return False
        return True

    # ---- versions

    async def _install_versions(self) -> None:
        while True:
            await self._moved.wait()
            self._moved.clear()
            while not await self._install_newest():
                await self._pause_or_newer()

    async def _install_newest(self) -> bool:
        """False: the preparation failed."""
        snapshot, revision = self._mirror.snapshot, self._mirror.revision
        assert snapshot is not None, "the mirror has a snapshot before it is installed"
        assert revision is not None, "the mirror has a snapshot before it is installed"
        before = self._view.current if self._view.is_known else None
        if before is not None and before.snapshot is snapshot:
            self._install(replace(before, revision=revision))
            return True
        try:
            view = view_of(snapshot, revision, before)
            await self._follower.prepare(view, before)
        except EblaError as error:
            self._note_trouble("topology.not_prepared", error)
            return False
        self._install(view)
        return True

    def _install(self, view: View) -> None:
        self._trouble = ""
        self._view.install(view)
        self._follower.on_view_installed(view)
        self._to_report.set()

    async def _pause_or_newer(self) -> None:
        try:
            async with asyncio.timeout(self._setup.prepare_again_ms / 1000):
                await self._moved.wait()
        except TimeoutError:
            return
        self._moved.clear()

    def _note_trouble(self, event: str, error: EblaError) -> None:
        if self._trouble != error.message:
            self._trouble = error.message
            self._setup.report(event, {"cause": str(error)})
            self._to_report.set()

    # ---- reports

    def _released(self) -> None:
        """The last request of some version has ended. Under load that happens with every other request. It matters only
        if the last report said that an older version is in use: only then can a barrier wait for it."""
        if self._draining:
            self._to_report.set()

    async def _send_reports(self) -> None:
        setup = self._setup
        while True:
            await self._to_report.wait()
            self._to_report.clear()
            report = self._current_report()
            if report is None or report == self._reported:
                continue
            self._serial += 1
            numbered = msgspec.structs.replace(report, serial=self._serial)
            try:
                await self._control.call(setup.host, CHILD_REPORT, numbered, setup.answer_ms)
            except EblaError:
                await asyncio.sleep(setup.again_ms / 1000)
                self._to_report.set()
                continue
            self._reported, self._reported_serial = report, numbered.serial

    def _current_report(self) -> ChildReport | None:
        if not self._view.is_known:
            return None
        view = self._view.current
        report = self._report_of(view)
        # In the same step as the report: every later release sets the event again.
        self._draining = report.oldest_running < report.version
        return msgspec.structs.replace(report, serial=0, history=view.revision.history, trouble=self._trouble)

    async def _ask_read_barrier(self, deadline_ms: int) -> Revision:
        answer = await self._control.call(self._setup.host, READ_BARRIER, ReadBarrierRequest(), deadline_ms)
        return answer.revision


class TopologyMirror:
    """The topology as control has sent it: answers of the feed in, snapshots out. Never waits.

    Each snapshot is a committed version: an answer holds whole transactions, and the pages of a whole state take
    effect with the last one.
    """

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.revision: Revision | None = None
        self._pages: dict[str, FeedChange] = {}
        self._pages_of: Revision | None = None
        self._last_key = ""
        self._starts_over = False

    def position(self) -> tuple[Revision | None, str]:
        """What to request next: `after` and `after_key`."""
        if self._pages_of is not None:
            return self._pages_of, self._last_key
        return (None if self._starts_over else self.revision), ""

    def start_over(self) -> None:
        """Requests the whole state next. The current snapshot stays until it has arrived."""
        self._drop_pages()
        self._starts_over = True

    def take(self, answer: FeedAnswer) -> bool:
        """Whether snapshot or revision are new. Raises `Corruption` if a row cannot be read."""
        if answer.reset:
            return self._take_page(answer)
        self._drop_pages()
        if self.snapshot is None or self._starts_over or not self._is_ahead(answer.revision):
            return False
        if answer.changes:
            self.snapshot = advance(self.snapshot, map(_entry, answer.changes))
        self.revision = answer.revision
        return True

    def _take_page(self, answer: FeedAnswer) -> bool:
        if answer.revision != self._pages_of:  # the first page, or control started over
            self._drop_pages()
            self._pages_of = answer.revision
        for change in answer.changes:
            self._pages[change.key] = change
            self._last_key = change.key
        if answer.more:
            return False
        pages = self._pages
        self._drop_pages()
        self._starts_over = False
        if not self._is_ahead(answer.revision):
            return False
        whole = advance(Snapshot(), map(_entry, pages.values()))
        # The same state again, from a restarted control: what was computed for the old object is still valid.
        self.snapshot = self.snapshot if self.snapshot == whole else whole
        self.revision = answer.revision
        return True

    def _is_ahead(self, revision: Revision) -> bool:
        """A control process that just started may lag behind its predecessor. A child never goes back: it keeps its
        state until control has caught up. Revisions of another history are not comparable."""
        known = self.revision
        return known is None or known.history != revision.history or revision.index > known.index

    def _drop_pages(self) -> None:
        self._pages = {}
        self._pages_of = None
        self._last_key = ""


def _entry(change: FeedChange) -> FeedEntry:
    return FeedEntry(change.key, change.value, change.revision)
