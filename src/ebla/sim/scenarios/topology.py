"""Nodes join a cluster with data, leave it, die and are removed, are rebuilt, aborted, excluded and lost, while rows
are written, read and deleted and the schema changes, under every fault, with an engine that duplicates its tasks and
delays them past their session."""

import asyncio
import dataclasses
from collections.abc import Sequence

from ebla.group0.operations import read_record
from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import EblaError
from ebla.ports.environment import Environment
from ebla.sim.checkers.request_outcomes import last_problem
from ebla.sim.checkers.rows import Cell
from ebla.sim.checkers.serving import ServingChecker
from ebla.sim.checkers.topology import SAMPLE_S, CoordinatorSamples
from ebla.sim.checkers.transfers import find_leftovers
from ebla.sim.clusters.growing_nodes import TOPOLOGY_SETTINGS, GrowingCluster, build_cluster
from ebla.sim.clusters.nodes import LIMITS, SimNode
from ebla.sim.clusters.transfer_nodes import supervise_pipelines
from ebla.sim.faults import devices, links
from ebla.sim.faults.harsh import DEVICE_FAULTS, LINK_FAULTS, PROCESS_FAULTS, InjectedFault, harsh
from ebla.sim.scenario import Scenario
from ebla.sim.scenarios.rows import CALM_S, check_replicas, record_deaths, start_row_clients, wait_until
from ebla.sim.transfers.spark_engine import NO_ENGINE_FAULTS
from ebla.sim.workloads.deleted_rows import DeletedRows, DeletingClient
from ebla.sim.workloads.rows_client import RowsLoad
from ebla.sim.workloads.topology_driver import KEYSPACES
from ebla.sim.workloads.topology_operator import GrowthOperator, SchemaChanger
from ebla.sim.world import Unit, World
from ebla.topology.snapshot import Keyspace
from ebla.topology.states import NodeState
from ebla.wire.topology_messages import TopologyRequest

NODES = 3
JOINS_MAX = 5
CLIENTS, WORKERS = 2, 2
PAUSE_S = 4.0
CLOG_S_MAX = 5.0
SETTLE_S = 300.0
SWEEP_S = 60.0
READ_TRIES = 20


@dataclasses.dataclass(slots=True, kw_only=True)
class Growth:
    """One run."""

    world: World
    cluster: GrowingCluster
    load: RowsLoad
    deleted: DeletedRows
    struck: list[Unit] = dataclasses.field(default_factory=list)

    def add(self, node: SimNode) -> None:
        """Faults hit its processes from now on."""
        for shard in node.shards:
            record_deaths(self.load, shard)
        self.struck.extend(node.units())

    def follow(self) -> None:
        """Processes of nodes that have left, or are to be removed, are not started again by faults."""
        cluster = self.cluster
        for node in cluster.nodes:
            is_gone = node.host in cluster.retired or node.host in cluster.dead
            for unit in node.units():
                if is_gone and unit in self.struck:
                    self.struck.remove(unit)
                elif not is_gone and unit not in self.struck:
                    self.struck.append(unit)


async def run(world: World) -> None:
    growth = await start(world)
    cluster, load = growth.cluster, growth.load
    operator = GrowthOperator(
        cluster=cluster, environment=world.scenario_environment("operator"), joins_max=JOINS_MAX, on_start=growth.add
    )
    samples = CoordinatorSamples(world=world, ledger=cluster.topology, settings=TOPOLOGY_SETTINGS)
    async with asyncio.TaskGroup() as tasks:
        beside = [
            tasks.create_task(supervise_pipelines(cluster)),
            tasks.create_task(_sample(growth, samples)),
            tasks.create_task(operator.run()),
        ]
        cluster.is_stormy = True
        await harsh(world, growth.struck, world.seconds, faults=FAULTS, pause_s=PAUSE_S)
        cluster.is_stormy, operator.is_calm = False, True
        operator.release_points()
        cluster.engine.faults = NO_ENGINE_FAULTS
        await _judge(growth)
        for task in beside:
            task.cancel()
    states = {str(state): count for state, count in sorted(cluster.topology.states.items())}
    world.log(
        "scenario",
        f"{operator.counts}, states {states}, causes {samples.causes}; {cluster.ledger.adoptions} layers adopted, "
        f"{cluster.ledger.merged_rows} rows merged, {cluster.engine.zombies} zombies; "
        f"{len(growth.deleted.deleted)} rows deleted, {growth.deleted.reads} of them read; "
        f"{load.ledger.acknowledged} writes acknowledged, {load.ledger.reads} reads, {cluster.gains.gains} gains, "
        f"{cluster.gains.kept_gains} of them of rows that were there before",
    )


