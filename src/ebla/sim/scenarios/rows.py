"""Five nodes of two shards each: clients write and read rows on tablets and on vnodes at every consistency level,
tablets move, tables come and go, under every fault."""

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Sequence

from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import EblaError
from ebla.model.identity import ClusterId
from ebla.ports.environment import Environment
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.rows_replicas import leftover_work, replica_difference, unexpected_stacks
from ebla.sim.clusters.nodes import SimCluster, SimNode, SimShard
from ebla.sim.faults import links
from ebla.sim.faults.fault import InjectedFault, heal, storm
from ebla.sim.faults.harsh import DEVICE_FAULTS, LINK_FAULTS, PROCESS_FAULTS, harsh
from ebla.sim.network import PathFault
from ebla.sim.scenario import Scenario
from ebla.sim.workloads.rows_client import RowsClient, RowsLoad
from ebla.sim.workloads.topology_driver import TopologyDriver
from ebla.sim.world import Unit, World
from ebla.topology.states import NodeState

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
QUIET_S = 6.0
"""After the last call: the deadlines of leftover requests pass, and unneeded stacks are dropped."""


async def run(world: World) -> None:
    load = build_load(world)
    cluster = load.cluster
    for unit in cluster.units():
        unit.start()
    await wait_all_normal(world, cluster)
    drivers = [add_driver(world, load, cluster.nodes[number]) for number in DRIVEN_FROM]
    drivers[0].start()
    await wait_until(lambda: len(load.tables) == 2, world, "the tables are not there")
    drivers[1].start()
    start_clients(world, load, CLIENTS, WORKERS)
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
    source, target = world.rng.sample(units, 2)
    world.log("faults", f"{source.name} -> {target.name} is clogged")
    world.network.clog(source.name, target.name)
    try:
        await asyncio.sleep(world.rng.exponential(1.5))
    finally:
        world.network.unclog(source.name, target.name)


async def _slow_two(world: World, units: Sequence[Unit]) -> None:
    source, target = world.rng.sample(units, 2)
    extra_latency_ms = world.rng.exponential(250.0)
    world.log("faults", f"{source.name} -> {target.name} is slower by {extra_latency_ms:.0f} ms")
    with world.network.path(source.name, target.name).inject(PathFault(extra_latency_ms=extra_latency_ms)):
        await asyncio.sleep(world.rng.exponential(3.0))


def build_load(world: World) -> RowsLoad:
    """Nodes that are not yet started."""
    cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail))
    load = RowsLoad(cluster=cluster)
    for _ in range(NODES):
        cluster.add_node()
    for shard in cluster.shards():
        record_deaths(world, load, shard)
    return load


def record_deaths(world: World, load: RowsLoad, shard: SimShard) -> None:
    end = shard.unit.end

    def ended(*, with_machine: bool) -> None:
        load.ledger.died(world.now())
        end(with_machine=with_machine)

    shard.unit.end = ended  # type: ignore[method-assign]  # a unit reports no death itself


def add_driver(world: World, load: RowsLoad, home: SimNode) -> Unit:
    main = functools.partial(_driver, load=load, home=home)
    return world.unit(f"{home.control.name}-driver", main, machine=home.control.name, host_id=home.host)


async def _driver(environment: Environment, load: RowsLoad, home: SimNode) -> None:
    async with asyncio.TaskGroup() as tasks:
        await TopologyDriver(environment, load, home, tasks).run()


def start_clients(world: World, load: RowsLoad, clients: int, workers: int) -> None:
    async def main(environment: Environment, name: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(workers):
                tasks.create_task(RowsClient(environment, load, name).run())

    for number in range(1, clients + 1):
        world.unit(f"c{number}", functools.partial(main, name=f"c{number}")).start()


async def wait_until(reached: Callable[[], bool], world: World, problem: str) -> None:
    for _ in range(int(CALM_S * 4)):
        if reached():
            return
        await asyncio.sleep(0.25)
    world.fail(problem)
    await asyncio.Event().wait()


async def wait_all_normal(world: World, cluster: SimCluster) -> None:
    def reached() -> bool:
        snapshots = [node.snapshot for node in cluster.nodes]
        return all(
            snapshot is not None and [node.state for node in snapshot.members()] == [NodeState.NORMAL] * len(snapshots)
            for snapshot in snapshots
        )

    await wait_until(reached, world, "not every node is in the ring")


def is_settled(cluster: SimCluster) -> bool:
    """Every process of every node shows the same topology, nothing moves, and the temporary tables are gone."""
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
    cluster, ledger = load.cluster, load.ledger
    load.stopping = True
    await wait_until(lambda: not load.running, world, "calls of clients are still open long after all was healed")
    await wait_until(lambda: is_settled(cluster), world, "the topology does not settle")
    client = RowsClient(world.scenario_environment("judge"), load, "judge")
    problem = await _found(load, client)
    world.check(problem is None, str(problem))
    counts = cluster.barriers
    world.check(ledger.acknowledged > world.seconds, f"only {ledger.acknowledged} writes were acknowledged")
    world.check(ledger.reads > world.seconds / 2, f"only {ledger.reads} reads were answered")
    world.log(
        "scenario",
        f"{ledger.acknowledged} writes acknowledged, {ledger.unknown} unknown, {ledger.refused} refused; "
        f"{ledger.reads} reads; {counts.barriers} barriers, {counts.effects} effects, {counts.older_effects} of an "
        f"older version, {counts.streamed_items} items streamed",
    )


async def _found(load: RowsLoad, client: RowsClient) -> str | None:
    """The problem with the replicas after everything was read at ALL."""
    for table in sorted(load.tables):
        if not await _read_all(client, table):
            return f"{table} cannot be read at ALL, although everything is healed"
    await asyncio.sleep(QUIET_S)
    shards = load.cluster.shards()
    process = shards[0].process
    assert process is not None
    view, now_s = process.view.current, process.environment.clock.wall_us() // 1_000_000
    for schema in load.tables.values():
        try:
            problem = await replica_difference(view, schema.id, now_s, client.read_replica)
        except EblaError as error:
            problem = f"{schema.full_name}: a replica cannot be read: {error}"
        if problem is not None:
            return problem
    problems = (problem for shard in shards for problem in (unexpected_stacks(shard, view), leftover_work(shard)))
    return next((problem for problem in problems if problem is not None), None)


async def _read_all(client: RowsClient, table: str) -> bool:
    for _ in range(20):
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
