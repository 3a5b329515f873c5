"""The wire's own shells on the simulated network, under every fault."""

import pytest

from ebla.sim.scenario import run_scenario
from ebla.sim.scenarios.wire import SCENARIO


@pytest.mark.parametrize("seed", range(1, 7))
def test_calls_keep_their_promises_under_every_fault(seed: int) -> None:
    outcome = run_scenario(SCENARIO, seed)
    assert outcome.failure is None, outcome.report


def test_one_seed_is_one_run() -> None:
    assert run_scenario(SCENARIO, 3, 10.0).trace == run_scenario(SCENARIO, 3, 10.0).trace
