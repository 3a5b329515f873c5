"""The topology as this node's control process knows it: one snapshot, kept up to date with the keys of group 0.

Each change set of group 0 is a whole transaction, so each snapshot is a committed version. If the store itself is
replaced (a Raft snapshot was installed, or another history began), the snapshot is rebuilt from its content.
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
        """The one the snapshot was built from."""
        self._snapshot = Snapshot()
        self._revision: Revision | None = None
        self._trouble = ""
        self.changed = Wakeup()
        """Woken when the revision changes."""

    def attach(self, machine: Group0StateMachine) -> None:
        assert self._machine is None, "a node has one group 0"
        self._machine = machine
        machine.watch(self._follow, PREFIX)
        self._refresh()

    @property
    def store(self) -> Group0Store | None:
        """The content of group 0; None while this node is in no cluster or waits for its first state."""
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
        """Why the snapshot is older than the revision, if its keys cannot be read."""
        return self._trouble

    async def wait_version(self, version: TopologyVersion, timeout_s: float) -> bool:
        """Whether the snapshot has this version or a later one by then."""
        return await self._wait(lambda: self.snapshot.version >= version, timeout_s)

    async def wait_change(self, after: Revision | None, timeout_s: float) -> bool:
        """Whether the revision has changed by then."""
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
        assert revision.index == step.index, "change sets are published as soon as they are applied"
        if self._trouble:
            self._start_over(self._store)
        else:
            entries = (FeedEntry(change.key, change.value, revision) for change in changes)
            self._rebuild(lambda: advance(self._snapshot, entries))
        self.changed.wake()

    def _refresh(self) -> None:
        """A store that replaced another may differ in keys that no change set named."""
        if self._machine is None or self._machine.store is self._store or self._machine.store.index == 0:
            return
        self._store = self._machine.store
        self._revision = self._store.revision
        self._start_over(self._store)
        self.changed.wake()

    def _start_over(self, store: Group0Store) -> None:
        self._rebuild(lambda: topology_of(store))

    def _rebuild(self, make: Callable[[], Snapshot]) -> None:
        """Keys that cannot be read must not end the process: every node has them, so all would end at once, with none
        left to repair them. The snapshot stays as it is until they can be read again."""
        try:
            self._snapshot = make()
        except EblaError as error:
            if error.message != self._trouble:
                self._report("topology.unreadable", {"cause": str(error)})
            self._trouble = error.message
            return
        self._trouble = ""


def topology_of(store: Group0Store) -> Snapshot:
    """Raises `Corruption` if its keys cannot be read."""
    return from_group0({key: _stored(store, key) for key in store.keys(PREFIX)})


def _stored(store: Group0Store, key: str) -> tuple[bytes, Revision]:
    entry = store.entries[key]
    return entry.value, entry.revision
