"""The topology as this node's control knows it: one snapshot, kept up with the keys of group 0.

Each step of group 0 is a whole transaction, so each snapshot is a version that was committed. Where the store itself
was replaced (a Raft snapshot was installed, another history began) the snapshot is made anew from its content.
"""

import asyncio
from collections.abc import Callable

from ebla.aio.wakeup import Wakeup
from ebla.control.group0.state_machine import Group0StateMachine
from ebla.group0.change_feed import ChangeSet
from ebla.group0.store import Group0Store
from ebla.model.errors import EblaError
from ebla.model.identity import TopologyVersion
from ebla.model.transaction import Revision
from ebla.observe.event_reporter import EventReporter
from ebla.topology.keys import PREFIX
from ebla.topology.snapshot import Snapshot
from ebla.topology.snapshot_builder import FeedEntry, advance, from_group0


class CommittedTopology:
    """Empty until `attach`, and as long as group 0 holds no topology."""

    def __init__(self, report: EventReporter) -> None:
        self._report = report
        self._machine: Group0StateMachine | None = None
        self._store: Group0Store | None = None
        """The one that the snapshot was made from."""
        self._ticket = 0
        self._snapshot = Snapshot()
        self._revision: Revision | None = None
        self._trouble = ""
        self.changed = Wakeup()
        """Woken by whatever changes the revision."""

    def attach(self, machine: Group0StateMachine) -> None:
        assert self._machine is None, "a node has one group 0"
        self._machine = machine
        self._ticket = machine.watch(self._follow, PREFIX)
        self._refresh()

    def detach(self) -> None:
        if self._machine is not None:
            self._machine.unwatch(self._ticket)
            self._machine = None

    @property
    def store(self) -> Group0Store | None:
        """What group 0 holds; None while this node is in no cluster or waits for its first state."""
        self._refresh()
        return self._store

    @property
    def snapshot(self) -> Snapshot:
        self._refresh()
        return self._snapshot

    @property
    def revision(self) -> Revision | None:
        """No key of the topology has changed after this. None as long as there is no store."""
        self._refresh()
        return self._revision

    @property
    def trouble(self) -> str:
        """Why the snapshot is older than the revision, where its keys cannot be read."""
        return self._trouble

    async def wait_version(self, version: TopologyVersion, timeout_s: float) -> bool:
        """Whether the snapshot is of this version, or a later one, by then."""
        return await self._wait(lambda: self.snapshot.version >= version, timeout_s)

    async def wait_change(self, after: Revision | None, timeout_s: float) -> bool:
        """Whether the revision is another one by then."""
        return await self._wait(lambda: self.revision != after, timeout_s)

    async def _wait(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        loop = asyncio.get_running_loop()
        expires_at = loop.time() + timeout_s
        while not reached():
            if not await self.changed.wait(expires_at - loop.time()):
                return reached()
        return True

    def _follow(self, step: ChangeSet) -> None:
        machine = self._machine
        assert machine is not None
        if machine.store is not self._store:
            self._refresh()
            return
        changes = [change for change in step.changes if change.key.startswith(PREFIX)]
        if not changes:
            return
        revision = self._revision = self._store.revision
        assert revision.index == step.index, "a step is told as soon as it is applied"
        if self._trouble:
            self._start_over(self._store)
        else:
            entries = (FeedEntry(change.key, change.value, revision) for change in changes)
            self._take(lambda: advance(self._snapshot, entries))
        self.changed.wake()

    def _refresh(self) -> None:
        """A store that took the place of another may differ in keys that no step named."""
        if self._machine is None or self._machine.store is self._store or self._machine.store.index == 0:
            return
        self._store = self._machine.store
        self._revision = self._store.revision
        self._start_over(self._store)
        self.changed.wake()

    def _start_over(self, store: Group0Store) -> None:
        self._take(lambda: from_group0({key: _stored(store, key) for key in store.keys(PREFIX)}))

    def _take(self, make: Callable[[], Snapshot]) -> None:
        """Keys that cannot be read must not end the process: every node has them, and all would end at once, with
        nobody left to put them right. The snapshot stays as it was until they can be read again."""
        try:
            self._snapshot = make()
        except EblaError as error:
            if error.message != self._trouble:
                self._report("topology.unreadable", {"cause": str(error)})
            self._trouble = error.message
            return
        self._trouble = ""


def _stored(store: Group0Store, key: str) -> tuple[bytes, Revision]:
    entry = store.entries[key]
    return entry.value, entry.revision
