"""The timestamps of writes: assigned here where the client sends none, else checked.

The later timestamp wins, so one that lies far ahead hides every write until then, and a row with the greatest one can
never be deleted. Read repair and transfers carry the timestamps of writes that were accepted before; they are not
checked again.
"""

from datetime import UTC, datetime

from ebla.model.errors import InvalidRequest, Unavailable
from ebla.ports.clock import Clock

MICROSECONDS_PER_MS = 1_000


class WriteTimestamps:
    """Of one shard."""

    __slots__ = ("_ahead_max_ms", "_clock", "_clock_ahead_ms", "_last_us", "is_clock_wrong")

    def __init__(self, clock: Clock, ahead_max_ms: int) -> None:
        """`ahead_max_ms`: how far a client's timestamp may be ahead of this clock, and this clock of most nodes'; 0:
        any is accepted."""
        self._clock = clock
        self._ahead_max_ms = ahead_max_ms
        self._last_us = 0
        self._clock_ahead_ms = 0
        self.is_clock_wrong = False
        """Too far ahead of most nodes': this shard assigns no timestamps."""

    def set_clock_ahead(self, ahead_ms: int) -> None:
        """How far the node's clock is ahead of most nodes', as control has measured it."""
        self._clock_ahead_ms = ahead_ms
        self.is_clock_wrong = 0 < self._ahead_max_ms < ahead_ms

    def next_us(self) -> int:
        """Greater than every one before: if the wall clock stands still or jumps back, the next number is used. So two
        writes of one client through one shard keep their order. Raises `Unavailable` if the clock is wrong."""
        if self.is_clock_wrong:
            raise self.clock_error()
        now_us = self._clock.wall_us()
        self._last_us = now_us if now_us > self._last_us else self._last_us + 1
        return self._last_us

    def clock_error(self) -> Unavailable:
        return Unavailable(
            f"the clock of this node is {self._clock_ahead_ms} ms ahead of the clocks of most nodes, so it assigns no "
            "timestamps; nothing was written",
            advice="correct its clock, or write through another node; `ebla status` names the clock",
        )

    def check(self, timestamp_us: int, now_us: int) -> None:
        """Raises `InvalidRequest` for a client's timestamp that is too far ahead of the clock, which shows `now_us`."""
        if self._ahead_max_ms and timestamp_us - now_us > self._ahead_max_ms * MICROSECONDS_PER_MS:
            raise InvalidRequest(
                f"the timestamp {timestamp_us} ({format_us(timestamp_us)}) is too far ahead of this node's clock, "
                f"{now_us} ({format_us(now_us)}); at most {self._ahead_max_ms} ms are accepted",
                advice="timestamps are microseconds since 1970; limits.timestamp_ahead_max_ms is the limit",
            )


def format_us(timestamp_us: int) -> str:
    """For people, in UTC."""
    try:
        return datetime.fromtimestamp(timestamp_us // 1_000_000, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return "beyond the calendar"
