"""What a child of control is sent of group 0's keys: the changes since a revision, or everything, in pieces."""

from bisect import bisect_right
from dataclasses import dataclass

from ebla.group0.change_feed import ChangeSet
from ebla.group0.store import Group0Store, KeyEntry
from ebla.model.transaction import Revision
from ebla.topology.keys import PREFIX
from ebla.wire.feed_messages import FeedChange

CHANGE_BYTES = 64
"""What a change takes in a frame besides its key and value."""


@dataclass(frozen=True, slots=True)
class FeedChanges:
    """Everything up to the revision, in whole transactions."""

    revision: Revision
    changes: tuple[FeedChange, ...]


def changes_after(store: Group0Store, after: Revision, bytes_max: int) -> FeedChanges | None:
    """As many transactions as fit, the first of them left out never. None: the store no longer knows them all, or one
    alone is too large (what a Raft snapshot changed is one step): the whole state must be sent."""
    assert after.history == store.revision.history, "indexes of two histories do not compare"
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
    """A step that a Raft snapshot made names keys that changed at other indexes, before its own."""
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
    """Every key at one revision. The store moves on meanwhile, so the entries (which never change) are kept here."""

    revision: Revision
    keys: tuple[str, ...]
    entries: tuple[KeyEntry, ...]

    def page(self, after_key: str, bytes_max: int) -> tuple[tuple[FeedChange, ...], bool]:
        """The keys after this one, at least one if there is any, and whether more follow."""
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
