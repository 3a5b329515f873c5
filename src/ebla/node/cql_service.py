"""The CQL server in a shard's process: its sockets, what it carries statements out with, and whom it tells of changes.

All shards of a node listen on its CQL port, and the kernel spreads connections over them. They share the shard-aware
port as well; there the port a connection comes from says which shard it is for, and whoever accepted it passes it on.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebla.broker.broker import TableBroker
from ebla.broker.broker_deps import BrokerDeps, BrokerLimits
from ebla.cql.authentication import ClientAuthentication
from ebla.cql.describe import SchemaDescriber
from ebla.cql.executor import CqlExecutor, ExecutorDeps, ExecutorLimits
from ebla.cql.server.clients import ClientRegistry
from ebla.cql.server.connection import BytesInFlight, ConnectionDeps, ConnectionLimits, CqlMetrics
from ebla.cql.server.cql_server import CqlServer, CqlServerLimits
from ebla.cql.server.events import EventPublisher
from ebla.cql.system_tables.node_info import ShardingInfo, SystemTableSources, supported_options
from ebla.cql.system_tables.registry import system_tables
from ebla.cql.system_tables.topology_tables import VersionHistory
from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import DeadlineExceeded, Unavailable
from ebla.model.identity import Address, HostId, ShardNumber
from ebla.node.router_service import RouterConfig, RouterService
from ebla.replica.shard_services import ShardService, ShardServiceContext, ShardServiceFactory
from ebla.request.router import Router
from ebla.runtime.socket_passing import SocketPassing
from ebla.runtime.sockets import listen_tcp
from ebla.transfers.cluster_client import ClusterAddresses, WireClusterClient
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.schema_messages import SchemaAnswer, SchemaChange, SchemaRequest
from ebla.wire.server import Server
from ebla.wire.verbs import SCHEMA, STATUS, StatusAnswer, StatusRequest

BACKLOG = 512
POLL_S = 0.1
"""How often it looks whether it may serve, before it listens, and whether a node fell silent, afterwards."""
STATUS_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """For the calls of jobs."""

    places: ClusterAddresses
    datacenter: str
    authority: Callable[[], bytes]
    limits: BrokerLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class CqlConfig:
    addresses: tuple[Address, Address]
    """For every client, and for those that choose their shard."""
    shard_count: int
    control_address: Address
    passing_path_of: Callable[[ShardNumber], str]
    """Where the shards of this node take connections from one another."""
    release: str
    config: Callable[[], Iterable[tuple[str, str, str]]]
    login: ClientAuthentication
    tls: Callable[[], ssl.SSLContext] | None
    execution: ExecutorLimits
    connection: ConnectionLimits
    server: CqlServerLimits
    broker: BrokerConfig


class LocalControlClient:
    """What only the node's control can do. `execute.SchemaChanger`."""

    def __init__(self, context: ShardServiceContext, address: Address) -> None:
        environment = context.environment
        peers = PeersContext(
            transport=environment.transport,
            rng=environment.rng,
            introduction=context.introduction,
            limits=context.wire,
            report=context.report,
        )
        self._peers = Peers(context.tasks, peers)
        self._peers.set_address(context.own.host, address)
        self._host: HostId = context.own.host
        self._view: TopologyView = context.view

    async def change(self, spec: SchemaChange, deadline_ms: int) -> SchemaAnswer:
        answer = await self._peers.call(self._host, SCHEMA, SchemaRequest(spec), deadline_ms)
        # The next statement of the client must find it here.
        if not await self._view.wait_version(answer.version, deadline_ms / 1000):
            raise DeadlineExceeded("the schema is changed, and this shard has not been told yet")
        return answer

    async def status(self) -> StatusAnswer:
        return await self._peers.call(self._host, STATUS, StatusRequest(), STATUS_MS)


