"""A shard process: its store, its part of the topology, its verbs, and whatever fronts are hung on it.

It starts in this order: beats to control, the store, the first view, its stacks, then it listens. It serves while
control says so and the feed of the topology is not silent for too long. It stops in the other order, within a bound:
nothing new is taken, what runs may end, everything is flushed.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ebla.feed.local_shards import LocalShardClients
from ebla.feed.session_guards import SessionGuards
from ebla.feed.topology_follower import TopologyFollower, TopologyFollowerConfig
from ebla.feed.topology_view import TopologyView, View
from ebla.journal.checked_file import parent_folder
from ebla.model.errors import EblaError, Unavailable
from ebla.model.identity import Address, Replica, ShardNumber, TopologyVersion
from ebla.observe.event_reporter import EventReporter
from ebla.ports.environment import Environment
from ebla.replica.adoption import ShardAdoptions
from ebla.replica.checkpoints import ShardCheckpoints, ShardTransferDeps
from ebla.replica.compaction import BulkCompactor, CompactionLoop, gc_terms_by
from ebla.replica.replica_limits import ReplicaLimits
from ebla.replica.replica_server import ReplicaServer, ReplicaServerDeps
from ebla.replica.replica_stacks import ReplicaStacks
from ebla.replica.row_reads import ReplicaReader
from ebla.replica.row_streams import RowStreamReceiver
from ebla.replica.row_writes import ReplicaWriter
from ebla.replica.serving import ServingRight
from ebla.replica.shard_metrics import ShardMetrics
from ebla.replica.shard_services import Compactor, ShardDeps, ShardService, ShardServiceContext
from ebla.replica.siblings import SiblingShardClients
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
"""How long the start waits for the read barrier by which strangers on disk are dropped, where there are any."""
CONFIRM_RETRY_S = 1.0
DRAIN_CHECK_MS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardConfig:
    introduction: Introduction
    """Its process name is the one its control knows it by."""
    number: ShardNumber
    folder: str
    """Of its store. Beside it are the staging and the checkpoints of the node."""
    address: Address
    """For other nodes."""
    local_address_of: Callable[[ShardNumber], Address]
    """For the processes of this node: the Unix socket of each shard, its own among them."""
    control_address: Address
    heartbeat_ms: int
    feed_silence_ms: int
    wire: WireLimits
    report: EventReporter
    pid: int
    bulk_address: Address | None = None
    store: StoreLimits = field(default_factory=StoreLimits)
    limits: ReplicaLimits = field(default_factory=ReplicaLimits)


class _Shard:
    """The parts that live while the store is open. `wire.topology_feed.Follower`."""

    def __init__(
        self, process: "ShardProcess", tasks: asyncio.TaskGroup, store: ShardStore, context: PeersContext
    ) -> None:
        around, setup, view = process.environment, process.setup, process.view
        self._process = process
        self._view = view
        self._store = store
        self._fronts: Sequence[ShardService] = ()
        own = Replica(setup.introduction.host, setup.number)
        limits = setup.limits
        self.stacks = ReplicaStacks(store, view, own, setup.report)
        self.follower = self._following(process)
        self.guards = SessionGuards(view, self.follower, around.clock, limits.barrier_ms)
        siblings = SiblingShardClients(LocalShardClients(tasks, context, own.host, setup.local_address_of))
        self.writer = ReplicaWriter(view, store, self.stacks, limits, siblings)
        self.reader = ReplicaReader(view, store, self.stacks, limits)
        self.metrics = ShardMetrics(process.parts.metrics)
        streams = RowStreamReceiver(view, store, self.stacks, self.guards)
        transfers = ShardTransferDeps(
            disk=around.disk,
            data_folder=parent_folder(setup.folder),
            shard=setup.number,
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
                streams=streams,
                checkpoints=ShardCheckpoints(transfers),
                adoptions=self._adoptions,
                metrics=self.metrics,
                serves=process.serves,
            )
        )
        self._fronts = process.parts.services(
            ShardServiceContext(
                environment=around,
                tasks=tasks,
                view=view,
                own=own,
                replica=self.replica,
                serves=process.serves,
                introduction=setup.introduction,
                wire=setup.wire,
                report=setup.report,
                metrics=process.parts.metrics,
            )
        )

    def _following(self, process: "ShardProcess") -> TopologyFollower:
        setup = process.setup
        ours = setup.introduction
        # A poll that is held longer than a heartbeat would look like silence where the bound on that is short.
        following = TopologyFollowerConfig(
            name=ours.process,
            pid=setup.pid,
            host=ours.host,
            clock=process.environment.clock,
            report=setup.report,
            poll_ms=setup.heartbeat_ms,
        )
        return TopologyFollower(process.control, following, self._view, self, self.report_of)

    async def prepare(self, view: View, before: View | None) -> None:
        assert before is None or before.snapshot is not view.snapshot, "what is the same needs no preparing"
        await self.stacks.prepare(view)
        await self._adoptions.before_fence(view.fence)

    def on_view_installed(self, view: View) -> None:
        self.stacks.on_view_installed(view)
        self.guards.on_view_installed(view)
        for front in self._fronts:
            front.on_view_installed(view)

    def report_of(self, view: View) -> ChildReport:
        ours = self._process.setup
        return ChildReport(
            name=ours.introduction.process,
            pid=ours.pid,
            version=view.version,
            fence=view.fence,
            oldest_running=self._view.versions.oldest(view.version),
            pending_replicas_open=self.stacks.pending_replicas_open,
            closing_sessions=self.guards.closing,
        )

    def attach(self, server: Server) -> None:
        self.replica.attach(server)
        for front in self._fronts:
            front.attach(server)

    async def confirm(self) -> None:
        """Asks for a read barrier until there was one, and lets go of what is not this shard's any more."""
        barrier_ms = self._process.setup.limits.barrier_ms
        while True:
            try:
                revision = await self.follower.read_barrier(barrier_ms)
                if await self._view.wait_revision(revision, barrier_ms / 1000):
                    await self.stacks.confirm()
                    return
            except EblaError as error:
                self._process.setup.report("shard.not_confirmed", {"cause": error.message})
            await asyncio.sleep(CONFIRM_RETRY_S)

    async def compact(self, place: Compactor) -> None:
        terms = gc_terms_by(self._view, self._process.environment.clock)
        await CompactionLoop(self._store, self.stacks, place, terms).run(self.metrics, self._process.setup.report)

    def close_fronts(self) -> None:
        for front in self._fronts:
            front.close()

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
    """One life. `run` is to be called once."""

    def __init__(self, environment: Environment, setup: ShardConfig, parts: ShardDeps) -> None:
        self.environment = environment
        self.setup = setup
        self.parts = parts
        self.view = TopologyView()
        self.replica: ReplicaServer | None = None
        """Once it listens."""
        self._control: Peers | None = None
        self._right = ServingRight(setup.feed_silence_ms)
        """By beats: control is there and lets it serve."""
        self._feed_right = ServingRight(setup.feed_silence_ms)
        """By polls: control has told what there was to tell."""
        self._follower: TopologyFollower | None = None
        self._listens = False
        self._served = False

    @property
    def control(self) -> Peers:
        assert self._control is not None
        return self._control

    def serves(self) -> bool:
        """To be asked at each use: a process that was stopped and continued has had no timer run. Each change is told
        here, where requests meet it: a right that was lost and came back between two beats has failed some."""
        serves = self._has_right()
        if serves != self._served:
            self._served = serves
            self._tell(serves=serves)
        return serves

    def _has_right(self) -> bool:
        follower = self._follower
        if not self._listens or follower is None or not follower.is_node_serving:
            return False
        now_ms = self.environment.clock.boot_ms()
        if follower.last_heard_ms is not None:
            self._heard(self._feed_right, follower.last_heard_ms, allowed=True)
        return self._right.holds(now_ms) and self._feed_right.holds(now_ms)

    async def run(self) -> None:
        """Serves until cancelled. Raises where the address is taken, and what the store's disk did to it."""
        setup, around = self.setup, self.environment
        async with asyncio.TaskGroup() as tasks:
            context = PeersContext(
                transport=around.transport,
                rng=around.rng,
                introduction=setup.introduction,
                limits=setup.wire,
                report=setup.report,
            )
            self._control = Peers(tasks, context)
            self._control.set_address(setup.introduction.host, setup.control_address)
            beating = tasks.create_task(self._keep_in_touch(self._control))
            store = await open_store(around.disk, around.rng, setup.folder, self.parts.engine, setup.store)
            storing = tasks.create_task(store.run())
            try:
                await self._serve(tasks, store, context)
            finally:
                self._listens = False
                if not storing.done():
                    await self._flush(store)
                storing.cancel()
                beating.cancel()

    # -- starting ----------------------------------------------------------------------------------------------------

    async def _serve(self, tasks: asyncio.TaskGroup, store: ShardStore, context: PeersContext) -> None:
        shard = _Shard(self, tasks, store, context)
        self._follower = shard.follower
        running = [tasks.create_task(shard.follower.run()), tasks.create_task(shard.stacks.run())]
        servers: list[Server] = []
        try:
            await self._wait_first_view()
            await self._begin_confirming(tasks, shard)
            self._begin_folding(tasks, shard, context)
            servers = [self._server(tasks, shard), self._server(tasks, shard)]
            shard.replica.attach_local(servers[1])
            await self._listen(servers, shard)
        finally:
            self._listens = False
            shard.close_fronts()
            await self._drain(shard)
            for server in servers:
                server.close("the shard stops")
            for one in running:
                one.cancel()
            await asyncio.wait(running, timeout=self.setup.limits.stop_ms / 1000)

    async def _wait_first_view(self) -> None:
        while not await self.view.wait_version(ANY_VERSION, FIRST_VIEW_WAIT_S):
            self.setup.report("shard.waits_for_topology", {})

    async def _begin_confirming(self, tasks: asyncio.TaskGroup, shard: _Shard) -> None:
        confirming = tasks.create_task(shard.confirm())
        if shard.stacks.has_unowned:
            await asyncio.wait([confirming], timeout=CONFIRM_WAIT_S)

    def _begin_folding(self, tasks: asyncio.TaskGroup, shard: _Shard, context: PeersContext) -> None:
        place = self.parts.compactor
        if place is None and self.setup.bulk_address is not None:
            bulk = Peers(tasks, context)
            bulk.set_address(self.setup.introduction.host, self.setup.bulk_address)
            place = BulkCompactor(bulk, self.setup.introduction.host)
        if place is not None:
            tasks.create_task(shard.compact(place))

    def _server(self, tasks: asyncio.TaskGroup, shard: _Shard) -> Server:
        server = Server(tasks, self.setup.introduction, self.setup.wire, self.setup.report)
        server.serve(IDENTITY, self._identity)
        server.serve(METRICS, self._metrics)
        shard.attach(server)
        return server

    async def _listen(self, servers: Sequence[Server], shard: _Shard) -> None:
        setup, transport = self.setup, self.environment.transport
        peers, local = servers
        listening = [await transport.listen(setup.address, peers.accept)]
        try:
            listening.append(await transport.listen(setup.local_address_of(setup.number), local.accept))
            self.replica = shard.replica
            self._listens = True
            self.serves()  # tells that it does, asked for or not
            while True:
                await asyncio.sleep(setup.heartbeat_ms / 1000)
                shard.measure()
        finally:
            for one in listening:
                await one.close()

    # -- stopping ----------------------------------------------------------------------------------------------------

    async def _drain(self, shard: _Shard) -> None:
        """What runs may end; nothing new begins."""
        for _ in range(self.setup.limits.drain_ms // DRAIN_CHECK_MS):
            if shard.is_idle:
                return
            await asyncio.sleep(DRAIN_CHECK_MS / 1000)
        self.setup.report("shard.cut_off_requests", {})

    async def _flush(self, store: ShardStore) -> None:
        try:
            async with asyncio.timeout(self.setup.limits.stop_ms / 1000):
                await store.close()
        except (TimeoutError, EblaError, OSError) as failure:
            # What is not flushed is replayed from the log at the next start.
            self.setup.report("shard.not_flushed", {"cause": str(failure)})

    # -- control -----------------------------------------------------------------------------------------------------

    async def _keep_in_touch(self, control: Peers) -> None:
        setup, clock = self.setup, self.environment.clock
        # On a machine that is short of processors control answers late, which is not silence: a few questions fit
        # into the time after which it would be.
        answer_ms = max(setup.heartbeat_ms, setup.feed_silence_ms // 3)
        while True:
            asked_ms = clock.boot_ms()
            beat = ChildBeatRequest(setup.introduction.process, setup.pid, self.serves())
            try:
                answer = await control.call(setup.introduction.host, CHILD_BEAT, beat, answer_ms)
                self._heard(self._right, asked_ms, allowed=answer.serving)
            except EblaError:
                pass  # silence is counted, not its causes
            self.serves()  # tells what has changed, asked for or not
            await asyncio.sleep(setup.heartbeat_ms / 1000)

    def _heard(self, right: ServingRight, asked_ms: int, *, allowed: bool) -> None:
        """From the question on, whichever it was: an answer may have lain in the socket of a stopped process."""
        right.heard(asked_ms, allowed=allowed)

    def _tell(self, *, serves: bool) -> None:
        now_ms = self.environment.clock.boot_ms()
        silent = {
            "control_silent_ms": self._right.silent_ms(now_ms),
            "feed_silent_ms": self._feed_right.silent_ms(now_ms),
        }
        self.setup.report("shard.serving" if serves else "shard.stopped_serving", silent)

    def _identity(self, _request: IdentityRequest, _call: IncomingCall) -> IdentityAnswer:
        if not self.serves():
            silent_ms = self._right.silent_ms(self.environment.clock.boot_ms())
            raise Unavailable(f"{self.setup.introduction.process} does not serve: control silent for {silent_ms} ms")
        ours = self.setup.introduction
        return IdentityAnswer(
            host=ours.host,
            cluster=ours.cluster,
            cluster_name=ours.cluster_name,
            process=ours.process,
            pid=self.setup.pid,
        )

    def _metrics(self, _request: MetricsRequest, _call: IncomingCall) -> MetricsAnswer:
        return collect_metrics(self.parts.metrics)
