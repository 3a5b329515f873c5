"""Four nodes, two of them on one machine. Rows are written and tablets move, while jobs copy, stream, compare and
repair replicas, on an engine that duplicates attempts and has zombies, and other jobs write runs of rows as layers,
under every fault."""

import asyncio
import dataclasses
import functools

from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import EblaError
from ebla.model.identity import TableId
from ebla.model.records.jobs import ENDED_STATES, CompareReplicas, JobRecord, JobState
from ebla.ports.environment import Environment
from ebla.sim.checkers.rows_replicas import leftover_work, replica_difference, unexpected_stacks
from ebla.sim.checkers.transfers import find_leftovers
from ebla.sim.clusters.nodes import SimNode
from ebla.sim.clusters.transfer_nodes import TransferCluster, build_cluster, supervise_pipelines
from ebla.sim.faults import devices
from ebla.sim.faults.fault import heal
from ebla.sim.faults.harsh import DEVICE_FAULTS, LINK_FAULTS, PROCESS_FAULTS, harsh
from ebla.sim.scenario import Scenario
from ebla.sim.scenarios.rows import add_driver, is_settled, record_deaths, start_clients, wait_all_normal, wait_until
from ebla.sim.transfers.spark_engine import NO_ENGINE_FAULTS
from ebla.sim.workloads.rows_client import RowsClient, RowsLoad
from ebla.sim.workloads.transfers_client import TransfersClient, TransfersLoad
from ebla.sim.workloads.transfers_writer import TransfersWriter, WriterStats
from ebla.sim.world import Unit, World

CLIENTS = 3
WORKERS = 3
DRIVER_NODE = 2
CLIENT_NODES = (1, 3)
WRITER_NODE = 0
PAUSE_S = 3.0
JOBS_END_S = 240.0
"""A job is retried after each failure, with a growing pause."""
REPAIR_TRIES = 3
CHECK_FILES_S = 2.0
SWEEP_WAIT_S = 30.0
SCAN_ROWS = 40
QUIET_S = 6.0


async def run(world: World) -> None:
    cluster = build_cluster(world)
    load, submitted, written = RowsLoad(cluster=cluster), TransfersLoad(), WriterStats()
    for shard in cluster.shards():
        record_deaths(world, load, shard)
    for unit in (*cluster.units(), *cluster.executor_units()):
        unit.start()
    async with asyncio.TaskGroup() as beside:
        watching = [beside.create_task(supervise_pipelines(cluster)), beside.create_task(_watch_files(cluster))]
        await wait_all_normal(world, cluster)
        driver = add_driver(world, load, cluster.nodes[DRIVER_NODE])
        driver.start()
        await wait_until(lambda: len(load.tables) == 2, world, "the tables are not there")
        clients = [_add_client(world, load, submitted, cluster.nodes[number]) for number in CLIENT_NODES]
        writer = _add_writer(world, load, written, cluster.nodes[WRITER_NODE])
        for unit in (*clients, writer):
            unit.start()
        start_clients(world, load, CLIENTS, WORKERS)
        struck = [*cluster.units(), *cluster.executor_units(), driver, *clients, writer]
        cluster.is_stormy = True
        await harsh(world, struck, world.seconds, faults=FAULTS, pause_s=PAUSE_S)
        cluster.is_stormy = False
        heal(world, struck)
        load.stopping = True
        await wait_until(lambda: _is_over(cluster, written), world, "writers of runs do not end")
        await _judge(world, cluster, load, submitted)
        world.log("scenario", str(written))
        for task in watching:
            task.cancel()


def _add_client(world: World, load: RowsLoad, submitted: TransfersLoad, home: SimNode) -> Unit:
    main = functools.partial(_client, load=load, home=home, submitted=submitted)
    return world.unit(f"{home.control.name}-asker", main, machine=home.control.name, host_id=home.host)


def _add_writer(world: World, load: RowsLoad, written: WriterStats, home: SimNode) -> Unit:
    own_unit: list[Unit] = []

    async def main(environment: Environment) -> None:
        await TransfersWriter(environment, load, home, written, lambda: own_unit[0]).run()

    own_unit.append(world.unit(f"{home.control.name}-writer", main, machine=home.control.name, host_id=home.host))
    return own_unit[0]


async def _client(environment: Environment, load: RowsLoad, home: SimNode, submitted: TransfersLoad) -> None:
    async with asyncio.TaskGroup() as tasks:
        await TransfersClient(environment, load, home, submitted, tasks).run()


async def _watch_files(cluster: TransferCluster) -> None:
    while True:
        await asyncio.sleep(CHECK_FILES_S)
        cluster.ledger.check_files()


# ---- at the end


def _is_over(cluster: TransferCluster, written: WriterStats) -> bool:
    """No run can take effect any more, so repaired replicas stay equal."""
    snapshot = cluster.nodes[WRITER_NODE].snapshot
    return (
        snapshot is not None and not written.writing and not any(one in snapshot.sessions for one in written.sessions)
    )