class CqlShardService:
    """`replica.fronts.Front`."""

    def __init__(self, context: ShardServiceContext, setup: CqlConfig, router: Router) -> None:
        self._context = context
        self._setup = setup
        self._control = LocalControlClient(context, setup.control_address)
        self._events = EventPublisher(setup.addresses[0].port)
        self._seen = VersionHistory()
        environment = context.environment
        peers = PeersContext(
            transport=environment.transport,
            rng=environment.rng,
            introduction=context.introduction,
            limits=context.wire,
            report=context.report,
        )
        self._doors = WireClusterClient(context.tasks, peers, setup.broker.places)
        rng = context.environment.rng
        self.server = CqlServer(
            ConnectionDeps(
                executor=CqlExecutor(self._executor_parts(router)),
                authentication=setup.login,
                events=self._events,
                supported=self._supported,
                require_serving=self._require_serving,
                tasks=context.tasks,
                report=context.report,
                new_id=lambda: rng.bytes(4).hex(),
                metrics=CqlMetrics(context.metrics),
                in_flight=BytesInFlight(),
                limits=setup.connection,
            ),
            setup.server,
            setup.tls,
        )
        self._passing = SocketPassing(setup.passing_path_of, self.server.take)
        context.tasks.create_task(self._serve())

    def attach(self, server: Server) -> None:
        """It has no verbs."""

    def on_view_installed(self, view: View) -> None:
        self._doors.follow(view.snapshot)
        self._seen.note(view, self._context.environment.clock.wall_us())
        self._events.look(view, self._context.view.down)

    def close(self) -> None:
        self._passing.close()
        self.server.close("the shard stops")
        self._doors.close("the shard stops")

    # ---- serving

    async def _serve(self) -> None:
        listens = False
        try:
            while True:
                if listens:
                    self._events.look(self._context.view.current, self._context.view.down)
                elif self._context.serves():
                    self._listen()
                    listens = True
                await asyncio.sleep(POLL_S)
        finally:
            self.server.abort()

    def _listen(self) -> None:
        everyone, choosing = self._setup.addresses
        self._passing.listen(self._context.own.shard)
        self.server.listen(listen_tcp(everyone, BACKLOG, shared=True))
        self.server.listen(listen_tcp(choosing, BACKLOG, shared=True), self._pass_on)
        self._context.report("cql.listens", {"address": str(everyone), "shard_aware": str(choosing)})

    def _pass_on(self, accepted: socket.socket) -> bool:
        """A driver that finds itself on another shard than it wanted notices and tries again, so that what cannot be
        passed on may be served here."""
        try:
            port = accepted.getpeername()[1]
        except OSError:  # gone already
            return False
        number = ShardNumber(port % self._setup.shard_count)
        return number != self._context.own.shard and self._passing.pass_to(number, accepted)

    def _require_serving(self) -> None:
        if not self._context.serves():
            raise Unavailable("this shard does not serve now", advice="ask another one, or try again in a moment")

    def _supported(self) -> Mapping[str, Sequence[str]]:
        own, setup = self._context.own, self._setup
        node = self._context.view.current.snapshot.node(own.host)
        port = setup.addresses[1].port
        return supported_options(
            ShardingInfo(
                shard=own.shard,
                shard_count=setup.shard_count,
                ignore_msb=node.ignore_msb,
                shard_aware_port=port,
                is_tls=setup.tls is not None,
            )
        )

    # ---- parts

    def _executor_parts(self, router: Router) -> ExecutorDeps:
        context, setup = self._context, self._setup
        facts = SystemTableSources(
            view=context.view,
            host=context.own.host,
            cluster_name=context.introduction.cluster_name,
            release=setup.release,
            cql_port=setup.addresses[0].port,
            clients=self._clients,
            config=setup.config,
            status=self._control.status,
            history=self._seen.rows,
        )
        return ExecutorDeps(
            view=context.view,
            router=router,
            next_timestamp_us=router.timestamps.next_us,
            schema=self._control,
            virtual=system_tables(facts),
            describe=SchemaDescriber(context.introduction.cluster_name),
            clock=context.environment.clock,
            rng=context.environment.rng,
            own=context.own,
            limits=setup.execution,
            calls=TableBroker(self._broker_parts(router)),
        )

    def _broker_parts(self, router: Router) -> BrokerDeps:
        context, setup = self._context, self._setup.broker
        return BrokerDeps(
            view=context.view,
            doors=self._doors,
            host=context.own.host,
            datacenter=setup.datacenter,
            authority=setup.authority,
            next_timestamp_us=router.timestamps.next_us,
            tasks=context.tasks,
            clock=context.environment.clock,
            rng=context.environment.rng,
            report=context.report,
            limits=setup.limits,
        )

    def _clients(self) -> Iterable[Mapping[str, Any]]:
        return client_rows(self.server.clients, self._context.own.shard)


def client_rows(clients: ClientRegistry, shard: ShardNumber) -> Iterator[Mapping[str, Any]]:
    """As `system.clients` has them."""
    for client in clients:
        peer = client.peer
        yield {
            "address": peer.host,
            "port": peer.port,
            "client_type": "cql",
            "connection_stage": str(client.stage),
            "driver_name": client.driver_name or None,
            "driver_version": client.driver_version or None,
            "keyspace_name": client.keyspace or None,
            "protocol_version": client.protocol_version,
            "shard_id": int(shard),
            "ssl_enabled": bool(peer.tls_protocol),
            "ssl_protocol": peer.tls_protocol or None,
            "ssl_cipher_suite": peer.tls_cipher or None,
            "username": client.user or None,
        }


def cql_services(routing: RouterConfig, setup: CqlConfig) -> ShardServiceFactory:
    """The router and the CQL server that uses it; this one is closed first."""

    def make(context: ShardServiceContext) -> Sequence[ShardService]:
        router = RouterService(context, routing)
        return (CqlShardService(context, setup, router.router), router)

    return make
