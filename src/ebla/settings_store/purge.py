"""The decisions of a purge round: which tombstones it erases, and how it ends. `docs/settings.md` has the protocol.

Times are microseconds of the entries' timestamps.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ebla.settings_store.entry import Entry
from ebla.settings_store.merge import NEVER_PURGED, merge

CLOCK_AHEAD_MAX_MS = 60_000


class PurgeResult(enum.StrEnum):
    PURGED = "purged"
    NOTHING_TO_PURGE = "nothing_to_purge"
    CLOCK_BEHIND = "clock_behind"
    CLOCK_AHEAD = "clock_ahead"
    CONFLICT = "conflict"
    PREPARE_FAILED = "prepare_failed"
    PUSH_FAILED = "push_failed"
    SUPERSEDED = "superseded"
    MEMBERS_CHANGED = "members_changed"
    FEATURE_MISSING = "feature_missing"
    NO_QUORUM = "no_quorum"
    QUORUM_LOST = "quorum_lost"
    NOT_LEADER = "not_leader"
    TIMED_OUT = "timed_out"
    FAULT_INJECTED = "fault_injected"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStart:
    """What the leader knows when a round starts."""

    tentative_us: int
    effective_us: int
    wall_us: int
    age_us: int
    clock_offsets_ms: Sequence[int]
    """Of the other members whose clocks are known: theirs minus the leader's."""
    other_members: int
    oldest_tombstone_us: int | None
    """The least time T for which a tombstone of the leader qualifies; None: it has none."""
    is_finishing: bool = False
    """Only finish an unfinished round."""


def choose_timestamp(start: RoundStart) -> int | PurgeResult:
    """T of the round, or how it ends without a write."""
    if start.tentative_us > start.effective_us:
        # The watermarks of the nodes may differ until the round of this time is finished.
        return start.tentative_us
    if start.is_finishing:
        return PurgeResult.NOTHING_TO_PURGE
    if start.wall_us < start.effective_us:
        return PurgeResult.CLOCK_BEHIND
    if _is_ahead(start):
        # A tentative timestamp cannot be taken back. One from the future blocks every purge until the clocks of all
        # nodes have passed it.
        return PurgeResult.CLOCK_AHEAD
    chosen_us = start.wall_us - start.age_us
    oldest_us = start.oldest_tombstone_us
    if chosen_us <= start.effective_us or oldest_us is None or oldest_us > chosen_us:
        return PurgeResult.NOTHING_TO_PURGE
    return chosen_us


def _is_ahead(start: RoundStart) -> bool:
    behind = sum(1 for offset_ms in start.clock_offsets_ms if offset_ms < -CLOCK_AHEAD_MAX_MS)
    return behind * 2 > start.other_members


def qualifying_time(tombstones: Iterable[Entry]) -> int | None:
    """The least time for which one of them qualifies."""
    return min((max(entry.timestamp_us, entry.purged_us) for entry in tombstones), default=None)


class CollectedTombstones:
    """The tombstones of all members. They are merged with each other only: one that loses against a live value of the
    leader is still erased on other nodes, so every node must see it first."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def add(self, tombstones: Iterable[tuple[str, Entry]]) -> None:
        for key, entry in tombstones:
            assert entry.is_tombstone
            merged = merge(self._entries.get(key), entry, NEVER_PURGED).entry
            assert merged is not None
            self._entries[key] = merged

    def sorted_entries(self) -> list[tuple[str, Entry]]:
        return sorted(self._entries.items())
