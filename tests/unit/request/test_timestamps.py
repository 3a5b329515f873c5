"""Timestamps of writes: assigned in order, and refused where a clock or a client is far ahead."""

from dataclasses import dataclass

import pytest

from ebla.model.errors import InvalidRequest, Outcome, Unavailable
from ebla.request.timestamps import WriteTimestamps

DAY_MS = 86_400_000
NOW_US = 1_700_000_000_000_000


@dataclass
class Clock:
    now_us: int = NOW_US

    def wall_us(self) -> int:
        return self.now_us

    def boot_ms(self) -> int:
        return 0


def test_timestamps_follow_the_wall_clock_and_never_stand_still_or_go_back() -> None:
    clock = Clock()
    timestamps = WriteTimestamps(clock, DAY_MS)
    taken = []
    for now_us in (1_000, 1_000, 900, 1_002, 2_000):
        clock.now_us = now_us
        taken.append(timestamps.next_us())
    assert taken == [1_000, 1_001, 1_002, 1_003, 2_000]


def test_a_timestamp_too_far_ahead_is_refused_with_both_times() -> None:
    timestamps = WriteTimestamps(Clock(), 3 * DAY_MS)
    latest_us = NOW_US + 3 * DAY_MS * 1000
    for accepted_us in (-(1 << 62), 0, NOW_US, latest_us):
        timestamps.check(accepted_us, NOW_US)
    for refused_us in (latest_us + 1, (1 << 63) - 1):
        with pytest.raises(InvalidRequest) as refused:
            timestamps.check(refused_us, NOW_US)
        assert str(refused_us) in refused.value.message
        assert str(NOW_US) in refused.value.message


def test_without_a_limit_every_timestamp_is_accepted() -> None:
    timestamps = WriteTimestamps(Clock(), 0)
    timestamps.check((1 << 63) - 1, NOW_US)
    timestamps.set_clock_ahead(1 << 40)
    assert timestamps.next_us() == NOW_US


def test_a_wrong_clock_assigns_nothing_until_it_is_right() -> None:
    timestamps = WriteTimestamps(Clock(), DAY_MS)
    timestamps.set_clock_ahead(DAY_MS)
    assert timestamps.next_us() == NOW_US
    timestamps.set_clock_ahead(DAY_MS + 1)
    with pytest.raises(Unavailable, match=str(DAY_MS + 1)) as refused:
        timestamps.next_us()
    assert refused.value.outcome is Outcome.NOT_APPLIED
    timestamps.set_clock_ahead(0)
    assert timestamps.next_us() > NOW_US
