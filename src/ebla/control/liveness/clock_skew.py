"""How far the clocks of peers are from this node's, and whether this node's own is the wrong one. Pure.

The later timestamp wins, so a node whose clock is ahead decides what others read until their clocks have caught up.
"""

from collections.abc import Iterable
from dataclasses import dataclass

HEARTBEATS_TO_CHANGE = 3
"""So many measurements in a row begin or end a warning: one late answer is no skew."""


@dataclass(frozen=True, slots=True)
class PeerClock:
    offset_ms: int
    """The peer's clock minus ours."""
    is_skewed: bool = False
    contrary: int = 0
    """The latest measurements in a row that contradict `is_skewed`."""


def clock_offset_ms(sent_us: int, peer_us: int, received_us: int) -> int:
    """The peer read its clock between the two times of ours, at the middle for all we know. The error is at most half
    of the round trip."""
    return round((peer_us - (sent_us + received_us) / 2) / 1000)


def measure_clock(before: PeerClock | None, offset_ms: int, warn_ms: int) -> PeerClock:
    """`warn_ms` is the greatest offset without a warning; 0: there is never one."""
    was_skewed = before is not None and before.is_skewed
    is_above = warn_ms > 0 and abs(offset_ms) > warn_ms
    if is_above is was_skewed:
        return PeerClock(offset_ms, was_skewed)
    contrary = 1 if before is None else before.contrary + 1
    if contrary < HEARTBEATS_TO_CHANGE:
        return PeerClock(offset_ms, was_skewed, contrary)
    return PeerClock(offset_ms, not was_skewed)


def ahead_of_majority_ms(offsets_ms: Iterable[int], members: int) -> int:
    """How far our clock is ahead of the clocks of more than half of all members, ours included: of so many it is ahead
    by at least this. 0 if it is not, or if too few clocks are known."""
    ahead_ms = sorted((-offset_ms for offset_ms in offsets_ms), reverse=True)
    needed = members // 2 + 1
    return max(0, ahead_ms[needed - 1]) if len(ahead_ms) >= needed else 0
