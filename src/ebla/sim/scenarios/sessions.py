"""Control processes only: bulk-job sessions are opened and closed on all of them at once, requested again and too late,
and abandoned, under every fault."""

import asyncio
import functools

from ebla.model.identity import SessionId, TableId, TopologyVersion
from ebla.ports.environment import Environment
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.scenarios.schema import (
    CALM_S,
    SAMPLE_S,
    ControlCluster,
    build_cluster,
    nodes_agree,
    until_all_normal,
)
from ebla.sim.workloads.schema_client import COLUMNS, KEYSPACES, SchemaClient, SchemaLoad
from ebla.sim.workloads.sessions_client import LONG_LIFE_MS, OnSessionClosed, SessionsClient, SessionsLoad
from ebla.sim.world import World
from ebla.wire.schema_messages import CreateKeyspaceRequest, CreateTableRequest
from ebla.wire.transfer_messages import CloseSessionAnswer

NODES = 3
CLIENTS = ("j1", "j2", "j3", "j4")
PAUSE_S = 1.0


async def run(world: World) -> None:
    cluster = build_cluster(world, NODES)
    for unit in cluster.units():
        unit.start()
    await until_all_normal(world, cluster)
    table = await _table(world, cluster)
    load = SessionsLoad(
        cluster=cluster,
        table=table,
        version=functools.partial(_version, cluster),
        begin=functools.partial(_begin, cluster),
    )
    async with asyncio.TaskGroup() as tasks:
        sampling = tasks.create_task(_sample(world, cluster, load))
        for name in CLIENTS:
            world.unit(name, functools.partial(_client, name=name, load=load)).start()
        await harsh(world, cluster.units(), world.seconds, pause_s=PAUSE_S)
        await _judge(world, cluster, load)
        sampling.cancel()


async def _table(world: World, cluster: ControlCluster) -> TableId:
    load = SchemaLoad(cluster=cluster, begin=cluster.begin)
    client = SchemaClient(world.scenario_environment("operator"), "operator", load)
    keyspace = KEYSPACES[0]
    await client.submit(CreateKeyspaceRequest(keyspace), int(CALM_S * 1000))
    answer = await client.submit(
        CreateTableRequest(keyspace=keyspace.name, name="t", columns=COLUMNS), int(CALM_S * 1000)
    )
    assert answer.table is not None
    return answer.table


async def _client(environment: Environment, name: str, load: SessionsLoad) -> None:
    await SessionsClient(environment, name, load).run()


def _version(cluster: ControlCluster) -> TopologyVersion:
    return max((snapshot.version for snapshot in cluster.snapshots().values()), default=TopologyVersion(0))


def _begin(cluster: ControlCluster) -> OnSessionClosed:
    """INV-XFER-1: a node that stays up from now on does not list the session when the answer comes."""
    start_count = [node.control.start_count if not node.control.down else None for node in cluster.nodes]

    def closed(session: SessionId, answer: CloseSessionAnswer) -> None:
        for node, incarnation in zip(cluster.nodes, start_count, strict=True):
            if node.control.down or node.control.start_count != incarnation or node.host in answer.down:
                continue
            snapshot = node.snapshot
            if snapshot is None or session in snapshot.sessions:
                cluster.world.fail(f"INV-XFER-1: {node.control.name} does not know that session {session} is closed")

    return closed


async def _sample(world: World, cluster: ControlCluster, load: SessionsLoad) -> None:
    while True:
        shown = {
            (node.control.name, node.control.start_count): node.snapshot
            for node in cluster.nodes
            if node.snapshot is not None
        }
        problem = load.record.looked(shown)
        if problem is not None:
            world.fail(problem)
        await asyncio.sleep(SAMPLE_S)


async def _judge(world: World, cluster: ControlCluster, load: SessionsLoad) -> None:
    """Long enough for the leader to close abandoned sessions."""
    load.stopping = True
    for _ in range(int(2 * (CALM_S + LONG_LIFE_MS / 1000))):
        if not load.running and nodes_agree(cluster) and not _open(cluster):
            break
        await asyncio.sleep(0.5)
    world.check(not load.running, "calls are still open long after all was healed")
    world.check(nodes_agree(cluster), "the nodes do not reach the same state")
    left = _open(cluster)
    world.check(not left, f"sessions are open long after their time: {left}")
    record = load.record
    world.check(record.opened > 0, "no session was ever opened")
    world.check(record.closed > 0, "no session was ever closed")
    world.log(
        "scenario",
        f"{record.opened} sessions opened, {record.closed} closed, {record.refused_late} late openings refused",
    )


def _open(cluster: ControlCluster) -> list[SessionId]:
    return sorted({session for snapshot in cluster.snapshots().values() for session in snapshot.sessions})


SCENARIO = Scenario(
    name="sessions", summary="bulk-job sessions end when they are closed, and for good", seconds=40.0, run=run
)
