"""The example register in the simulator, and the proof that the faults must be harsh."""

from pathlib import Path

import pytest

from ebla.sim import register
from ebla.sim.faults.harsh import gentle, harsh
from ebla.sim.register import RegisterState
from ebla.sim.scenario import Scenario, find_scenario, run_scenario
from ebla.sim.scenarios.register import REPLICAS, judge, start
from ebla.sim.world import World

KEPT = [
    line.split()
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
]


@pytest.mark.parametrize("seed", range(1, 21))
def test_the_register_is_linearizable_under_every_fault(seed: int) -> None:
    outcome = run_scenario(find_scenario("register"), seed)
    assert outcome.failure is None, outcome.report


@pytest.mark.parametrize(("name", "seed"), KEPT)
def test_seeds_that_once_failed_stay_well(name: str, seed: str) -> None:
    outcome = run_scenario(find_scenario(name), int(seed))
    assert outcome.failure is None, outcome.report


async def _gentle_run(world: World) -> None:
    load = await start(world)
    await gentle(world, [world.units[name] for name in REPLICAS], world.seconds)
    await judge(world, load)


async def _harsh_run(world: World) -> None:
    load = await start(world)
    await harsh(world, [world.units[name] for name in REPLICAS], world.seconds)
    await judge(world, load)


def test_a_gentle_adversary_misses_what_a_harsh_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that answers before its journal is durable: only a power loss shows it, never a killed process."""

    async def save_without_sync(self: register.RegisterStore, held: RegisterState) -> None:
        self._journal.append(register.record_of(held))
        self.held = held

    monkeypatch.setattr(register.RegisterStore, "save", save_without_sync)
    mild = Scenario(name="mild", summary="a process is killed now and then", seconds=20.0, run=_gentle_run)
    rough = Scenario(name="rough", summary="everything at once", seconds=20.0, run=_harsh_run)
    assert [run_scenario(mild, seed).failure for seed in range(1, 5)] == [None] * 4
    failures = [run_scenario(rough, seed).failure for seed in range(1, 5)]
    assert any(failure is not None and "no order explains" in failure for failure in failures)


def test_a_failure_tells_its_story_and_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "last_record", lambda content: None)
    outcomes = [run_scenario(find_scenario("register"), seed) for seed in range(1, 4)]
    outcome = next(outcome for outcome in outcomes if outcome.failure is not None)
    assert "all is healed" in outcome.report
    assert "none of these can follow" in outcome.report
    expected = f"python -m ebla.sim --scenario register --seed {outcome.seed} --seconds 20 --narrate"
    assert outcome.replay == expected
