"""The change feed: every change of a key prefix, in order, resumable from a revision.

Recent changes are kept in a bounded ring. Who asks for more than the ring holds gets a reset with the whole content
of the prefix, so a feed has no gap: either each change, or a state that contains them all.
"""

from collections import deque
from collections.abc import Iterable

import msgspec

FEED_CHANGES_MAX = 65_536
FEED_BYTES_MAX = 32 * 1024 * 1024


class KeyChange(msgspec.Struct, frozen=True, gc=False):
    """`value` is None where the key was deleted. Kept in great numbers, and unknown to the garbage collector, whose
    walk over all of them would hold up the loop."""

    key: str
    value: bytes | None


class ChangeSet(msgspec.Struct, frozen=True, gc=False):
    """All that one log entry (or one installed snapshot) changed. A struct only because one is made per entry."""

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
        self._steps: deque[ChangeSet] = deque()
        self._changes = 0
        self._bytes = 0

    def append(self, step: ChangeSet) -> None:
        assert not self._steps or step.index > self._steps[-1].index
        if not step.changes:
            return
        self._steps.append(step)
        self._changes += len(step.changes)
        self._bytes += step.size_bytes
        while self._changes > FEED_CHANGES_MAX or self._bytes > FEED_BYTES_MAX:
            dropped = self._steps.popleft()
            self._changes -= len(dropped.changes)
            self._bytes -= dropped.size_bytes
            self.floor = dropped.index

    def after(self, index: int, prefix: str) -> tuple[ChangeSet, ...] | None:
        """The steps after `index` that touch the prefix; None where the ring no longer reaches back that far."""
        if index < self.floor:
            return None
        found = []
        for step in reversed(self._steps):
            if step.index <= index:
                break
            if changes := changes_under(step.changes, prefix):
                found.append(ChangeSet(step.index, changes))
        return tuple(reversed(found))


def changes_under(changes: Iterable[KeyChange], prefix: str) -> tuple[KeyChange, ...]:
    return tuple(change for change in changes if change.key.startswith(prefix))
