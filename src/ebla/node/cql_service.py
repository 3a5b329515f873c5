"""The CQL server inside a shard process: its sockets, its executor, and the broker of Spark jobs behind `CALL`.

All shards of a node listen on its CQL port, and the kernel spreads connections over them. They also share the
shard-aware port. There the client's port says which shard it wants, and the shard that accepted the connection passes
it on.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ebla.broker.broker import TableBroker
from ebla.broker.broker_deps import BrokerDeps, BrokerLimits
from ebla.cql.authentication import (
    AllowAllAuthentication,
    ClientAuthentication,
    PasswordAuthentication,
    parse_password_hash,
)
from ebla.cql.describe import SchemaDescriber
from ebla.cql.executor import CqlExecutor, ExecutorDeps, ExecutorLimits
from ebla.cql.server.clients import ClientRegistry
from ebla.cql.server.connection import BytesInFlight, ConnectionDeps, ConnectionLimits, CqlMetrics
from ebla.cql.server.cql_server import CqlServer, CqlServerLimits
from ebla.cql.server.events import EventPublisher
from ebla.cql.system_tables.node_info import ShardingInfo, SystemTableSources, supported_options
from ebla.cql.system_tables.schema_tables import system_tables
from ebla.cql.system_tables.topology_tables import VersionHistory
from ebla.feed.topology_view import View
from ebla.model.errors import DeadlineExceeded
from ebla.model.identity import ShardNumber
from ebla.node.context import NodeContext
from ebla.node.shard_process import ShardServiceContext
from ebla.options import Authenticator, ClientTls, NodeOptions, flatten
from ebla.ports.rng import Rng
from ebla.runtime.socket_passing import SocketPassing
from ebla.runtime.sockets import listen_tcp
from ebla.runtime.tls import CqlServerTls, TlsFolder
from ebla.transfers.cluster_client import WireClusterClient
from ebla.version import release
from ebla.wire.peers import Peers
from ebla.wire.schema_messages import SchemaAnswer, SchemaChange, SchemaRequest
from ebla.wire.verbs import SCHEMA, STATUS, StatusAnswer, StatusRequest

BACKLOG = 512
POLL_S = 0.1
"""How often it checks whether it may serve, before it listens, and whether a node went down, afterwards."""
STATUS_MS = 2_000


class LocalControlClient:
    """Calls to the node's own control process. `cql.executor.SchemaChanger`."""

    def __init__(self, context: ShardServiceContext, node: NodeContext) -> None:
        self._peers = Peers(context.tasks, context.peers)
        self._peers.set_address(node.host, node.control_socket)
        self._host = node.host
        self._view = context.view

    async def change(self, change: SchemaChange, deadline_ms: int) -> SchemaAnswer:
        answer = await self._peers.call(self._host, SCHEMA, SchemaRequest(change), deadline_ms)
        # The client's next statement must see the change on this shard.
        if not await self._view.wait_version(answer.version, deadline_ms / 1000):
            raise DeadlineExceeded("the schema is changed, but this shard has not received the change yet")
        return answer

    async def status(self) -> StatusAnswer:
        return await self._peers.call(self._host, STATUS, StatusRequest(), STATUS_MS)


