"""Arrow Flight in simulation: streams between tasks and the bulk processes of nodes, over the world's paths.

What a stream asks for runs in the life of the bulk process, as a thread of Flight hands it to that process's loop: it
dies with it, stands still with it, and goes on where only its caller has died.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ebla.bulk.stream_service import IncomingPut, SourceStream, StreamService
from ebla.model.errors import EblaError, Unreachable
from ebla.ports.environment import Environment
from ebla.sim.incarnation import ProcessIncarnation
from ebla.sim.rng import SimRng
from ebla.sim.world import Unit, World
from ebla.wire.transfer_messages import FlightPut, PutAnswer

T = TypeVar("T")

MESSAGE_S = 0.02
"""What one message of a stream takes on average."""
ANSWER_TIMEOUT_S = 4.0
"""After so long without an answer a task gives a stream up."""
SWEEP_S = 0.5
"""How often a bulk process looks which streams have ended."""


class SimFlightServer:
    """Stands where the Flight server does, in one life of a bulk process."""

    def __init__(self, environment: Environment, stream_service: StreamService) -> None:
        self.environment = environment
        self.stream_service = stream_service
        self._asked: asyncio.Queue[_Asked[object]] = asyncio.Queue()
        self._streams: list[SimFlightStream] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._notice_ends())
            while True:
                asked = await self._asked.get()
                tasks.create_task(asked.serve(self))

    def opened(self, stream: "SimFlightStream") -> None:
        self._streams.append(stream)

    def ask(self, asked: "_Asked[object]") -> None:
        self._asked.put_nowait(asked)

    async def _notice_ends(self) -> None:
        """A stream ends when its task says so or is dead; nothing else is ever told to this side."""
        while True:
            await asyncio.sleep(SWEEP_S)
            for stream in [one for one in self._streams if one.ended]:
                if not stream.running:
                    self._streams.remove(stream)  # else what is being opened for it would never be closed
                for place in stream.places:
                    self.stream_service.close_put(place)
                for source in stream.sources:
                    self.stream_service.close_source(source)


StreamCall = Callable[[SimFlightServer], Awaitable[T]]


@dataclass(slots=True)
class _Asked(Generic[T]):
    stream: "SimFlightStream"
    work: StreamCall[T]
    answer: "asyncio.Future[T]"

    async def serve(self, door: SimFlightServer) -> None:
        try:
            result = await self.work(door)
        except (EblaError, OSError) as error:
            if not self.answer.done():
                self.answer.set_exception(error)
                self.answer.exception()  # seen: whoever asked may have given up
        else:
            if not self.answer.done():
                self.answer.set_result(result)
        finally:
            self.stream.running -= 1


@dataclass(slots=True)
class BulkHandle:
    """The bulk process of a node as tasks find it; `door` is of its present life."""

    unit: Unit
    door: SimFlightServer | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class SimFlightStream:
    """One connection from a task to one life of a bulk process."""

    world: World
    rng: SimRng
    here: Unit
    """Where the task runs."""
    there: Unit
    door: SimFlightServer
    incarnation: ProcessIncarnation
    """Of the process that the task runs in."""
    remote_incarnation: ProcessIncarnation
    places: list[IncomingPut] = field(default_factory=list)
    """What the other side has open for it."""
    sources: list[SourceStream] = field(default_factory=list)
    running: int = 0
    """Pieces of work that the other side has not ended."""
    closed: bool = False

    @property
    def ended(self) -> bool:
        return self.closed or not self.incarnation.alive

    async def ask(self, work: StreamCall[T]) -> T:
        """Raises what the other side raised, or `Unreachable`."""
        await self._travel(self.here.name, self.there.name)
        if not self.remote_incarnation.alive:
            raise Unreachable(f"{self.there.name} is not there any more")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.running += 1
        self.door.ask(_Asked(self, work, answer))  # type: ignore[arg-type]  # what it answers is its asker's affair
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                result = await answer
        except TimeoutError:
            raise Unreachable(f"{self.there.name} does not answer") from None
        await self._travel(self.there.name, self.here.name)
        return result

    async def _travel(self, source: str, target: str) -> None:
        path = self.world.network.path(source, target)
        await asyncio.sleep(self.rng.exponential(MESSAGE_S) + path.extra_latency_ms / 1000)
        if path.cuts or path.clogs:
            await asyncio.sleep(ANSWER_TIMEOUT_S)
        if path.cuts:
            raise Unreachable(f"{target} cannot be reached from {source}")


def connect(world: World, rng: SimRng, here: Unit, seat: BulkHandle) -> SimFlightStream:
    """From the process that runs now. Raises `Unreachable`."""
    if seat.unit.down or seat.door is None:
        raise Unreachable(f"nobody listens at {seat.unit.name}")
    stream = SimFlightStream(
        world=world,
        rng=rng,
        here=here,
        there=seat.unit,
        door=seat.door,
        incarnation=here.incarnation,
        remote_incarnation=seat.unit.incarnation,
    )
    seat.door.opened(stream)
    return stream


# ---- what is asked over a stream, in the life of the bulk process


async def open_put(door: SimFlightServer, stream: SimFlightStream, put: FlightPut) -> IncomingPut:
    place = await door.stream_service.open_put(put)
    stream.places.append(place)
    return place


async def append(door: SimFlightServer, place: IncomingPut, data: bytes) -> None:
    await door.stream_service.append(place, data)


async def finish_put(door: SimFlightServer, place: IncomingPut) -> PutAnswer:
    answer = await door.stream_service.finish_put(place)
    door.stream_service.close_put(place)
    return answer
