"""Group 0 and its formation in simulation at a few seeds."""

import pytest

from ebla.sim.scenario import find_scenario, run_scenario


@pytest.mark.parametrize("seed", range(1, 9))
def test_what_clients_of_group_0_see_makes_sense(seed: int) -> None:
    outcome = run_scenario(find_scenario("group0"), seed)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"


@pytest.mark.parametrize("seed", range(1, 11))
def test_fresh_nodes_form_exactly_one_cluster(seed: int) -> None:
    """INV-FORM-1, with discovery, joining and promotion on simulated machines."""
    outcome = run_scenario(find_scenario("formation"), seed)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"