async def start(world: World) -> Growth:
    """Nodes with tables, and clients that write, read and delete rows. Half of the clusters have no table on tablets:
    there every node can leave."""
    keyspaces = KEYSPACES if world.rng.random() < 0.5 else [one for one in KEYSPACES if not one.on_tablets]
    cluster = build_cluster(world, NODES if len(keyspaces) > 1 else NODES + 1)
    load = RowsLoad(cluster=cluster)
    growth = Growth(world=world, cluster=cluster, load=load, deleted=DeletedRows())
    for unit in cluster.executor_units():
        unit.start()
    growth.struck.extend(cluster.executor_units())
    for node in cluster.nodes:
        growth.add(node)
    for unit in cluster.units():
        unit.start()
    await cluster.wait_all_normal()
    growth.struck.append(_start_schema_changer(growth, cluster.nodes[0], keyspaces))
    count, deleted = len(keyspaces), growth.deleted.tables
    await wait_until(lambda: len(load.tables) == count and len(deleted) == count + 1, world, "the tables are not there")
    start_row_clients(load, CLIENTS, WORKERS)
    _start_deleting(growth)
    return growth


def _start_schema_changer(growth: Growth, home: SimNode, keyspaces: Sequence[Keyspace]) -> Unit:
    async def main(environment: Environment) -> None:
        async with asyncio.TaskGroup() as tasks:
            changer = SchemaChanger(environment, growth.load, home, tasks, growth.deleted)
            changer.keyspaces = keyspaces
            await changer.run()

    return growth.cluster.start_beside(home, "driver", main)


def _start_deleting(growth: Growth) -> None:
    async def main(environment: Environment) -> None:
        await DeletingClient(environment, growth.load, "d1", growth.deleted).run()

    growth.world.unit("d1", main).start()


async def _sample(growth: Growth, samples: CoordinatorSamples) -> None:
    cluster = growth.cluster
    serving = ServingChecker(growth.world, LIMITS.feed_silence_ms, SAMPLE_S)
    while True:
        await asyncio.sleep(SAMPLE_S)
        growth.follow()
        for node in cluster.present():
            serving.sample(node, has_left=cluster.state_of(node) is NodeState.LEFT)
        leader = cluster.leader()
        if leader is None or not leader[0].control.running:
            samples.sample(None, None, ())
        else:
            node, process = leader
            samples.sample(node.host, process, process._silent())  # noqa: SLF001  # as its coordinator sees them
        samples.check_cancellations()
        running = [one for one in cluster.present() if one.live_control is not None and _runs_raft(one)]
        samples.check_servers(cluster.newest_store(), [one.host for one in running])


def _runs_raft(node: SimNode) -> bool:
    process = node.live_control
    return process is not None and process.leadership is not None and process.leadership.group0.is_running


# ---- at the end


async def _judge(growth: Growth) -> None:
    """Every request has ended, every node is recovered, and no row is lost."""
    world, cluster, load = growth.world, growth.cluster, growth.load
    settled = await world.wait_for(lambda: _restarted(growth) and unsettled(cluster) is None, SETTLE_S)
    world.check(settled, f"not every request comes to its end: {unsettled(cluster)}")
    await load.stop(world, CALM_S)
    await wait_until(lambda: _same_everywhere(cluster), world, "the topology does not settle")
    judge = DeletingClient(world.scenario_environment("last reader"), load, "last reader", growth.deleted)
    for cell in growth.deleted.deleted:
        world.check(await _is_gone(judge, cell), f"{cell} cannot be read at ALL, although everything is healed")
    await check_replicas(load)
    swept = await world.wait_for(lambda: leftovers(cluster) is None, SWEEP_S)
    world.check(swept, str(leftovers(cluster)))
    newest = cluster.newest()
    world.check(newest is not None, "no node runs")
    if newest is not None:
        problem = last_problem(cluster.topology.ended.values(), newest)
        world.check(problem is None, str(problem))
    cluster.ledger.check_files()
    world.check(load.ledger.acknowledged > world.seconds / 2, f"only {load.ledger.acknowledged} writes")


