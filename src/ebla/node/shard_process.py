"""A shard process: its store, its replicas, its router, and the services (CQL) that use them.

It starts in this order: heartbeats to control, the store, the first view of the topology, its stacks, then it listens.
It serves while control allows it and the topology feed has not been silent for too long. It stops in reverse order and
within a bound: it accepts nothing new, lets running requests end, and flushes everything.

The same class runs on real and simulated parts: see `ShardDeps`.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ebla.feed.local_shards import LocalShardClients
from ebla.feed.session_guards import SessionGuards
from ebla.feed.shard_peers import ShardAddresses
from ebla.feed.topology_follower import TopologyFollower, TopologyFollowerConfig
from ebla.feed.topology_view import TopologyView, View
from ebla.journal.checked_file import parent_folder
from ebla.model.errors import EblaError, Unavailable
from ebla.model.identity import Address, Replica, ShardNumber, TopologyVersion
from ebla.observe.event_reporter import EventReporter
from ebla.observe.metrics import Metrics
from ebla.ports.environment import Environment
from ebla.replica.adoption import ShardAdoptions
from ebla.replica.checkpoints import ShardCheckpoints, ShardTransferDeps
from ebla.replica.compaction import BulkCompactor, CompactionLoop, Compactor, gc_terms_by
from ebla.replica.replica_limits import ReplicaLimits
from ebla.replica.replica_server import ReplicaServer, ReplicaServerDeps
from ebla.replica.replica_stacks import ReplicaStacks
from ebla.replica.row_reads import ReplicaReader
from ebla.replica.row_streams import RowStreamReceiver
from ebla.replica.row_writes import ReplicaWriter, SiblingShardClients
from ebla.replica.serving import ServingRight
from ebla.replica.shard_metrics import ShardMetrics
from ebla.request.router import Router
from ebla.request.router_types import LocalReplica, RouterDeps, RouterLimits
from ebla.request.shard_clients import ShardClients
from ebla.storage.layers.layer import LayerEngine
from ebla.storage.store import ShardStore, StoreLimits
from ebla.storage.store_recovery import open_store
from ebla.wire.feed_messages import ChildReport
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.metrics_messages import MetricsAnswer, MetricsRequest, collect_metrics
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import CHILD_BEAT, IDENTITY, METRICS, ChildBeatRequest, IdentityAnswer, IdentityRequest

ANY_VERSION = TopologyVersion(0)
FIRST_VIEW_WAIT_S = 60.0
CONFIRM_WAIT_S = 2.0
"""How long the start waits for the read barrier that allows it to drop stacks this shard no longer owns."""
CONFIRM_RETRY_S = 1.0
DRAIN_CHECK_MS = 10


class ShardService(Protocol):
    """Something that runs inside a shard process and uses its router and replicas: the CQL server."""

    def on_view_installed(self, view: View) -> None:
        """A view was installed. The first call comes before the shard serves anything."""
        ...

    def close(self) -> None:
        """The shard stops: accept nothing more. Running work ends with the task group."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardServiceContext:
    environment: Environment
    tasks: asyncio.TaskGroup
    """The shard's. Tasks in it end with the shard and must not raise."""
    view: TopologyView
    own: Replica
    replica: ReplicaServer
    router: Router
    serves: Callable[[], bool]
    """Whether the shard may serve now. Check it at each client request."""
    peers: PeersContext
    metrics: Metrics

    def require_serving(self) -> None:
        if not self.serves():
            raise Unavailable("this shard does not serve now", advice="use another one, or try again in a moment")


ShardServiceFactory = Callable[[ShardServiceContext], Sequence[ShardService]]
MakeReplicaClients = Callable[[asyncio.TaskGroup, PeersContext, ShardAddresses, LocalReplica], ShardClients]


def no_services(_context: ShardServiceContext) -> Sequence[ShardService]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDeps:
    """The parts that differ between a real and a simulated shard."""

    engine: LayerEngine
    metrics: Metrics = field(default_factory=Metrics)
    services: ShardServiceFactory = no_services
    compactor: Compactor | None = None
    """None: the node's bulk process."""
    replica_clients: MakeReplicaClients = ShardClients
    """How the router reaches replicas. The simulator's clients are observed and repeat some requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardConfig:
    introduction: Introduction
    """Its process name is the one that control knows this process by."""
    number: ShardNumber
    folder: str
    """Of its store. The node's staging and checkpoints are beside it."""
    address: Address
    """For other nodes."""
    shard_port_first: int
    """The port of shard 0 on every node. Each further shard uses the next port."""
    local_address_of: Callable[[ShardNumber], Address]
    """For the processes of this node: the Unix socket of each shard, including this one."""
    control_address: Address
    bulk_address: Address
    datacenter: str
    heartbeat_ms: int
    feed_silence_ms: int
    report: EventReporter
    pid: int
    wire: WireLimits = field(default_factory=WireLimits)
    store: StoreLimits = field(default_factory=StoreLimits)
    replica: ReplicaLimits = field(default_factory=ReplicaLimits)
    router: RouterLimits = field(default_factory=RouterLimits)


