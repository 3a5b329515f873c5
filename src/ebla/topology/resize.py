"""Split and merge of a table's tablets: when a decision is made, revoked and ready, and the new map.

Thresholds are per cent of the target size. A split halves the average and a merge doubles it, so with split above 200
and merge below 50 the average after either is on the right side of the target. A running decision is revoked once the
average crosses the target itself: completed, it would have to be undone.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from ebla.topology.states import ResizeType
from ebla.topology.tablet_map import TABLETS_PER_COMMIT_MAX, Resize, TabletMap, tablet_map

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRules:
    target_bytes: int = 5 << 30
    split_above_percent: int = 200
    merge_below_percent: int = 50
    revoke_at_percent: int = 100

    def __post_init__(self) -> None:
        assert self.target_bytes > 0
        assert self.merge_below_percent < self.revoke_at_percent < self.split_above_percent


def wanted_resize(
    tablets: TabletMap, average_bytes: int, rules: ResizeRules, *, least_count: int = 1
) -> ResizeType | None:
    """The decision to commit now; None: the current one is right. `least_count` is the table's own minimum."""
    percent = average_bytes * 100 // rules.target_bytes
    count = tablets.tablet_count
    match tablets.resize.kind:
        case ResizeType.NONE:
            too_few = count < least_count or percent > rules.split_above_percent
            if too_few and count < TABLETS_PER_COMMIT_MAX:
                return ResizeType.SPLIT
            if percent < rules.merge_below_percent and count > 1 and count // 2 >= least_count:
                return ResizeType.MERGE
            return None
        case ResizeType.SPLIT:
            return ResizeType.NONE if percent < rules.revoke_at_percent and count >= least_count else None
        case ResizeType.MERGE:
            return ResizeType.NONE if percent > rules.revoke_at_percent or count // 2 < least_count else None


def decided(resize: Resize, kind: ResizeType) -> Resize:
    """The next decision. Its number is new, so what replicas reported for an earlier one does not count for it."""
    return Resize(kind, resize.number + 1, ready=False)


def is_split_ready(resize: Resize, reported_numbers: Iterable[int]) -> bool:
    """Every replica has separated the halves for exactly this decision."""
    return resize.kind is ResizeType.SPLIT and all(number == resize.number for number in reported_numbers)


def is_merge_ready(tablets: TabletMap) -> bool:
    """Siblings have the same replicas, and none is in transition."""
    if tablets.resize.kind is not ResizeType.MERGE or tablets.any_transition:
        return False
    return next(separate_siblings(tablets), None) is None


def separate_siblings(tablets: TabletMap) -> Iterator[int]:
    """The even number of each pair whose replicas differ; they must be co-located before a merge."""
    sets = list(tablets.replica_sets())
    for even in range(0, tablets.tablet_count - 1, 2):
        if sorted(sets[even]) != sorted(sets[even + 1]):
            yield even


def finalized(tablets: TabletMap) -> TabletMap:
    """The map after the resize: once it is ready, behind a barrier, and with no tablet in transition. Its change
    streams are still those from before."""
    assert tablets.resize.ready
    assert not tablets.any_transition, "a change of the tablet count would pull the ground from under a migration"
    done = decided(tablets.resize, ResizeType.NONE)
    sets = list(tablets.replica_sets())
    times = [tablets.repair_time_ms(number) for number in range(tablets.tablet_count)]
    match tablets.resize.kind:
        case ResizeType.SPLIT:
            new = tablet_map(tablets.table, _twice(sets), repair_times_ms=_twice(times), resize=done)
        case ResizeType.MERGE:
            assert is_merge_ready(tablets), "siblings on different replicas cannot become one tablet"
            # The pair counts as repaired when both halves were: the later time would drop tombstones of the other half.
            oldest = [min(pair) for pair in zip(times[::2], times[1::2], strict=True)]
            new = tablet_map(tablets.table, sets[::2], repair_times_ms=oldest, resize=done)
        case ResizeType.NONE:
            raise AssertionError("nothing was decided")
    return replace(new, streams=tablets.streams)


def _twice(values: list[T]) -> list[T]:
    return [value for value in values for _ in range(2)]
