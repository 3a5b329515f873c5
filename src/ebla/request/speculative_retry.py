"""Speculative retry: when a read is sent to one more replica because the first is slower than usual. Pure.

The recent latencies of each target are kept. A request that takes longer than their percentile is sent to another
replica as well. The share of requests that may be retried is bounded, so that an overloaded cluster is not loaded
further. A target with several overdue requests in a row (a stopped process that is not known to be down yet) is avoided
for a while: waiting for it each time would use up the share.
"""

from collections import deque

from ebla.model.identity import Replica

PERCENTILE = 99
SAMPLES_MAX = 256
"""Latencies kept per target."""
SAMPLES_BETWEEN = 32
"""The percentile is recomputed after this many samples."""
DELAY_MIN_MS = 2.0
DELAY_MAX_MS = 500.0
"""Also the delay for a target without samples."""
SHARE_PERCENT = 10
"""The share of requests that may be retried."""
BURST = 32
"""How many may be retried at once after a quiet time."""
OVERDUE_IN_A_ROW = 3
AVOID_MS = 1_000
TARGETS_MAX = 16_384
"""Targets known at a time. Replicas come and go; beyond this number all samples are dropped."""


class _Target:
    __slots__ = ("avoid_until_ms", "delay_ms", "overdue", "since", "times_ms")

    def __init__(self, delay_ms: float) -> None:
        self.times_ms: deque[float] = deque(maxlen=SAMPLES_MAX)
        self.delay_ms = delay_ms
        self.since = 0
        self.overdue = 0
        self.avoid_until_ms: int | None = None


class SpeculativeRetry:
    def __init__(self, delay_max_ms: float = DELAY_MAX_MS) -> None:
        self._delay_max_ms = delay_max_ms
        self._targets: dict[Replica, _Target] = {}
        self._credit_percent = BURST * 100
        self._avoided = 0

    def delay_ms(self, target: Replica) -> float:
        """How long to wait for an answer before another replica is asked too."""
        known = self._targets.get(target)
        return self._delay_max_ms if known is None else known.delay_ms

    def sent(self) -> None:
        """A request was sent, which earns a part of a retry."""
        self._credit_percent = min(BURST * 100, self._credit_percent + SHARE_PERCENT)

    def may_retry(self) -> bool:
        """Spends one retry, if any is left."""
        if self._credit_percent < 100:
            return False
        self._credit_percent -= 100
        return True

    def answered(self, target: Replica, took_ms: float) -> None:
        known = self._target(target)
        known.overdue = 0
        self._stop_avoiding(known)
        known.times_ms.append(took_ms)
        known.since += 1
        if known.since >= SAMPLES_BETWEEN:
            known.since = 0
            known.delay_ms = self._percentile_ms(known)

    def overdue(self, target: Replica, now_ms: int) -> None:
        """An answer did not come within the delay, or did not come at all."""
        known = self._target(target)
        known.overdue += 1
        if known.overdue >= OVERDUE_IN_A_ROW and known.avoid_until_ms is None:
            known.avoid_until_ms = now_ms + AVOID_MS
            self._avoided += 1

    def is_avoided(self, target: Replica, now_ms: int) -> bool:
        if not self._avoided:
            return False
        known = self._targets.get(target)
        if known is None or known.avoid_until_ms is None:
            return False
        if now_ms < known.avoid_until_ms:
            return True
        self._stop_avoiding(known)
        # It has not answered since, so one more overdue answer is enough now.
        known.overdue = OVERDUE_IN_A_ROW - 1
        return False

    def _stop_avoiding(self, known: _Target) -> None:
        if known.avoid_until_ms is not None:
            known.avoid_until_ms = None
            self._avoided -= 1

    def _target(self, target: Replica) -> _Target:
        known = self._targets.get(target)
        if known is None:
            if len(self._targets) >= TARGETS_MAX:
                self._targets.clear()
                self._avoided = 0
            known = self._targets[target] = _Target(self._delay_max_ms)
        return known

    def _percentile_ms(self, known: _Target) -> float:
        times_ms = sorted(known.times_ms)
        usual_ms = times_ms[len(times_ms) * PERCENTILE // 100]
        return min(self._delay_max_ms, max(DELAY_MIN_MS, usual_ms))
