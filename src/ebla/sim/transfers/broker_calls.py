"""Calls of jobs in simulation: what CQL carries in reality, between whoever asks and a shard's broker.

A call runs in the life of the shard, dies with it and stands still with it. Whoever asked may be dead by then: it goes
on, as what a connection has sent may go on where its end was not noticed.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ebla.broker.broker import TableBroker
from ebla.feed.topology_view import View
from ebla.model.errors import Unreachable
from ebla.sim.rng import SimRng
from ebla.sim.world import Unit, World
from ebla.transfers.cluster_client import WireClusterClient
from ebla.wire.errors import error_from_frame
from ebla.wire.frames import encode
from ebla.wire.server import Server
from ebla.wire.table_calls import CallAnswer, CallRequest, TableCall

Q = TypeVar("Q")
A = TypeVar("A")

LATENCY_S = 0.01
TIMEOUT_SLACK_S = 3.0
"""Beyond a call's own time, until nobody waits for it any more."""


@dataclass(frozen=True, slots=True)
class _Asked:
    name: str
    payload: bytes
    answer: "asyncio.Future[bytes]"


class SimBrokerServer:
    """`replica.fronts.Front`, in one life of a shard."""

    def __init__(self, tasks: asyncio.TaskGroup, broker: TableBroker, doors: WireClusterClient) -> None:
        self.broker = broker
        self._doors = doors
        self._tasks = tasks
        self._asked: asyncio.Queue[_Asked] = asyncio.Queue()
        tasks.create_task(self._run())

    def attach(self, server: Server) -> None:
        """It has no verbs."""

    def on_view_installed(self, view: View) -> None:
        self._doors.follow(view.snapshot)

    def close(self) -> None:
        self._doors.close("the shard stops")

    def ask(self, asked: _Asked) -> None:
        self._asked.put_nowait(asked)

    async def _run(self) -> None:
        while True:
            asked = await self._asked.get()
            self._tasks.create_task(self._serve(asked))

    async def _serve(self, asked: _Asked) -> None:
        answer = await self.broker.call(asked.name, asked.payload)
        if not asked.answer.done():
            asked.answer.set_result(answer)


@dataclass(slots=True)
class BrokerHandle:
    """The broker of a shard as jobs find it; `door` is of its present life."""

    unit: Unit
    door: SimBrokerServer | None = None


@dataclass(frozen=True, slots=True)
class SimBrokerClient:
    world: World
    rng: SimRng
    here: Unit
    """Where the asking process runs."""

    async def call(self, seat: BrokerHandle, which: TableCall[Q, A], request: Q, deadline_ms: int) -> A:
        """Raises what the broker raised, or `Unreachable`, which here says nothing of what became of it."""
        await self._travel(self.here.name, seat.unit.name)
        if seat.unit.down or seat.door is None:
            raise Unreachable(f"nobody listens at {seat.unit.name}")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        seat.door.ask(_Asked(which.name, encode(CallRequest(deadline_ms, encode(request))), answer))
        try:
            async with asyncio.timeout(deadline_ms / 1000 + TIMEOUT_SLACK_S):
                data = await answer
        except TimeoutError:
            raise Unreachable(f"{seat.unit.name} does not answer") from None
        await self._travel(seat.unit.name, self.here.name)
        found = msgspec.msgpack.decode(data, type=CallAnswer)
        if found.failure is not None:
            raise error_from_frame(found.failure)
        decoded: Any = msgspec.msgpack.decode(found.answer, type=which.answer)
        return decoded  # type: ignore[no-any-return]  # decoded as what the call answers

    async def _travel(self, source: str, target: str) -> None:
        path = self.world.network.path(source, target)
        await asyncio.sleep(self.rng.exponential(LATENCY_S) + path.extra_latency_ms / 1000)
        if path.cuts:
            raise Unreachable(f"{target} cannot be reached from {source}")
