"""A simulated cluster with rows, whose nodes join, leave, are removed, replaced and rebuilt, step by step."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ebla.control.fault_points import FaultPoint
from ebla.group0.members import MemberRole, member_key
from ebla.group0.operations import Operation, OperationCode, OperationKind
from ebla.model.errors import EblaError
from ebla.model.identity import HostId, RequestId
from ebla.node.control_process import ControlProcess
from ebla.ports.environment import Environment
from ebla.sim.checkers.request_outcomes import last_problem
from ebla.sim.clusters.growing_nodes import GrowingCluster, build_cluster
from ebla.sim.clusters.nodes import SimNode
from ebla.sim.clusters.transfer_nodes import supervise_pipelines
from ebla.sim.scenarios.failover import TableMaker
from ebla.sim.scenarios.rows import check_replicas, start_row_clients
from ebla.sim.scenarios.topology import leftovers, unsettled
from ebla.sim.transfers.spark_engine import NO_ENGINE_FAULTS
from ebla.sim.workloads.rows_client import RowsLoad
from ebla.sim.workloads.rows_table import COLUMNS
from ebla.sim.workloads.topology_driver import KEYSPACES, ON_VNODES
from ebla.sim.world import World
from ebla.topology.apply.command import Rejection, apply_commands
from ebla.topology.commands import Command, SubmitNodeRequest
from ebla.topology.snapshot import Keyspace, NodeRequest, Snapshot
from ebla.topology.states import NodeRequestKind, NodeState, RequestOutcome
from ebla.wire.fault_messages import FaultKind
from ebla.wire.operation_messages import OperateAnswer, OperateRequest
from ebla.wire.schema_messages import CreateTableRequest, SchemaRequest
from ebla.wire.topology_messages import AbortTopologyRequest
from ebla.wire.verbs import ABORT_REQUEST, OPERATE, SCHEMA

NODES = 3
CALL_MS = 10_000
OUTAGE_S = 4.0
"""Shorter than `peer_timeout_ms` of these clusters: what comes back in time continues."""
END_S = 90.0
END = 1 << 62
"""Later than every version."""
JOINED, ENDED = NodeState.NORMAL, NodeState.LEFT


class TopologyRig:
    """Three nodes with rows, and more that join."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster: GrowingCluster = build_cluster(world, NODES)
        self.cluster.engine.faults = NO_ENGINE_FAULTS
        self.load = RowsLoad(cluster=self.cluster)
        self.old = list(self.cluster.nodes)
        self.causes: dict[str, None] = {}
        self.dead: dict[HostId, None] = {}
        """Nodes that are not started again."""

    async def start(self, *keyspaces: Keyspace) -> None:
        """With a table in each of these; by default one on tablets and one on vnodes."""
        keyspaces = keyspaces or KEYSPACES
        for unit in (*self.cluster.executor_units(), *self.cluster.units()):
            unit.start()
        await self.cluster.wait_all_normal()

        async def make_tables(environment: Environment) -> None:
            async with asyncio.TaskGroup() as tasks:
                maker = TableMaker(environment, self.load, self.old[0], tasks)
                maker.keyspaces = keyspaces
                await maker.run()

        maker = self.cluster.start_beside(self.old[0], "driver", make_tables)
        await self.until(lambda: len(self.load.tables) == len(keyspaces), "the tables are there")
        maker.kill()
        start_row_clients(self.load, 1, 2)

    async def join(self, replaced: SimNode | None = None) -> SimNode:
        """Until its request is committed."""
        node = self.cluster.grow(replaced)
        for unit in node.units():
            unit.start()
        await self.until(lambda: self.cluster.state_of(node) is not None, f"{node.control.name} has a row")
        return node

    async def until(self, reached: Callable[[], bool], what: str, seconds: float = END_S) -> None:
        self.world.check(await self.world.wait_for(reached, seconds), f"not within {seconds} s: {what}")

    # ---- the coordinator

    async def die(self, node: SimNode) -> None:
        """For good. Until the leader sees it as down."""
        self.dead[node.host] = None
        for unit in node.units():
            unit.kill()

        def is_down() -> bool:
            found = self.cluster.leader()
            return found is not None and node.host in found[1]._down()

        await self.until(is_down, "the node is down")

    async def lose_vote(self, node: SimNode) -> None:
        """Until another one votes for it, which is excluded. Before that, one more loss may end the quorum."""
        key = member_key(node.host)

        def is_replaced() -> bool:
            store = self.cluster.newest_store()
            voters = () if store is None else [k for k, one in store.members.items() if one.role is MemberRole.VOTER]
            return key not in voters and len(voters) == NODES

        await self.until(is_replaced, "another node votes")

    def leader_process(self) -> ControlProcess:
        found = self.cluster.leader()
        assert found is not None, "a node coordinates"
        return found[1]

    def leader(self) -> SimNode:
        found = self.cluster.leader()
        assert found is not None, "a node coordinates"
        return found[0]

    def processes(self) -> list[ControlProcess]:
        return [process for node in self.cluster.present() if (process := node.live_control) is not None]

    def stop_at(self, point: FaultPoint) -> None:
        for process in self.processes():
            process.fault_points.set(point, FaultKind.PAUSE)

    def release(self, point: FaultPoint) -> None:
        for process in self.processes():
            process.fault_points.release(point)

    def is_stopped(self, point: FaultPoint) -> bool:
        views = [view for process in self.processes() for view in process.fault_points.points()]
        return any(view.name == point and view.waiting for view in views)

    async def submit(self, kind: NodeRequestKind, node: SimNode, **fields: Any) -> RequestId:
        """A request of a member. Until it is committed."""
        request = NodeRequest(
            id=RequestId(self.world.rng.uuid()), kind=kind, host=node.host, initiator=node.host, start_ms=1, **fields
        )
        await self.commit(SubmitNodeRequest(request), lambda newest: request.id in newest.node_requests)
        return request.id

    async def commit(self, command: Command, is_done: Callable[[Snapshot], bool]) -> None:
        while not ((newest := self.cluster.newest()) and is_done(newest)):
            found = self.cluster.leader()
            if found is not None:
                await commit(found[1], command)
            await asyncio.sleep(0.2)

    def outcome_of(self, request: RequestId) -> RequestOutcome:
        newest = self.cluster.newest()
        assert newest is not None, "a node runs"
        return newest.node_requests[request].outcome

    def request_of(self, node: SimNode) -> NodeRequest:
        newest = self.cluster.newest()
        assert newest is not None, "a node runs"
        return max(
            (one for one in newest.node_requests.values() if one.host == node.host),
            key=lambda one: one.end_version or END,
        )

    async def abort(self, node: SimNode) -> str:
        """The refusal; empty: it is stored."""
        alive = [one for one in self.old if one.host not in self.dead]
        connection = self.cluster.connection(self.world.scenario_environment("operator"), "operator", *alive)
        request = AbortTopologyRequest(request=self.request_of(node).id, reason="by a test")
        try:
            await connection.call(ABORT_REQUEST, request, CALL_MS)
        except EblaError as error:
            return error.message
        finally:
            connection.leave()
        return ""

    async def operate(self, kind: OperationKind, node: SimNode, *, is_forced: bool = False) -> None:
        """Until it is done."""
        operation = Operation(id=self.world.rng.uuid(), kind=kind, hosts=(node.host,), is_forced=is_forced)
        while True:
            try:
                answer = await self._operate(operation)
            except EblaError:
                await asyncio.sleep(0.5)
            else:
                if answer.ended is not None:
                    return
                await asyncio.sleep(0.5)

    async def refusal(self, kind: OperationKind, node: SimNode) -> str:
        answer = await self._operate(Operation(id=self.world.rng.uuid(), kind=kind, hosts=(node.host,)))
        assert answer.code is OperationCode.REFUSED
        return answer.message

    async def _operate(self, operation: Operation) -> OperateAnswer:
        alive = [one for one in self.old if one.host not in (*self.dead, *operation.hosts)]
        connection = self.cluster.connection(self.world.scenario_environment("operator"), "operator", *alive)
        try:
            return await connection.call(OPERATE, OperateRequest(operation, forward=True), CALL_MS)
        finally:
            connection.leave()

    async def change_schema(self) -> None:
        """The change is committed, and its caller does not wait until all nodes have it."""
        connection = self.cluster.connection(self.world.scenario_environment("schema"), "schema", self.leader())
        change = CreateTableRequest(keyspace=ON_VNODES, name="late", columns=COLUMNS)
        with pytest.raises(EblaError):
            await connection.call(SCHEMA, SchemaRequest(change), 300)
        connection.leave()

    async def note_causes(self, node: SimNode) -> None:
        """What the join waited for, until cancelled."""
        while True:
            await asyncio.sleep(0.2)
            cause = self.cluster.cause_of(self.request_of(node).id)
            self.causes[cause.split(":")[0]] = None

    # ---- the end

    async def end(self, node: SimNode) -> NodeState:
        """Once nothing is left to do, with all rows in place."""
        rest = [one for one in self.cluster.present() if one is not node]

        def is_over() -> bool:
            state = self.cluster.state_of(node)
            if state is ENDED and node.control.down:
                self.cluster.retire(node)
            for one in self.cluster.present():
                if one in rest or self.cluster.state_of(one) is not ENDED:
                    self.restart(one)
            return unsettled(self.cluster) is None

        await self.until(is_over, f"the join ends: {unsettled(self.cluster)}")
        await self.load.stop(self.world, END_S)
        await self.until(self._all_serve, "all serve")
        await check_replicas(self.load)
        await self.until(lambda: leftovers(self.cluster) is None, "nothing is staged")
        newest = self.cluster.newest()
        assert newest is not None, "a node runs"
        assert last_problem(self.cluster.topology.ended.values(), newest) is None
        return ENDED if node.host in self.cluster.retired else JOINED

    def _all_serve(self) -> bool:
        return all(shard.process is not None and shard.process.serves() for shard in self.cluster.shards())

    def restart(self, node: SimNode) -> None:
        for unit in node.units() if node.host not in self.dead else ():
            if unit.down:
                unit.start()


async def commit(process: ControlProcess, command: Command) -> None:
    applied = apply_commands(process.topology.snapshot, (command,))
    assert not isinstance(applied, Rejection), applied
    assert process.leadership is not None
    await process.leadership.group0.running.client.transact(applied.transaction, CALL_MS)


def run_on_vnodes(tell: Callable[[TopologyRig, SimNode], Awaitable[None]]) -> None:
    """With four nodes and a table on vnodes. The node is the last one, which has joined."""

    async def main(world: World) -> None:
        rig = TopologyRig(world)
        async with asyncio.TaskGroup() as tasks:
            supervising = tasks.create_task(supervise_pipelines(rig.cluster))
            await rig.start(KEYSPACES[1])
            node = await rig.join()
            await rig.until(lambda: rig.cluster.state_of(node) is JOINED, "the node has joined")
            await tell(rig, node)
            supervising.cancel()

    World(7, 60.0).run(main)


def is_idle(rig: TopologyRig) -> bool:
    newest = rig.cluster.newest()
    return newest is not None and newest.node_in_transition() is None and newest.transition is None
