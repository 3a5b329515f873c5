"""How far measured times deviate from linear growth."""

from collections.abc import Sequence
from itertools import combinations

START_STEPS = 1_000


def deviation_from_linear(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The smallest relative deviation such that some line `start + slope · size`, both not negative, is within it for
    every time. A time that grows twelvefold when its size grows tenfold deviates by 0.18 over two such steps."""
    return min(
        _least_off([size / took for size, took in zip(sizes, seconds)], [1 - start / took for took in seconds])
        for start in (min(seconds) * step / START_STEPS for step in range(START_STEPS + 1))
    )


def _least_off(runs: Sequence[float], rises: Sequence[float]) -> float:
    """The minimum over all slopes of the maximum |slope · run - rise|. The best slope is as far above one point as
    below another."""
    slopes = (
        (rises[one] + rises[other]) / (runs[one] + runs[other]) for one, other in combinations(range(len(runs)), 2)
    )
    return min(max(abs(slope * run - rise) for run, rise in zip(runs, rises)) for slope in slopes)
