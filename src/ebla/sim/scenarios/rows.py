"""Five nodes of two shards each: clients write and read rows on tablets and on vnodes at every consistency level,
tablets move, tables come and go, under every fault."""

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Sequence

from ebla.feed.topology_view import View
from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import EblaError
from ebla.model.identity import ClusterId
from ebla.ports.environment import Environment
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.rows_replicas import leftover_work, lost_from_quorum, replica_difference, unexpected_stacks
from ebla.sim.clusters.nodes import SimCluster, SimNode, SimShard
from ebla.sim.faults import links
from ebla.sim.faults.harsh import DEVICE_FAULTS, LINK_FAULTS, PROCESS_FAULTS, InjectedFault, harsh, heal, storm
from ebla.sim.network import PathFault
from ebla.sim.scenario import Scenario
from ebla.sim.workloads.rows_client import RowsClient, RowsLoad
from ebla.sim.workloads.topology_driver import TopologyDriver
from ebla.sim.world import Unit, World

NODES = 5
CLIENTS = 4
WORKERS = 6
"""Per client. Most of them wait for answers that come late or never."""
DRIVEN_FROM = (0, 2)
PAUSE_S = 2.2
"""Between two faults of machines: a tablet move waits for every node, and some moves should complete."""
PATH_FAULTS_PAUSE_S = 0.5
CALM_S = 60.0
SCAN_ROWS = 40
READ_TRIES = 20
QUIET_S = 6.0
"""After the last call: the deadlines of leftover requests pass, and unneeded stacks are dropped."""


async def run(world: World) -> None:
    load = build_load(world)
    cluster = load.cluster
    drivers = [await start_nodes(load, cluster.nodes[DRIVEN_FROM[0]])]
    drivers.append(add_driver(load, cluster.nodes[DRIVEN_FROM[1]]))
    start_row_clients(load, CLIENTS, WORKERS)
    await _storms(world, cluster, drivers)
    await _judge(world, load)


async def _storms(world: World, cluster: SimCluster, drivers: list[Unit]) -> None:
    """Faults of machines and processes of all kinds, and beside them of the paths between shards, which matter most."""
    async with asyncio.TaskGroup() as blowing:
        blowing.create_task(
            harsh(world, [*cluster.units(), *drivers], world.seconds, faults=MACHINE_FAULTS, pause_s=PAUSE_S)
        )
        shards = [shard.unit for shard in cluster.shards()]
        blowing.create_task(storm(world, shards, PATH_FAULTS, world.seconds, PATH_FAULTS_PAUSE_S))
    heal(world, cluster.units())


async def _clog_two(world: World, units: Sequence[Unit]) -> None:
    """Frames from one shard to another arrive seconds later, all at once, and by a version that may be outdated."""
    await links.clog(world, _draw_two(world, units), world.rng.exponential(1.5))


async def _slow_two(world: World, units: Sequence[Unit]) -> None:
    fault = PathFault(extra_latency_ms=world.rng.exponential(250.0))
    await links.strain(world, _draw_two(world, units), fault, world.rng.exponential(3.0))


def _draw_two(world: World, units: Sequence[Unit]) -> tuple[str, str]:
    source, target = world.rng.sample(units, 2)
    return source.name, target.name


def build_load(world: World) -> RowsLoad:
    """Nodes that are not yet started."""
    cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail))
    for _ in range(NODES):
        cluster.add_node()
    return RowsLoad(cluster=cluster)


async def start_nodes(load: RowsLoad, home: SimNode) -> Unit:
    """Starts the nodes and, on one of them, a topology driver, which it returns. Ends once the tables exist."""
    cluster = load.cluster
    for shard in cluster.shards():
        record_deaths(load, shard)
    for unit in cluster.units():
        unit.start()
    await cluster.wait_all_normal()
    driver = add_driver(load, home)
    await wait_until(lambda: len(load.tables) == 2, cluster.world, "the tables are not there")
    return driver


def record_deaths(load: RowsLoad, shard: SimShard) -> None:
    """For the ledger of rows."""
    end = shard.unit.end

    def ended(*, with_machine: bool) -> None:
        load.ledger.died(load.cluster.world.now())
        end(with_machine=with_machine)

    shard.unit.end = ended  # type: ignore[method-assign]  # a unit reports no death itself


def add_driver(load: RowsLoad, home: SimNode) -> Unit:
    async def main(environment: Environment) -> None:
        async with asyncio.TaskGroup() as tasks:
            await TopologyDriver(environment, load, home, tasks).run()

    return load.cluster.start_beside(home, "driver", main)


