"""Checks the settings of every node: in the step in which they change, after each crash, and at the end of a run."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from ebla.control.leadership.activity_tasks import RunningHandle
from ebla.control.settings.settings_node import SettingsNode
from ebla.group0.members import member_key
from ebla.group0.operations import OperationResult, ended_operations
from ebla.group0.store import Group0Store
from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.model.transaction import Revision
from ebla.ports.rng import Rng
from ebla.settings_store.entry import Entry, Stamp, decode_entries, qualifies
from ebla.settings_store.merge import NEVER_PURGED, descends, merge
from ebla.settings_store.node_store import NodeHeader, SettingsStore
from ebla.wire.server import IncomingCall
from ebla.wire.settings_messages import (
    PreparePurgeAnswer,
    PreparePurgeRequest,
    PushTombstonesRequest,
    SettingsHeader,
    SettingsPullAnswer,
    SettingsPullRequest,
)
from ebla.wire.verbs import EmptyAnswer

ECHO_SHARE = 0.15
ECHO_S = 4.0


@dataclass(slots=True, kw_only=True)
class _NodeRecord:
    """A node's store as its process had it last."""

    header: NodeHeader
    entries: dict[str, Entry]


@dataclass(slots=True, kw_only=True)
class _ActorRecord:
    last: Stamp
    keys: dict[int, tuple[str, int]] = field(default_factory=dict)
    """The key and timestamp of each counter."""


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """An attempt to purge."""

    members_revision: Revision
    prepared: list[HostId] = field(default_factory=list)
    tombstones: list[tuple[str, Entry]] = field(default_factory=list)
    """Of all members, as they answered."""


