"""Whole nodes whose shards broker for jobs: those of `transfers_node.py`, without a pipeline."""

from dataclasses import dataclass, field

from ebla.broker.broker import TableBroker
from ebla.broker.broker_parts import BrokerLimits, BrokerParts
from ebla.bulk.transfer_limits import TransferLimits
from ebla.model.identity import ClusterId, HostId
from ebla.node.router_front import RouterFront
from ebla.pipeline.doors import DoorPlaces, WireDoors
from ebla.ports.surroundings import Surroundings
from ebla.replica.fronts import Front, FrontContext
from ebla.replica.replica_server import ReplicaServer
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.table_jobs import JobsLedger, watch_adoptions
from ebla.sim.checkers.transfers import TransfersLedger
from ebla.sim.flight_twin import BulkSeat
from ebla.sim.table_calls_twin import CallDoor, CallSeat
from ebla.sim.transfers_twin import Engine
from ebla.sim.workloads.rows_node import BULK_SOCKET, CONTROL_SOCKET, DATA, SHARD_PORT, WIRE, Shard, add_node, socket_of
from ebla.sim.workloads.transfers_node import VERBS_PORT, TransfersCluster, bulk
from ebla.sim.world import World
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
class TableJobsCluster(TransfersCluster):
    book: JobsLedger
    calls: dict[str, CallSeat] = field(default_factory=dict)
    """By the name of the shard's unit."""

    def watch_shard(self, seat: Shard, replica: ReplicaServer, around: Surroundings) -> None:
        TransfersCluster.watch_shard(self, seat, replica, around)
        watch_adoptions(self.book, seat.own, replica)

    def more_fronts(self, _seat: Shard, _context: FrontContext, _router: RouterFront) -> tuple[Front, ...]:
        seat, context, router = _seat, _context, _router
        around = context.surroundings
        peers = PeersContext(around.transport, around.chance, context.introduction, WIRE, context.report)
        places = DoorPlaces(context.own.host, CONTROL_SOCKET, BULK_SOCKET, socket_of, VERBS_PORT, SHARD_PORT)
        doors = _WatchedDoors(context, peers, places)
        doors.cluster = self
        parts = BrokerParts(
            view=context.view,
            doors=doors,
            host=context.own.host,
            datacenter="dc1",
            authority=lambda: b"",
            next_timestamp_us=router.router.timestamps.next_us,
            tasks=context.tasks,
            clock=around.clock,
            chance=around.chance,
            report=context.report,
            limits=BROKER_LIMITS,
        )
        door = CallDoor(context.tasks, TableBroker(parts), doors)
        self.calls[seat.unit.name].door = door
        return door, _Seeing(self.book)


class _Seeing:
    """`replica.fronts.Front`: keeps every view for the checkers."""

    def __init__(self, book: JobsLedger) -> None:
        self.installed = book.saw

    def attach(self, server: object) -> None:
        """It has no verbs."""

    def close(self) -> None:
        pass


class _WatchedDoors(WireDoors):
    """Tells which closes were answered."""

    cluster: TableJobsCluster

    def __init__(self, context: FrontContext, peers: PeersContext, places: DoorPlaces) -> None:
        super().__init__(context.tasks, peers, places)

    async def control(self, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        answer = await super().control(verb, request, deadline_ms)
        if isinstance(request, CloseSessionRequest) and isinstance(answer, CloseSessionAnswer):
            self.cluster.close_answered(request.session, answer.down)
        return answer


def build_cluster(world: World) -> TableJobsCluster:
    """Nodes that are not yet started."""
    seats: dict[HostId, BulkSeat] = {}
    cluster = TableJobsCluster(
        world,
        ClusterId(world.chance.uuid()),
        BarrierLedger(world.fail),
        ledger=TransfersLedger(world.fail, world.now),
        engine=Engine(world, lambda host: seats[host]),
        seats=seats,
        limits=BULK_LIMITS,
        book=JobsLedger(world.fail, world.now),
    )
    for number in range(NODES):
        name = f"n{number + 1}"
        world.machine(name).disk.lay_out(name)
        node = add_node(cluster, number, f"{DATA}/{name}", bulk)
        seats[node.host] = BulkSeat(node.bulk)
        for shard in node.shards:
            cluster.calls[shard.unit.name] = CallSeat(shard.unit)
    return cluster