def start_row_clients(load: RowsLoad, clients: int, workers: int) -> None:
    async def main(environment: Environment, name: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(workers):
                tasks.create_task(RowsClient(environment, load, name).run())

    for number in range(1, clients + 1):
        load.cluster.world.unit(f"c{number}", functools.partial(main, name=f"c{number}")).start()


async def wait_until(reached: Callable[[], bool], world: World, problem: str) -> None:
    world.check(await world.wait_for(reached, CALM_S), problem)


# ---- at the end


async def stop_load(load: RowsLoad) -> None:
    """Until every call has ended, every process of every node shows the same topology, nothing moves, and the temporary
    tables are gone."""
    cluster = load.cluster
    await load.stop(cluster.world, CALM_S)
    await wait_until(lambda: is_settled(cluster), cluster.world, "the topology does not settle")


def is_settled(cluster: SimCluster) -> bool:
    first = cluster.nodes[0].snapshot
    if first is None or first.transition is not None or any(table.name != "t" for table in first.tables.values()):
        return False
    return all(node.snapshot == first for node in cluster.nodes) and all(
        shard.process is not None
        and shard.process.serves()
        and shard.process.view.is_known
        and shard.process.view.current.version == first.version
        for shard in cluster.shards()
    )


async def _judge(world: World, load: RowsLoad) -> None:
    ledger, counts = load.ledger, load.cluster.barriers
    await stop_load(load)
    await check_replicas(load)
    world.check(ledger.acknowledged > world.seconds, f"only {ledger.acknowledged} writes were acknowledged")
    world.check(ledger.reads > world.seconds / 2, f"only {ledger.reads} reads were answered")
    world.log(
        "scenario",
        f"{ledger.acknowledged} writes acknowledged, {ledger.unknown} unknown, {ledger.refused} refused; "
        f"{ledger.reads} reads; {counts.barriers} barriers, {counts.effects} effects, {counts.older_effects} of an "
        f"older version, {counts.streamed_items} items streamed",
    )


async def check_replicas(load: RowsLoad, *, repaired: bool = False) -> None:
    """After everything was read at ALL, which repairs. `repaired`: the replicas must be equal before that, too."""
    world, shards = load.cluster.world, load.cluster.shards()
    client = RowsClient(world.scenario_environment("judge"), load, "judge")
    if repaired:
        await _check_equality(load, client)
    await _check_quorums(load, client)
    for table in sorted(load.tables):
        readable = await _read_all(client, table)
        world.check(readable, f"{table} cannot be read at ALL, although everything is healed")
    await asyncio.sleep(QUIET_S)
    view = await _check_equality(load, client)
    for shard in shards:
        problem = unexpected_stacks(shard, view) or leftover_work(shard)
        world.check(problem is None, str(problem))


async def _check_quorums(load: RowsLoad, client: RowsClient) -> None:
    view, now_s = _view_of(load)
    for keyspace, schema in load.tables.items():
        held = load.ledger.held_by_quorum(keyspace)
        try:
            problem = await lost_from_quorum(view, schema.id, now_s, held, client.read_replica)
        except EblaError as error:
            problem = f"{schema.full_name}: a replica cannot be read: {error}"
        load.cluster.world.check(problem is None, str(problem))


def _view_of(load: RowsLoad) -> tuple[View, int]:
    """With the time in seconds, on a node that serves."""
    process = load.cluster.shards()[0].process
    assert process is not None
    return process.view.current, process.environment.clock.wall_us() // 1_000_000


async def _check_equality(load: RowsLoad, client: RowsClient) -> View:
    view, now_s = _view_of(load)
    for schema in load.tables.values():
        try:
            problem = await replica_difference(view, schema.id, now_s, client.read_replica)
        except EblaError as error:
            problem = f"{schema.full_name}: a replica cannot be read: {error}"
        load.cluster.world.check(problem is None, str(problem))
    return view


async def _read_all(client: RowsClient, table: str) -> bool:
    for _ in range(READ_TRIES):
        if await client.scan(table, Level.ALL, SCAN_ROWS):
            return True
        await asyncio.sleep(0.5)
    return False


WEIGHTS = {"power cut": 0.3, "crash in sync": 0.5, "kill": 5.0, "pause": 3.0, "slow sync": 4.0}
MACHINE_FAULTS = tuple(
    dataclasses.replace(fault, weight=WEIGHTS.get(fault.name, fault.weight))
    for fault in PROCESS_FAULTS + DEVICE_FAULTS + LINK_FAULTS
)
"""Faults of the whole cluster are rare: they stop everything for seconds and find little here."""
PATH_FAULTS = (
    InjectedFault("clog two", 6.0, _clog_two),
    InjectedFault("slow two", 6.0, _slow_two),
    InjectedFault("isolate", 0.5, links.isolate),
    InjectedFault("reset", 1.0, links.reset),
)
SCENARIO = Scenario(
    name="rows", summary="rows are written and read while tablets move and everything fails", seconds=25.0, run=run
)
