"""Four whole nodes, two of them on one machine: rows are written and tablets move, and meanwhile jobs copy, stream,
compare and heal replicas, on an engine that doubles attempts and lets the dead go on, and others write runs of rows as
layers; and everything fails that can."""

import asyncio
import dataclasses
import functools

from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import EblaError
from ebla.model.identity import TableId
from ebla.ports.surroundings import Surroundings
from ebla.sim.checkers.rows_replicas import different, running, strangers
from ebla.sim.checkers.transfers import left_over
from ebla.sim.faults import devices
from ebla.sim.faults.fault import heal
from ebla.sim.faults.harsh import DEVICE_FAULTS, LINK_FAULTS, PROCESS_FAULTS, harsh
from ebla.sim.scenario import Scenario
from ebla.sim.scenarios.rows import add_driver, at_rest, tell_deaths, until, until_all_normal
from ebla.sim.transfers_twin import NO_MISCHIEF
from ebla.sim.workloads.rows_client import RowsClient, RowsLoad
from ebla.sim.workloads.rows_node import RowsNode
from ebla.sim.workloads.transfers_asker import Asked, TransfersAsker
from ebla.sim.workloads.transfers_node import TransfersCluster, build_cluster, supervise_pipelines
from ebla.sim.workloads.transfers_writer import TransfersWriter, Written
from ebla.sim.world import Unit, World
from ebla.wire.jobs import ENDED, Compare, Job, JobState

CLIENTS = 3
WORKERS = 3
DRIVEN_FROM = 2
ASKED_FROM = (1, 3)
WRITTEN_FROM = 0
PAUSE_S = 3.0
JOBS_END_S = 240.0
"""A job is begun again after each thing that broke it, with a growing pause."""
HEAL_TRIES = 3
LOOK_S = 2.0
SWEPT_S = 30.0
SCAN_ROWS = 40
QUIET_S = 6.0


async def run(world: World) -> None:
    cluster = build_cluster(world)
    load, asked, written = RowsLoad(cluster), Asked(), Written()
    for shard in cluster.shards():
        tell_deaths(world, load, shard)
    for unit in (*cluster.units(), *cluster.executor_units()):
        unit.start()
    async with asyncio.TaskGroup() as beside:
        watching = [beside.create_task(supervise_pipelines(cluster)), beside.create_task(_watch_files(cluster))]
        await until_all_normal(world, cluster)
        driver = add_driver(world, load, cluster.nodes[DRIVEN_FROM])
        driver.start()
        await until(lambda: len(load.tables) == 2, world, "the tables are not there")
        askers = [_add_asker(world, load, asked, cluster.nodes[number]) for number in ASKED_FROM]
        writer = _add_writer(world, load, written, cluster.nodes[WRITTEN_FROM])
        for unit in (*askers, writer):
            unit.start()
        for number in range(CLIENTS):
            world.unit(f"c{number + 1}", functools.partial(_client, load=load)).start()
        struck = [*cluster.units(), *cluster.executor_units(), driver, *askers, writer]
        cluster.is_stormy = True
        await harsh(world, struck, world.seconds, faults=FAULTS, pause_s=PAUSE_S)
        cluster.is_stormy = False
        heal(world, struck)
        load.stopping = True
        await until(lambda: _is_over(cluster, written), world, "writers of runs do not come to their end")
        await _judge(world, cluster, load, asked)
        world.tell("scenario", str(written))
        for task in watching:
            task.cancel()


def _add_asker(world: World, load: RowsLoad, asked: Asked, home: RowsNode) -> Unit:
    main = functools.partial(_asker, load=load, home=home, asked=asked)
    return world.unit(f"{home.control.name}-asker", main, machine=home.control.name, host_id=home.host)


def _add_writer(world: World, load: RowsLoad, written: Written, home: RowsNode) -> Unit:
    seat: list[Unit] = []

    async def main(around: Surroundings) -> None:
        await TransfersWriter(around, load, home, written, lambda: seat[0]).run()

    seat.append(world.unit(f"{home.control.name}-writer", main, machine=home.control.name, host_id=home.host))
    return seat[0]


async def _asker(around: Surroundings, load: RowsLoad, home: RowsNode, asked: Asked) -> None:
    async with asyncio.TaskGroup() as tasks:
        await TransfersAsker(around, load, home, asked, tasks).run()


async def _client(around: Surroundings, load: RowsLoad) -> None:
    async with asyncio.TaskGroup() as tasks:
        for _ in range(WORKERS):
            tasks.create_task(RowsClient(around, load, tasks).run())


async def _watch_files(cluster: TransfersCluster) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        cluster.ledger.check_files()


# ---- at the end


def _is_over(cluster: TransfersCluster, written: Written) -> bool:
    """Nothing that was written by runs can have an effect any more: what is healed then stays so."""
    snapshot = cluster.nodes[WRITTEN_FROM].snapshot
    return (
        snapshot is not None and not written.writing and not any(one in snapshot.sessions for one in written.sessions)
    )


