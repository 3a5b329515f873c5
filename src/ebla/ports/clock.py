"""Time, as two clocks that must not be mistaken for each other.

Shells wait with asyncio's own sleeps and timeouts, which the simulator's loop serves from virtual time. Whoever
*decides* by time reads it here, so that a simulated node may have a clock that drifts and jumps.
"""

from typing import Protocol


class Clock(Protocol):
    def boot_ms(self) -> int:
        """Milliseconds that only grow and keep counting while the machine is suspended. For leases and timeouts."""
        ...

    def wall_us(self) -> int:
        """Microseconds since 1970 as people count them. May jump either way; never for waiting."""
        ...
