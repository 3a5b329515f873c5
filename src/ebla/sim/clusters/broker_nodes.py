"""Nodes whose shards broker for Spark jobs: those of `transfer_nodes.py`, without pipelines."""

from dataclasses import dataclass, field

from ebla.broker.broker import TableBroker
from ebla.broker.broker_deps import BrokerLimits
from ebla.bulk.transfer_limits import TransferLimits
from ebla.feed.topology_view import View
from ebla.model.identity import ClusterId
from ebla.node.context import NodeContext
from ebla.node.cql_service import table_broker
from ebla.node.shard_process import ShardService, ShardServiceContext
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.table_jobs import WriteJobsLedger, watch_adoptions
from ebla.sim.checkers.transfers import TransfersLedger
from ebla.sim.clusters.nodes import SimShard
from ebla.sim.clusters.transfer_nodes import TransferCluster
from ebla.sim.transfers.spark_engine import SimSparkEngine
from ebla.sim.world import World
from ebla.transfers.cluster_client import WireClusterClient
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
"""So that some jobs add a layer to a tablet, and others merge rows into it."""
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
    write_jobs: WriteJobsLedger
    brokers: dict[str, TableBroker] = field(default_factory=dict)
    """By the name of the shard's unit; of its current incarnation."""

    def watch_shard(self, shard: SimShard, context: ShardServiceContext, node: NodeContext) -> tuple[ShardService, ...]:
        more = TransferCluster.watch_shard(self, shard, context, node)
        watch_adoptions(self.write_jobs, shard.own, context.replica)
        clients = _WatchedClients(context.tasks, context.peers, node.cluster_addresses)
        clients.cluster = self
        self.brokers[shard.unit.name] = table_broker(context, node, clients, lambda: b"", BROKER_LIMITS)
        return *more, _BrokerService(clients, self.write_jobs)


class _BrokerService:
    """`ShardService`. It also keeps every view for the checkers."""

    def __init__(self, clients: WireClusterClient, ledger: WriteJobsLedger) -> None:
        self._clients = clients
        self._ledger = ledger

    def on_view_installed(self, view: View) -> None:
        self._clients.follow(view.snapshot)
        self._ledger.saw(view)

    def close(self) -> None:
        self._clients.close("the shard stops")


class _WatchedClients(WireClusterClient):
    """Reports which closes were answered."""

    cluster: BrokerCluster

    async def control(self, verb: Verb[Q, A], request: Q, deadline_ms: int) -> A:
        answer = await super().control(verb, request, deadline_ms)
        if isinstance(request, CloseSessionRequest) and isinstance(answer, CloseSessionAnswer):
            self.cluster.close_answered(request.session, answer.down)
        return answer


def build_cluster(world: World) -> BrokerCluster:
    """Nodes that are not yet started."""
    cluster = BrokerCluster(
        world=world,
        id=ClusterId(world.rng.uuid()),
        barriers=BarrierLedger(world.fail),
        ledger=TransfersLedger(fail=world.fail, now=world.now),
        engine=SimSparkEngine(world=world),
        transfer_limits=BULK_LIMITS,
        write_jobs=WriteJobsLedger(fail=world.fail, now=world.now),
    )
    for _ in range(NODES):
        cluster.add_node()
    return cluster
