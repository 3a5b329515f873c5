"""The machine's clocks."""

import time

# Linux stops CLOCK_MONOTONIC during suspend, and a lease must run out while the lid is closed. Where there is no
# boot-time clock (macOS), CLOCK_MONOTONIC itself counts suspend.
_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    def boot_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000

    def wall_us(self) -> int:
        return time.time_ns() // 1_000
