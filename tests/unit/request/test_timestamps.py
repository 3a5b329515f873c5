from tests.unit.request.write_rig import Clock

from ebla.request.router import TimestampGenerator


def test_timestamps_follow_the_wall_clock_and_never_stand_still_or_go_back() -> None:
    clock = Clock()
    timestamps = TimestampGenerator(clock)
    taken = []
    for now_us in (1_000, 1_000, 900, 1_002, 2_000):
        clock.now_us = now_us
        taken.append(timestamps.next_us())
    assert taken == [1_000, 1_001, 1_002, 1_003, 2_000]