class _Shard:
    """The parts that live while the store is open. `feed.topology_follower.TopologySubscriber`."""

    def __init__(
        self, process: "ShardProcess", tasks: asyncio.TaskGroup, store: ShardStore, peers: PeersContext
    ) -> None:
        environment, config, view = process.environment, process.config, process.view
        self._process = process
        self._view = view
        self._store = store
        self._services: Sequence[ShardService] = ()
        own = Replica(config.introduction.host, config.number)
        limits = config.replica
        self.stacks = ReplicaStacks(store, view, own, config.report)
        self.follower = self._new_follower()
        self.guards = SessionGuards(view, self.follower, environment.clock, limits.barrier_ms)
        siblings = SiblingShardClients(LocalShardClients(tasks, peers, own.host, config.local_address_of))
        self.writer = ReplicaWriter(view, store, self.stacks, limits, siblings)
        self.reader = ReplicaReader(view, store, self.stacks, limits)
        self.metrics = ShardMetrics(process.deps.metrics)
        transfers = ShardTransferDeps(
            disk=environment.disk,
            data_folder=parent_folder(config.folder),
            shard=config.number,
            view=view,
            store=store,
            stacks=self.stacks,
            guards=self.guards,
            limits=limits,
        )
        self._adoptions = ShardAdoptions(transfers)
        self.replica = ReplicaServer(
            ReplicaServerDeps(
                writer=self.writer,
                reader=self.reader,
                streams=RowStreamReceiver(view, store, self.stacks, self.guards),
                checkpoints=ShardCheckpoints(transfers),
                adoptions=self._adoptions,
                metrics=self.metrics,
                serves=process.serves,
            )
        )
        addresses = ShardAddresses(
            own=own.host,
            port_first=config.shard_port_first,
            socket_of=config.local_address_of,
            own_shard=own.shard,
        )
        self._clients = process.deps.replica_clients(tasks, peers, addresses, self.replica)
        router = Router(
            RouterDeps(
                view=view,
                own=own,
                datacenter=config.datacenter,
                clients=self._clients,
                clock=environment.clock,
                limits=config.router,
                metrics=process.deps.metrics,
                tasks=tasks,
            )
        )
        context = ShardServiceContext(
            environment=environment,
            tasks=tasks,
            view=view,
            own=own,
            replica=self.replica,
            router=router,
            serves=process.serves,
            peers=peers,
            metrics=process.deps.metrics,
        )
        self._services = process.deps.services(context)

    def _new_follower(self) -> TopologyFollower:
        config = self._process.config
        # The poll must not be held for longer than a heartbeat. It would look like silence where that bound is short.
        follower = TopologyFollowerConfig(
            name=config.introduction.process,
            pid=config.pid,
            host=config.introduction.host,
            clock=self._process.environment.clock,
            report=config.report,
            poll_ms=config.heartbeat_ms,
        )
        return TopologyFollower(self._process.control, follower, self._view, self, self.report_of)

    async def prepare(self, view: View, before: View | None) -> None:
        assert before is None or before.snapshot is not view.snapshot, "an unchanged snapshot needs no preparation"
        await self.stacks.prepare(view)
        await self._adoptions.before_fence(view.fence)

    def on_view_installed(self, view: View) -> None:
        self.stacks.on_view_installed(view)
        self.guards.on_view_installed(view)
        self._clients.follow(view.snapshot)
        for service in self._services:
            service.on_view_installed(view)

    def report_of(self, view: View) -> ChildReport:
        config = self._process.config
        return ChildReport(
            name=config.introduction.process,
            pid=config.pid,
            version=view.version,
            fence=view.fence,
            oldest_running=self._view.versions.oldest(view.version),
            pending_replicas_open=self.stacks.pending_replicas_open,
            closing_sessions=self.guards.closing,
        )

    def attach(self, server: Server) -> None:
        self.replica.attach(server)

    async def confirm(self) -> None:
        """Retries a read barrier until it succeeds, then drops the stacks that this shard no longer owns."""
        barrier_ms = self._process.config.replica.barrier_ms
        while True:
            try:
                revision = await self.follower.read_barrier(barrier_ms)
                if await self._view.wait_revision(revision, barrier_ms / 1000):
                    await self.stacks.confirm()
                    return
            except EblaError as error:
                self._process.config.report("shard.not_confirmed", {"cause": error.message})
            await asyncio.sleep(CONFIRM_RETRY_S)

    async def compact(self, compactor: Compactor) -> None:
        terms = gc_terms_by(self._view, self._process.environment.clock)
        await CompactionLoop(self._store, self.stacks, compactor, terms).run(self.metrics, self._process.config.report)

    def close_services(self) -> None:
        for service in self._services:
            service.close()
        self._clients.close("the shard stops")

    @property
    def is_idle(self) -> bool:
        return not (self.writer.waiting or self.reader.waiting or self.guards.held)

    def measure(self) -> None:
        metrics = self.metrics
        metrics.stacks.set(self.stacks.count)
        metrics.layers.set(sum(len(stack.layer_entries) for stack in self.stacks.served()))
        metrics.doomed.set(self.stacks.doomed_count)
        metrics.guards.set(self.guards.held)
        if self._view.is_known:
            version = self._view.current.version
            metrics.version.set(version)
            metrics.oldest_running.set(self._view.versions.oldest(version))


