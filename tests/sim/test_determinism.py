"""The same seed gives the same run: in another process, with another hash seed, with other memory addresses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ebla.sim.scenario import find_scenario, run_scenario, scenario_names

ROOT = Path(__file__).resolve().parents[2]

ORDERS = """
import asyncio, sys
junk = [object() for _ in range(hash("memory") % 50_000)]   # other addresses in every process
from ebla.sim.world import World

async def member(world, name, seconds):
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        world.log(name, "is cancelled")
        raise

async def scenario(world):
    try:
        async with asyncio.timeout(1.0):
            async with asyncio.TaskGroup() as group:
                for number in range(30):
                    group.create_task(member(world, f"group-{number}", 5.0))
    except TimeoutError:
        pass
    more_junk = [object() for _ in range(hash("more") % 50_000)]
    tasks = [world.loop.create_task(member(world, f"wait-{n}", 1.0 + n % 3)) for n in range(30)]
    done, pending = await asyncio.wait(tasks, timeout=1.5)
    for name in [task.get_name() for task in done]:
        world.log("done", name)
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)
    futures = [world.loop.create_future() for _ in range(20)]
    for future in futures:
        world.loop.call_later(world.rng.random(), future.set_result, None)
    done, pending = await asyncio.wait(futures, timeout=0.5)
    world.log("futures", str([futures.index(future) for future in done]))
    await asyncio.sleep(2.0)

world = World(int(sys.argv[1]), 10.0)
world.run(scenario)
print(world.trace.digest(), world.trace.events)
"""


def in_process(arguments: list[str], hash_seed: int) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_cancellation_and_wait_order_are_the_same_in_every_process() -> None:
    seen = {in_process(["-c", ORDERS, "5"], hash_seed) for hash_seed in (1, 2, 77)}
    assert len(seen) == 1
    assert in_process(["-c", ORDERS, "6"], 1) not in seen
    assert int(seen.pop().split()[1]) > 60, "the order is in the trace"


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_replays_exactly(name: str) -> None:
    command = ["-m", "ebla.sim", "--scenario", name, "--seed", "3", "--seconds", "5"]
    traces = {in_process(command, hash_seed) for hash_seed in (7, 99)}
    assert len(traces) == 1
    assert traces.pop().startswith("trace=")


def test_a_run_does_not_depend_on_the_runs_before_it() -> None:
    raft = find_scenario("raft")
    first = run_scenario(raft, 3, 5.0)
    other = run_scenario(raft, 4, 5.0)
    again = run_scenario(raft, 3, 5.0)
    assert first.trace == again.trace != other.trace
    assert first.steps == again.steps


def test_narrating_changes_nothing() -> None:
    lines: list[str] = []
    raft = find_scenario("raft")
    assert run_scenario(raft, 3, 5.0).trace == run_scenario(raft, 3, 5.0, lines.append).trace
    assert any("crashes" in line for line in lines)
