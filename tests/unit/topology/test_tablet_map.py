import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.topology.small_cluster import with_transition

from ebla.model.identity import HostId, Replica, ShardNumber, TableId
from ebla.model.token import TOKEN_MAX, TOKEN_MIN
from ebla.topology.states import TabletStage, TransitionKind
from ebla.topology.tablet_map import (
    CHUNK_TABLETS,
    TabletMap,
    TabletTransition,
    shift_of,
    tablet_map,
)

TABLE = TableId(uuid.UUID(int=1))


def replica(host: int, shard: int = 0) -> Replica:
    return Replica(HostId(uuid.UUID(int=host)), ShardNumber(shard))


def spread(count: int) -> TabletMap:
    return tablet_map(TABLE, [(replica(number % 5), replica(number % 5 + 1)) for number in range(count)])


MOVE = TabletTransition(
    kind=TransitionKind.MIGRATION, stage=TabletStage.STREAMING, new_replicas=(replica(7), replica(8))
)


@given(st.integers(0, 12), st.integers(TOKEN_MIN, TOKEN_MAX))
def test_a_token_is_in_the_tablet_whose_range_holds_it(log: int, token: int) -> None:
    tablets = spread(1 << log)
    number = tablets.number_of(token)
    assert 0 <= number < tablets.tablet_count
    first = TOKEN_MIN if number == 0 else tablets.last_token(number - 1) + 1
    assert first <= token <= tablets.last_token(number)
    assert tablets.after_token(number) == (TOKEN_MIN if number == 0 else first - 1)


def test_the_last_tablet_ends_at_the_greatest_token() -> None:
    for count in (1, 2, 1024):
        assert spread(count).last_token(count - 1) == TOKEN_MAX


@pytest.mark.parametrize("count", [3, 0, 1 << 21])
def test_a_count_is_a_power_of_two_within_its_bound(count: int) -> None:
    with pytest.raises(AssertionError):
        shift_of(count)


def test_a_change_copies_one_chunk_and_shares_the_others() -> None:
    old = spread(4 * CHUNK_TABLETS)
    for new in (
        with_transition(old, CHUNK_TABLETS + 3, MOVE),
        old.with_replicas(CHUNK_TABLETS + 3, (replica(9),)),
        old.with_repair_time(CHUNK_TABLETS + 3, 77),
    ):
        assert new != old
        same = [before is after for before, after in zip(old.chunks, new.chunks)]
        assert same == [True, False, True, True]
    assert old == spread(4 * CHUNK_TABLETS)


def test_transitions_are_walked_by_number_and_go() -> None:
    tablets = spread(512)
    for number in (300, 5, 4, 511):
        tablets = with_transition(tablets, number, MOVE)
    assert [number for number, _ in tablets.transitions()] == [4, 5, 300, 511]
    assert tablets.any_transition
    for number in (300, 5, 4, 511):
        tablets = with_transition(tablets, number, None)
    assert not tablets.any_transition
    assert tablets == spread(512)


def test_facts_about_one_tablet() -> None:
    tablets = with_transition(spread(4), 1, MOVE).with_repair_time(1, 9)
    assert tablets.replicas(1) == (replica(1), replica(2))
    assert tablets.transition(1) == MOVE
    assert [tablets.repair_time_ms(number) for number in (1, 2)] == [9, 0]
    assert tablets.last_token(1) - tablets.after_token(1) == 1 << 62
    assert spread(4).repair_time_ms(0) == 0


def test_tablets_of_a_host_include_those_that_are_coming() -> None:
    tablets = with_transition(spread(512), 200, MOVE)
    host = replica(7).host
    assert list(tablets.tablets_on(host)) == [200]
    expected = [number for number in range(512) if any(each.host.int == 3 for each in tablets.replicas(number))]
    assert list(tablets.tablets_on(replica(3).host)) == expected
    assert list(tablets.tablets_on(replica(99).host)) == []
    assert tablets.all_replicas(200) == (replica(0), replica(1), replica(7), replica(8))
    assert tablets.all_replicas(0) == (replica(0), replica(1))


def test_equal_replica_sets_are_one_object() -> None:
    tablets = spread(512)
    assert tablets.replicas(0) is tablets.replicas(5)


def test_repair_times_of_all_zero_are_not_kept() -> None:
    assert tablet_map(TABLE, [(replica(1),)] * 2, repair_times_ms=[0, 0]).chunks[0].repair_times_ms == ()
    assert tablet_map(TABLE, [(replica(1),)] * 2, repair_times_ms=[0, 4]).repair_time_ms(1) == 4
