"""Cluster settings in simulation at a few seeds."""

import pytest

from ebla.sim.scenario import find_scenario, run_scenario


@pytest.mark.parametrize("seed", range(1, 9))
def test_settings_become_equal_and_purged_ones_do_not_return(seed: int) -> None:
    """INV-SET-1, INV-SET-2, INV-SET-3, INV-SET-4 and INV-SET-5 under every fault."""
    outcome = run_scenario(find_scenario("settings"), seed)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"


def test_the_same_seed_gives_the_same_run() -> None:
    scenario = find_scenario("settings")
    assert run_scenario(scenario, 9, 20.0).trace == run_scenario(scenario, 9, 20.0).trace
