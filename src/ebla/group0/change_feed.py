"""The change feed: every change under a key prefix, in order, resumable from a revision.

A bounded ring keeps recent changes. A reader that needs older ones gets a reset with the whole content of the prefix,
so a feed has no gaps: either each change, or a state that includes them all.
"""

from collections import deque
from collections.abc import Iterable

import msgspec

FEED_CHANGES_MAX = 65_536
FEED_BYTES_MAX = 32 * 1024 * 1024


class KeyChange(msgspec.Struct, frozen=True, gc=False):
    """`value` is None if the key was deleted. There may be very many, so the garbage collector does not track them: a
    walk over all of them would block the loop."""

    key: str
    value: bytes | None


class ChangeSet(msgspec.Struct, frozen=True, gc=False):
    """Everything that one log entry, or one installed snapshot, changed."""

    index: int
    changes: tuple[KeyChange, ...]

    @property
    def size_bytes(self) -> int:
        size = 0
        for change in self.changes:
            size += len(change.key) + (0 if change.value is None else len(change.value))
        return size


class RecentChanges:
    def __init__(self, floor: int) -> None:
        self.floor = floor
        """Every change after this index is in the ring."""
        self._change_sets: deque[ChangeSet] = deque()
        self._changes = 0
        self._bytes = 0

    def append(self, step: ChangeSet) -> None:
        assert not self._change_sets or step.index > self._change_sets[-1].index
        if not step.changes:
            return
        self._change_sets.append(step)
        self._changes += len(step.changes)
        self._bytes += step.size_bytes
        while self._changes > FEED_CHANGES_MAX or self._bytes > FEED_BYTES_MAX:
            dropped = self._change_sets.popleft()
            self._changes -= len(dropped.changes)
            self._bytes -= dropped.size_bytes
            self.floor = dropped.index

    def after(self, index: int, prefix: str) -> tuple[ChangeSet, ...] | None:
        """The change sets after `index` that touch the prefix; None if the ring no longer reaches back that far."""
        if index < self.floor:
            return None
        selected = []
        for step in reversed(self._change_sets):
            if step.index <= index:
                break
            if changes := changes_under(step.changes, prefix):
                selected.append(ChangeSet(step.index, changes))
        return tuple(reversed(selected))


def changes_under(changes: Iterable[KeyChange], prefix: str) -> tuple[KeyChange, ...]:
    return tuple(change for change in changes if change.key.startswith(prefix))
