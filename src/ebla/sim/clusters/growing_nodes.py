"""Nodes of a cluster that grows: those of `transfer_nodes.py`, which more nodes join while it runs. A node whose join
has ended can never come back; its operator starts another one, on another machine."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ebla.control.coordinator.coordinator import Coordinator
from ebla.control.leadership.activity_tasks import RunningHandle
from ebla.control.settings.settings_node import SettingsNode
from ebla.group0.store import Group0Store
from ebla.model.identity import ClusterId, HostId, RequestId, TopologyVersion
from ebla.node.context import NodeContext
from ebla.node.control_process import ControlProcess
from ebla.node.shard_process import ShardService, ShardServiceContext
from ebla.ports.environment import Environment
from ebla.settings_store.registry import JANITOR_DELAY_MS, LEASES, TOPOLOGY, Setting, TopologySettings
from ebla.sim.checkers.gained_ranges import GainedRangesLedger
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.topology import TopologyLedger
from ebla.sim.checkers.transfers import TransfersLedger
from ebla.sim.clusters.nodes import SimControlProcess, SimNode, SimShard
from ebla.sim.clusters.transfer_nodes import LEASE_SETTINGS, TransferCluster
from ebla.sim.transfers.attempts import SimExecutor
from ebla.sim.transfers.spark_engine import SimSparkEngine
from ebla.sim.world import Unit, World
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeState

T = TypeVar("T")

EXECUTOR_MACHINES = ("n1", "n3", "x1")
"""Machines of nodes, and one of their own."""
JANITOR_MS = 3_000
TOPOLOGY_SETTINGS = TopologySettings(peer_timeout_ms=8_000, request_grace_ms=6_000, ring_delay_ms=500)
SHORT: Mapping[str, Any] = {
    LEASES.name: LEASE_SETTINGS,
    TOPOLOGY.name: TOPOLOGY_SETTINGS,
    JANITOR_DELAY_MS.name: JANITOR_MS,
}
"""All settings are shorter than in production: a storm is short."""


@dataclass(slots=True, kw_only=True)
class GrowingCluster(TransferCluster):
    topology: TopologyLedger
    gains: GainedRangesLedger
    retired: dict[HostId, None] = field(default_factory=dict)
    """Nodes that have left: their operators have stopped them."""
    dead: dict[HostId, float] = field(default_factory=dict)
    """Nodes that are to be removed or replaced, and the time after which they are started again if no request for that
    is open."""

    def grow(self, replaced: SimNode | None = None) -> SimNode:
        """One more node, with a pipeline; not yet started."""
        node = self.add_node()
        node.replaced = replaced
        self.add_pipeline(node)
        return node

    def retire(self, node: SimNode) -> None:
        self.retired[node.host] = None
        for unit in (*node.units(), self.pipelines[node.host]):
            unit.kill()

    def present(self) -> list[SimNode]:
        return [node for node in self.nodes if node.host not in self.retired]

    def units(self) -> list[Unit]:
        return [unit for node in self.present() for unit in node.units()]

    def shards(self) -> list[SimShard]:
        """Of nodes that have been in the ring, too: a request may reach them."""
        return [shard for node in self.present() for shard in node.shards]

    def leader(self) -> tuple[SimNode, ControlProcess] | None:
        """The node that coordinates; None: nobody does now."""
        for node in self.present():
            process = node.live_control
            if process is not None and process.coordinator is not None and process.coordinator.current is not None:
                return node, process
        return None

    def newest(self) -> Snapshot | None:
        return max((one for one in self.snapshots().values()), key=lambda one: one.version, default=None)

    def store_of(self, node: SimNode) -> Group0Store | None:
        process = node.live_control
        return None if process is None else process.topology.store

    def newest_store(self) -> Group0Store | None:
        stores = [store for node in self.present() if (store := self.store_of(node)) is not None]
        return max(stores, key=lambda store: store.index, default=None)

    def state_of(self, node: SimNode) -> NodeState | None:
        newest = self.newest()
        row = None if newest is None else newest.nodes.get(node.host)
        return None if row is None else row.state

    def cause_of(self, request: RequestId) -> str:
        """What the coordinator says that it waits for."""
        leader = self.leader()
        coordinator = None if leader is None else leader[1].coordinator
        if coordinator is None:
            return ""
        found = coordinator.causes.of(request) or coordinator.causes.of(None)
        return "" if found is None else found.text

    # ---- what is watched

    def watch_shard(self, shard: SimShard, context: ShardServiceContext, node: NodeContext) -> tuple[ShardService, ...]:
        assert shard.process is not None
        self.gains.watch(shard.process, context.replica.context.store)
        return TransferCluster.watch_shard(self, shard, context, node)

    def watch_settings(
        self,
        node: SimNode,  # noqa: ARG002  # for subclasses
        settings: SettingsNode,
        environment: Environment,  # noqa: ARG002  # for subclasses
    ) -> None:
        value = settings.value

        def shortened(setting: Setting[T]) -> T:
            return SHORT.get(setting.name) or value(setting)

        settings.value = shortened  # type: ignore[method-assign]  # a storm is short

    async def watch_topology(self, node: SimNode, process: ControlProcess) -> None:
        """In each incarnation of a control process, before it serves."""
        await process.ready.wait()
        assert process.coordinator is not None, "it is there before the node listens"
        self.topology.watch_state(node.control.name, process)
        self._watch_barriers(node, process)
        self._watch_coordinator(process.coordinator)
        assert isinstance(process, SimControlProcess), "it is one of a simulated node"
        process.watch_order = lambda handle: self._check_order(node, process, handle)
        await asyncio.Event().wait()

    def _check_order(self, node: SimNode, process: ControlProcess, handle: RunningHandle) -> None:
        lease = None if process.leadership is None else process.leadership.view().lease
        if lease is None or lease != handle.activity.lease:
            self.world.fail(
                f"INV-LEASE-5: {node.control.name} stops under {handle.activity.lease}, its lease is {lease}"
            )

    def _watch_barriers(self, node: SimNode, process: ControlProcess) -> None:
        """What this node has acknowledged must hold there from now on."""
        feed = process.feed
        node_barrier = feed.node_barrier

        async def watched(version: TopologyVersion, deadline_ms: int, *, drain: bool = True) -> TopologyVersion:
            answer = await node_barrier(version, deadline_ms, drain=drain)
            snapshot = self.topology.snapshot_of(version)
            if drain and snapshot is not None:
                self.barrier_returned(node, snapshot)
                for session in self.topology.closed_by(snapshot):
                    self.ledger.closed_on(node.host, session)
            return answer

        feed.node_barrier = watched  # type: ignore[method-assign]  # records, and does the same

    def _watch_coordinator(self, coordinator: Coordinator) -> None:
        coordinate = coordinator._coordinate  # noqa: SLF001  # the body of the activity

        async def watched(handle: RunningHandle) -> None:
            self.leaders.started("coordinator", handle.activity.term)
            check = handle.check_effect

            def watched_check() -> None:
                check()
                problem = self.leaders.acted("coordinator", handle.activity.term)
                if problem is not None:
                    self.world.fail(problem)

            handle.check_effect = watched_check  # type: ignore[method-assign]  # records, and does the same
            await coordinate(handle)

        coordinator._coordinate = watched  # type: ignore[method-assign]  # noqa: SLF001  # records, and does the same


def build_cluster(world: World, nodes: int) -> GrowingCluster:
    """Nodes and executors that are not yet started."""
    engine = SimSparkEngine(world=world)
    ledger = TransfersLedger(fail=world.fail, now=world.now)
    cluster = GrowingCluster(
        world=world,
        id=ClusterId(world.rng.uuid()),
        barriers=BarrierLedger(world.fail),
        ledger=ledger,
        engine=engine,
        topology=TopologyLedger(world),
        gains=GainedRangesLedger(fail=world.fail),
    )
    cluster.accompany = cluster.watch_topology
    for _ in range(nodes):
        cluster.grow()
    engine.bulk_of, engine.note_files, engine.note_rows = cluster.bulk_of, cluster.note_files, ledger.sends_rows
    for number, machine in enumerate(EXECUTOR_MACHINES):
        engine.executors.append(SimExecutor(world, f"e{number + 1}", machine, engine))
    return cluster