class ShardProcess:
    """One incarnation of the process: call `run` once."""

    def __init__(self, environment: Environment, config: ShardConfig, deps: ShardDeps) -> None:
        self.environment = environment
        self.config = config
        self.deps = deps
        self.view = TopologyView()
        self.replica: ReplicaServer | None = None
        """Set once the shard listens."""
        self._control: Peers | None = None
        self._right = ServingRight(config.feed_silence_ms)
        """By heartbeats: control is alive and allows serving."""
        self._feed_right = ServingRight(config.feed_silence_ms)
        """By polls: control has sent every change there was."""
        self._follower: TopologyFollower | None = None
        self._listens = False
        self._served = False

    @property
    def control(self) -> Peers:
        assert self._control is not None
        return self._control

    def serves(self) -> bool:
        """Check this at each use: no timer runs in a process that is stopped (SIGSTOP) and continued. A change is
        reported here, where requests notice it: a right that was lost and regained between two heartbeats has failed
        some requests."""
        serves = self._has_right()
        if serves != self._served:
            self._served = serves
            now_ms = self.environment.clock.boot_ms()
            silent = {
                "control_silent_ms": self._right.silent_ms(now_ms),
                "feed_silent_ms": self._feed_right.silent_ms(now_ms),
            }
            self.config.report("shard.serving" if serves else "shard.stopped_serving", silent)
        return serves

    def _has_right(self) -> bool:
        follower = self._follower
        if not self._listens or follower is None or not follower.is_node_serving:
            return False
        now_ms = self.environment.clock.boot_ms()
        if follower.last_heard_ms is not None:
            self._feed_right.heard(follower.last_heard_ms, allowed=True)
        return self._right.holds(now_ms) and self._feed_right.holds(now_ms)

    async def run(self) -> None:
        """Serves until cancelled. Raises if the address is in use, and errors of the store's disk."""
        config, environment = self.config, self.environment
        async with asyncio.TaskGroup() as tasks:
            peers = PeersContext(
                transport=environment.transport,
                rng=environment.rng,
                introduction=config.introduction,
                limits=config.wire,
                report=config.report,
            )
            self._control = Peers(tasks, peers)
            self._control.set_address(config.introduction.host, config.control_address)
            heartbeats = tasks.create_task(self._send_heartbeats(self._control))
            store = await open_store(environment.disk, environment.rng, config.folder, self.deps.engine, config.store)
            storing = tasks.create_task(store.run())
            try:
                await self._serve(tasks, store, peers)
            finally:
                self._listens = False
                if not storing.done():
                    await self._flush(store)
                storing.cancel()
                heartbeats.cancel()

    # -- starting ----------------------------------------------------------------------------------------------------

    async def _serve(self, tasks: asyncio.TaskGroup, store: ShardStore, peers: PeersContext) -> None:
        shard = _Shard(self, tasks, store, peers)
        self._follower = shard.follower
        running = [tasks.create_task(shard.follower.run()), tasks.create_task(shard.stacks.run())]
        servers: list[Server] = []
        try:
            await self._wait_first_view()
            await self._begin_confirming(tasks, shard)
            tasks.create_task(shard.compact(self.deps.compactor or self._bulk_compactor(tasks, peers)))
            servers = [self._server(tasks, shard), self._server(tasks, shard)]
            shard.replica.attach_local(servers[1])
            await self._listen(servers, shard)
        finally:
            self._listens = False
            shard.close_services()
            await self._drain(shard)
            for server in servers:
                server.close("the shard stops")
            for one in running:
                one.cancel()
            await asyncio.wait(running, timeout=self.config.replica.stop_ms / 1000)

    async def _wait_first_view(self) -> None:
        while not await self.view.wait_version(ANY_VERSION, FIRST_VIEW_WAIT_S):
            self.config.report("shard.waits_for_topology", {})

    async def _begin_confirming(self, tasks: asyncio.TaskGroup, shard: _Shard) -> None:
        confirming = tasks.create_task(shard.confirm())
        if shard.stacks.has_unowned:
            await asyncio.wait([confirming], timeout=CONFIRM_WAIT_S)

    def _bulk_compactor(self, tasks: asyncio.TaskGroup, peers: PeersContext) -> BulkCompactor:
        bulk, host = Peers(tasks, peers), self.config.introduction.host
        bulk.set_address(host, self.config.bulk_address)
        return BulkCompactor(bulk, host)

    def _server(self, tasks: asyncio.TaskGroup, shard: _Shard) -> Server:
        server = Server(tasks, self.config.introduction, self.config.wire, self.config.report)
        server.serve(IDENTITY, self._identity)
        server.serve(METRICS, self._metrics)
        shard.attach(server)
        return server

    async def _listen(self, servers: Sequence[Server], shard: _Shard) -> None:
        config, transport = self.config, self.environment.transport
        peers, local = servers
        listening = [await transport.listen(config.address, peers.accept)]
        try:
            listening.append(await transport.listen(config.local_address_of(config.number), local.accept))
            self.replica = shard.replica
            self._listens = True
            self.serves()  # reports the change even if no request arrives
            while True:
                await asyncio.sleep(config.heartbeat_ms / 1000)
                shard.measure()
        finally:
            for one in listening:
                await one.close()

    # -- stopping ----------------------------------------------------------------------------------------------------

    async def _drain(self, shard: _Shard) -> None:
        """Lets running requests end. Nothing new begins."""
        for _ in range(self.config.replica.drain_ms // DRAIN_CHECK_MS):
            if shard.is_idle:
                return
            await asyncio.sleep(DRAIN_CHECK_MS / 1000)
        self.config.report("shard.cut_off_requests", {})

    async def _flush(self, store: ShardStore) -> None:
        try:
            async with asyncio.timeout(self.config.replica.stop_ms / 1000):
                await store.close()
        except (TimeoutError, EblaError, OSError) as failure:
            # Unflushed rows are replayed from the commit log at the next start.
            self.config.report("shard.not_flushed", {"cause": str(failure)})

    # -- control -----------------------------------------------------------------------------------------------------

    async def _send_heartbeats(self, control: Peers) -> None:
        config, clock = self.config, self.environment.clock
        # On a machine short of CPU control answers late, which is not silence. The timeout leaves room for several
        # heartbeats within the silence bound.
        answer_ms = max(config.heartbeat_ms, config.feed_silence_ms // 3)
        while True:
            sent_ms = clock.boot_ms()
            beat = ChildBeatRequest(config.introduction.process, config.pid, self.serves())
            try:
                answer = await control.call(config.introduction.host, CHILD_BEAT, beat, answer_ms)
                # Counted from the request: the answer may have waited in the socket of a stopped process.
                self._right.heard(sent_ms, allowed=answer.serving)
            except EblaError:
                pass  # only the silence counts, not its cause
            self.serves()  # reports a change even if no request arrives
            await asyncio.sleep(config.heartbeat_ms / 1000)

    def _identity(self, _request: IdentityRequest, _call: IncomingCall) -> IdentityAnswer:
        own = self.config.introduction
        if not self.serves():
            silent_ms = self._right.silent_ms(self.environment.clock.boot_ms())
            raise Unavailable(f"{own.process} does not serve: control silent for {silent_ms} ms")
        return IdentityAnswer(
            host=own.host,
            cluster=own.cluster,
            cluster_name=own.cluster_name,
            process=own.process,
            pid=self.config.pid,
        )

    def _metrics(self, _request: MetricsRequest, _call: IncomingCall) -> MetricsAnswer:
        return collect_metrics(self.deps.metrics)
