"""Nodes whose shards broker for Spark jobs: those of `transfer_nodes.py`, without pipelines."""

from dataclasses import dataclass, field, replace

import msgspec

from ebla.broker.broker import TableBroker
from ebla.broker.broker_deps import BrokerLimits
from ebla.feed.topology_view import View
from ebla.model.identity import ClusterId
from ebla.node.context import NodeContext
from ebla.node.cql_service import table_broker
from ebla.node.shard_process import ShardService, ShardServiceContext
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.table_jobs import WriteJobsLedger, watch_adoptions
from ebla.sim.checkers.transfers import TransfersLedger
from ebla.sim.clusters.nodes import LIMITS, TRANSFERS, SimShard
from ebla.sim.clusters.transfer_nodes import TransferCluster
from ebla.sim.transfers.spark_engine import SimSparkEngine
from ebla.sim.world import World
from ebla.transfers.cluster_client import WireClusterClient
from ebla.transfers.transfer_client import TransferCallLimits

NODES = 4
BULK_LIMITS = replace(TRANSFERS, puts_max=12, rows_merged_bytes_max=300)
"""So that some jobs add a layer to a tablet, and others merge rows into it."""
NODE_LIMITS = msgspec.structs.replace(
    LIMITS,
    table_calls_max=30,
    write_jobs_max=12,
    table_write_jobs_max=8,
    bulk_job_life_ms=40_000,
    session_close_ms=4_000,
)
BROKER_LIMITS = BrokerLimits(
    calls=TransferCallLimits(staging_ms=4_000, seal_ms=10_000, adopt_ms=4_000, patience_ms=0),
    barrier_ms=2_500,
    group0_ms=2_500,
    open_read_ms=6_000,
    read_stragglers_ms=1_000,
    open_stragglers_ms=1_500,
    stragglers_ms=1_500,
    patience_ms=5_000,
)


@dataclass(slots=True, kw_only=True)
class BrokerCluster(TransferCluster):
    write_jobs: WriteJobsLedger
    brokers: dict[str, TableBroker] = field(default_factory=dict)
    """By the name of the shard's unit; of its current incarnation."""

    def watch_shard(self, shard: SimShard, context: ShardServiceContext, node: NodeContext) -> tuple[ShardService, ...]:
        more = TransferCluster.watch_shard(self, shard, context, node)
        watch_adoptions(self.write_jobs, shard.own, context.replica)
        clients = WireClusterClient(context.tasks, context.peers, node.cluster_addresses)
        self.watch_closes(clients)
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


def build_cluster(world: World) -> BrokerCluster:
    """Nodes that are not yet started."""
    cluster = BrokerCluster(
        world=world,
        id=ClusterId(world.rng.uuid()),
        barriers=BarrierLedger(world.fail),
        ledger=TransfersLedger(fail=world.fail, now=world.now),
        engine=SimSparkEngine(world=world),
        limits=NODE_LIMITS,
        transfer_limits=BULK_LIMITS,
        write_jobs=WriteJobsLedger(fail=world.fail, now=world.now),
    )
    for _ in range(NODES):
        cluster.add_node()
    return cluster
