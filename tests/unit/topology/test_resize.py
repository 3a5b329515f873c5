from dataclasses import replace

import pytest
from tests.unit.topology.small_cluster import TABLE, replica, with_transition

from ebla.topology.resize import (
    ResizeRules,
    decided,
    finalized,
    is_merge_ready,
    is_split_ready,
    separate_siblings,
    wanted_resize,
)
from ebla.topology.states import ResizeType, TabletStage, TransitionKind
from ebla.topology.tablet_map import TABLETS_PER_COMMIT_MAX, Resize, TabletMap, TabletTransition, tablet_map

RULES = ResizeRules(target_bytes=100)
SETS = [(replica(1), replica(2)), (replica(2), replica(3)), (replica(3), replica(1)), (replica(1), replica(3))]
NONE, SPLIT, MERGE = ResizeType.NONE, ResizeType.SPLIT, ResizeType.MERGE


def deciding(kind: ResizeType, number: int = 3, *, ready: bool = False) -> TabletMap:
    return tablet_map(TABLE, SETS, resize=Resize(kind, number, ready))


@pytest.mark.parametrize(
    ("standing", "average", "wanted"),
    [
        (NONE, 201, SPLIT),
        (NONE, 200, None),
        (NONE, 100, None),
        (NONE, 50, None),
        (NONE, 49, MERGE),
        (SPLIT, 150, None),
        (SPLIT, 100, None),
        (SPLIT, 99, NONE),
        (MERGE, 60, None),
        (MERGE, 100, None),
        (MERGE, 101, NONE),
    ],
)
def test_what_the_average_size_asks_for(standing: ResizeType, average: int, wanted: ResizeType | None) -> None:
    assert wanted_resize(deciding(standing), average, RULES) is wanted


@pytest.mark.parametrize("average", range(1, 1000, 7))
def test_a_resize_never_asks_to_be_undone(average: int) -> None:
    """The reason for 200 and 50: what the size is after the resize asks for no resize the other way."""
    match wanted_resize(deciding(NONE), average, RULES):
        case ResizeType.SPLIT:
            assert wanted_resize(deciding(NONE), average // 2, RULES) is not MERGE
        case ResizeType.MERGE:
            assert wanted_resize(deciding(NONE), average * 2, RULES) is not SPLIT
        case _:
            assert 50 <= average <= 200


def test_a_tables_own_minimum_goes_before_its_size() -> None:
    assert wanted_resize(deciding(NONE), 10, RULES, least_count=8) is SPLIT
    assert wanted_resize(deciding(NONE), 10, RULES, least_count=4) is None
    assert wanted_resize(deciding(NONE), 10, RULES, least_count=2) is MERGE
    assert wanted_resize(deciding(SPLIT), 10, RULES, least_count=8) is None
    assert wanted_resize(deciding(MERGE), 10, RULES, least_count=4) is NONE


def test_there_is_a_least_and_a_greatest_count() -> None:
    single = tablet_map(TABLE, SETS[:1])
    assert wanted_resize(single, 1, RULES) is None
    assert wanted_resize(single, 1000, RULES) is SPLIT
    full = replace(single, tablet_count=TABLETS_PER_COMMIT_MAX)
    assert wanted_resize(full, 1000, RULES) is None


def test_every_decision_has_a_new_number_and_starts_without_reports() -> None:
    first = decided(Resize(), SPLIT)
    assert first == Resize(SPLIT, 1, ready=False)
    revoked = decided(Resize(SPLIT, 1, ready=True), NONE)
    assert revoked == Resize(NONE, 2, ready=False)


def test_a_split_is_ready_when_every_replica_reports_its_number() -> None:
    resize = Resize(SPLIT, 3)
    assert is_split_ready(resize, [3, 3, 3])
    assert not is_split_ready(resize, [3, 2, 3])
    assert not is_split_ready(resize, [3, 4])
    assert not is_split_ready(Resize(NONE, 3), [3, 3])


def test_a_merge_is_ready_when_siblings_share_their_replicas() -> None:
    apart = deciding(MERGE)
    assert list(separate_siblings(apart)) == [0]
    assert not is_merge_ready(apart)
    together = apart.with_replicas(1, (replica(2), replica(1)))
    assert is_merge_ready(together)
    assert not is_merge_ready(replace(together, resize=Resize(SPLIT, 3)))
    moving = TabletTransition(
        kind=TransitionKind.MIGRATION, stage=TabletStage.STREAMING, new_replicas=(replica(4), replica(2))
    )
    assert not is_merge_ready(with_transition(together, 2, moving))


def test_a_split_gives_both_halves_what_the_whole_had() -> None:
    tablets = deciding(SPLIT, ready=True).with_repair_time(2, 77)
    done = finalized(tablets)
    assert list(done.replica_sets()) == [each for each in SETS for _ in range(2)]
    assert [done.repair_time_ms(number) for number in range(8)] == [0, 0, 0, 0, 77, 77, 0, 0]
    assert done.resize == Resize(NONE, 4)
    for token in (-(2**63) + 1, -5, 0, 2**62):
        assert done.replicas(done.number_of(token)) == tablets.replicas(tablets.number_of(token))


def test_a_merged_pair_counts_as_repaired_when_its_older_half_was() -> None:
    tablets = tablet_map(
        TABLE, [SETS[0], SETS[0], SETS[1], SETS[1]], repair_times_ms=[9, 5, 0, 8], resize=Resize(MERGE, 3, ready=True)
    )
    done = finalized(tablets)
    assert list(done.replica_sets()) == [SETS[0], SETS[1]]
    assert [done.repair_time_ms(number) for number in range(2)] == [5, 0]


def test_a_resize_is_not_finalised_too_early() -> None:
    moving = TabletTransition(
        kind=TransitionKind.MIGRATION, stage=TabletStage.STREAMING, new_replicas=(replica(4), replica(2))
    )
    for early in (
        deciding(SPLIT),
        with_transition(deciding(SPLIT, ready=True), 0, moving),
        deciding(MERGE, ready=True),
        deciding(NONE, ready=True),
    ):
        with pytest.raises(AssertionError):
            finalized(early)