async def _judge(world: World, cluster: TransfersCluster, load: RowsLoad, asked: Asked) -> None:
    load.stopping = True
    await until(lambda: not load.running, world, "calls of clients are still open long after all was healed")
    await _until_ended(world, cluster)
    await until(lambda: at_rest(cluster), world, "the topology does not come to rest")
    ended = {state.value: sum(job.state is state for job in cluster.jobs().values()) for state in ENDED}
    cluster.engine.mischief = NO_MISCHIEF
    for schema in load.tables.values():
        await require(world, await _healed(world, cluster, asked, schema.id), f"{schema.full_name} cannot be healed")
    async with asyncio.TaskGroup() as tasks:
        client = RowsClient(world.outside("judge"), load, tasks)
        problem = await found_after(cluster, load, client)
        client.close()
    await require(world, problem is None, str(problem))
    for _ in range(int(SWEPT_S * 2)):
        if _left(cluster, asked) is None:
            break
        await asyncio.sleep(0.5)
    await require(world, _left(cluster, asked) is None, str(_left(cluster, asked)))
    cluster.ledger.check_files()
    engine, ledger = cluster.engine, cluster.ledger
    short_cuts = sum(executor.short_cuts for executor in engine.executors)
    acknowledged = load.ledger.acknowledged
    await require(world, acknowledged > world.seconds, f"only {acknowledged} writes were acknowledged")
    world.tell(
        "scenario",
        f"{len(cluster.jobs())} jobs: {ended}, {asked.cancelled} asked to cancel; {engine.attempts} attempts, "
        f"{engine.zombies} of them ended after their job, {engine.refused} refused, {short_cuts} by the short cut; "
        f"{ledger.adoptions} adoptions, {ledger.merged_rows} rows merged, {ledger.closes} closes; "
        f"{acknowledged} writes acknowledged",
    )


async def require(world: World, condition: bool, problem: str) -> None:
    """Not raised, since others run beside this."""
    if not condition:
        world.fail(problem)
        await asyncio.Event().wait()


async def _until_ended(world: World, cluster: TransfersCluster) -> None:
    def open_jobs() -> list[Job]:
        return [job for job in cluster.jobs().values() if job.state not in ENDED]

    for _ in range(int(JOBS_END_S * 2)):
        if not open_jobs():
            return
        await asyncio.sleep(0.5)
    await require(world, False, f"jobs do not end: {open_jobs()}")


async def _healed(world: World, cluster: TransfersCluster, asked: Asked, table: TableId) -> bool:
    """Everything runs and nobody writes: what is asked for must come to its end."""
    for _ in range(HEAL_TRIES):
        before = set(asked.jobs)
        asked.wanted.append(Compare(table, heal=True))
        await until(lambda: not asked.wanted, world, "nobody takes a wish any more")
        await _until_ended(world, cluster)
        made = [job for job in cluster.jobs().values() if job.id not in before]
        if any(job.state is JobState.DONE for job in made):
            return True
    return False


async def found_after(cluster: TransfersCluster, load: RowsLoad, client: RowsClient) -> str | None:
    """What is wrong with the replicas after the healing, and before anybody has read at ALL, which would heal too."""
    shards = cluster.shards()
    process = shards[0].process
    assert process is not None
    view, now_s = process.view.current, process.surroundings.clock.wall_us() // 1_000_000
    for schema in load.tables.values():
        try:
            problem = await different(view, schema.id, now_s, client.ask)
        except EblaError as error:
            problem = f"{schema.full_name}: a replica cannot be read: {error}"
        if problem is not None:
            return problem
    for table in sorted(load.tables):
        if not await client.scan(table, Level.ALL, SCAN_ROWS):
            return f"{table} cannot be read at ALL, although everything is healed"
    await asyncio.sleep(QUIET_S)
    problems = (problem for shard in shards for problem in (strangers(shard, view), running(shard)))
    return next((problem for problem in problems if problem is not None), None)


def _left(cluster: TransfersCluster, asked: Asked) -> str | None:
    snapshot = cluster.nodes[0].snapshot
    if snapshot is None:
        return "a node is down"
    sessions = [one for one in asked.orphans if one in snapshot.sessions]
    if sessions:
        return f"sessions {sessions} outlive their deadline"
    found = (left_over(cluster.world.look_at(node.control.machine), node.folder) for node in cluster.nodes)
    return next((one for one in found if one is not None), None)


WEIGHTS = {"power cut": 0.3, "crash in sync": 0.5, "kill": 6.0, "pause": 4.0, "slow sync": 3.0, "full": 1.5}
FAULTS = tuple(
    dataclasses.replace(fault, weight=WEIGHTS.get(fault.name, fault.weight))
    for fault in PROCESS_FAULTS + DEVICE_FAULTS + LINK_FAULTS
    if fault.strike is not devices.clock_jump
)
"""Clocks drift and do not jump: a session's end is a time on the leader's, and some runs are about that."""
SCENARIO = Scenario("transfers", "jobs move data between replicas on an engine that cannot be trusted", 30.0, run)
