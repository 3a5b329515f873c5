"""Restarts, lost stores and copies of folders at a few seeds: INV-START-1 to 4."""

import pytest

from ebla.sim.scenario import find_scenario, run_scenario


@pytest.mark.parametrize("seed", [1, 4])
def test_what_must_not_run_does_not_serve_and_the_rest_restarts_by_itself(seed: int) -> None:
    outcome = run_scenario(find_scenario("restarts"), seed)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"
