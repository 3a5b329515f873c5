"""Arrow Flight in simulation: streams between tasks and the bulk processes of nodes, over the world's paths.

What a stream asks for runs in the life of the bulk process, as a thread of Flight hands it to that process's loop: it
dies with it, stands still with it, and goes on where only its caller has died.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ebla.bulk.data_plane import DataPlane, OpenedSource, PutPlace
from ebla.model.errors import EblaError, Unreachable
from ebla.ports.surroundings import Surroundings
from ebla.sim.chance import SimChance
from ebla.sim.life import Life
from ebla.sim.world import Unit, World
from ebla.wire.transfer_messages import FlightPut, PutAnswer

T = TypeVar("T")

PIECE_S = 0.02
"""What one message of a stream takes on average."""
SILENCE_S = 4.0
"""After so long without an answer a task gives a stream up."""
LOOK_S = 0.5
"""How often a bulk process looks which streams have ended."""


class FlightTwin:
    """Stands where the Flight server does, in one life of a bulk process."""

    def __init__(self, around: Surroundings, plane: DataPlane) -> None:
        self.around = around
        self.plane = plane
        self._asked: asyncio.Queue[_Asked[object]] = asyncio.Queue()
        self._streams: list[Stream] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._notice_ends())
            while True:
                asked = await self._asked.get()
                tasks.create_task(asked.serve(self))

    def opened(self, stream: "Stream") -> None:
        self._streams.append(stream)

    def ask(self, asked: "_Asked[object]") -> None:
        self._asked.put_nowait(asked)

    async def _notice_ends(self) -> None:
        """A stream ends when its task says so or is dead; nothing else is ever told to this side."""
        while True:
            await asyncio.sleep(LOOK_S)
            for stream in [one for one in self._streams if one.ended]:
                if not stream.running:
                    self._streams.remove(stream)  # else what is being opened for it would never be closed
                for place in stream.places:
                    self.plane.close_put(place)
                for source in stream.sources:
                    self.plane.close_source(source)


Work = Callable[[FlightTwin], Awaitable[T]]


@dataclass(slots=True)
class _Asked(Generic[T]):
    stream: "Stream"
    work: Work[T]
    answer: "asyncio.Future[T]"

    async def serve(self, door: FlightTwin) -> None:
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
class BulkSeat:
    """The bulk process of a node as tasks find it; `door` is of its present life."""

    unit: Unit
    door: FlightTwin | None = None


@dataclass(slots=True, eq=False)
class Stream:
    """One connection from a task to one life of a bulk process."""

    world: World
    chance: SimChance
    here: Unit
    """Where the task runs."""
    there: Unit
    door: FlightTwin
    life: Life
    """Of the process that the task runs in."""
    life_there: Life
    places: list[PutPlace] = field(default_factory=list)
    """What the other side has open for it."""
    sources: list[OpenedSource] = field(default_factory=list)
    running: int = 0
    """Pieces of work that the other side has not ended."""
    closed: bool = False

    @property
    def ended(self) -> bool:
        return self.closed or not self.life.alive

    async def ask(self, work: Work[T]) -> T:
        """Raises what the other side raised, or `Unreachable`."""
        await self._travel(self.here.name, self.there.name)
        if not self.life_there.alive:
            raise Unreachable(f"{self.there.name} is not there any more")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.running += 1
        self.door.ask(_Asked(self, work, answer))  # type: ignore[arg-type]  # what it answers is its asker's affair
        try:
            async with asyncio.timeout(SILENCE_S):
                result = await answer
        except TimeoutError:
            raise Unreachable(f"{self.there.name} does not answer") from None
        await self._travel(self.there.name, self.here.name)
        return result

    async def _travel(self, source: str, target: str) -> None:
        path = self.world.network.path(source, target)
        await asyncio.sleep(self.chance.exponential(PIECE_S) + path.extra_ms / 1000)
        if path.cuts or path.clogs:
            await asyncio.sleep(SILENCE_S)
        if path.cuts:
            raise Unreachable(f"{target} cannot be reached from {source}")


def connect(world: World, chance: SimChance, here: Unit, seat: BulkSeat) -> Stream:
    """From the process that runs now. Raises `Unreachable`."""
    if seat.unit.down or seat.door is None:
        raise Unreachable(f"nobody listens at {seat.unit.name}")
    stream = Stream(world, chance, here, seat.unit, seat.door, here.life, seat.unit.life)
    seat.door.opened(stream)
    return stream


# ---- what is asked over a stream, in the life of the bulk process


async def open_put(door: FlightTwin, stream: Stream, put: FlightPut) -> PutPlace:
    place = await door.plane.open_put(put)
    stream.places.append(place)
    return place


async def append(door: FlightTwin, place: PutPlace, data: bytes) -> None:
    await door.plane.append(place, data)


async def finish_put(door: FlightTwin, place: PutPlace) -> PutAnswer:
    answer = await door.plane.finish_put(place)
    door.plane.close_put(place)
    return answer
