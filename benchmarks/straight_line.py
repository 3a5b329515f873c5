"""How far times that were measured are from growing in a straight line."""

from collections.abc import Sequence
from itertools import combinations

START_STEPS = 1_000


def deviation_from_linear(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The least share such that some line `start + slope · size`, neither of them below nothing, is within that share
    of every time. A time that grows twelvefold where its size grows tenfold is 0.18 off over two such steps."""
    return min(
        _least_off([size / took for size, took in zip(sizes, seconds)], [1 - start / took for took in seconds])
        for start in (min(seconds) * step / START_STEPS for step in range(START_STEPS + 1))
    )


def _least_off(runs: Sequence[float], rises: Sequence[float]) -> float:
    """Over all slopes the least of the greatest |slope · run - rise|. The best one is as far above one point as it is
    below another."""
    slopes = (
        (rises[one] + rises[other]) / (runs[one] + runs[other]) for one, other in combinations(range(len(runs)), 2)
    )
    return min(max(abs(slope * run - rise) for run, rise in zip(runs, rises)) for slope in slopes)
