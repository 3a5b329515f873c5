"""Scenarios: their type, how they are found, and how one is run from a seed."""

import gc
import importlib
import pkgutil
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ebla.model.errors import InvalidRequest
from ebla.sim import scenarios
from ebla.sim.world import World, describe

REPORT_LINES_MAX = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`run` builds the units, lets them run for about `world.seconds`, and raises if something is wrong."""

    name: str
    summary: str
    seconds: float
    run: Callable[[World], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How one run ended. `failure` is None for a good one."""

    scenario: str
    seed: int
    seconds: float
    trace: str
    simulated_s: float
    cpu_s: float
    steps: int
    failure: str | None
    report: str

    @property
    def replay(self) -> str:
        return f"python -m ebla.sim --scenario {self.scenario} --seed {self.seed} --seconds {self.seconds:g} --narrate"


def scenario_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(scenarios.__path__))


def all_scenarios() -> dict[str, Scenario]:
    return {name: find_scenario(name) for name in scenario_names()}


def find_scenario(name: str) -> Scenario:
    """A scenario has the name of its file, so that it can be run without importing the others; `-` stands for `_`."""
    name = name.replace("-", "_")
    if name not in scenario_names():
        raise InvalidRequest(f"there is no scenario {name!r}", advice=f"there are: {', '.join(scenario_names())}")
    module = importlib.import_module(f"{scenarios.__name__}.{name}")
    scenario = module.SCENARIO
    assert isinstance(scenario, Scenario), f"{module.__name__}.SCENARIO is not a Scenario"
    assert scenario.name == name, f"the scenario of {module.__name__} has the name {scenario.name}"
    return scenario


def run_scenario(
    scenario: Scenario, seed: int, seconds: float | None = None, show: Callable[[str], None] | None = None
) -> RunOutcome:
    """One run. A failure of the run is in the outcome, not raised."""
    began_s = time.process_time()
    world = World(seed, scenario.seconds if seconds is None else seconds, show)
    failure: str | None = None
    report = ""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        world.run(scenario.run)
    except Exception as error:
        failure = describe(error)
        story = list(world.trace.lines)[-REPORT_LINES_MAX:]
        report = "\n".join([*story, "", "".join(traceback.format_exception(error))])
    finally:
        gc.enable()
        gc.unfreeze()
    world.log("world", f"ends: {failure or 'well'}")
    return RunOutcome(
        scenario=scenario.name,
        seed=seed,
        seconds=world.seconds,
        trace=world.trace.digest(),
        simulated_s=world.now(),
        cpu_s=time.process_time() - began_s,
        steps=world.loop.steps,
        failure=failure,
        report=report,
    )


def run_named(name: str, seed: int, seconds: float | None) -> RunOutcome:
    """For a worker process, which finds the scenario by its name."""
    return run_scenario(find_scenario(name), seed, seconds)
