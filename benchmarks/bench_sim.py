"""The speed of the simulated world, of the history checker, and of token computation.

    python -m benchmarks.bench_sim

CPU time of this process, since other work shares the machine; each figure is the median of five runs, printed with
its limit. The last line is JSON.
"""

import asyncio
import functools
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from cassandra.murmur3 import murmur3

from ebla.model.errors import Unreachable
from ebla.model.identity import Address
from ebla.model.token_columns import tokens_of
from ebla.ports.environment import Environment
from ebla.ports.transport import Link
from ebla.sim.checkers.history import ClientOperation
from ebla.sim.checkers.linearizability import find_violation
from ebla.sim.checkers.models import RegisterAdd, RegisterCall, RegisterModel, RegisterRead, RegisterWrite, result_of
from ebla.sim.scenario import Scenario, find_scenario, run_scenario
from ebla.sim.world import World

RUNS = 5
CHATTER_S = 600.0
RAFT_S = 25.0
OPERATIONS, CLIENTS = 1000, 10
KEYS = 2_000_000
KEYS_ONE_BY_ONE = 200_000

CHATTER_MIN = 50.0
CHATTER_NODES = 3
CHATTER_PORT = 7000
CHATTER_CONNECT_S = 2.0
MESSAGES_PER_S = 10.0
"""To each peer: 60 a second by three nodes together."""
JUDGE_S_MAX = 1.0
TOKENS_PER_S_MIN = 5e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number and its limit."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    at_most: bool = False

    @property
    def is_good(self) -> bool:
        if self.limit is None:
            return True
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    @property
    def key(self) -> str:
        return re.sub(r"[^a-z0-9]+", "_", self.name.replace(",", "").lower()).strip("_")

    def line(self) -> str:
        against = "" if self.limit is None else f"  limit {self.limit:,.6g}, {'ok' if self.is_good else 'MISSED'}"
        return f"{self.name:<52} {self.value:>14,.3f} {self.unit}{against}"


def median(measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(RUNS))


class FrameCounter:
    """One end of a link. Counts the frames it receives."""

    def __init__(self, heard: list[int], number: int) -> None:
        self._heard = heard
        self._number = number
        self.open = True

    def frame_received(self, frame: bytes) -> None:  # noqa: ARG002  # frames are counted, not decoded
        self._heard[self._number] += 1

    def link_closed(self, cause: str) -> None:  # noqa: ARG002  # the cause does not matter here
        self.open = False


async def _chatter_node(environment: Environment, addresses: Sequence[Address], number: int, heard: list[int]) -> None:
    def on_open(_: Link) -> FrameCounter:
        return FrameCounter(heard, number)

    await environment.transport.listen(addresses[number], on_open)
    async with asyncio.TaskGroup() as talks:
        for peer, address in enumerate(addresses):
            if peer != number:
                talks.create_task(_talk(environment, address, FrameCounter(heard, number)))


async def _talk(environment: Environment, address: Address, ear: FrameCounter) -> None:
    """Keeps one link to one peer, and reopens it as long as the node runs."""
    while True:
        ear.open = True
        try:
            async with asyncio.timeout(CHATTER_CONNECT_S):
                link = await environment.transport.connect(address, lambda _: ear)
        except (Unreachable, TimeoutError):
            await asyncio.sleep(environment.rng.random())
            continue
        while ear.open:
            link.send(environment.rng.bytes(100))
            await asyncio.sleep((0.5 + environment.rng.random()) / MESSAGES_PER_S)


async def _calm_chatter(world: World) -> None:
    """Three nodes that keep sending each other frames, without faults: 60 a second."""
    heard, addresses = [0] * CHATTER_NODES, list[Address]()
    for number in range(CHATTER_NODES):
        main = functools.partial(_chatter_node, addresses=addresses, number=number, heard=heard)
        addresses.append(world.unit(f"n{number}", main).address(CHATTER_PORT))
    for unit in world.units.values():
        unit.start()
    await asyncio.sleep(world.seconds)
    rate = sum(heard) / world.seconds
    world.check(50.0 < rate < 70.0, f"{rate:.0f} frames a second are not the load this measures")


def simulated_per_cpu_s(scenario: Scenario, seconds: float) -> float:
    outcome = run_scenario(scenario, 1, seconds)
    assert outcome.failure is None, outcome.report
    return outcome.simulated_s / outcome.cpu_s


