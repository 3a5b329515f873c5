"""The router in a shard's process: it reaches the shard's own replicas by a call and all others over the wire.

Real or simulated, a shard gets it as one of its fronts; nothing here knows which.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ebla.feed.topology_view import View
from ebla.model.errors import Unavailable
from ebla.model.identity import Address, ShardNumber
from ebla.options import DEFAULT_LIMITS
from ebla.replica.shard_services import ShardService, ShardServiceContext, ShardServiceFactory
from ebla.request.front import RowsFront
from ebla.request.router import Router
from ebla.request.router_types import LocalReplica, RouterDeps, RouterLimits
from ebla.request.shard_clients import ReplicaAddresses, ShardClients
from ebla.wire.peers import PeersContext
from ebla.wire.server import Server

MakeReplicaClients = Callable[[asyncio.TaskGroup, PeersContext, ReplicaAddresses, LocalReplica], ShardClients]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    datacenter: str
    shards_from: int
    """The port of a node's shard 0; each further shard has the next."""
    socket_of: Callable[[ShardNumber], Address]
    """Where the other shards of the own node listen."""
    limits: RouterLimits = field(default_factory=RouterLimits)
    write_timeout_ms: int = DEFAULT_LIMITS.write_timeout_ms
    read_timeout_ms: int = DEFAULT_LIMITS.read_timeout_ms
    make_doors: MakeReplicaClients = ShardClients
    """The simulator's are watched, and repeat what they were given."""


class RouterService:
    """`replica.fronts.Front`."""

    def __init__(self, context: ShardServiceContext, setup: RouterConfig) -> None:
        environment = context.environment
        self._context = context
        peers = PeersContext(
            transport=environment.transport,
            rng=environment.rng,
            introduction=context.introduction,
            limits=context.wire,
            report=context.report,
        )
        places = ReplicaAddresses(context.own, setup.shards_from, setup.socket_of)
        self._doors = setup.make_doors(context.tasks, peers, places, context.replica)
        self.router = Router(
            RouterDeps(
                view=context.view,
                own=context.own,
                datacenter=setup.datacenter,
                clients=self._doors,
                clock=environment.clock,
                limits=replace(
                    setup.limits,
                    write_timeout_ms_max=setup.write_timeout_ms,
                    read_timeout_ms_max=setup.read_timeout_ms,
                ),
                metrics=context.metrics,
                tasks=context.tasks,
            )
        )
        self._rows = RowsFront(self.router, environment.clock, setup.limits, self._require_serving)

    def attach(self, server: Server) -> None:
        self._rows.serve(server)

    def on_view_installed(self, view: View) -> None:
        self._doors.follow(view.snapshot)

    def close(self) -> None:
        self._doors.close("the shard stops")

    def _require_serving(self) -> None:
        if not self._context.serves():
            raise Unavailable("this shard does not serve now", advice="ask another one, or try again in a moment")


def router_services(setup: RouterConfig) -> ShardServiceFactory:
    def make(context: ShardServiceContext) -> Sequence[ShardService]:
        return (RouterService(context, setup),)

    return make
