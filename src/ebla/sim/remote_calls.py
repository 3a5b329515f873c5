"""Calls between simulated processes whose real protocol (CQL, Arrow Flight) is not simulated.

The work of a call runs in the incarnation of the serving process: it dies and pauses with that process. It goes on if
only the caller died, as a request does whose connection end was not noticed.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ebla.model.errors import ConnectionLost, DeadlineExceeded, EblaError, Unreachable
from ebla.sim.rng import SimRng
from ebla.sim.world import Unit, World

T = TypeVar("T")

CUT_S = 4.0
"""How long a message waits on a path that is cut or clogged."""

CallWork = Callable[[], Coroutine[Any, Any, T]]


@dataclass(frozen=True, slots=True)
class _Call(Generic[T]):
    work: CallWork[T]
    answer: "asyncio.Future[T]"

    async def serve(self) -> None:
        try:
            result = await self.work()
        except (EblaError, OSError) as error:
            if not self.answer.done():
                self.answer.set_exception(error)
                self.answer.exception()  # retrieved: the caller may have given up
        else:
            if not self.answer.done():
                self.answer.set_result(result)


class CallServer:
    """Serves calls in one incarnation of a process, which must be running `run`."""

    def __init__(self) -> None:
        self._calls: asyncio.Queue[_Call[Any]] = asyncio.Queue()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                call = await self._calls.get()
                tasks.create_task(call.serve())

    def submit(self, work: CallWork[T]) -> "asyncio.Future[T]":
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put_nowait(_Call(work, answer))
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPath:
    """The two directed paths between a caller and a serving unit."""

    world: World
    rng: SimRng
    here: str
    """The caller's name on the network."""
    there: Unit
    latency_s: float

    async def call(self, server: CallServer | None, work: CallWork[T], timeout_s: float) -> T:
        """`server` is that of the incarnation that should serve the call; None: nothing listens there.

        Raises what the work raised, or an error of the simulated connection that tells the right outcome.
        """
        await self.send()
        if server is None:
            raise Unreachable(f"nothing listens at {self.there.name}")
        return await self.receive(server.submit(work), timeout_s)

    async def send(self) -> None:
        """The time of a request on its way. Raises `Unreachable`."""
        incarnation = self.there.incarnation
        await self._travel(self.here, self.there.name, Unreachable)
        if self.there.down or not incarnation.alive:
            raise Unreachable(f"nothing listens at {self.there.name}")

    async def receive(self, answer: "asyncio.Future[T]", timeout_s: float) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                result = await answer
        except TimeoutError:
            raise DeadlineExceeded(f"{self.there.name} does not answer") from None
        await self._travel(self.there.name, self.here, ConnectionLost)
        return result

    async def _travel(self, source: str, target: str, failure: type[EblaError]) -> None:
        path = self.world.network.path(source, target)
        await asyncio.sleep(self.rng.exponential(self.latency_s) + path.extra_latency_ms / 1000)
        if path.cuts or path.clogs:
            await asyncio.sleep(CUT_S)
        if path.cuts:
            raise failure(f"{target} cannot be reached from {source}")