def make_history(seed: int) -> list[ClientOperation]:
    """Clients that never pause; each operation takes effect at some moment between its call and its return."""
    rng = random.Random(seed)
    free_at = [0.0] * CLIENTS
    moments: list[tuple[float, float, float, int, RegisterCall]] = []
    for _ in range(OPERATIONS):
        client = free_at.index(min(free_at))
        invoked = free_at[client] + rng.random() * 0.1
        moment = invoked + rng.random()
        free_at[client] = moment + rng.random()
        calls: list[RegisterCall] = [RegisterRead(), RegisterWrite(rng.randrange(1000)), RegisterAdd(1)]
        moments.append((moment, invoked, free_at[client], client, rng.choice(calls)))
    value = 0
    history: list[ClientOperation] = []
    for _, invoked, returned, client, call in sorted(moments, key=lambda each: each[0]):
        value = result_of(call, value)
        history.append(
            ClientOperation(client=f"c{client}", key="", call=call, result=value, invoked=invoked, returned=returned)
        )
    return history


def judge_s(seed: int, *, spoiled: bool) -> float:
    history = make_history(seed)
    if spoiled:
        wrong = history[OPERATIONS // 2]
        history[OPERATIONS // 2] = ClientOperation(
            client=wrong.client, key="", call=wrong.call, result=-1, invoked=wrong.invoked, returned=wrong.returned
        )
    began = time.process_time()
    violation = find_violation(history, RegisterModel())
    took = time.process_time() - began
    assert (violation is not None) == spoiled
    return took


def token_figures() -> list[Figure]:
    """Eight-byte keys as a column, and one at a time by the driver's own function."""
    raw = np.random.default_rng(1).integers(0, 256, size=(KEYS, 8), dtype=np.uint8)
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), KEYS, [None, pa.py_buffer(raw.tobytes())])
    keys = [bytes(row) for row in raw[:KEYS_ONE_BY_ONE]]

    def in_columns() -> float:
        began = time.process_time()
        tokens_of(column)
        return KEYS / (time.process_time() - began)

    def one_by_one() -> float:
        began = time.process_time()
        for key in keys:
            murmur3(key)
        return KEYS_ONE_BY_ONE / (time.process_time() - began)

    columns, single = median(in_columns), median(one_by_one)
    return [
        Figure(name="tokens of 8-byte keys, in columns", value=columns, unit="keys/s", limit=TOKENS_PER_S_MIN),
        Figure(name="tokens of 8-byte keys, one at a time (the driver's)", value=single, unit="keys/s"),
        Figure(name="columns against one at a time", value=columns / single, unit="times"),
    ]


def main() -> int:
    calm = Scenario(name="chatter", summary="three chatty nodes without faults", seconds=CHATTER_S, run=_calm_chatter)
    raft = find_scenario("raft")
    right = [judge_s(seed, spoiled=False) for seed in range(RUNS)]
    wrong = [judge_s(seed, spoiled=True) for seed in range(RUNS)]
    chatty = median(lambda: simulated_per_cpu_s(calm, CHATTER_S))
    figures = [
        Figure(name="three chatty nodes, 60 frames/s", value=chatty, unit="simulated s per CPU s", limit=CHATTER_MIN),
        Figure(
            name="a Raft group under every fault",
            value=median(lambda: simulated_per_cpu_s(raft, RAFT_S)),
            unit="simulated s per CPU s",
        ),
        Figure(
            name="judge 1,000 operations of 10 clients, right",
            value=statistics.median(right),
            unit="s",
            limit=JUDGE_S_MAX,
            at_most=True,
        ),
        Figure(
            name="judge 1,000 operations of 10 clients, worst right",
            value=max(right),
            unit="s",
            limit=JUDGE_S_MAX,
            at_most=True,
        ),
        Figure(
            name="judge 1,000 operations of 10 clients, wrong",
            value=statistics.median(wrong),
            unit="s",
            limit=JUDGE_S_MAX,
            at_most=True,
        ),
        *token_figures(),
    ]
    for figure in figures:
        print(figure.line())
    good = all(figure.is_good for figure in figures)
    print(json.dumps({"ok": good, **{figure.key: round(figure.value, 4) for figure in figures}}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
