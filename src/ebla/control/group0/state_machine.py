"""Group 0's store as the state machine of a Raft group: applies entries, answers calls, and publishes change sets.

Every node applies every entry, so the node that made a call finds the answer in its own log: nothing has to travel
back, and the change is visible to it when the answer comes (read your writes).
"""

import asyncio
import heapq
import itertools
import uuid
from collections.abc import Callable, Iterator

from ebla.group0 import snapshot
from ebla.group0.change_feed import ChangeSet
from ebla.group0.commands import CallId, ChangeMembers, CommandAnswer, decode_command
from ebla.group0.store import Group0Store
from ebla.raft.membership import MembershipChange
from ebla.raft.messages import Entry

CallKey = tuple[int, int, int]
"""Client, incarnation, serial. The client's id as an integer, which hashes without Python code."""
Watcher = Callable[[ChangeSet], None]


def key_of(call: CallId) -> CallKey:
    return (call.client.int, call.incarnation, call.serial)


class Group0StateMachine:
    def __init__(self, store: Group0Store) -> None:
        self.store = store
        self._answers: dict[CallKey, Callable[[CommandAnswer], None]] = {}
        self._by_index: list[tuple[int, int, asyncio.Future[None]]] = []
        self._tickets = itertools.count()
        self._watchers: dict[int, tuple[str, Watcher]] = {}

    # ---- for the Raft driver

    def apply(self, entry: Entry) -> None:
        if not entry.data:
            self.store.skip(entry.index)
        else:
            command = decode_command(entry.data)
            applied = self.store.apply(entry.index, command)
            if self._answers:
                self._settle(key_of(command.call), applied.answer)
            if self._watchers:
                self._publish(applied.step)
        if self._by_index:
            self._reached(entry.index)

    def apply_membership(self, entry: Entry, change: MembershipChange) -> bool:
        """Whether the Raft membership follows: not if the lock was revoked or the change is illegal."""
        if not change.context:
            self.store.skip(entry.index)
            self._reached(entry.index)
            return True
        command = decode_command(change.context)
        assert isinstance(command.body, ChangeMembers)
        applied = self.store.apply(entry.index, command)
        self._settle(key_of(command.call), applied.answer)
        self._publish(applied.step)
        self._reached(entry.index)
        return applied.members_changed

    def freeze(self) -> Iterator[bytes]:
        """The state as it is now, in chunks that may be read later."""
        return snapshot.encode(snapshot.freeze(self.store))

    def receiver(self) -> snapshot.StoreBuilder:
        return snapshot.StoreBuilder()

    def install(self, store: Group0Store) -> None:
        """A later state replaces ours. A call that the snapshot covers gets its answer from the snapshot's answer
        cache."""
        before, self.store = self.store, store
        step = None if before.index == 0 else store.follow(before)
        for key in list(self._answers):
            client, incarnation, serial = key
            memory = store.answers.clients.get(uuid.UUID(int=client))
            if memory is not None and memory.incarnation == incarnation and serial in memory.answers:
                self._settle(key, memory.answers[serial])
        if step is None:
            self._publish_first_state()
        elif step.changes:
            self._publish_to_all(step)
        self._reached(store.index)

    # ---- for the rest of the node

    def on_answer(self, call: CallId, callback: Callable[[CommandAnswer], None]) -> None:
        """Calls `callback` when an entry with this call is applied here, at most once, unless `forget` comes first."""
        self._answers[key_of(call)] = callback

    def forget(self, call: CallId) -> None:
        self._answers.pop(key_of(call), None)

    async def wait_applied(self, index: int) -> None:
        """Returns once the store has applied this index. The caller sets the deadline."""
        if self.store.index >= index:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._by_index, (index, next(self._tickets), future))
        await future

    def watch(self, watcher: Watcher, prefix: str = "") -> int:
        """Calls `watcher` with every change set that touches the prefix, in order, until `unwatch`. It may also get one
        with several changes that are all outside the prefix, and everything that a snapshot changes. The first state of
        a new node is filtered by the prefix."""
        ticket = next(self._tickets)
        self._watchers[ticket] = (prefix, watcher)
        return ticket

    def unwatch(self, ticket: int) -> None:
        self._watchers.pop(ticket, None)

    def _settle(self, key: CallKey, answer: CommandAnswer) -> None:
        callback = self._answers.pop(key, None)
        if callback is not None:
            callback(answer)

    def _publish(self, step: ChangeSet) -> None:
        changes = step.changes
        if len(changes) == 1:
            # Fast path: most change sets have one key, which few watchers care about.
            key = changes[0].key
            for prefix, watcher in list(self._watchers.values()):
                if key.startswith(prefix):
                    watcher(step)
        elif changes:
            self._publish_to_all(step)

    def _publish_to_all(self, step: ChangeSet) -> None:
        for _, watcher in list(self._watchers.values()):
            watcher(step)

    def _publish_first_state(self) -> None:
        """Everything is new and may be large, so each watcher gets only what is under its prefix."""
        for prefix, watcher in list(self._watchers.values()):
            if changes := self.store.content(prefix):
                watcher(ChangeSet(self.store.index, changes))

    def _reached(self, index: int) -> None:
        while self._by_index and self._by_index[0][0] <= index:
            _, _, future = heapq.heappop(self._by_index)
            if not future.done():
                future.set_result(None)
