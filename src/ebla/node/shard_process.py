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

import msgspec

from ebla.feed.local_shards import LocalShardClients
from ebla.feed.session_guards import BARRIER_MS, SessionGuards
from ebla.feed.shard_peers import ShardAddresses
from ebla.feed.topology_follower import TopologyFollower
from ebla.feed.topology_view import TopologyView, View
from ebla.model.errors import EblaError, Unavailable
from ebla.model.identity import Replica, ShardNumber, StoreId, TopologyVersion
from ebla.node.child_process import ChildProcess
from ebla.node.context import NodeContext
from ebla.observe.metrics import Metrics
from ebla.options import NodeLimits
from ebla.ports.environment import Environment
from ebla.replica.compaction import Compact, CompactionLoop, gc_terms
from ebla.replica.replica_context import ReplicaContext, ReplicaLimits
from ebla.replica.replica_server import ReplicaServer
from ebla.replica.replica_stacks import ReplicaStacks
from ebla.replica.serving import ServingRight
from ebla.replica.shard_metrics import ShardMetrics
from ebla.request.router import Router
from ebla.request.router_types import LocalReplica, RouterDeps, RouterLimits
from ebla.request.shard_clients import ShardClients
from ebla.request.timestamps import WriteTimestamps
from ebla.storage.compaction.tombstone_gc import GcContext
from ebla.storage.layers.layer import LayerEngine
from ebla.storage.stack import Stack
from ebla.storage.store import ShardStore
from ebla.storage.store_limits import StoreLimits
from ebla.storage.store_recovery import open_store
from ebla.wire.fault_messages import FaultAction, FaultRequest
from ebla.wire.feed_messages import ChildReport
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import CLEANUP, COMPACT, FAULT, WRITE_ROWS, ChildBeatAnswer, IdentityAnswer, IdentityRequest

ANY_VERSION = TopologyVersion(0)
FIRST_VIEW_WAIT_S = 60.0
CONFIRM_WAIT_S = 2.0
"""How long the start waits for the read barrier that allows it to drop stacks this shard no longer owns."""
CONFIRM_RETRY_S = 1.0
DRAIN_CHECK_MS = 10
FAULT_PAUSE_MS = 610_000
"""For the answer of control to a fault point that was reached."""
DRAIN_SHARE = 0.2
"""The part of a child's time to stop that running requests get."""
FLUSH_SHARE = 0.6


def drain_ms(limits: NodeLimits) -> int:
    """For running requests to end when the shard stops."""
    return int(limits.child_stop_ms * DRAIN_SHARE)


def flush_ms(limits: NodeLimits) -> int:
    """For flushing when the shard stops. It must end before control kills the shard: otherwise unflushed rows have to
    be replayed from the commit log."""
    return int(limits.child_stop_ms * FLUSH_SHARE)


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
    timestamps: WriteTimestamps
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
    store: StoreLimits
    metrics: Metrics = field(default_factory=Metrics)
    services: ShardServiceFactory = no_services
    compact: Compact | None = None
    """None: the node's bulk process."""
    replica_clients: MakeReplicaClients = ShardClients
    """How the router reaches replicas. The simulator's clients are observed and repeat some requests."""


def router_limits(limits: NodeLimits) -> RouterLimits:
    return RouterLimits(
        write_bytes_in_flight_max=limits.shard_requests_bytes_max,
        write_timeout_ms_max=limits.write_timeout_ms,
        read_timeout_ms_max=max(limits.read_timeout_ms, limits.scan_timeout_ms),
    )


