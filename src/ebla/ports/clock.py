"""Time, as two clocks that must not be confused.

Code that waits uses asyncio's sleeps and timeouts, which the simulator's loop serves from virtual time. Code that
*decides* by time reads this clock, so that a simulated node may have one that drifts and jumps.
"""

from typing import Protocol


class Clock(Protocol):
    def boot_ms(self) -> int:
        """Monotonic milliseconds that keep counting while the machine is suspended. For leases and timeouts."""
        ...

    def wall_us(self) -> int:
        """Wall-clock microseconds since 1970. May jump either way; never use it for waiting."""
        ...
