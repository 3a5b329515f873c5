"""A node's settings: what a write, a received message and a purge change. Decides; the shell makes it durable.

Every operation returns an `Update` and changes nothing. The shell writes the update to the disk and then calls `apply`,
one at a time: no reader and no peer gets what a crash could undo, and a full disk leaves everything as it was.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import msgspec

from ebla.model.errors import Refused, TooLarge, Unavailable
from ebla.model.identity import HostId
from ebla.settings_store.entry import Entry, Stamp, entry_bytes, qualifies, stamped
from ebla.settings_store.merge import join_clocks, merge
from ebla.settings_store.registry import ACTOR_NAME, STATUS_NAME, Registry, node_key, split_key

KEY_CHARACTERS_MAX = 256
VALUE_BYTES_MAX = 64 * 1024
LIVE_KEYS_MAX = 20_000
KEYS_MAX = 100_000
STORE_BYTES_MAX = 64 * 1024 * 1024
HISTORY_PER_KEY_MAX = 10
HISTORY_MAX = 10_000
HISTORY_VALUE_BYTES_MAX = 256
FIRST_CONFLICT_ROW = 4


class NodeHeader(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a node stores beside its entries."""

    actor: UUID
    counter: int = 0
    """Of the actor's last change, of any key. With a counter per key, rows 5 and 8 of the merge drop clocks and the
    actor would use a counter again; a later merge would pair the larger counter with an older timestamp, and a fresh
    tombstone would fall under a purge."""
    last_wall_us: int = 0
    """Of the actor's last change."""
    tentative_us: int = 0
    """Every later change gets a later timestamp, so no round can collect it too late."""
    effective_us: int = 0
    """Tombstones up to then are erased on every member."""
    watermark_us: int = 0
    """Every tombstone with a timestamp up to then, on whatever node, has been merged durably here."""
    in_reset: bool = False
    joins: bool = False
    """It is in reset because the node joins a cluster."""


class ReceivedEntries(NamedTuple):
    entries: Sequence[tuple[str, Entry]]
    watermark_us: int
    """Of the sender, when it read them."""


class HistoryRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One change that this node saw."""

    key: str
    seen_wall_us: int
    """When, by the clock of this node."""
    changed_wall_us: int
    """When, by the clock of the node that made it."""
    actor: UUID | None
    old: bytes | None
    """The first bytes of it; None: there was none, or it was deleted."""
    new: bytes | None
    lost: bool = False
    """`new` lost a conflict against `old`, which stays."""


class Update(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A change of the store, as it is stored."""

    header: NodeHeader
    puts: tuple[tuple[str, Entry], ...] = ()
    erased: tuple[str, ...] = ()
    last_valid: tuple[tuple[str, bytes | None], ...] = ()
    history: tuple[HistoryRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What an operation does. `update` is None if it changes nothing."""

    update: Update | None = None
    pushed: tuple[str, ...] = ()
    """Keys to send to the peers at once: own changes and resolved conflicts."""
    conflicts: int = 0
    filtered: int = 0
    """Entries of a message that were dropped: erased tombstones, and old entries of a late message."""
    older_copy: bool = False
    """The own actor has been further than this store knows: it is an older copy, and must be reset."""


class Writer(NamedTuple):
    """On whose behalf a local write happens."""

    removed: Collection[HostId] = ()
    """Hosts that were removed from the cluster."""
    leads: bool = False
    """This node leads group 0."""
    blocked_by: str = ""
    """For people: why tombstones are not purged."""


class InEffect(NamedTuple):
    value: bytes | None
    """None: the default."""
    key: str
    """The key of the entry that decides; empty if none does."""
    problem: str = ""
    """Why the newest value under that key is not in effect."""


class SettingsStore:
    def __init__(self, host: HostId, header: NodeHeader, registry: Registry | None = None) -> None:
        self.host = host
        self.own_prefix = node_key(host, "")
        self.header = header
        self.registry = registry or Registry()
        self.entries: dict[str, Entry] = {}
        self.tombstones: dict[str, None] = {}
        self.size_bytes = 0
        self.last_valid: dict[str, bytes] = {}
        """The last valid value of each key whose value is not valid."""
        self.history: dict[str, list[HistoryRecord]] = {}
        """The key that changed last is last."""
        self.history_records = 0

    # ---- reads

    def get(self, key: str) -> bytes | None:
        entry = self.entries.get(key)
        return None if entry is None else entry.value

    @property
    def live_keys(self) -> int:
        return len(self.entries) - len(self.tombstones)

    def in_effect(self, name: str) -> InEffect:
        """The value of a setting on this node: its own, else the cluster's, else the default."""
        own = node_key(self.host, name)
        problems = []
        for key in (own, name) if self.registry.find(own) is not None else (name,):
            if problem := self.registry.problem(key, self.get(key)):
                problems.append(problem)
            value = self.valid_value(key)
            if value is not None:
                return InEffect(value, key, "; ".join(problems))
        return InEffect(None, "", "; ".join(problems))

    def valid_value(self, key: str) -> bytes | None:
        """The value of a key, or the last valid one if it is not valid."""
        value = self.get(key)
        return self.last_valid.get(key) if self.registry.problem(key, value) else value

    def purgeable(self, until_us: int) -> list[tuple[str, Entry]]:
        """The tombstones that a purge up to this time erases, by key."""
        found = ((key, self.entries[key]) for key in self.tombstones)
        return sorted((key, entry) for key, entry in found if qualifies(entry, until_us))

    # ---- local writes

    def write(
        self,
        changes: Mapping[str, bytes | None],
        wall_us: int,
        writer: Writer,
        expected: Mapping[str, bytes | None] | None = None,
    ) -> Decision:
        """Sets and deletes (None) keys, if every key in `expected` has that value: all of it or nothing."""
        if self.header.in_reset:
            raise Unavailable(
                "the settings of this node are being reset", advice="try again in a moment, or on another node"
            )
        for key, value in (expected or {}).items():
            if self.get(key) != value:
                raise Refused(f"{key} is {_shown(self.get(key))}, not {_shown(value)}", advice="read it again")
        for key, value in changes.items():
            self._check_write(key, value, writer)
        changed = {key: value for key, value in changes.items() if self.get(key) != value}
        if not changed:
            return Decision()
        self._check_room(changed, writer)
        return self._written(changed, wall_us)

    def _written(self, changed: Mapping[str, bytes | None], wall_us: int) -> Decision:
        draft = _Draft(self, wall_us)
        for key, value in changed.items():
            before = self.entries.get(key)
            clock = () if before is None else before.clock
            purged_us = self.header.effective_us if before is None else before.purged_us
            draft.put(key, Entry(value, stamped(clock, draft.next_stamp()), purged_us))
        return Decision(update=draft.update(), pushed=tuple(changed))

    def _check_write(self, key: str, value: bytes | None, writer: Writer) -> None:
        if not 0 < len(key) <= KEY_CHARACTERS_MAX:
            raise TooLarge(f"a key has 1 to {KEY_CHARACTERS_MAX} characters, not {len(key)}")
        if value is not None and len(value) > VALUE_BYTES_MAX:
            raise TooLarge(f"the value of {key} has {len(value)} bytes; at most {VALUE_BYTES_MAX} are allowed")
        parts = split_key(key)
        host = None if parts is None else parts.host
        if host is not None and host != self.host:
            assert parts is not None
            name_is_free = host in writer.removed and (parts.name == STATUS_NAME or (writer.leads and value is None))
            if not name_is_free:
                raise Refused(f"{key} belongs to host {host}", advice="only that host can change it: use --on HOST")
        if value is None and key in self.entries:
            return  # whatever is stored can be deleted, also names of a newer release
        if value is None:
            self.registry.check_name(key)
        else:
            self.registry.check(key, value)

    def _check_room(self, changed: Mapping[str, bytes | None], writer: Writer) -> None:
        created = [key for key in changed if key not in self.entries]
        if created and len(self.entries) + len(created) > KEYS_MAX:
            blocked = f"; they are not purged: {writer.blocked_by}" if writer.blocked_by else ""
            raise TooLarge(
                f"there are {len(self.entries):,} keys, {len(self.tombstones):,} of them tombstones{blocked}",
                advice="see: ebla settings purge-status",
            )
        live = sum(1 for key, value in changed.items() if value is not None and self.get(key) is None)
        if live and self.live_keys + live > LIVE_KEYS_MAX:
            raise TooLarge(f"there are {self.live_keys:,} settings; at most {LIVE_KEYS_MAX:,} are allowed")
        growth = sum(len(value or b"") - len(self.get(key) or b"") for key, value in changed.items())
        if growth > 0 and self.size_bytes + growth > STORE_BYTES_MAX:
            raise TooLarge(
                f"the settings have {self.size_bytes:,} bytes; at most {STORE_BYTES_MAX:,} are allowed",
                advice="delete some, or keep large data in a table",
            )

    # ---- messages

    def receive(self, messages: Iterable[ReceivedEntries], wall_us: int) -> Decision:
        """Merges messages of peers, one after another."""
        assert not self.header.in_reset, "a store in reset merges nothing"
        draft = _Draft(self, wall_us)
        for message in messages:
            for key, remote in message.entries:
                if self._is_behind(remote):
                    return Decision(older_copy=True)
                if self._is_late(remote, message.watermark_us):
                    draft.filtered += 1
                else:
                    draft.merge(key, remote)
        return Decision(
            update=draft.update(), pushed=tuple(draft.pushed), conflicts=draft.conflicts, filtered=draft.filtered
        )

    def _is_late(self, remote: Entry, watermark_us: int) -> bool:
        """A frame may arrive long after it was sent. The tombstone of a live entry in it may be erased everywhere by
        now. A tombstone in it was collected by the round that set the watermark, and is merged here already; or its
        node ran on an older folder, and then it would be erased here without ever being seen by the others. Later
        pulls bring what is dropped needlessly."""
        own_us = self.header.watermark_us
        return watermark_us < own_us and remote.timestamp_us <= own_us

    def _is_behind(self, remote: Entry) -> bool:
        header = self.header
        actor = header.actor.int  # comparing UUIDs runs Python code, for every stamp
        return any(stamp.actor.int == actor and stamp.counter > header.counter for stamp in remote.clock)

    # ---- purge

    def prepare(self, tentative_us: int) -> Decision:
        """Step 3 of a round: no change from now on can qualify for it."""
        return self._with_header(tentative_us=max(self.header.tentative_us, tentative_us))

    def receive_tombstones(
        self, tombstones: Sequence[tuple[str, Entry]], purged_us: int, wall_us: int, *, is_last: bool
    ) -> Decision:
        """Step 4 of a round. With the last part, every tombstone up to that time has been merged here."""
        watermark_us = max(self.header.watermark_us, purged_us)
        decision = self.receive([ReceivedEntries(tombstones, watermark_us)], wall_us)
        if decision.older_copy or not is_last or watermark_us == self.header.watermark_us:
            return decision
        update = decision.update or Update(header=self.header)
        header = msgspec.structs.replace(update.header, watermark_us=watermark_us)
        return Decision(
            update=msgspec.structs.replace(update, header=header),
            pushed=decision.pushed,
            conflicts=decision.conflicts,
            filtered=decision.filtered,
        )

    def learn(self, tentative_us: int, effective_us: int) -> Decision:
        """From group 0. An effective timestamp above the watermark means that a round ended without this store: it is
        an older copy. Erases what became erasable, in one step with the timestamp: a restarted node must not attach an
        older purge timestamp to a key whose tombstone it has erased."""
        if effective_us > self.header.watermark_us:
            return Decision(older_copy=True)
        effective_us = max(effective_us, self.header.effective_us)
        header = msgspec.structs.replace(
            self.header, tentative_us=max(tentative_us, self.header.tentative_us), effective_us=effective_us
        )
        erased = tuple(key for key, _ in self.purgeable(effective_us))
        if header == self.header and not erased:
            return Decision()
        return Decision(update=Update(header=header, erased=erased))

    # ---- reset, join, leave

    def begin_reset(self, actor: UUID, tentative_us: int, effective_us: int, *, joins: bool = False) -> Decision:
        header = NodeHeader(
            actor=actor,
            tentative_us=tentative_us,
            effective_us=effective_us,
            watermark_us=effective_us,
            in_reset=True,
            joins=joins,
        )
        return Decision(update=Update(header=header))

    def restored(self, copy: Mapping[str, Entry] | None, wall_us: int) -> "SettingsStore":
        """The store after its reset: with a peer's copy, or (None) with its own entries. A joining node keeps its
        own entries, with new clocks, so that no clock of another cluster gets into this one."""
        header = msgspec.structs.replace(self.header, in_reset=False, joins=False)
        after = SettingsStore(self.host, header, self.registry)
        after.fill(self.entries if copy is None else copy)
        after.last_valid = dict(
            itertools.chain.from_iterable(self._last_valid_for(key, after) for key in after.entries)
        )
        after.history, after.history_records = self.history, self.history_records
        if self.header.joins:
            after._renew_own(self.own_entries(), wall_us)
        return after

    def left(self, actor: UUID, wall_us: int) -> "SettingsStore":
        """The store of a node that has left its cluster."""
        after = SettingsStore(self.host, NodeHeader(actor=actor), self.registry)
        after._renew_own(self.own_entries(), wall_us)
        return after

    def own_entries(self) -> dict[str, bytes]:
        return {
            key: entry.value
            for key, entry in self.entries.items()
            if key.startswith(self.own_prefix) and entry.value is not None
        }

    def _renew_own(self, own: Mapping[str, bytes], wall_us: int) -> None:
        draft = _Draft(self, wall_us)
        for key, value in own.items():
            draft.put(key, Entry(value, (draft.next_stamp(),)))
        if own:
            update = draft.update()
            assert update is not None
            self.apply(update)

    def publish_actor(self, wall_us: int) -> Decision:
        """Names the actor of this node, so that commands can tell the host behind a change."""
        changes = {node_key(self.host, ACTOR_NAME): str(self.header.actor).encode()}
        return self.write(changes, wall_us, Writer())

    # ---- applying

    def _with_header(self, **fields: int) -> Decision:
        header = msgspec.structs.replace(self.header, **fields)
        return Decision(update=None if header == self.header else Update(header=header))

    def apply(self, update: Update) -> None:
        """The update is durable."""
        assert update.header.actor != self.header.actor or update.header.counter >= self.header.counter
        self.header = update.header
        for key, entry in update.puts:
            self._put(key, entry)
        for key in update.erased:
            self._drop(key)
        for key, value in update.last_valid:
            if value is None:
                self.last_valid.pop(key, None)
            else:
                self.last_valid[key] = value
        for record in update.history:
            self._remember(record)

    def fill(self, entries: Mapping[str, Entry]) -> None:
        """The first content of an empty store."""
        assert not self.entries
        for key, entry in entries.items():
            self._put(key, entry)

    def _put(self, key: str, entry: Entry) -> None:
        self._drop(key)
        self.entries[key] = entry
        self.size_bytes += entry_bytes(key, entry)
        if entry.is_tombstone:
            self.tombstones[key] = None

    def _drop(self, key: str) -> None:
        before = self.entries.pop(key, None)
        if before is not None:
            self.size_bytes -= entry_bytes(key, before)
            self.tombstones.pop(key, None)

    def _remember(self, record: HistoryRecord) -> None:
        records = self.history.pop(record.key, [])
        kept = [*records, record][-HISTORY_PER_KEY_MAX:]
        self.history[record.key] = kept
        self.history_records += len(kept) - len(records)
        while self.history_records > HISTORY_MAX:
            longest_unchanged = next(iter(self.history))
            self.history_records -= len(self.history.pop(longest_unchanged))

    def _last_valid_for(self, key: str, after: "SettingsStore") -> list[tuple[str, bytes]]:
        if not self.registry.problem(key, after.get(key)):
            return []
        here = self.get(key)
        last = self.last_valid.get(key) if self.registry.problem(key, here) else here
        return [] if last is None else [(key, last)]


class _Draft:
    """An update in the making: entries that build on one another, and the own counter."""

    def __init__(self, store: SettingsStore, wall_us: int) -> None:
        self._store = store
        self._wall_us = wall_us
        self._header = store.header
        self._puts: dict[str, Entry] = {}
        self._history: list[HistoryRecord] = []
        self.pushed: dict[str, None] = {}
        self.conflicts = 0
        self.filtered = 0

    def next_stamp(self) -> Stamp:
        header = self._header
        wall_us = max(self._wall_us, header.last_wall_us + 1, header.tentative_us + 1)
        self._header = msgspec.structs.replace(header, counter=header.counter + 1, last_wall_us=wall_us)
        return Stamp(header.actor, header.counter + 1, wall_us)

    def _entry(self, key: str) -> Entry | None:
        return self._puts.get(key) or self._store.entries.get(key)

    def put(self, key: str, entry: Entry) -> None:
        before = self._entry(key)
        self._puts[key] = entry
        old = None if before is None else before.value
        if old != entry.value:
            self._record(key, entry, old, lost=False)

    def merge(self, key: str, remote: Entry) -> None:
        local = self._entry(key)
        merged = merge(local, remote, self._header.effective_us)
        if merged.row == 0 and merged.entry is local:
            self.filtered += 1
            return
        if merged.row >= FIRST_CONFLICT_ROW:
            self.conflicts += 1
        is_own = key.startswith(self._store.own_prefix)
        assert merged.entry is not None
        if is_own and local is not None and merged.entry.value != local.value:
            self._keep_own(key, local, remote)
            return
        if merged.pushed:
            self.pushed[key] = None
        if merged.row >= FIRST_CONFLICT_ROW and local is not None and local.value != remote.value:
            loser, winner = (remote, local) if merged.entry.value == local.value else (local, remote)
            self._record(key, loser, winner.value, lost=True)
        if merged.entry != local:
            self.put(key, merged.entry)

    def _keep_own(self, key: str, local: Entry, remote: Entry) -> None:
        """Only this host decides about its own entries. The result supersedes both, whatever their purge timestamps:
        its clock is above both, and its timestamp and purge timestamp are not below either."""
        clock = stamped(join_clocks(local.clock, remote.clock), self.next_stamp())
        self._record(key, remote, local.value, lost=True)
        self._puts[key] = Entry(local.value, clock, max(local.purged_us, remote.purged_us))
        self.pushed[key] = None

    def _record(self, key: str, entry: Entry, old: bytes | None, *, lost: bool) -> None:
        stamp = entry.newest_stamp
        self._history.append(
            HistoryRecord(
                key=key,
                seen_wall_us=self._wall_us,
                changed_wall_us=0 if stamp is None else stamp.wall_us,
                actor=None if stamp is None else stamp.actor,
                old=_beginning(old),
                new=_beginning(entry.value),
                lost=lost,
            )
        )

    def update(self) -> Update | None:
        if not self._puts and not self._history and self._header == self._store.header:
            return None
        return Update(
            header=self._header,
            puts=tuple(self._puts.items()),
            last_valid=tuple(itertools.chain.from_iterable(map(self._last_valid, self._puts))),
            history=tuple(self._history),
        )

    def _last_valid(self, key: str) -> list[tuple[str, bytes | None]]:
        registry, store = self._store.registry, self._store
        if not registry.problem(key, self._puts[key].value):
            return [(key, None)] if key in store.last_valid else []
        before = store.get(key)
        if before is None or registry.problem(key, before):
            return []
        return [(key, before)]


def _beginning(value: bytes | None) -> bytes | None:
    return None if value is None else value[:HISTORY_VALUE_BYTES_MAX]


def _shown(value: bytes | None) -> str:
    return "not set" if value is None else value[:HISTORY_VALUE_BYTES_MAX].decode(errors="replace")