class SettingsLedger:
    """What every node has stored, acknowledged and erased. Outlives all incarnations."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._nodes: dict[HostId, _NodeRecord] = {}
        self._prepared_us: dict[HostId, int] = {}
        self._actors: dict[UUID, _ActorRecord] = {}
        self._copied_actors: set[UUID] = set()
        self._attempts: dict[Revision, _Attempt] = {}
        self.erased: dict[str, list[Entry]] = {}
        self.refused = 0
        """Messages of removed hosts that were not merged."""

    def describe(self) -> str:
        erased = sum(map(len, self.erased.values()))
        return f"{erased} tombstones erased, {self.refused} messages of removed hosts refused"

    # ---- reported by the scenario

    def folder_lost(self, host: HostId) -> None:
        self._nodes.pop(host, None)

    def folder_restored(self, host: HostId, actor: UUID) -> None:
        """An older copy: what the node has acknowledged since is gone, and its actor then may use counters again."""
        self._nodes.pop(host, None)
        self._prepared_us.pop(host, None)
        self._copied_actors.add(actor)

    # ---- a process

    def watch(self, settings: SettingsNode, rng: Rng) -> None:
        """Called when a process has read its settings."""
        store = settings.store
        record = self._nodes.get(store.host)
        if record is not None:
            self._check_survived(record, store)
        self._nodes[store.host] = _NodeRecord(header=store.header, entries=dict(store.entries))
        self._note_stamps(store, store.entries)
        then = settings.durable.on_change

        def on_change(keys: tuple[str, ...]) -> None:
            self._changed(settings.store, keys)
            then(keys)

        settings.durable.on_change = on_change
        self._watch_merges(settings, rng)
        self._watch_rounds(settings)
        self._watch_pulls(settings)

    def _check_survived(self, before: _NodeRecord, store: SettingsStore) -> None:
        """INV-SET-3. The last change may have become durable without the process knowing of it."""
        was, now = before.header, store.header
        if was.actor != now.actor:
            if not now.in_reset and now.watermark_us:  # a node that has left starts from 0
                self._fail(f"INV-SET-3: {store.host} has another actor after a crash, and is not in reset")
            return
        for name in ("counter", "last_wall_us", "tentative_us", "effective_us", "watermark_us"):
            if getattr(now, name) < getattr(was, name):
                self._fail(
                    f"INV-SET-3: {name} of {store.host} was {getattr(was, name)} and is {getattr(now, name)} "
                    "after a crash"
                )
        if was.in_reset and not now.in_reset:
            return  # the copy that ended the reset replaced everything
        if now.in_reset and not was.in_reset:
            self._fail(f"INV-SET-3: {store.host} is in reset after a crash under the actor that it had before")
        for key, entry in before.entries.items():
            found = store.entries.get(key)
            if merge(found, entry, now.effective_us).entry != found:
                self._fail(f"INV-SET-3: {key} of {store.host} was {entry} and is {found} after a crash")

    def _changed(self, store: SettingsStore, keys: Sequence[str]) -> None:
        record = self._nodes[store.host]
        is_same = store.header.actor == record.header.actor and not record.header.in_reset
        if store.header.actor != record.header.actor and not store.header.in_reset:
            self._prepared_us.pop(store.host, None)  # it has left the cluster
        for key in dict.fromkeys(keys):
            before, now = record.entries.get(key), store.entries.get(key)
            if now is not None:
                record.entries[key] = now
                continue
            record.entries.pop(key, None)
            if before is not None and is_same:
                if not qualifies(before, store.header.effective_us):
                    self._fail(f"INV-SET-2: {store.host} erases {key}, {before}, with {store.header}")
                self._note_erased(key, before)
        record.header = store.header
        self._note_stamps(store, keys)

    def _note_erased(self, key: str, tombstone: Entry) -> None:
        known = self.erased.setdefault(key, [])
        if tombstone not in known:
            known.append(tombstone)

    # ---- INV-SET-5

    def _note_stamps(self, store: SettingsStore, keys: Iterable[str]) -> None:
        """A new stamp is seen first on the node that made it, since it is durable there before it is sent."""
        own = store.header.actor
        found = [
            (stamp.counter, stamp, key)
            for key in dict.fromkeys(keys)
            if key in store.entries
            for stamp in store.entries[key].clock
        ]
        for _, stamp, key in sorted(found, key=lambda one: one[0]):
            if stamp.actor not in self._copied_actors:
                self._note_stamp(stamp, key, store.host if stamp.actor == own else None)

    def _note_stamp(self, stamp: Stamp, key: str, maker: HostId | None) -> None:
        record = self._actors.get(stamp.actor)
        if record is None:
            record = self._actors[stamp.actor] = _ActorRecord(last=stamp)
        elif stamp.counter not in record.keys:
            if stamp.counter <= record.last.counter or stamp.wall_us <= record.last.wall_us:
                self._fail(f"INV-SET-5: actor {stamp.actor} made {stamp} for {key} after {record.last}")
            record.last = stamp
        elif record.keys[stamp.counter] != (key, stamp.wall_us):
            self._fail(f"INV-SET-5: {stamp} of {key} has the counter of {record.keys[stamp.counter]}")
        else:
            return
        record.keys[stamp.counter] = (key, stamp.wall_us)
        if maker is not None and stamp.wall_us <= self._prepared_us.get(maker, -1):
            self._fail(
                f"INV-SET-5: {maker} made {stamp} for {key} and had prepared a purge up to {self._prepared_us[maker]}"
            )

    # ---- what a process acknowledges

    def _watch_rounds(self, settings: SettingsNode) -> None:
        agent = settings.agent
        prepare, push = agent.prepare, agent.push
        received: dict[Revision, dict[str, Entry]] = {}

        async def watched_prepare(
            request: PreparePurgeRequest, handle: RunningHandle, deadline_ms: int
        ) -> PreparePurgeAnswer:
            answer = await prepare(request, handle, deadline_ms)
            host, header = settings.store.host, settings.store.header
            if header.tentative_us < request.purged_us:
                self._fail(f"INV-SET-3: {host} answers prepare_purge({request.purged_us}) without storing it")
            self._prepared_us[host] = max(self._prepared_us.get(host, 0), request.purged_us)
            attempt = self._attempts.setdefault(request.attempt, _Attempt(members_revision=request.members_revision))
            attempt.tombstones += decode_entries(answer.tombstones)
            if not answer.more:
                attempt.prepared.append(host)
            return answer

        async def watched_push(request: PushTombstonesRequest, handle: RunningHandle, deadline_ms: int) -> EmptyAnswer:
            received.setdefault(request.attempt, {}).update(decode_entries(request.tombstones))
            answer = await push(request, handle, deadline_ms)
            if request.is_last:
                if settings.store.header.watermark_us < request.purged_us:
                    self._fail(f"INV-SET-3: {settings.store.host} acknowledges {request.purged_us} without storing it")
                self._check_round(settings, request.attempt, received[request.attempt])
            return answer

        agent.prepare = watched_prepare  # type: ignore[method-assign]  # records, and does the same
        agent.push = watched_push  # type: ignore[method-assign]  # records, and does the same

    def _check_round(self, settings: SettingsNode, revision: Revision, received: Mapping[str, Entry]) -> None:
        """What INV-SET-2 rests on: a node raises its watermark once it has every tombstone of every member."""
        host, attempt = settings.store.host, self._attempts[revision]
        present = settings.cluster.store.present_members()
        missing = [one.host for one in present.members if one.host not in attempt.prepared]
        if missing and present.revision == attempt.members_revision:
            self._fail(f"INV-SET-2: {host} is declared complete, but {missing} were not asked for tombstones")
        for key, tombstone in attempt.tombstones:
            found = received.get(key)
            if found is None or not found.is_tombstone or merge(found, tombstone, NEVER_PURGED).entry != found:
                self._fail(f"INV-SET-2: {host} was sent {found} for {key}, and another node has {tombstone}")

    def _watch_pulls(self, settings: SettingsNode) -> None:
        replication = settings.replication
        answer_pull = replication._answer_pull  # noqa: SLF001  # what peers get

        def watched_pull(request: SettingsPullRequest, _call: IncomingCall) -> SettingsPullAnswer:
            answer = answer_pull(request, _call)
            if settings.reset.in_progress and not answer.in_reset:
                self._fail(f"INV-SET-2: {settings.store.host} offers its entries while it is in reset")
            return answer

        replication._answer_pull = watched_pull  # type: ignore[method-assign]  # noqa: SLF001  # records, and does the same

    def _watch_merges(self, settings: SettingsNode, rng: Rng) -> None:
        """Some messages arrive once more, much later, as from a link that was clogged."""
        replication, cluster = settings.replication, settings.cluster
        merge_message = replication.merge

        async def checked_merge(header: SettingsHeader, entries: Sequence[tuple[str, Entry]]) -> None:
            was_removed = cluster.group0.is_running and is_removed(cluster.store, header.host)
            try:
                await merge_message(header, entries)
            except EblaError:
                self.refused += was_removed
                raise
            if was_removed:
                self._fail(f"INV-SET-4: {cluster.host} merged a message of {header.host}, which it knows as removed")

        async def echo(header: SettingsHeader, entries: Sequence[tuple[str, Entry]]) -> None:
            await asyncio.sleep(rng.random() * rng.random() * ECHO_S)
            try:
                await checked_merge(header, entries)
            except EblaError:
                pass  # no caller waits for it

        async def watched_merge(header: SettingsHeader, entries: Sequence[tuple[str, Entry]]) -> None:
            tasks = replication._tasks  # noqa: SLF001  # of the process
            if tasks is not None and rng.random() < ECHO_SHARE:
                tasks.create_task(echo(header, entries))
            await checked_merge(header, entries)

        replication.merge = watched_merge  # type: ignore[method-assign]  # records, and does the same

    # ---- at the end

    def find_revived(self, name: str, store: SettingsStore) -> str | None:
        """INV-SET-2: a live value that a deletion had superseded."""
        for key, entry in store.entries.items():
            for tombstone in self.erased.get(key, ()):
                is_below = descends(tombstone.clock, entry.clock) and not descends(entry.clock, tombstone.clock)
                if not entry.is_tombstone and tombstone.purged_us == entry.purged_us and is_below:
                    return f"INV-SET-2: {key} of {name} is {entry}, and its tombstone was erased: {tombstone}"
        return None


def is_removed(store: Group0Store, host: HostId) -> bool:
    """Or its addition was undone."""
    member = store.members.get(member_key(host))
    undone = [one.hosts for one in ended_operations(store) if one.result is OperationResult.UNDONE]
    return (member is not None and not member.present) or (host,) in undone


def find_difference(stores: Mapping[str, SettingsStore]) -> str | None:
    """INV-SET-1: why two nodes are not equal; None if all are."""
    (first, wanted), *others = stores.items()
    for name, store in others:
        for key in sorted({*wanted.entries, *store.entries}):
            if wanted.entries.get(key) != store.entries.get(key):
                return (
                    f"INV-SET-1: {key} is {wanted.entries.get(key)} on {first} and {store.entries.get(key)} on {name}"
                )
    return None
