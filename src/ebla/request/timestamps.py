"""Write timestamps for clients that send none: wall microseconds, strictly increasing per shard."""

from ebla.ports.clock import Clock


class TimestampGenerator:
    __slots__ = ("_clock", "_last_us")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_us = 0

    def next_us(self) -> int:
        """Greater than every one before: where the wall clock stands still or jumps back, the next number is taken.
        Two writes of one client through one shard are so kept in their order."""
        now_us = self._clock.wall_us()
        self._last_us = now_us if now_us > self._last_us else self._last_us + 1
        return self._last_us
