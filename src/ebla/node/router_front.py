"""The router in a shard's process: it reaches the shard's own replicas by a call and all others over the wire.

Real or simulated, a shard gets it as one of its fronts; nothing here knows which.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import Unavailable
from ebla.model.identity import Address, ShardNumber
from ebla.replica.fronts import Front, FrontContext, FrontFactory
from ebla.request.doors import DoorPlaces, ShardDoors
from ebla.request.front import RowsFront
from ebla.request.parts import LocalReplica, Mutation, ReadPage, ReadQuery, RouterLimits, RouterParts
from ebla.request.router import Router
from ebla.wire.peers import PeersContext
from ebla.wire.server import Server
from ebla.wire.topology_view import View

MakeDoors = Callable[[asyncio.TaskGroup, PeersContext, DoorPlaces, LocalReplica], ShardDoors]


@dataclass(frozen=True, slots=True)
class RouterSetup:
    datacenter: str
    shards_from: int
    """The port of a node's shard 0; each further shard has the next."""
    socket_of: Callable[[ShardNumber], Address]
    """Where the other shards of the own node listen."""
    limits: RouterLimits = field(default_factory=RouterLimits)
    write_timeout_ms: int = 2_000
    read_timeout_ms: int = 5_000
    make_doors: MakeDoors = ShardDoors
    """The simulator's are watched, and repeat what they were given."""


class BoundedRouting:
    """`request.front.Routing`: whatever time a client gives, a request waits no longer than the node allows."""

    def __init__(self, router: Router, setup: RouterSetup) -> None:
        self._router = router
        self._write_ms = setup.write_timeout_ms
        self._read_ms = setup.read_timeout_ms

    def begin_write(
        self, mutations: Sequence[Mutation], level: ConsistencyLevel, timeout_ms: int
    ) -> "asyncio.Future[None]":
        return self._router.begin_write(mutations, level, min(timeout_ms, self._write_ms))

    def try_read(self, query: ReadQuery, level: ConsistencyLevel) -> ReadPage | None:
        return self._router.try_read(query, level)

    def read(self, query: ReadQuery, level: ConsistencyLevel, timeout_ms: int) -> Coroutine[Any, Any, ReadPage]:
        return self._router.read(query, level, min(timeout_ms, self._read_ms))


class RouterFront:
    """`replica.fronts.Front`."""

    def __init__(self, context: FrontContext, setup: RouterSetup) -> None:
        around = context.surroundings
        self._context = context
        peers = PeersContext(around.transport, around.chance, context.introduction, context.wire, context.report)
        places = DoorPlaces(context.own, setup.shards_from, setup.socket_of)
        self._doors = setup.make_doors(context.tasks, peers, places, context.replica)
        self.router = Router(
            RouterParts(
                context.view,
                context.own,
                setup.datacenter,
                self._doors,
                around.clock,
                setup.limits,
                context.metrics,
                context.tasks,
            )
        )
        routing = BoundedRouting(self.router, setup)
        self._rows = RowsFront(routing, around.clock, setup.limits, self._require_serving)

    def attach(self, server: Server) -> None:
        self._rows.serve(server)

    def installed(self, view: View) -> None:
        self._doors.follow(view.snapshot)

    def close(self) -> None:
        self._doors.close("the shard stops")

    def _require_serving(self) -> None:
        if not self._context.serves():
            raise Unavailable("this shard does not serve now", advice="ask another one, or try again in a moment")


def router_fronts(setup: RouterSetup) -> FrontFactory:
    def make(context: FrontContext) -> Sequence[Front]:
        return (RouterFront(context, setup),)

    return make
