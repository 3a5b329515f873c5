"""Whether a shard may serve. Pure.

A shard learns the current version of the topology from its control process alone. When control has been silent for
`feed_silence_ms`, the shard may act on a view that the cluster has left, so it stops serving until it hears from
control again. The bound is shorter than the silence after which control kills the shard: a shard that control gave up
on has stopped serving before. INV-SERVE-1: a shard that serves was allowed to by its live control within the last
`feed_silence_ms`.
"""


class ServingRight:
    def __init__(self, feed_silence_ms: int) -> None:
        assert feed_silence_ms > 0
        self._feed_silence_ms = feed_silence_ms
        self._alive_ms: int | None = None
        self._ends_ms = 0

    def heard(self, asked_ms: int, *, allowed: bool) -> None:
        """Control answered a request sent at `asked_ms`: the answer may be older than its arrival, but not older than
        the request."""
        if self._alive_ms is None or asked_ms >= self._alive_ms:
            self._alive_ms = asked_ms
            self._ends_ms = asked_ms + self._feed_silence_ms if allowed else 0

    def silent_ms(self, now_ms: int) -> int | None:
        """None until control has answered once."""
        return None if self._alive_ms is None else now_ms - self._alive_ms

    def holds(self, now_ms: int) -> bool:
        """Check it at each use: in a process that was stopped and continued no timer has run."""
        return now_ms < self._ends_ms
