"""The log in memory: what is retained, what is durable, what is committed, what is applied.

The whole retained log is one list. Four indexes divide it:

    base < … applied <= applying <= committed … stable <= writing <= last

`stable` is the last entry known to be durable, `writing` the last one handed out to be written; both fall back when
entries are replaced. Committed entries may be ahead of `stable`: other peers may have made them durable first.
"""

from bisect import bisect_right
from collections.abc import Sequence

from ebla.raft.messages import Entry, EntryKind, SnapshotMeta

ENTRY_OVERHEAD_BYTES = 16
"""Added to the size of each payload, so that a million empty entries are not free."""


class Log:
    __slots__ = (
        "_apply_bytes_max",
        "_applying_bytes",
        "_base_size",
        "_entries",
        "_sizes",
        "applied",
        "apply_is_paused",
        "applying",
        "base_index",
        "base_term",
        "committed",
        "incoming_snapshot",
        "last_index",
        "snapshot",
        "snapshot_is_writing",
        "stable",
        "writing",
    )

    def __init__(self, snapshot: SnapshotMeta, entries: Sequence[Entry], *, apply_bytes_max: int) -> None:
        self.snapshot = snapshot
        """The newest one, for peers that need entries we no longer have."""
        self.base_index, self.base_term, retained = _retained(snapshot, entries)
        self.last_index = self.base_index
        self._entries: list[Entry] = []
        self._sizes: list[int] = []
        self._base_size = 0
        self._extend(retained)
        self.stable = self.writing = self.last_index
        self.committed = self.applying = self.applied = snapshot.index
        self.incoming_snapshot: SnapshotMeta | None = None
        self.snapshot_is_writing = False
        self._apply_bytes_max = apply_bytes_max
        self._applying_bytes = 0
        self.apply_is_paused = False

    # Reading.

    @property
    def first_index(self) -> int:
        return self.base_index + 1

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base_term

    def term_at(self, index: int) -> int | None:
        """None if the entry is compacted or not here yet."""
        position = index - self.base_index
        if 0 < position <= len(self._entries):
            return self._entries[position - 1].term
        return self.base_term if position == 0 else None

    def entry_at(self, index: int) -> Entry:
        assert self.base_index < index <= self.last_index, "the entry is in the log"
        return self._entries[index - self.base_index - 1]

    def matches(self, index: int, term: int) -> bool:
        return self.term_at(index) == term

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log with this end is at least as up to date as this one (Raft paper, 5.4.1)."""
        ours = self.last_term
        return last_term > ours or (last_term == ours and last_index >= self.last_index)

    def agreement_hint(self, index: int, term: int) -> tuple[int, int]:
        """The last position at or before `index` that a log with `term` there may share with this one, and our term
        there.

        Terms only grow along the log, so an entry of a later term than theirs cannot be shared. If we no longer know
        the term, we cannot rule it out: term 0.
        """
        while index > 0:
            ours = self.term_at(index)
            if ours is None:
                return index, 0
            if ours <= term:
                return index, ours
            index -= 1
        return 0, 0

    def slice(self, first: int, last: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from `first` to `last`, cut to `bytes_max`, but at least one."""
        if first > last:
            return ()
        start, stop = first - self.base_index - 1, last - self.base_index
        assert start >= 0, "compacted entries cannot be read"
        assert stop <= len(self._entries), "entries after the end cannot be read"
        sizes = self._sizes
        before = sizes[start - 1] if start else self._base_size
        if sizes[stop - 1] - before > bytes_max:
            stop = max(start + 1, bisect_right(sizes, before + bytes_max, start, stop))
        return tuple(self._entries[start:stop])

    def size_of(self, entries: Sequence[Entry]) -> int:
        """Of entries that are in this log, in constant time."""
        if not entries:
            return 0
        start = entries[0].index - self.base_index - 1
        before = self._sizes[start - 1] if start else self._base_size
        return self._sizes[start + len(entries) - 1] - before

    def has_membership_change(self, first: int, last: int) -> bool:
        start, stop = first - self.first_index, last - self.base_index
        return any(entry.kind is not EntryKind.COMMAND for entry in self._entries[max(start, 0) : stop])

    # Appending.

    def append(self, entries: Sequence[Entry]) -> None:
        """Replaces everything from the first one's index on, but nothing committed (INV-RAFT-4)."""
        first = entries[0].index
        keep = first - self.first_index
        assert first > self.committed, "a committed entry is never replaced"
        assert 0 <= keep <= len(self._entries), "the log has no holes"
        if keep < len(self._entries):
            del self._entries[keep:]
            del self._sizes[keep:]
            # A write of the replaced entries may still be in progress; it proves nothing about the new ones.
            self.stable = min(self.stable, first - 1)
            self.writing = min(self.writing, first - 1)
        self._extend(entries)

    def _extend(self, entries: Sequence[Entry]) -> None:
        size = self._sizes[-1] if self._sizes else self._base_size
        self._entries.extend(entries)
        self.last_index = self.base_index + len(self._entries)
        push = self._sizes.append
        for entry in entries:
            size += len(entry.data) + ENTRY_OVERHEAD_BYTES
            push(size)

    def try_append(self, prev_index: int, prev_term: int, entries: Sequence[Entry]) -> int | None:
        """A leader's entries behind `(prev_index, prev_term)`: the last index now shared with it, or None if the logs
        differ there. Entries we have stay: a delayed append must not cut off later ones."""
        if self.term_at(prev_index) != prev_term:
            return None
        last = prev_index + len(entries)
        known = min(last, self.last_index) - prev_index
        if known <= 0:
            if entries:
                self.append(entries)
            return last
        start = prev_index - self.base_index
        for position in range(known):
            if self._entries[start + position].term != entries[position].term:
                self.append(entries[position:])
                return last
        if known < len(entries):
            self.append(entries[known:])
        return last

    # Committing and applying.

    def first_conflict(self, prev_index: int, prev_term: int, entries: Sequence[Entry]) -> int | None:
        """The first of these positions that is committed here with another term. Compacted ones are not compared."""
        positions = [(prev_index, prev_term), *((entry.index, entry.term) for entry in entries)]
        committed = ((index, term) for index, term in positions if index <= self.committed)
        return next((index for index, term in committed if self.term_at(index) not in (None, term)), None)

    def commit_to(self, index: int) -> None:
        if index > self.committed:
            assert index <= self.last_index, "committed entries are in the log"
            self.committed = index

    def has_committed(self, *, unstable_too: bool) -> bool:
        return (
            self.applying < self.committed
            and (unstable_too or self.applying < self.stable)
            and not self.apply_is_paused
            and self.incoming_snapshot is None
        )

    def take_committed(self, *, unstable_too: bool) -> tuple[Entry, ...]:
        """The next entries to apply, as many as the bound on bytes being applied allows."""
        if not self.has_committed(unstable_too=unstable_too):
            return ()
        appliable = self.committed if unstable_too else min(self.committed, self.stable)
        room = self._apply_bytes_max - self._applying_bytes
        assert room > 0, "applying is paused at its bound"
        entries = self.slice(self.applying + 1, appliable, room)
        self._applying_bytes += self.size_of(entries)
        self.applying = entries[-1].index
        # What did not fit now will not fit until something has been applied.
        self.apply_is_paused = self._applying_bytes >= self._apply_bytes_max or self.applying < appliable
        return entries

    def applied_to(self, index: int, size: int) -> None:
        assert self.applied <= index, "the applied index never decreases"
        assert index <= self.committed, "only committed entries are applied"
        self.applied = index
        self.applying = max(self.applying, index)
        self._applying_bytes = max(self._applying_bytes - size, 0)
        self.apply_is_paused = self._applying_bytes >= self._apply_bytes_max

    # Writing.

    def take_unwritten(self) -> tuple[Entry, ...]:
        first = self.writing - self.base_index
        self.writing = self.last_index
        return tuple(self._entries[first:])

    def stable_to(self, index: int, term: int) -> None:
        """A write completed. If the entry at `index` was replaced meanwhile, it proves nothing (the ABA race)."""
        if index <= self.stable or not self.matches(index, term):
            return
        self.stable = index
        self.writing = max(self.writing, index)

    # Snapshots.

    def install(self, snapshot: SnapshotMeta) -> None:
        """A snapshot from the leader replaces the log. It still has to be written."""
        assert snapshot.index > self.committed, "a snapshot never removes committed entries"
        self._rebase(snapshot.index, snapshot.term)
        self.stable = self.writing = self.committed = snapshot.index
        self.incoming_snapshot = snapshot
        self.snapshot_is_writing = False

    def _rebase(self, index: int, term: int) -> None:
        self.base_index, self.base_term = index, term
        self.last_index = index
        self._entries = []
        self._sizes = []
        self._base_size = 0

    def take_snapshot_to_write(self) -> SnapshotMeta | None:
        if self.incoming_snapshot is None or self.snapshot_is_writing:
            return None
        self.snapshot_is_writing = True
        return self.incoming_snapshot

    def installed(self, snapshot: SnapshotMeta) -> None:
        if self.incoming_snapshot is not None and self.incoming_snapshot.index == snapshot.index:
            self.incoming_snapshot = None
            self.snapshot_is_writing = False
        if snapshot.index > self.snapshot.index:
            self.snapshot = snapshot

    def snapshot_taken(self, snapshot: SnapshotMeta) -> None:
        assert snapshot.index <= self.committed, "a snapshot holds committed entries only"
        # A leader's snapshot may have overtaken it while it was stored; then the log begins behind that one.
        if snapshot.index > max(self.snapshot.index, self.base_index):
            assert self.matches(snapshot.index, snapshot.term), "the snapshot matches this log"
            self.snapshot = snapshot

    def compact(self, index: int) -> None:
        """Drops entries up to `index`, which a snapshot must cover."""
        if index <= self.base_index:
            return
        assert index <= self.snapshot.index, "only entries that a snapshot covers are dropped"
        assert index <= self.applying, "entries that were not handed to the state machine are kept"
        count = index - self.base_index
        self.base_term = self._entries[count - 1].term
        self._base_size = self._sizes[count - 1]
        self.base_index = index
        del self._entries[:count]
        del self._sizes[:count]
        self.stable = max(self.stable, index)
        self.writing = max(self.writing, index)


def _retained(snapshot: SnapshotMeta, entries: Sequence[Entry]) -> tuple[int, int, Sequence[Entry]]:
    """The base index, its term, and the entries after it, from what the disk holds after a restart.

    Entries may begin before the snapshot's index: they were kept for slow peers, and the first one serves as the base.
    A log without the snapshot's own entry was about to be replaced by that snapshot when this peer stopped.
    """
    if not entries or snapshot.index < entries[0].index:
        assert not entries or entries[0].index == snapshot.index + 1, "the log continues its snapshot"
        return snapshot.index, snapshot.term, entries
    position = snapshot.index - entries[0].index
    if position >= len(entries) or entries[position].term != snapshot.term:
        return snapshot.index, snapshot.term, ()
    return entries[0].index, entries[0].term, entries[1:]