class CqlService:
    """`node.shard_process.ShardService`."""

    def __init__(self, context: ShardServiceContext, node: NodeContext, tls: CqlServerTls) -> None:
        self._context = context
        self._node = node
        self._control = LocalControlClient(context, node)
        self._events = EventPublisher(node.options.ports.cql)
        self._versions = VersionHistory()
        self._clients = WireClusterClient(context.tasks, context.peers, node.cluster_addresses)
        rng, limits = context.environment.rng, node.options.limits
        self.server = CqlServer(
            ConnectionDeps(
                executor=CqlExecutor(self._executor_deps()),
                authentication=authentication(node.options, rng),
                events=self._events,
                supported=self._supported,
                require_serving=context.require_serving,
                tasks=context.tasks,
                report=node.report,
                new_id=lambda: rng.bytes(4).hex(),
                metrics=CqlMetrics(context.metrics),
                in_flight=BytesInFlight(),
                limits=ConnectionLimits(
                    request_bytes_max=limits.cql_request_bytes_max,
                    requests_max=limits.cql_requests_max,
                    all_requests_bytes_max=limits.shard_requests_bytes_max,
                ),
            ),
            CqlServerLimits(connections_max=limits.cql_connections_max),
            tls.context if self._is_tls else None,
        )
        self._passing = SocketPassing(lambda number: str(node.folder.shard_passing_socket(number)), self.server.take)
        context.tasks.create_task(self._serve())

    @property
    def _is_tls(self) -> bool:
        return self._node.options.client_tls is ClientTls.ON

    def on_view_installed(self, view: View) -> None:
        self._clients.follow(view.snapshot)
        self._versions.record(view, self._context.environment.clock.wall_us())
        self._events.publish_changes(view, self._context.view.down)

    def close(self) -> None:
        self._passing.close()
        self.server.close("the shard stops")
        self._clients.close("the shard stops")

    # ---- serving

    async def _serve(self) -> None:
        listens = False
        try:
            while True:
                if listens:
                    self._events.publish_changes(self._context.view.current, self._context.view.down)
                elif self._context.serves():
                    self._listen()
                    listens = True
                await asyncio.sleep(POLL_S)
        finally:
            self.server.abort()

    def _listen(self) -> None:
        shared, shard_aware = self._node.options.cql_addresses
        self._passing.listen(self._context.own.shard)
        self.server.listen(listen_tcp(shared, BACKLOG, shared=True))
        self.server.listen(listen_tcp(shard_aware, BACKLOG, shared=True), self._pass_on)
        self._node.report("cql.listens", {"address": str(shared), "shard_aware": str(shard_aware)})

    def _pass_on(self, accepted: socket.socket) -> bool:
        """A connection that cannot be passed on is served here: a driver notices that it reached another shard than
        it wanted, and reconnects."""
        try:
            port = accepted.getpeername()[1]
        except OSError:  # the client has disconnected
            return False
        number = ShardNumber(port % self._node.options.shards)
        return number != self._context.own.shard and self._passing.pass_to(number, accepted)

    def _supported(self) -> Mapping[str, Sequence[str]]:
        own, options = self._context.own, self._node.options
        node = self._context.view.current.snapshot.node(own.host)
        return supported_options(
            ShardingInfo(
                shard=own.shard,
                shard_count=options.shards,
                ignore_msb=node.ignore_msb,
                shard_aware_port=options.ports.cql_shard_aware,
                is_tls=self._is_tls,
            )
        )

    # ---- the executor

    def _executor_deps(self) -> ExecutorDeps:
        context, node, limits = self._context, self._node, self._node.options.limits
        sources = SystemTableSources(
            view=context.view,
            host=node.host,
            cluster_name=node.cluster_name,
            release=release(),
            cql_port=node.options.ports.cql,
            clients=lambda: client_rows(self.server.clients, context.own.shard),
            config=lambda: visible_options(node.options),
            status=self._control.status,
            history=self._versions.rows,
        )
        authority = TlsFolder(node.folder.tls).trusted_pem
        return ExecutorDeps(
            view=context.view,
            router=context.router,
            next_timestamp_us=context.router.timestamps.next_us,
            schema=self._control,
            virtual=system_tables(sources),
            describe=SchemaDescriber(node.cluster_name),
            clock=context.environment.clock,
            rng=context.environment.rng,
            own=context.own,
            limits=ExecutorLimits(
                write_ms=limits.write_timeout_ms,
                read_ms=limits.read_timeout_ms,
                scan_ms=limits.scan_timeout_ms,
                schema_ms=limits.schema_timeout_ms,
            ),
            calls=table_broker(context, node, self._clients, authority),
        )


def table_broker(
    context: ShardServiceContext,
    node: NodeContext,
    clients: WireClusterClient,
    authority: Callable[[], bytes],
    limits: BrokerLimits | None = None,
) -> TableBroker:
    """The broker of Spark jobs in a shard. `limits`: those of the node's options, unless given."""
    return TableBroker(
        BrokerDeps(
            view=context.view,
            cluster=clients,
            host=node.host,
            datacenter=node.options.datacenter,
            authority=authority,
            next_timestamp_us=context.router.timestamps.next_us,
            tasks=context.tasks,
            clock=context.environment.clock,
            rng=context.environment.rng,
            report=node.report,
            limits=limits or broker_limits(node.options),
        )
    )


def broker_limits(options: NodeOptions) -> BrokerLimits:
    limits = options.limits
    return BrokerLimits(
        calls_max=limits.table_calls_max,
        call_ms_max=limits.table_call_ms_max,
        write_jobs_max=limits.write_jobs_max,
        table_write_jobs_max=limits.table_write_jobs_max,
        write_life_ms=limits.bulk_job_life_ms,
        close_session_ms=limits.session_close_ms,
    )


def authentication(options: NodeOptions, rng: Rng) -> ClientAuthentication:
    if options.authenticator is Authenticator.NONE:
        return AllowAllAuthentication()
    known = {options.superuser: parse_password_hash(options.superuser_password_hash)}
    return PasswordAuthentication(known, rng)


def visible_options(options: NodeOptions) -> Iterator[tuple[str, str, str]]:
    """The rows of `system.config`, without the password hash."""
    for name, value in flatten(options):
        if name != "superuser_password_hash":
            yield name, value, "options"


def client_rows(clients: ClientRegistry, shard: ShardNumber) -> Iterable[Mapping[str, Any]]:
    """The rows of `system.clients`."""
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
