"""Deliberate leaks of the real world into the simulation. Each must be caught, wherever in a unit it happens."""

import asyncio
import datetime
import logging
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from time import monotonic as imported_by_name

import pytest

from ebla.ports.environment import Environment
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.sim.scenario import RunOutcome, Scenario, run_scenario
from ebla.sim.world import World

MADE_BEFORE = random.SystemRandom()
REAL_CHANCE = SystemRng()
ROOT = Path(__file__).resolve().parents[2]

LEAKS: dict[str, Callable[[], object]] = {
    "time.time": lambda: time.time(),
    "time.time_ns": lambda: time.time_ns(),
    "time.monotonic": lambda: time.monotonic(),
    "time.monotonic imported by name": lambda: imported_by_name(),
    "time.perf_counter": lambda: time.perf_counter(),
    "time.process_time": lambda: time.process_time(),
    "time.clock_gettime_ns": lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC),
    "the real clock": lambda: SystemClock().boot_ms(),
    "time.localtime": lambda: time.localtime(),
    "time.sleep": lambda: time.sleep(0),
    "datetime.now": lambda: datetime.datetime.now(),  # noqa: DTZ005  # the leak itself
    "datetime.utcnow": lambda: datetime.datetime.utcnow(),  # noqa: DTZ003  # the leak itself
    "date.today": lambda: datetime.date.today(),  # noqa: DTZ011  # the leak itself
    "random.random": lambda: random.random(),
    "random.shuffle": lambda: random.shuffle([1, 2]),
    "random.Random without a seed": lambda: random.Random(),
    "random.SystemRandom": lambda: random.SystemRandom(),
    "random.SystemRandom made before the run": lambda: MADE_BEFORE.choice((1, 2)),
    "the real chance": lambda: REAL_CHANCE.uuid(),
    "os.urandom": lambda: os.urandom(8),
    "uuid.uuid4": lambda: uuid.uuid4(),
    "uuid.uuid1": lambda: uuid.uuid1(),
    "secrets.token_bytes": lambda: secrets.token_bytes(),
    "a thread": lambda: threading.Thread(target=print).start(),
    "a socket": lambda: socket.socket(),
    "a subprocess": lambda: subprocess.Popen(["true"]),
}

SET_ORDER = """
import asyncio
from ebla.sim.world import World

async def scenario(world):
    for name in {f"node-{number}" for number in range(40)}:
        world.log(name, "is visited in the order of a set")

world = World(1, 1.0)
world.run(scenario)
print(world.trace.digest())
"""


def outcome_of(leak: Callable[[], object]) -> RunOutcome:
    async def main(environment: Environment) -> None:
        await asyncio.sleep(1.0)
        leak()

    async def run(world: World) -> None:
        world.unit("leaky", main).start()
        await asyncio.sleep(2.0)

    return run_scenario(Scenario(name="leak", summary="leaks", seconds=5.0, run=run), seed=1)


@pytest.mark.parametrize("name", LEAKS)
def test_leaks_are_caught(name: str) -> None:
    outcome = outcome_of(LEAKS[name])
    assert outcome.failure is not None
    assert "leaks the real world into the simulation" in outcome.failure
    assert "leaky" in outcome.failure


def test_what_does_not_leak_passes() -> None:
    def clean() -> None:
        random.Random(7).random()
        uuid.UUID(bytes=bytes(16))
        assert isinstance(datetime.datetime.fromtimestamp(0, datetime.UTC), datetime.datetime)
        logging.getLogger("ebla.leak").warning("a record may be stamped")

    assert outcome_of(clean).failure is None


def test_log_records_carry_virtual_time() -> None:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger, handler = logging.getLogger("ebla.leak"), Keep()
    logger.addHandler(handler)
    try:
        outcome_of(lambda: logger.warning("stamped"))
    finally:
        logger.removeHandler(handler)
    assert [record.created for record in records] == [1.0]


def test_everything_is_put_back_after_a_run() -> None:
    before = [time.time, random.random, os.urandom, uuid.uuid4, datetime.datetime, threading.Thread.start]
    assert outcome_of(lambda: time.time()).failure is not None
    assert [time.time, random.random, os.urandom, uuid.uuid4, datetime.datetime, threading.Thread.start] == before
    assert imported_by_name() > 0.0


def test_other_threads_may_read_the_clock() -> None:
    """A test runner has its own threads."""
    read: list[float] = []
    go, done = threading.Event(), threading.Event()

    def runner() -> None:
        go.wait(10.0)
        read.append(time.time())
        done.set()

    thread = threading.Thread(target=runner)
    thread.start()

    def let_it() -> None:
        go.set()
        done.wait(10.0)

    assert outcome_of(let_it).failure is None
    thread.join()
    assert read[0] > 1e9


def test_the_order_of_a_set_of_strings_shows_in_another_process() -> None:
    """It cannot be refused, so two hash seeds are compared, as `test_determinism` does for every scenario."""
    traces = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", SET_ORDER]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        traces.add(done.stdout.strip())
    assert len(traces) == 2
