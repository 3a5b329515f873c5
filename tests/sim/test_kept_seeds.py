"""Seeds that once failed, or were the first to show a planted bug."""

from pathlib import Path

import pytest

from ebla.sim.scenario import find_scenario, run_scenario

KEPT = [
    line.split()
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
]


@pytest.mark.parametrize(("name", "seed"), KEPT)
def test_seeds_that_once_failed_stay_well(name: str, seed: str) -> None:
    outcome = run_scenario(find_scenario(name), int(seed))
    assert outcome.failure is None, outcome.report
