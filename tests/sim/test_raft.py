"""Raft groups in the simulator: the real drivers, logs and wire under every fault. More seeds: `python -m ebla.sim`."""

import pytest

from ebla.sim.checkers.models import result_of
from ebla.sim.checkers.raft_safety import RaftSafetyChecker
from ebla.sim.clusters import raft_state_machine
from ebla.sim.scenario import find_scenario, run_scenario
from ebla.sim.scenarios.raft import run_group
from ebla.sim.world import World


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_group_keeps_its_promises_under_every_fault(seed: int) -> None:
    outcome = run_scenario(find_scenario("raft"), seed)
    assert outcome.failure is None, outcome.report


def test_a_run_goes_through_what_it_is_meant_to() -> None:
    """Otherwise passing seeds would prove little."""
    seen: list[RaftSafetyChecker] = []

    async def run(world: World) -> None:
        seen.append(await run_group(world))

    for seed in (101, 102, 103):
        World(seed, seconds=15.0).run(run)
    assert min(safety.restarts for safety in seen) >= 5
    assert min(len(safety.memberships) for safety in seen) >= 3
    assert sum(safety.snapshots_installed for safety in seen) >= 20
    assert sum(len(safety.history.leaders) for safety in seen) >= 10
    assert sum(safety.history.committed_to for safety in seen) >= 300
    assert len({len(safety.servers) for safety in seen}) > 1, "groups of different sizes"


def test_a_failure_tells_its_story_and_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raft_state_machine, "result_of", lambda call, value: result_of(call, value) + 1)
    outcome = run_scenario(find_scenario("raft"), 1)
    assert outcome.failure is not None
    assert "no order explains" in outcome.failure
    assert "none of these can follow" in outcome.report
    assert "all is healed" in outcome.report
    assert outcome.replay == "python -m ebla.sim --scenario raft --seed 1 --seconds 25 --narrate"
