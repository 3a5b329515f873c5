"""First nodes and schema changes in simulation at a few seeds."""

import pytest

from ebla.sim.scenario import find_scenario, run_scenario


@pytest.mark.parametrize("seed", range(1, 7))
def test_first_nodes_get_in_and_changes_of_the_schema_have_one_order(seed: int) -> None:
    """INV-SCHEMA-1, INV-SCHEMA-2 and INV-SCHEMA-3 under every fault."""
    outcome = run_scenario(find_scenario("schema"), seed)
    assert outcome.failure is None, f"{outcome.replay}\n{outcome.report}"


def test_the_same_seed_gives_the_same_run() -> None:
    scenario = find_scenario("schema")
    assert run_scenario(scenario, 7, 20.0).trace == run_scenario(scenario, 7, 20.0).trace
