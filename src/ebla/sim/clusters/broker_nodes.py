"""Whole nodes whose shards broker for jobs: those of `transfers_node.py`, without a pipeline."""

from dataclasses import dataclass, field

from ebla.broker.broker import TableBroker
from ebla.broker.broker_deps import BrokerDeps, BrokerLimits
from ebla.bulk.transfer_limits import TransferLimits
from ebla.model.identity import ClusterId, HostId
from ebla.node.router_service import RouterService
from ebla.ports.environment import Environment
from ebla.replica.replica_server import ReplicaServer
from ebla.replica.shard_services import ShardService, ShardServiceContext
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.table_jobs import WriteJobsLedger, watch_adoptions
from ebla.sim.checkers.transfers import TransfersLedger
from ebla.sim.clusters.nodes import BULK_SOCKET, CONTROL_SOCKET, DATA, SHARD_PORT, WIRE, SimShard, add_node, socket_of
from ebla.sim.clusters.transfer_nodes import VERBS_PORT, TransferCluster, run_bulk
from ebla.sim.transfers.broker_calls import BrokerHandle, SimBrokerServer
from ebla.sim.transfers.flight import BulkHandle
from ebla.sim.transfers.spark_engine import SimSparkEngine
from ebla.sim.world import World
from ebla.transfers.cluster_client import ClusterAddresses, WireClusterClient
from ebla.wire.peers import PeersContext
from ebla.wire.transfer_messages import CloseSessionAnswer, CloseSessionRequest
from ebla.wire.verbs import A, Q, Verb

NODES = 4
BULK_LIMITS = TransferLimits(
    puts_max=12,
    gets_max=10,
    free_bytes_min=2_000,
    barrier_ms=2_000,
    shard_ms=4_000,
    build_ms=10_000,
    sweep_ms=2_000,
    rows_merged_bytes_max=300,
)
"""So that a tablet gets a layer from some jobs, and rows from others."""
BROKER_LIMITS = BrokerLimits(
    calls_max=30,
    barrier_ms=2_500,
    group0_ms=2_500,
    open_read_ms=6_000,
    read_stragglers_ms=1_000,
    write_jobs_max=12,
    table_write_jobs_max=8,
    write_life_ms=40_000,
    staging_ms=4_000,
    open_stragglers_ms=1_500,
    stragglers_ms=1_500,
    patience_ms=5_000,
    close_session_ms=4_000,
    seal_ms=10_000,
    adopt_ms=4_000,
)


@dataclass(slots=True, kw_only=True)
class BrokerCluster(TransferCluster):
    book: WriteJobsLedger
    calls: dict[str, BrokerHandle] = field(default_factory=dict)
    """By the name of the shard's unit."""

    def watch_shard(self, seat: SimShard, replica: ReplicaServer, environment: Environment) -> None:
        TransferCluster.watch_shard(self, seat, replica, environment)
        watch_adoptions(self.book, seat.own, replica)

    def more_fronts(
        self, _seat: SimShard, _context: ShardServiceContext, _router: RouterService
    ) -> tuple[ShardService, ...]:
        seat, context, router = _seat, _context, _router
        environment = context.environment
        peers = PeersContext(
            transport=environment.transport,
            rng=environment.rng,
            introduction=context.introduction,
            limits=WIRE,
            report=context.report,
        )
        places = ClusterAddresses(
            own=context.own.host,
            control_socket=CONTROL_SOCKET,
            bulk_socket=BULK_SOCKET,
            shard_socket_of=socket_of,
            bulk_port=VERBS_PORT,
            shard_port_first=SHARD_PORT,
        )
        doors = _WatchedDoors(context, peers, places)
        doors.cluster = self
        parts = BrokerDeps(
            view=context.view,
            doors=doors,
            host=context.own.host,
            datacenter="dc1",
            authority=lambda: b"",
            next_timestamp_us=router.router.timestamps.next_us,
            tasks=context.tasks,
            clock=environment.clock,
            rng=environment.rng,
            report=context.report,
            limits=BROKER_LIMITS,
        )
        door = SimBrokerServer(context.tasks, TableBroker(parts), doors)
        self.calls[seat.unit.name].door = door
        return door, _Seeing(self.book)


class _Seeing:
    """`replica.fronts.Front`: keeps every view for the checkers."""

    def __init__(self, book: WriteJobsLedger) -> None:
        self.on_view_installed = book.saw

    def attach(self, server: object) -> None:
        """It has no verbs."""

    def close(self) -> None:
        pass


class _WatchedDoors(WireClusterClient):
    """Tells which closes were answered."""

    cluster: BrokerCluster

    def __init__(self, context: ShardServiceContext, peers: PeersContext, places: ClusterAddresses) -> None:
        super().__init__(context.tasks, peers, places)

    async def control(self, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        answer = await super().control(verb, request, deadline_ms)
        if isinstance(request, CloseSessionRequest) and isinstance(answer, CloseSessionAnswer):
            self.cluster.close_answered(request.session, answer.down)
        return answer


def build_cluster(world: World) -> BrokerCluster:
    """Nodes that are not yet started."""
    seats: dict[HostId, BulkHandle] = {}
    cluster = BrokerCluster(
        world=world,
        id=ClusterId(world.rng.uuid()),
        barriers=BarrierLedger(world.fail),
        ledger=TransfersLedger(fail=world.fail, now=world.now),
        engine=SimSparkEngine(world=world, seat=lambda host: seats[host]),
        seats=seats,
        limits=BULK_LIMITS,
        book=WriteJobsLedger(fail=world.fail, now=world.now),
    )
    for number in range(NODES):
        name = f"n{number + 1}"
        world.machine(name).disk.lay_out(name)
        node = add_node(cluster, number, f"{DATA}/{name}", run_bulk)
        seats[node.host] = BulkHandle(node.bulk)
        for shard in node.shards:
            cluster.calls[shard.unit.name] = BrokerHandle(shard.unit)
    return cluster