async def _judge(world: World, cluster: TransferCluster, load: RowsLoad, submitted: TransfersLoad) -> None:
    load.stopping = True
    await wait_until(lambda: not load.running, world, "calls of clients are still open long after all was healed")
    await _until_ended(world, cluster)
    await wait_until(lambda: is_settled(cluster), world, "the topology does not settle")
    ended = {state.value: sum(job.state is state for job in cluster.jobs().values()) for state in ENDED_STATES}
    cluster.engine.faults = NO_ENGINE_FAULTS
    for schema in load.tables.values():
        await require(
            world, await _repaired(world, cluster, submitted, schema.id), f"{schema.full_name} cannot be repaired"
        )
    client = RowsClient(world.scenario_environment("judge"), load, "judge")
    problem = await find_problem_after_repair(cluster, load, client)
    await require(world, problem is None, str(problem))
    for _ in range(int(SWEEP_WAIT_S * 2)):
        if _left(cluster, submitted) is None:
            break
        await asyncio.sleep(0.5)
    await require(world, _left(cluster, submitted) is None, str(_left(cluster, submitted)))
    cluster.ledger.check_files()
    engine, ledger = cluster.engine, cluster.ledger
    short_cuts = sum(executor.short_cuts for executor in engine.executors)
    acknowledged = load.ledger.acknowledged
    await require(world, acknowledged > world.seconds, f"only {acknowledged} writes were acknowledged")
    world.log(
        "scenario",
        f"{len(cluster.jobs())} jobs: {ended}, {submitted.cancelled} cancelled; {engine.attempts} attempts, "
        f"{engine.zombies} of them ended after their job, {engine.refused} refused, {short_cuts} by the link path; "
        f"{ledger.adoptions} adoptions, {ledger.merged_rows} rows merged, {ledger.closes} closes; "
        f"{acknowledged} writes acknowledged",
    )


async def require(world: World, condition: bool, problem: str) -> None:
    """Does not raise, because other tasks run beside this."""
    if not condition:
        world.fail(problem)
        await asyncio.Event().wait()


async def _until_ended(world: World, cluster: TransferCluster) -> None:
    def open_jobs() -> list[JobRecord]:
        return [job for job in cluster.jobs().values() if job.state not in ENDED_STATES]

    for _ in range(int(JOBS_END_S * 2)):
        if not open_jobs():
            return
        await asyncio.sleep(0.5)
    await require(world, False, f"jobs do not end: {open_jobs()}")


async def _repaired(world: World, cluster: TransferCluster, submitted: TransfersLoad, table: TableId) -> bool:
    """All units run and no client writes: a requested job must complete."""
    for _ in range(REPAIR_TRIES):
        before = set(submitted.jobs)
        submitted.next_specs.append(CompareReplicas(table, heal=True))
        await wait_until(lambda: not submitted.next_specs, world, "no client submits the job")
        await _until_ended(world, cluster)
        made = [job for job in cluster.jobs().values() if job.id not in before]
        if any(job.state is JobState.DONE for job in made):
            return True
    return False


async def find_problem_after_repair(cluster: TransferCluster, load: RowsLoad, client: RowsClient) -> str | None:
    """The problem with the replicas after the repair, before any read at ALL, which would repair them too."""
    shards = cluster.shards()
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
    for table in sorted(load.tables):
        if not await client.scan(table, Level.ALL, SCAN_ROWS):
            return f"{table} cannot be read at ALL, although everything is healed"
    await asyncio.sleep(QUIET_S)
    problems = (problem for shard in shards for problem in (unexpected_stacks(shard, view), leftover_work(shard)))
    return next((problem for problem in problems if problem is not None), None)


def _left(cluster: TransferCluster, submitted: TransfersLoad) -> str | None:
    snapshot = cluster.nodes[0].snapshot
    if snapshot is None:
        return "a node is down"
    sessions = [one for one in submitted.orphans if one in snapshot.sessions]
    if sessions:
        return f"sessions {sessions} outlive their deadline"
    found = (find_leftovers(cluster.world.disk_of(node.control.machine), node.folder) for node in cluster.nodes)
    return next((one for one in found if one is not None), None)


WEIGHTS = {"power cut": 0.3, "crash in sync": 0.5, "kill": 6.0, "pause": 4.0, "slow sync": 3.0, "full": 1.5}
FAULTS = tuple(
    dataclasses.replace(fault, weight=WEIGHTS.get(fault.name, fault.weight))
    for fault in PROCESS_FAULTS + DEVICE_FAULTS + LINK_FAULTS
    if fault.strike is not devices.clock_jump
)
"""Clocks drift but do not jump: a session ends by the leader's clock, and some runs depend on that."""
SCENARIO = Scenario(
    name="transfers",
    summary="jobs move data between replicas on an engine that cannot be trusted",
    seconds=30.0,
    run=run,
)
