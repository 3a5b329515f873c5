"""Control processes only: first nodes join the ring, started in any order and with links that fail, then clients change
the schema on all of them at once, under every fault."""

import asyncio
from collections.abc import Callable

import msgspec

from ebla.model.identity import ClusterId
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.schema import find_partial_change
from ebla.sim.clients import start_clients
from ebla.sim.clusters.nodes import LIMITS, SimCluster, SimNode
from ebla.sim.faults.harsh import LINK_FAULTS, harsh
from ebla.sim.scenario import Scenario
from ebla.sim.workloads.schema_client import KEYSPACES, OnSchemaAnswer, SchemaClient, SchemaLoad
from ebla.sim.world import Unit, World
from ebla.wire.schema_messages import CreateKeyspaceRequest, SchemaAnswer

CLIENTS = ("c1", "c2", "c3", "c4", "c5")
PAUSE_S = 1.5
"""Between two faults while the schema changes: a change waits for every node, and most should succeed."""
SAMPLE_S = 0.2
CALM_S = 60.0


class ControlCluster(SimCluster):
    """Nodes of which only the control process runs."""

    def watch_controls(self) -> Callable[[], list[SimNode]]:
        """The result returns the nodes whose control process has run without a break since this call."""
        incarnations = [(node, node.control.start_count) for node in self.nodes if not node.control.down]
        return lambda: [n for n, count in incarnations if not n.control.down and n.control.start_count == count]

    def begin(self) -> OnSchemaAnswer:
        """INV-SCHEMA-2: every node that stays up from now on has the change when its answer comes."""
        stays_up = self.watch_controls()

        def answered(answer: SchemaAnswer) -> None:
            for node in stays_up():
                snapshot = node.snapshot
                if node.host not in answer.unreached and (snapshot is None or snapshot.version < answer.version):
                    self.world.fail(f"INV-SCHEMA-2: {node.control.name} lacks version {answer.version}")

        return answered


async def run(world: World) -> None:
    cluster = build_cluster(world, world.rng.randrange(3, 6))
    units = cluster.units()
    async with asyncio.TaskGroup() as tasks:
        sampling = tasks.create_task(_sample(world, cluster))
        for unit in units:
            tasks.create_task(_start_later(world, unit))
        # A node that crashes before it is accepted can never join: the scenario `topology` has such nodes.
        await harsh(world, units, world.seconds / 2, faults=LINK_FAULTS)
        await cluster.wait_all_normal()
        load = SchemaLoad(cluster=cluster, begin=cluster.begin)
        await _create_keyspaces(world, load)
        start_clients(world, CLIENTS, lambda environment, name: SchemaClient(environment, name, load))
        await harsh(world, units, world.seconds / 2, pause_s=PAUSE_S)
        await _judge(world, cluster, load)
        sampling.cancel()


def build_cluster(world: World, count: int) -> ControlCluster:
    """Nodes that are not yet started."""
    limits = msgspec.structs.replace(LIMITS, bulk_job_life_ms=int(CALM_S * 1000))
    cluster = ControlCluster(
        world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail), limits=limits
    )
    for _ in range(count):
        cluster.add_node(has_children=False)
    return cluster


async def _start_later(world: World, unit: Unit) -> None:
    await asyncio.sleep(world.rng.random() * world.seconds / 3)
    if unit.down:
        unit.start()


async def _sample(world: World, cluster: ControlCluster) -> None:
    """INV-SCHEMA-3 for every state that a node shows."""
    while True:
        for name, snapshot in cluster.snapshots().items():
            problem = find_partial_change(snapshot)
            if problem is not None:
                world.fail(f"{name}: {problem}")
        await asyncio.sleep(SAMPLE_S)


async def _create_keyspaces(world: World, load: SchemaLoad) -> None:
    """With enough time to elect a leader and to give up the last connections of the storm."""
    client = SchemaClient(world.scenario_environment("operator"), "operator", load)
    for keyspace in KEYSPACES:
        answer = await client.submit(CreateKeyspaceRequest(keyspace), int(CALM_S * 1000))
        world.check(answer.changed, f"keyspace {keyspace.name} existed already")


async def _judge(world: World, cluster: ControlCluster, load: SchemaLoad) -> None:
    await load.stop(world, CALM_S)
    await wait_agreement(world, cluster)
    problem = load.record.problem(cluster.snapshots())
    world.check(problem is None, str(problem))
    world.check(load.record.answered > 0, "no change was ever answered")
    world.log("scenario", f"{load.record.answered} changes of the schema are right")


async def wait_agreement(world: World, cluster: ControlCluster) -> None:
    def agree() -> bool:
        shown = list(cluster.snapshots().values())
        return len(shown) == len(cluster.nodes) and all(one == shown[0] for one in shown)

    world.check(await world.wait_for(agree, CALM_S), "the nodes do not reach the same state")


SCENARIO = Scenario(name="schema", summary="first nodes join, and schema changes have one order", seconds=60.0, run=run)
