"""Arrow Flight in simulation: streams between tasks and the bulk processes of nodes, over the world's paths.

A stream's calls run in the incarnation of the bulk process, as real Flight threads hand them to its event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from ebla.bulk.stream_service import IncomingPut, SourceStream, StreamService
from ebla.model.errors import Unreachable
from ebla.ports.environment import Environment
from ebla.sim.incarnation import ProcessIncarnation
from ebla.sim.remote_calls import CallPath, CallServer
from ebla.sim.rng import SimRng
from ebla.sim.world import Unit, World
from ebla.wire.transfer_messages import FlightPut, PutAnswer

T = TypeVar("T")

MESSAGE_S = 0.02
"""The mean time of one message of a stream."""
ANSWER_TIMEOUT_S = 4.0
"""After this long without an answer a task gives a stream up."""
SWEEP_S = 0.5
"""How often a bulk process checks which streams have ended."""


class SimFlightServer:
    """Stands for the Flight server in one incarnation of a bulk process."""

    def __init__(self, environment: Environment, service: StreamService) -> None:
        self.environment = environment
        self.service = service
        self.calls = CallServer()
        self._streams: list[SimFlightStream] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sweep())
            await self.calls.run()

    def opened(self, stream: "SimFlightStream") -> None:
        self._streams.append(stream)

    async def _sweep(self) -> None:
        """A stream ends when its task closes it or dies. The server learns of neither in another way."""
        while True:
            await asyncio.sleep(SWEEP_S)
            for stream in [one for one in self._streams if one.ended]:
                if not stream.running:
                    self._streams.remove(stream)  # not earlier: a source that a call is opening must be closed too
                for place in stream.places:
                    self.service.close_put(place)
                for source in stream.sources:
                    self.service.close_source(source)


StreamCall = Callable[[SimFlightServer], Coroutine[Any, Any, T]]


@dataclass(slots=True)
class BulkHandle:
    """The bulk process of a node as tasks find it. `server` belongs to its current incarnation."""

    unit: Unit
    server: SimFlightServer | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class SimFlightStream:
    """One connection from a task to one incarnation of a bulk process."""

    path: CallPath
    server: SimFlightServer
    incarnation: ProcessIncarnation
    """Of the process that the task runs in."""
    server_incarnation: ProcessIncarnation
    places: list[IncomingPut] = field(default_factory=list)
    """What the server has open for this stream."""
    sources: list[SourceStream] = field(default_factory=list)
    running: int = 0
    """Calls that the server has not finished."""
    closed: bool = False

    @property
    def ended(self) -> bool:
        return self.closed or not self.incarnation.alive

    async def call(self, work: StreamCall[T]) -> T:
        """Raises what the server raised, or an error of the connection."""
        await self.path.send()
        if not self.server_incarnation.alive:
            raise Unreachable(f"{self.path.there.name} has restarted")

        async def counted() -> T:
            try:
                return await work(self.server)
            finally:
                self.running -= 1

        self.running += 1
        return await self.path.receive(self.server.calls.submit(counted), ANSWER_TIMEOUT_S)


def connect(world: World, rng: SimRng, here: Unit, bulk: BulkHandle) -> SimFlightStream:
    """From the process that runs now. Raises `Unreachable`."""
    if bulk.unit.down or bulk.server is None:
        raise Unreachable(f"nothing listens at {bulk.unit.name}")
    path = CallPath(world=world, rng=rng, here=here.name, there=bulk.unit, latency_s=MESSAGE_S)
    stream = SimFlightStream(
        path=path, server=bulk.server, incarnation=here.incarnation, server_incarnation=bulk.unit.incarnation
    )
    bulk.server.opened(stream)
    return stream


async def put_file(stream: SimFlightStream, put: FlightPut, pieces: Iterable[bytes]) -> PutAnswer:
    """Sends a whole file and closes the stream."""
    try:
        place = await stream.call(partial(open_put, stream=stream, put=put))
        for piece in pieces:
            await stream.call(partial(append, place=place, data=piece))
        return await stream.call(partial(finish_put, place=place))
    finally:
        stream.closed = True


# ---- calls of a stream, in the incarnation of the bulk process


async def open_source(
    server: SimFlightServer, stream: SimFlightStream, find: Callable[[StreamService], Awaitable[SourceStream]]
) -> SourceStream:
    source = await find(server.service)
    stream.sources.append(source)
    return source


async def open_put(server: SimFlightServer, stream: SimFlightStream, put: FlightPut) -> IncomingPut:
    place = await server.service.open_put(put)
    stream.places.append(place)
    return place


async def append(server: SimFlightServer, place: IncomingPut, data: bytes) -> None:
    await server.service.append(place, data)


async def finish_put(server: SimFlightServer, place: IncomingPut) -> PutAnswer:
    answer = await server.service.finish_put(place)
    server.service.close_put(place)
    return answer