async def _is_gone(judge: DeletingClient, cell: Cell) -> bool:
    """False: it cannot be read."""
    for _ in range(READ_TRIES):
        try:
            await judge.check_gone(cell, Level.ALL)
        except EblaError:
            judge.move()
            await asyncio.sleep(0.5)
        else:
            return True
    return False


def _restarted(growth: Growth) -> bool:
    """A supervisor starts what has ended, except nodes that have left or are to be removed."""
    cluster, is_up = growth.cluster, True
    for node in cluster.present():
        if cluster.state_of(node) is not NodeState.LEFT and node.host not in cluster.dead:
            for unit in (unit for unit in node.units() if unit.down):
                unit.start()
                is_up = False
    return is_up


def unsettled(cluster: GrowingCluster) -> str | None:
    """What is not done yet."""
    newest = cluster.newest()
    if newest is None:
        return "no node runs"
    requests: tuple[TopologyRequest, ...] = (*newest.node_requests.values(), *newest.global_requests.values())
    opened = [one for one in requests if one.is_open]
    if opened:
        return f"request {opened[0]} waits for: {cluster.cause_of(opened[0].id)}"
    if newest.transition is not None or newest.state.exclusions:
        return f"the topology is in {newest.transition}, with {len(newest.state.exclusions)} exclusions"
    for node in cluster.present():
        state = cluster.state_of(node)
        if state is not NodeState.NORMAL:
            return f"{node.control.name} is {state}"
    stores = [store for node in cluster.present() if (store := cluster.store_of(node)) is not None]
    if len(stores) < len(cluster.present()) or any(read_record(store) is not None for store in stores):
        return "a node is down, or an operation is unfinished"
    members = [one.host for one in stores[0].present_members().members]
    expected = [node.host for node in cluster.present()]
    return None if sorted(members) == sorted(expected) else f"{len(members)} members, {len(expected)} nodes"


def _same_everywhere(cluster: GrowingCluster) -> bool:
    first = cluster.nodes[0].snapshot
    if first is None or any(table.name == "p" for table in first.tables.values()):
        return False
    return all(node.snapshot == first for node in cluster.present()) and all(
        shard.process is not None
        and shard.process.serves()
        and shard.process.view.is_known
        and shard.process.view.current.version == first.version
        for shard in cluster.shards()
    )


def leftovers(cluster: GrowingCluster) -> str | None:
    present = cluster.present()
    found = (find_leftovers(cluster.world.disk_of(node.control.machine), node.folder) for node in present)
    return next((one for one in found if one is not None), None)


async def _clog(world: World, units: Sequence[Unit]) -> None:
    one, other = world.rng.sample(units, 2)
    await links.clog(world, (one.name, other.name), min(CLOG_S_MAX, world.rng.exponential(2.0)))


WEIGHTS = {"power cut": 0.3, "crash in sync": 0.5, "kill": 6.0, "pause": 4.0, "slow sync": 3.0, "full": 1.5}
FAULTS = (
    *(
        dataclasses.replace(fault, weight=WEIGHTS.get(fault.name, fault.weight))
        for fault in PROCESS_FAULTS + DEVICE_FAULTS + LINK_FAULTS
        if fault.strike not in (devices.clock_jump, links.clog_one_way)
    ),
    InjectedFault("clog", 1.5, _clog),
)
"""Clocks drift but do not jump, and frames are not late without limit: a row is deleted for good when no copy of its
write can arrive any more."""
SCENARIO = Scenario(
    name="topology",
    summary="nodes join and leave a cluster with data while everything fails; operations end or are rolled back",
    seconds=60.0,
    run=run,
)
