"""Reads the content of group 0 in pages that fit a frame.

All pages of a read have one revision: the node keeps the entries of that revision, which are immutable, until the read
ends. If it no longer has them (it restarted, or the caller switched to another node), a new read starts with its first
page; the caller sees that by the revision.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ebla.group0.change_feed import ChangeSet
from ebla.group0.store import Group0Store, KeyEntry
from ebla.model.transaction import Revision

ROW_BYTES = 64
"""The size of a key in a frame besides its name and value."""
PAGED_READS_MAX = 16
PAGED_READ_IDLE_MS = 30_000


@dataclass(frozen=True, slots=True)
class PageLimits:
    """A quarter of a frame, and no more keys than the loop can encode without a noticeable pause."""

    bytes_max: int = 4 * 1024 * 1024
    keys_max: int = 10_000


@dataclass(frozen=True, slots=True)
class KeySelection:
    """Keys, and everything under the prefixes; each once, the keys first."""

    keys: tuple[str, ...]
    prefixes: tuple[str, ...]

    def keys_in(self, store: Group0Store) -> Sequence[str]:
        if not self.keys and len(self.prefixes) == 1:
            return store.keys(self.prefixes[0])
        found = dict.fromkeys(key for key in self.keys if key in store.entries)
        for prefix in self.prefixes:
            found.update(dict.fromkeys(store.keys(prefix)))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class KeyPage:
    revision: Revision
    rows: tuple[tuple[str, KeyEntry], ...]
    more: bool


@dataclass(frozen=True, slots=True)
class _State:
    revision: Revision
    keys: Sequence[str]
    entries: Mapping[str, KeyEntry]

    def page(self, start: int, limits: PageLimits) -> KeyPage:
        """The rows from this number on, at least one if there are any."""
        rows: list[tuple[str, KeyEntry]] = []
        size = 0
        for key in self.keys[start : start + limits.keys_max]:
            entry = self.entries[key]
            size += len(key) + len(entry.value) + ROW_BYTES
            if rows and size > limits.bytes_max:
                break
            rows.append((key, entry))
        return KeyPage(self.revision, tuple(rows), start + len(rows) < len(self.keys))


class PagedReads:
    """Reads with pages still to come, the most recently used last."""

    def __init__(self, limits: PageLimits) -> None:
        self._limits = limits
        self._states: dict[tuple[KeySelection, Revision], tuple[_State, float]] = {}
        self._sweep_due = False

    def holds(self, selection: KeySelection, at: Revision | None) -> bool:
        return at is not None and (selection, at) in self._states

    def page(self, store: Group0Store, selection: KeySelection, at: Revision | None, start: int) -> KeyPage:
        """From row `start` of the state at that revision, or the first page of the current state."""
        state, is_kept = self._find(store, selection, at)
        page = state.page(max(start, 0) if state.revision == at else 0, self._limits)
        self._states.pop((selection, state.revision), None)
        if page.more:
            self._keep(selection, state if is_kept else _State(state.revision, state.keys, store.entries.copy()))
        return page

    def _find(self, store: Group0Store, selection: KeySelection, at: Revision | None) -> tuple[_State, bool]:
        if at is not None and (kept := self._states.get((selection, at))) is not None:
            return kept[0], True
        return _State(store.revision, selection.keys_in(store), store.entries), False

    def _keep(self, selection: KeySelection, state: _State) -> None:
        loop = asyncio.get_running_loop()
        self._states[(selection, state.revision)] = (state, loop.time())
        while len(self._states) > PAGED_READS_MAX:
            del self._states[next(iter(self._states))]
        if not self._sweep_due:
            self._sweep_due = True
            loop.call_later(PAGED_READ_IDLE_MS / 1000, self._sweep)

    def _sweep(self) -> None:
        """A kept state holds on to values that were overwritten since."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - PAGED_READ_IDLE_MS / 1000
        self._states = {key: kept for key, kept in self._states.items() if kept[1] > oldest}
        self._sweep_due = bool(self._states)
        if self._sweep_due:
            loop.call_later(PAGED_READ_IDLE_MS / 1000, self._sweep)


def change_sets_of_a_page(steps: Iterable[ChangeSet], limits: PageLimits) -> tuple[tuple[ChangeSet, ...], bool] | None:
    """As many whole change sets as fit, and whether all did. None if the first alone is too large: an installed
    snapshot is one change set."""
    taken: list[ChangeSet] = []
    size = count = 0
    for step in steps:
        size += step.size_bytes + ROW_BYTES * len(step.changes)
        count += len(step.changes)
        if taken and (size > limits.bytes_max or count > limits.keys_max):
            return tuple(taken), False
        if size > limits.bytes_max:
            return None
        taken.append(step)
    return tuple(taken), True
