"""The CQL server inside a shard process: its sockets, its executor, and the broker of Spark jobs behind `CALL`.

All shards of a node listen on its CQL port, and the kernel spreads connections over them. They also share the
shard-aware port. There the client's port says which shard it wants, and the shard that accepted the connection passes
it on.
"""

import asyncio
import math
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from ebla.aio.wakeup import Wakeup
from ebla.broker.broker import TableBroker
from ebla.broker.broker_deps import BrokerDeps, BrokerLimits
from ebla.cql.authentication import PasswordAuthentication, parse_password_hash
from ebla.cql.executor import CqlExecutor
from ebla.cql.server.connection_deps import ConnectionDeps, CqlMetrics
from ebla.cql.server.cql_server import CqlServer
from ebla.cql.server.events import EventPublisher
from ebla.cql.server.request_bounds import RequestMemory
from ebla.cql.system_tables.node_info import SystemTableSources, supported_options
from ebla.cql.system_tables.schema_tables import system_tables
from ebla.cql.system_tables.topology_tables import VersionHistory
from ebla.feed.topology_view import View
from ebla.model.errors import DeadlineExceeded
from ebla.model.identity import ShardNumber
from ebla.node.context import NodeContext
from ebla.node.shard_process import ShardServiceContext
from ebla.observe.event_reporter import EventReporter
from ebla.options import Authenticator, ClientTls, NodeOptions, flatten
from ebla.ports.rng import Rng
from ebla.runtime.socket_passing import SocketPassing
from ebla.runtime.sockets import listen_tcp
from ebla.runtime.tls import CqlServerTls, TlsFolder
from ebla.topology.snapshot import Node
from ebla.topology.states import NodeState
from ebla.transfers.cluster_client import WireClusterClient
from ebla.wire.peers import Peers
from ebla.wire.schema_messages import SchemaAnswer, SchemaChange, SchemaRequest
from ebla.wire.verbs import SCHEMA, STATUS, StatusAnswer, StatusRequest

BACKLOG = 512
POLL_S = 0.1
"""How often it checks whether it may serve, before it listens, and whether a node went down, afterwards."""
STATUS_MS = 2_000
DROP_S = 1.0
"""Time for requests in flight to end when the node is excluded or has left the ring."""


def why_no_clients(own: Node | None, *, is_down: bool, listens: bool) -> str:
    """Why this node takes no clients; empty: it does. Drivers must not reach a node that refuses whatever they send,
    nor one that may be rolled back: they do not know of it. A node whose tokens were just taken goes on until it is
    ordered to stop: other nodes tell the drivers, and what a driver sends before it has heard must not fail."""
    if is_down:
        return "this node is excluded"
    leaves = listens and own is not None and own.state is NodeState.DECOMMISSIONING
    return "" if leaves or (own is not None and own.takes_clients) else "this node is not in the ring"


class LocalControlClient:
    """Calls to the node's own control process."""

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
        self._installed = Wakeup()
        """By a new view: a node that has joined takes clients at once."""
        self._clients = WireClusterClient(context.tasks, context.peers, node.cluster_addresses)
        rng = context.environment.rng
        self.server = CqlServer(
            ConnectionDeps(
                executor=self._executor(),
                authenticate=authenticator(node.options, rng, node.report),
                events=self._events,
                supported=self._supported,
                require_serving=context.require_serving,
                tasks=context.tasks,
                report=node.report,
                new_id=lambda: rng.bytes(4).hex(),
                metrics=CqlMetrics(context.metrics),
                memory=RequestMemory(node.limits.shard_requests_bytes_max),
                clock=context.environment.clock,
                limits=node.limits,
            ),
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
        self._installed.wake()

    def close(self) -> None:
        self._passing.close()
        self.server.close("the shard stops")
        self._clients.close("the shard stops")

    # ---- serving

    async def _serve(self) -> None:
        listens, drop_at = False, math.inf
        loop, view = asyncio.get_running_loop(), self._context.view
        try:
            while True:
                own = view.current.snapshot.nodes.get(self._context.own.host) if view.is_known else None
                must_stop = why_no_clients(own, is_down=self._context.own.host in view.down, listens=listens)
                if listens and must_stop:
                    self._suspend(must_stop)
                    listens, drop_at = False, loop.time() + DROP_S
                elif listens:
                    self._events.publish_changes(view.current, view.down)
                elif self._context.serves() and not must_stop:
                    self._listen()
                    listens, drop_at = True, math.inf
                elif loop.time() >= drop_at:
                    self.server.abort()
                await self._installed.wait(POLL_S)
        finally:
            self.server.abort()

    def _listen(self) -> None:
        shared, shard_aware = self._node.options.cql_addresses
        self._passing.listen(self._context.own.shard)
        self.server.listen(listen_tcp(shared, BACKLOG, shared=True))
        self.server.listen(listen_tcp(shard_aware, BACKLOG, shared=True), self._pass_on)
        self._node.report("cql.listens", {"address": str(shared), "shard_aware": str(shard_aware)})

    def _suspend(self, cause: str) -> None:
        self._passing.close()
        self.server.suspend(cause)
        self._node.report("cql.listens_no_more", {"cause": cause})

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
            shard=own.shard,
            shard_count=options.shards,
            ignore_msb=node.ignore_msb,
            shard_aware_port=options.ports.cql_shard_aware,
            is_tls=self._is_tls,
        )

    # ---- the executor

    def _executor(self) -> CqlExecutor:
        context, node = self._context, self._node
        sources = SystemTableSources(
            view=context.view,
            host=node.host,
            cluster_name=node.cluster_name,
            release=node.release,
            cql_port=node.options.ports.cql,
            clients=lambda: ({**row, "shard_id": int(context.own.shard)} for row in self.server.client_rows()),
            config=lambda: visible_options(node.options),
            status=self._control.status,
            history=self._versions.rows,
        )
        authority = TlsFolder(node.folder.tls).trusted_pem
        return CqlExecutor(
            view=context.view,
            router=context.router,
            timestamps=context.timestamps,
            change_schema=self._control.change,
            virtual=system_tables(sources),
            cluster_name=node.cluster_name,
            clock=context.environment.clock,
            rng=context.environment.rng,
            own=context.own,
            limits=node.limits,
            calls=table_broker(context, node, self._clients, authority),
        )


def table_broker(
    context: ShardServiceContext,
    node: NodeContext,
    clients: WireClusterClient,
    authority: Callable[[], bytes],
    limits: BrokerLimits | None = None,
) -> TableBroker:
    """The broker of Spark jobs in a shard."""
    return TableBroker(
        BrokerDeps(
            view=context.view,
            cluster=clients,
            host=node.host,
            datacenter=node.options.datacenter,
            authority=authority,
            timestamps=context.timestamps,
            tasks=context.tasks,
            clock=context.environment.clock,
            rng=context.environment.rng,
            report=node.report,
            node=node.limits,
            limits=limits or BrokerLimits(),
        )
    )


def authenticator(
    options: NodeOptions, rng: Rng, report: EventReporter
) -> Callable[[bytes, str], Awaitable[str]] | None:
    """None: everyone may log in."""
    if options.authenticator is Authenticator.NONE:
        return None
    known = {options.superuser: parse_password_hash(options.superuser_password_hash)}
    return PasswordAuthentication(known, rng, report).authenticate


def visible_options(options: NodeOptions) -> Iterator[tuple[str, str, str]]:
    """The rows of `system.config`, without the password hash."""
    for name, value in flatten(options):
        if name != "superuser_password_hash":
            yield name, value, "options"
