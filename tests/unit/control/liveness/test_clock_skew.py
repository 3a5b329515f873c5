"""What offsets of clocks mean: when a warning begins and ends, and when the own clock is the wrong one."""

import pytest

from ebla.control.liveness.clock_skew import PeerClock, ahead_of_majority_ms, clock_offset_ms, measure_clock

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("sent_us", "peer_us", "received_us", "expected_ms"),
    [
        (1_000_000, 1_005_000, 1_010_000, 0),
        (1_000_000, 4_605_000, 1_010_000, 3_600),
        (5_000_000, 1_000_000, 7_000_000, -5_000),
    ],
)
def test_the_offset_is_taken_at_the_middle_of_the_round_trip(
    sent_us: int, peer_us: int, received_us: int, expected_ms: int
) -> None:
    assert clock_offset_ms(sent_us, peer_us, received_us) == expected_ms


@pytest.mark.parametrize(
    ("offsets_ms", "warn_ms", "expected"),
    [
        ([2_001, 2_001], 2_000, [False, False]),
        ([2_001, -2_001, 2_001], 2_000, [False, False, True]),
        ([2_000, 2_000, 2_000], 2_000, [False, False, False]),
        ([2_001, 2_001, 0, 2_001, 2_001], 2_000, [False] * 5),
        ([9_000, 9_000, 9_000, 0, 0, 0], 2_000, [False, False, True, True, True, False]),
        ([9_000, 9_000, 9_000, 0, 9_000, 0, 0], 2_000, [False, False, True, True, True, True, True]),
        ([1 << 40] * 4, 0, [False] * 4),
    ],
)
def test_three_heartbeats_in_a_row_begin_or_end_a_skew(
    offsets_ms: list[int], warn_ms: int, expected: list[bool]
) -> None:
    clock: PeerClock | None = None
    seen = []
    for offset_ms in offsets_ms:
        clock = measure_clock(clock, offset_ms, warn_ms)
        assert clock.offset_ms == offset_ms
        seen.append(clock.is_skewed)
    assert seen == expected


@pytest.mark.parametrize(
    ("offsets_ms", "members", "expected_ms"),
    [
        ([], 1, 0),
        ([-HOUR_MS], 2, 0),
        ([-HOUR_MS, -HOUR_MS], 3, HOUR_MS),
        ([-HOUR_MS, -2 * HOUR_MS], 3, HOUR_MS),
        ([-HOUR_MS], 3, 0),
        ([-HOUR_MS, 5], 3, 0),
        ([HOUR_MS, HOUR_MS], 3, 0),
        ([-HOUR_MS, -HOUR_MS, 0], 4, 0),
        ([-HOUR_MS, -HOUR_MS, -HOUR_MS], 4, HOUR_MS),
        ([-HOUR_MS, -HOUR_MS, -HOUR_MS, 0], 5, HOUR_MS),
    ],
    ids=str,
)
def test_the_own_clock_is_ahead_if_it_is_ahead_of_more_than_half_of_the_members(
    offsets_ms: list[int], members: int, expected_ms: int
) -> None:
    assert ahead_of_majority_ms(offsets_ms, members) == expected_ms
