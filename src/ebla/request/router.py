"""The router of a shard: it carries out the requests of clients on the replicas that the topology names."""

from ebla.ports.clock import Clock
from ebla.request.read_router import ReadRouter
from ebla.request.router_types import RouterDeps
from ebla.request.write_router import WriteRouter


class TimestampGenerator:
    """Write timestamps for clients that send none: wall-clock microseconds, strictly increasing per shard."""

    __slots__ = ("_clock", "_last_us")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_us = 0

    def next_us(self) -> int:
        """Greater than every one before: if the wall clock stands still or jumps back, the next number is used. So two
        writes of one client through one shard keep their order."""
        now_us = self._clock.wall_us()
        self._last_us = now_us if now_us > self._last_us else self._last_us + 1
        return self._last_us


class Router:
    def __init__(self, deps: RouterDeps) -> None:
        self.timestamps = TimestampGenerator(deps.clock)
        self.writes = WriteRouter(deps)
        self.reads = ReadRouter(deps)
        self.write = self.writes.write
        self.read = self.reads.read
