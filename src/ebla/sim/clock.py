"""A machine's two clocks: skewed from the start, drifting, and jumping or standing still when a fault makes them."""

from collections.abc import Callable

EPOCH_US = 1_700_000_000_000_000
DRIFT_PPM_MAX = 200
SKEW_US_MAX = 500_000


class SimClock:
    """`ports.clock.Clock`. The boot clock drifts and restarts at a reboot. The wall clock also jumps."""

    def __init__(self, now: Callable[[], float], draw: Callable[[], float]) -> None:
        self._now = now
        self._rate = 1.0 + (2.0 * draw() - 1.0) * DRIFT_PPM_MAX / 1e6
        self.boot_rate = self._rate
        """A world may set it before the first process of the machine starts."""
        self._booted_at = -draw() * 1000.0
        self._wall_offset_us = int((2.0 * draw() - 1.0) * SKEW_US_MAX)
        self._frozen_at: float | None = None
        self._missed_s = 0.0

    def boot_ms(self) -> int:
        return int((self.machine_s() - self._booted_at) * self.boot_rate * 1000.0)

    def wall_us(self) -> int:
        return EPOCH_US + self._wall_offset_us + int(self.machine_s() * self._rate * 1e6)

    def machine_s(self) -> float:
        """The true time, less that in which the machine was frozen."""
        return (self._now() if self._frozen_at is None else self._frozen_at) - self._missed_s

    def freeze(self) -> None:
        """Both clocks stand still, as those of a virtual machine that is paused."""
        if self._frozen_at is None:
            self._frozen_at = self._now()

    def thaw(self) -> float:
        """Returns for how long they stood still."""
        stood_s = 0.0 if self._frozen_at is None else self._now() - self._frozen_at
        self._frozen_at = None
        self._missed_s += stood_s
        return stood_s

    def jump(self, by_us: int) -> None:
        """Moves the wall clock, either way: a correction by an operator or by NTP."""
        self._wall_offset_us += by_us

    def reboot(self) -> None:
        """After a power loss the boot clock counts from zero: a reading stored on disk means nothing any more."""
        self.thaw()
        self._booted_at = self.machine_s()
