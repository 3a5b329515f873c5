"""Intervals of serving on a virtual machine that shares its processors with others.

Stolen CPU time shows in latencies as hundreds of milliseconds without any work here: a p99 of 5 ms became 200 ms while
a quarter of the time was stolen. The kernel of a guest counts that time. An interval that lost more than a little says
nothing about us and is repeated; after some tries the quietest counts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from benchmarks.paced_client import PacedLoad
from benchmarks.row_client import Traffic

STOLEN_SHARE_MAX = 0.01
TRIES = 4


@dataclass(frozen=True, slots=True)
class QuietInterval:
    paced: PacedLoad
    stolen_share: float
    tries: int

    @property
    def p99_ms(self) -> float:
        return self.paced.percentile_ms(0.99)

    def __str__(self) -> str:
        percentiles = f"p50 {self.paced.percentile_ms(0.5):.2f} ms, p99 {self.p99_ms:.2f} ms"
        return f"{percentiles} (stolen {self.stolen_share:.1%}, try {self.tries})"


def quiet_interval(
    traffic: Sequence[Traffic], per_s: float, work: Callable[[], None], at_least_s: float
) -> QuietInterval:
    """Serves while `work` runs, repeated until the time is over."""
    found: list[QuietInterval] = []
    while not found or (found[-1].stolen_share > STOLEN_SHARE_MAX and len(found) < TRIES):
        began, stolen = time.monotonic(), _stolen_s()
        with PacedLoad(traffic, per_s) as paced:
            work()
            while time.monotonic() < began + at_least_s:
                work()
        share = (_stolen_s() - stolen) / (time.monotonic() - began) / psutil.cpu_count()
        found.append(QuietInterval(paced, share, len(found) + 1))
    return min(found, key=lambda one: one.stolen_share)


def _stolen_s() -> float:
    """Of all processors; zero if the system does not report it."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))
