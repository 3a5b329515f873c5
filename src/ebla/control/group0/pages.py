"""What group 0 holds, in pages that fit a frame.

All pages of a state are of one revision: the node keeps the entries of that moment, which never change, until they are
asked for no more. Where it has forgotten them (it was started again, or another node is asked), a new state begins with
its first page; whoever asks sees that by the revision.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ebla.group0.change_feed import ChangeSet
from ebla.group0.store import Group0Store, KeyEntry
from ebla.model.transaction import Revision

ROW_BYTES = 64
"""What a key takes in a frame besides its name and value."""
PAGED_READS_MAX = 16
PAGED_READ_IDLE_MS = 30_000


@dataclass(frozen=True, slots=True)
class PageLimits:
    """A quarter of a frame, and no more keys than a loop makes rows of without a pause that others notice."""

    bytes_max: int = 4 * 1024 * 1024
    keys_max: int = 10_000


@dataclass(frozen=True, slots=True)
class KeySelection:
    """Keys, and everything below the prefixes; each once, the keys first."""

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
        """The rows from this number on, at least one if there is any."""
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
    """Those of which pages are still to come, the one that was asked for last at the end."""

    def __init__(self, limits: PageLimits) -> None:
        self._limits = limits
        self._states: dict[tuple[KeySelection, Revision], tuple[_State, float]] = {}
        self._sweep_due = False

    def holds(self, wanted: KeySelection, at: Revision | None) -> bool:
        return at is not None and (wanted, at) in self._states

    def page(self, store: Group0Store, wanted: KeySelection, at: Revision | None, start: int) -> KeyPage:
        """From row `start` of the state at that revision, or the first of the state as it is now."""
        state, is_kept = self._find(store, wanted, at)
        page = state.page(max(start, 0) if state.revision == at else 0, self._limits)
        self._states.pop((wanted, state.revision), None)
        if page.more:
            self._keep(wanted, state if is_kept else _State(state.revision, state.keys, store.entries.copy()))
        return page

    def _find(self, store: Group0Store, wanted: KeySelection, at: Revision | None) -> tuple[_State, bool]:
        if at is not None and (kept := self._states.get((wanted, at))) is not None:
            return kept[0], True
        return _State(store.revision, wanted.keys_in(store), store.entries), False

    def _keep(self, wanted: KeySelection, state: _State) -> None:
        loop = asyncio.get_running_loop()
        self._states[(wanted, state.revision)] = (state, loop.time())
        while len(self._states) > PAGED_READS_MAX:
            del self._states[next(iter(self._states))]
        if not self._sweep_due:
            self._sweep_due = True
            loop.call_later(PAGED_READ_IDLE_MS / 1000, self._sweep)

    def _sweep(self) -> None:
        """A state that is kept keeps values that were overwritten since."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - PAGED_READ_IDLE_MS / 1000
        self._states = {key: kept for key, kept in self._states.items() if kept[1] > oldest}
        self._sweep_due = bool(self._states)
        if self._sweep_due:
            loop.call_later(PAGED_READ_IDLE_MS / 1000, self._sweep)


def change_sets_of_a_page(steps: Iterable[ChangeSet], limits: PageLimits) -> tuple[tuple[ChangeSet, ...], bool] | None:
    """As many whole steps as fit, and whether all did. None where the first is too large by itself: what an installed
    snapshot changed is one step."""
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
