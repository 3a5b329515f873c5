"""Bulk-job sessions in simulation at a few seeds."""

import pytest

from ebla.sim.scenario import find_scenario, run_scenario


@pytest.mark.parametrize("seed", range(1, 7))
def test_sessions_end_when_they_are_closed_and_for_good(seed: int) -> None:
    """INV-XFER-1 under every fault, with openings that are repeated and late."""
    outcome = run_scenario(find_scenario("sessions"), seed)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"


def test_the_same_seed_gives_the_same_run() -> None:
    scenario = find_scenario("sessions")
    assert run_scenario(scenario, 7, 15.0).trace == run_scenario(scenario, 7, 15.0).trace
