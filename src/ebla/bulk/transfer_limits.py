"""Limits on what transfers may use of a node: streams at a time, and bytes per second. More is refused, or waits a
while."""

import asyncio
import math
from dataclasses import dataclass

from ebla.model.errors import Overloaded
from ebla.options import DEFAULT_LIMITS
from ebla.ports.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLimits:
    puts_max: int = DEFAULT_LIMITS.transfers_max
    """Streams into this node at the same time."""
    gets_max: int = 32
    """Streams out of it."""
    bytes_per_s: int = DEFAULT_LIMITS.transfer_bytes_per_second_max
    """Into and out of it together; 0: no bound."""
    rate_wait_ms: int = 30_000
    """The longest that one batch waits for the rate limit. A stream that would wait longer is refused, so that its
    sender knows that others hold it up."""
    transfers_max: int = 4_096
    """Open at the same time, of all sessions."""
    checkpoints_max: int = 1_024
    attempts_max: int = 64
    """Of one transfer of files."""
    runs_max: int = 16_384
    """Attempts of one transfer of rows; all of them may count."""
    files_max: int = 16_384
    """Of one attempt."""
    free_bytes_min: int = 0
    """Staging leaves so many bytes of the disk to the shards."""
    barrier_ms: int = 5_000
    ticket_life_ms: int = 3_600_000
    """Of tickets of sessions that have no deadline."""
    shard_ms: int = 60_000
    """For a call to a shard of this node."""
    build_ms: int = 3_600_000
    """For building a layer from staged rows."""
    rows_merged_bytes_max: int = 512 << 10
    """Rows of at most so many bytes are merged by the shard, which costs it 6 µs per row, taken from its clients. Of
    more rows a layer is built in a worker: from four thousand rows of 120 bytes on that takes no longer."""
    sweep_ms: int = 5_000
    """How often the sweeper runs, also without news of sessions."""
    reads_idle_ms: int = 600_000
    """How long the checkpoint of a read is kept after its last use. A later request takes a new one."""
    reads_max: int = 256
    """Reads with a checkpoint at the same time. One more drops the least recently used."""
    read_streams_max: int = 64
    """Streams of reads at the same time; those of transfers have their own limit."""
    read_life_ms_max: int = 7 * 86_400_000
    """Of a ticket to read a table, whatever the request says."""

    def __post_init__(self) -> None:
        assert self.puts_max > 0
        assert self.gets_max > 0
        assert self.bytes_per_s >= 0


class TokenBucket:
    """A token bucket of bytes, by a monotonic clock. Pure. Taking more than there is makes a debt that is waited
    for."""

    def __init__(self, bytes_per_s: int, now_ms: int) -> None:
        assert bytes_per_s > 0
        self._bytes_per_s = bytes_per_s
        self._level = float(bytes_per_s)
        """At most one second's worth; negative: a debt."""
        self._filled_ms = now_ms

    def wait_ms(self, size_bytes: int, now_ms: int) -> int:
        """How long to wait before taking so many."""
        self._fill(now_ms)
        missing = size_bytes - self._level
        # More than the bucket holds would never fit: it waits until the bucket is full, and then makes a debt.
        missing = min(missing, self._bytes_per_s - self._level)
        return max(0, math.ceil(missing * 1000 / self._bytes_per_s))

    def take(self, size_bytes: int, now_ms: int) -> None:
        self._fill(now_ms)
        self._level -= size_bytes

    def _fill(self, now_ms: int) -> None:
        passed_ms = max(0, now_ms - self._filled_ms)
        self._filled_ms = max(now_ms, self._filled_ms)
        self._level = min(float(self._bytes_per_s), self._level + passed_ms * self._bytes_per_s / 1000)


class RateLimiter:
    """Limits the bytes of all streams together. Streams wait in the order of their calls."""

    def __init__(self, limits: TransferLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._bucket = TokenBucket(limits.bytes_per_s, clock.boot_ms()) if limits.bytes_per_s else None
        self._turn = asyncio.Lock()
        self._waiting_bytes = 0

    async def admit(self, size_bytes: int) -> None:
        """Returns when so many bytes may be moved. Raises `Overloaded` where that would take too long."""
        bucket = self._bucket
        if bucket is None:
            return
        ahead_ms = self._waiting_bytes * 1000 // self._limits.bytes_per_s
        ahead_ms += bucket.wait_ms(size_bytes, self._clock.boot_ms())
        if ahead_ms > self._limits.rate_wait_ms:
            raise Overloaded(
                f"transfers of this node are limited to {self._limits.bytes_per_s} bytes a second, and this one would "
                f"wait {ahead_ms // 1000} s",
                advice="run fewer at a time, or raise limits.transfer_bytes_per_second_max",
            )
        self._waiting_bytes += size_bytes
        try:
            async with self._turn:
                # If the sleep is a little short, the rest is a debt that the next call waits for.
                await asyncio.sleep(bucket.wait_ms(size_bytes, self._clock.boot_ms()) / 1000)
                bucket.take(size_bytes, self._clock.boot_ms())
        finally:
            self._waiting_bytes -= size_bytes


class StreamLimit:
    """Limits the open streams of one direction."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self.open = 0

    def enter(self) -> None:
        if self.open >= self._most:
            raise Overloaded(
                f"{self.open} streams {self._name} this node are open, which is the limit",
                advice="try again when one has ended",
            )
        self.open += 1

    def leave(self) -> None:
        assert self.open > 0
        self.open -= 1
