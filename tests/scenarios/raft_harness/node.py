"""One peer of a transcript: a core, a list as its disk, and a state machine that only records its index."""

import uuid
from collections.abc import MutableSequence, Sequence
from typing import TypeVar

import msgspec
from tests.scenarios.raft_harness.parcels import Parcel

from ebla.raft.core import RaftCore
from ebla.raft.effects import LogWrite
from ebla.raft.events import ApplyMembership, Compact, SnapshotTaken, Tick
from ebla.raft.membership import change_of
from ebla.raft.messages import Entry, EntryKind, HardState, SnapshotMeta
from ebla.raft.options import RaftOptions
from ebla.raft.state import RecoveredState

T = TypeVar("T")


class LongestTimeout:
    """A fixed random source: the longest election timeout, so that only a transcript starts elections."""

    def random(self) -> float:
        return 0.0

    def randrange(self, start: int, stop: int) -> int:
        return max(start, stop - 1)

    def choice(self, options: Sequence[T]) -> T:
        return options[0]

    def shuffle(self, items: MutableSequence[T]) -> None:
        """Leaves the order as it is."""

    def bytes(self, count: int) -> bytes:
        return bytes(count)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=0)


class FakeDisk:
    def __init__(self, snapshot: SnapshotMeta) -> None:
        self.hard_state = HardState()
        self.snapshot = snapshot
        self.base_index = snapshot.index
        self.entries: list[Entry] = []

    def write(self, write: LogWrite) -> None:
        if write.hard_state is not None:
            self.hard_state = write.hard_state
        if write.snapshot is not None:
            assert not write.entries, "entries behind a snapshot come later"
            self.snapshot = write.snapshot
            self.base_index = write.snapshot.index
            self.entries = []
        if write.entries:
            del self.entries[write.entries[0].index - self.base_index - 1 :]
            self.entries.extend(write.entries)

    def compact(self, index: int) -> None:
        del self.entries[: index - self.base_index]
        self.base_index = index

    def truncate(self, index: int) -> None:
        del self.entries[index - self.base_index :]
        self.hard_state = msgspec.structs.replace(self.hard_state, commit=min(self.hard_state.commit, index))

    @property
    def last_index(self) -> int:
        return self.base_index + len(self.entries)


class Node:
    def __init__(self, options: RaftOptions, snapshot: SnapshotMeta) -> None:
        self.options = options
        self.now_ms = 0
        self.disk = FakeDisk(snapshot)
        self.newest_snapshot = snapshot
        self.core = self._start()
        self.append_work: list[Parcel] = []
        self.apply_work: list[Parcel] = []

    def _start(self) -> RaftCore:
        past = RecoveredState(self.disk.hard_state, self.disk.snapshot, tuple(self.disk.entries))
        return RaftCore(self.options, past, LongestTimeout(), self.now_ms)

    def crash(self) -> None:
        """Starts again with what the disk holds; work that had not reached it is gone."""
        self.append_work.clear()
        self.apply_work.clear()
        self.newest_snapshot = self.disk.snapshot
        self.core = self._start()

    def tick(self, count: int) -> None:
        for _ in range(count):
            self.now_ms += self.options.tick_ms
            self.core.step(Tick(), self.now_ms)

    def apply(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.kind is not EntryKind.COMMAND:
                self.core.step(ApplyMembership(entry.index, change_of(entry)), self.now_ms)
            self.newest_snapshot = SnapshotMeta(entry.index, entry.term, self.core.membership)
            self.core.step(SnapshotTaken(self.newest_snapshot), self.now_ms)

    def compact(self, index: int) -> None:
        self.core.step(Compact(index), self.now_ms)
        self.disk.snapshot = self.newest_snapshot
        self.disk.compact(index)
