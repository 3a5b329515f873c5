"""Whether a shard may serve. Pure.

A shard learns from its control alone which version of the topology holds. Once control has been silent for
`feed_silence_ms`, the shard may be acting on a view that the cluster has left, so it stops serving until it hears
again. The bound is shorter than the silence after which control kills it: a shard that control gave up on has stopped
before. INV-SERVE-1: a shard that serves was told so by its control, alive, within the last `feed_silence_ms`.
"""


class ServingRight:
    def __init__(self, feed_silence_ms: int) -> None:
        assert feed_silence_ms > 0
        self._feed_silence_ms = feed_silence_ms
        self._alive_ms: int | None = None
        self._allowed = False

    def heard(self, asked_ms: int, *, allowed: bool) -> None:
        """Control answered a question put to it at `asked_ms`: the answer may be older than its arrival, never older
        than the question."""
        if self._alive_ms is None or asked_ms >= self._alive_ms:
            self._alive_ms = asked_ms
            self._allowed = allowed

    def silent_ms(self, now_ms: int) -> int | None:
        """None until control was heard."""
        return None if self._alive_ms is None else now_ms - self._alive_ms

    def holds(self, now_ms: int) -> bool:
        """To be asked at each use: a process that was stopped and continued has had no timer run."""
        silent_ms = self.silent_ms(now_ms)
        return self._allowed and silent_ms is not None and silent_ms < self._feed_silence_ms