class ShardProcess(ChildProcess):
    """One incarnation of the process: call `run` once."""

    def __init__(
        self, environment: Environment, node: NodeContext, number: ShardNumber, store_id: StoreId, deps: ShardDeps
    ) -> None:
        """`store_id`: of the store to open, which control has created."""
        super().__init__(environment, node, f"shard-{number}", deps.metrics)
        self.own = Replica(node.host, number)
        self.folder = str(node.folder.shard(number).absolute())
        self.store_id = store_id
        self.deps = deps
        self._now_ms = environment.clock.boot_ms
        self._feed_silence_ms = node.limits.feed_silence_ms
        self._right = ServingRight(self._feed_silence_ms)
        """By heartbeats: control is alive and allows serving."""
        self._follower: TopologyFollower | None = None
        self._timestamps = WriteTimestamps(environment.clock, node.limits.timestamp_ahead_max_ms)
        self._services: Sequence[ShardService] = ()
        self._listens = False
        self._served = False
        self._was_short = False
        self._damaged = 0
        """Replicas with damage, as last reported."""
        self._store: ShardStore | None = None
        self._fault_points: tuple[str, ...] = ()
        self.for_peers: Server | None = None
        """Set once it listens."""
        # Set by `_compose`, once the store is open.
        self._replica: ReplicaServer
        self._stacks: ReplicaStacks
        self._clients: ShardClients
        self._shard_metrics: ShardMetrics

    def serves(self) -> bool:
        """Check this at each use: no timer runs in a process that is stopped (SIGSTOP) and continued. A change is
        reported here, where requests notice it: a right that was lost and regained between two heartbeats has failed
        some requests."""
        serves = self._has_right()
        if serves != self._served:
            self._served = serves
            now_ms, follower = self.environment.clock.boot_ms(), self._follower
            silent = {
                "control_silent_ms": self._right.silent_ms(now_ms),
                "feed_silent_ms": None if follower is None else follower.silent_ms(now_ms),
            }
            self.node.report("shard.serving" if serves else "shard.stopped_serving", silent)
        return serves

    def warning(self) -> str:
        """Called with each heartbeat: a shortage that is over before the next one is no news."""
        store = self._store
        if store is None:
            return ""
        return "; ".join(text for text in (self._space_warning(store), self._damage_warning(store)) if text)

    def load_bytes(self) -> int | None:
        if self._store is None:
            return None
        load_bytes = self._store.load_bytes
        self._shard_metrics.load.set(load_bytes)
        return load_bytes

    def _space_warning(self, store: ShardStore) -> str:
        free_bytes, reserve_bytes = self.environment.disk.free_bytes(self.folder), store.limits.free_bytes_min
        is_short = store.shortage is not None
        if is_short != self._was_short:
            self._was_short = is_short
            event = "disk.reserve_reached" if is_short else "disk.reserve_left"
            self.node.report(event, {"free_bytes": free_bytes, "reserve_bytes": reserve_bytes})
        self._shard_metrics.disk_free.set(free_bytes)
        self._shard_metrics.disk_short.set(1 if is_short else 0)
        return f"less than {reserve_bytes >> 20} MiB are free: writes are refused, reads go on" if is_short else ""

    def _damage_warning(self, store: ShardStore) -> str:
        damages = [stack.damage for stack in store.stacks.values() if stack.damage]
        if len(damages) != self._damaged:
            self._damaged = len(damages)
            if damages:
                self.node.report("store.damaged", {"replicas": len(damages), "cause": damages[0]})
        return f"{len(damages)} replicas are refused, because their layers are damaged" if damages else ""

    def _has_right(self) -> bool:
        """By heartbeats, control is alive and allows serving; by polls, control has sent every change there was."""
        follower = self._follower
        if not self._listens or follower is None or not follower.is_node_serving or follower.last_heard_ms is None:
            return False
        if self.own.host in self.view.down:  # INV-FAIL-3: this node is excluded
            return False
        now_ms = self._now_ms()
        return self._right.holds(now_ms) and now_ms - follower.last_heard_ms < self._feed_silence_ms

    async def run(self) -> None:
        """Serves until cancelled. Raises if the address is in use, and errors of the store's disk."""
        environment, deps = self.environment, self.deps
        async with asyncio.TaskGroup() as tasks:
            peers = self.peers_context()
            control = self.control_client(tasks, peers)
            heartbeats = tasks.create_task(self.send_heartbeats(control))
            store = await open_store(
                environment.disk, environment.rng, self.folder, deps.engine, deps.store, store_id=self.store_id
            )
            storing = tasks.create_task(store.run())
            follower = self._follower = self.new_follower(control)
            try:
                self._compose(tasks, store, peers, follower, control)
                await self._serve(tasks, store, peers, follower)
            finally:
                self._listens = False
                if not storing.done():
                    await self._flush(store)
                storing.cancel()
                heartbeats.cancel()

    def _compose(
        self,
        tasks: asyncio.TaskGroup,
        store: ShardStore,
        peers: PeersContext,
        follower: TopologyFollower,
        control: Peers,
    ) -> None:
        environment, node, view, own = self.environment, self.node, self.view, self.own

        async def reach(point: str) -> None:
            # Control has the fault points of the node; its answer may take as long as a test wants.
            if point in self._fault_points:
                await control.call(own.host, FAULT, FaultRequest(action=FaultAction.REACH, name=point), FAULT_PAUSE_MS)

        self._stacks = ReplicaStacks(store, view, own, node.report, reach)
        self.guards = SessionGuards(view, follower, environment.clock)
        siblings = LocalShardClients(tasks, peers, own.host, node.shard_socket)
        self._store = store
        self._shard_metrics = ShardMetrics(self.metrics)
        replica_context = ReplicaContext(
            view=view,
            store=store,
            stacks=self._stacks,
            guards=self.guards,
            disk=environment.disk,
            data_folder=str(node.folder.path.absolute()),
            shard=own.shard,
            limits=ReplicaLimits(adopted_layers_max=node.limits.adopted_layers_max),
        )
        replica = self._replica = ReplicaServer(
            replica_context,
            lambda shard, writes, deadline_ms: siblings.call(shard, WRITE_ROWS, writes, deadline_ms),
            self._shard_metrics,
            self.serves,
        )
        addresses = ShardAddresses(
            own=own.host,
            port_first=node.options.ports.shards_from,
            socket_of=node.shard_socket,
            own_shard=own.shard,
        )
        self._clients = self.deps.replica_clients(tasks, peers, addresses, replica)
        router = Router(
            RouterDeps(
                view=view,
                own=own,
                datacenter=node.options.datacenter,
                clients=self._clients,
                clock=environment.clock,
                limits=router_limits(node.limits),
                metrics=self.metrics,
                tasks=tasks,
            )
        )
        context = ShardServiceContext(
            environment=environment,
            tasks=tasks,
            view=view,
            own=own,
            replica=replica,
            router=router,
            timestamps=self._timestamps,
            serves=self.serves,
            peers=peers,
            metrics=self.metrics,
        )
        self._services = self.deps.services(context)

    # -- the topology ------------------------------------------------------------------------------------------------

    async def prepare(self, view: View, before: View | None) -> None:
        assert before is None or before.snapshot is not view.snapshot, "an unchanged snapshot needs no preparation"
        await self._stacks.prepare(view)
        await self._replica.adoptions.before_fence(view.fence)

    def on_view_installed(self, view: View) -> None:
        self._stacks.on_view_installed(view)
        super().on_view_installed(view)
        self._clients.follow(view.snapshot)
        self._refuse_excluded(view)
        for service in self._services:
            service.on_view_installed(view)

    def _refuse_excluded(self, view: View) -> None:
        """Barriers do not wait for an excluded node, so what it sends may be routed by any older view."""
        if self.for_peers is not None:
            snapshot = view.snapshot
            self.for_peers.exclude(frozenset(snapshot.excluded_hosts), frozenset(snapshot.departed_hosts))

    def report_of(self, view: View) -> ChildReport:
        return msgspec.structs.replace(
            super().report_of(view), pending_replicas_open=self._stacks.pending_replicas_open
        )

    # -- serving -----------------------------------------------------------------------------------------------------

    async def _serve(
        self, tasks: asyncio.TaskGroup, store: ShardStore, peers: PeersContext, follower: TopologyFollower
    ) -> None:
        running = [tasks.create_task(follower.run()), tasks.create_task(self._stacks.run())]
        servers: list[Server] = []
        try:
            while not await self.view.wait_version(ANY_VERSION, FIRST_VIEW_WAIT_S):
                self.node.report("shard.waits_for_topology", {})
            confirming = tasks.create_task(self._confirm(follower))
            if self._stacks.has_unowned:
                await asyncio.wait([confirming], timeout=CONFIRM_WAIT_S)
            compactions = self._new_compactions(tasks, store, peers)
            tasks.create_task(compactions.run(self._shard_metrics, self.node.report))
            servers = [self.new_server(tasks, peers), self.new_server(tasks, peers)]
            self.for_peers = servers[0]
            servers[1].serve(CLEANUP, compactions.serve_cleanup)
            self._refuse_excluded(self.view.current)
            await self._listen(*servers)
        finally:
            self._listens = False
            for service in self._services:
                service.close()
            self._clients.close("the shard stops")
            await self._drain()
            for server in servers:
                server.close("the shard stops")
            for one in running:
                one.cancel()
            await asyncio.wait(running, timeout=flush_ms(self.node.limits) / 1000)

    async def _confirm(self, follower: TopologyFollower) -> None:
        """Retries a read barrier until it succeeds, then drops the stacks that this shard no longer owns."""
        while True:
            try:
                revision = await follower.read_barrier(BARRIER_MS)
                if await self.view.wait_revision(revision, BARRIER_MS / 1000):
                    await self._stacks.confirm()
                    return
            except EblaError as error:
                self.node.report("shard.not_confirmed", {"cause": error.message})
            await asyncio.sleep(CONFIRM_RETRY_S)

    def _new_compactions(self, tasks: asyncio.TaskGroup, store: ShardStore, peers: PeersContext) -> CompactionLoop:
        def terms(stack: Stack) -> GcContext:
            return gc_terms(self.view.current, stack, self.environment.clock.wall_us() // 1_000_000)

        bulk, host = Peers(tasks, peers), self.own.host
        bulk.set_address(host, self.node.bulk_socket)
        compact = self.deps.compact or (lambda job: bulk.call(host, COMPACT, job, self.node.limits.fold_ms))
        return CompactionLoop(store, self._stacks, compact, terms)

    async def _listen(self, for_peers: Server, local: Server) -> None:
        node, transport = self.node, self.environment.transport
        self._replica.attach(for_peers)
        self._replica.attach(local)
        self._replica.attach_local(local)
        listening = [await transport.listen(node.options.shard_address(self.own.shard), for_peers.accept)]
        try:
            listening.append(await transport.listen(node.shard_socket(self.own.shard), local.accept))
            self._listens = True
            self.serves()  # reports the change even if no request arrives
            while True:
                await asyncio.sleep(node.limits.child_heartbeat_ms / 1000)
                self._measure()
        finally:
            for one in listening:
                await one.close()

    def _measure(self) -> None:
        metrics, guards = self._shard_metrics, self.guards
        metrics.stacks.set(self._stacks.count)
        metrics.layers.set(sum(len(stack.layer_entries) for stack in self._stacks.served()))
        metrics.doomed.set(self._stacks.doomed_count)
        metrics.guards.set(0 if guards is None else guards.held)
        if self.view.is_known:
            version = self.view.current.version
            metrics.version.set(version)
            metrics.oldest_running.set(self.view.versions.oldest(version))

    # -- stopping ----------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Lets running requests end. Nothing new begins."""
        assert self.guards is not None
        for _ in range(drain_ms(self.node.limits) // DRAIN_CHECK_MS):
            if not (self._replica.writer.waiting or self._replica.reader.waiting or self.guards.held):
                return
            await asyncio.sleep(DRAIN_CHECK_MS / 1000)
        self.node.report("shard.cut_off_requests", {})

    async def _flush(self, store: ShardStore) -> None:
        try:
            async with asyncio.timeout(flush_ms(self.node.limits) / 1000):
                await store.close()
        except (TimeoutError, EblaError, OSError) as failure:
            # Unflushed rows are replayed from the commit log at the next start.
            self.node.report("shard.not_flushed", {"cause": str(failure)})

    # -- control -----------------------------------------------------------------------------------------------------

    def control_answered(self, sent_ms: int, answer: ChildBeatAnswer) -> None:
        self._right.heard(sent_ms, allowed=answer.serving)
        self._fault_points = answer.faults
        self._timestamps.set_clock_ahead(answer.clock_ahead_ms)
        self.serves()  # reports a change even if no request arrives

    def control_silent(self) -> None:
        self.serves()

    def _identity(self, request: IdentityRequest, call: IncomingCall) -> IdentityAnswer:
        if not self.serves():
            silent_ms = self._right.silent_ms(self.environment.clock.boot_ms())
            raise Unavailable(f"{self.name} does not serve: control silent for {silent_ms} ms")
        return super()._identity(request, call)
