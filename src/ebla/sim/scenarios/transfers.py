"""Four nodes, two of them on one machine. Rows are written and tablets move, while jobs copy, stream, compare and
repair replicas, on an engine that duplicates attempts and has zombies, and other jobs write runs of rows as layers,
under every fault."""

import asyncio
import dataclasses

from ebla.model.identity import TableId
from ebla.model.records.jobs import ENDED_STATES, CompareReplicas, JobRecord, JobState
from ebla.ports.environment import Environment
from ebla.sim.checkers.transfers import find_leftovers
from ebla.sim.clusters.nodes import SimNode
from ebla.sim.clusters.transfer_nodes import TransferCluster, build_cluster, supervise_pipelines
from ebla.sim.faults import devices
from ebla.sim.faults.harsh import DEVICE_FAULTS, LINK_FAULTS, PROCESS_FAULTS, harsh
from ebla.sim.scenario import Scenario
from ebla.sim.scenarios.rows import check_replicas, start_nodes, start_row_clients, stop_load, wait_until
from ebla.sim.transfers.spark_engine import NO_ENGINE_FAULTS
from ebla.sim.workloads.rows_client import RowsLoad
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


async def run(world: World) -> None:
    cluster = build_cluster(world)
    load, submitted, written = RowsLoad(cluster=cluster), TransfersLoad(), WriterStats()
    for unit in cluster.executor_units():
        unit.start()
    async with asyncio.TaskGroup() as beside:
        watching = [beside.create_task(supervise_pipelines(cluster)), beside.create_task(_watch_files(cluster))]
        driver = await start_nodes(load, cluster.nodes[DRIVER_NODE])
        clients = [_start_client(load, submitted, cluster.nodes[number]) for number in CLIENT_NODES]
        writer = _start_writer(load, written, cluster.nodes[WRITER_NODE])
        start_row_clients(load, CLIENTS, WORKERS)
        struck = [*cluster.units(), *cluster.executor_units(), driver, *clients, writer]
        cluster.is_stormy = True
        await harsh(world, struck, world.seconds, faults=FAULTS, pause_s=PAUSE_S)
        cluster.is_stormy = False
        load.stopping = True
        await wait_until(lambda: _is_over(cluster, written), world, "writers of runs do not end")
        await _judge(world, cluster, load, submitted)
        world.log("scenario", str(written))
        for task in watching:
            task.cancel()


def _start_client(load: RowsLoad, submitted: TransfersLoad, home: SimNode) -> Unit:
    async def main(environment: Environment) -> None:
        async with asyncio.TaskGroup() as tasks:
            await TransfersClient(environment, load, home, submitted, tasks).run()

    return load.cluster.start_beside(home, "asker", main)


def _start_writer(load: RowsLoad, written: WriterStats, home: SimNode) -> Unit:
    async def main(environment: Environment) -> None:
        here = load.cluster.world.units[f"{home.control.name}-writer"]
        await TransfersWriter(environment, load, home, written, here).run()

    return load.cluster.start_beside(home, "writer", main)


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
    await _wait_jobs(world, cluster)
    await stop_load(load)
    ended = {state.value: sum(job.state is state for job in cluster.jobs().values()) for state in ENDED_STATES}
    cluster.engine.faults = NO_ENGINE_FAULTS
    for schema in load.tables.values():
        repaired = await _repaired(world, cluster, submitted, schema.id)
        world.check(repaired, f"{schema.full_name} cannot be repaired")
    await check_replicas(load, repaired=True)
    swept = await world.wait_for(lambda: _left(cluster, submitted) is None, SWEEP_WAIT_S)
    world.check(swept, str(_left(cluster, submitted)))
    cluster.ledger.check_files()
    engine, ledger = cluster.engine, cluster.ledger
    short_cuts = sum(executor.short_cuts for executor in engine.executors)
    acknowledged = load.ledger.acknowledged
    world.check(cluster.permitted_effects > 0, "no pipeline acted")
    world.check(acknowledged > world.seconds, f"only {acknowledged} writes were acknowledged")
    world.log(
        "scenario",
        f"{len(cluster.jobs())} jobs: {ended}, {submitted.cancelled} cancelled; {engine.attempts} attempts, "
        f"{engine.zombies} of them ended after their job, {engine.refused} refused, {short_cuts} by the link path; "
        f"{ledger.adoptions} adoptions, {ledger.merged_rows} rows merged, {ledger.closes} closes; "
        f"{acknowledged} writes acknowledged",
    )


async def _wait_jobs(world: World, cluster: TransferCluster) -> None:
    def open_jobs() -> list[JobRecord]:
        return [job for job in cluster.jobs().values() if job.state not in ENDED_STATES]

    ended = await world.wait_for(lambda: not open_jobs(), JOBS_END_S)
    world.check(ended, f"jobs do not end: {open_jobs()}")


async def _repaired(world: World, cluster: TransferCluster, submitted: TransfersLoad, table: TableId) -> bool:
    """All units run and no client writes: a requested job must complete."""
    for _ in range(REPAIR_TRIES):
        before = cluster.jobs()
        submitted.next_specs.append(CompareReplicas(table, heal=True))
        await wait_until(lambda: not submitted.next_specs, world, "no client submits the job")
        await _wait_jobs(world, cluster)
        if any(job.state is JobState.DONE for job in cluster.jobs().values() if job.id not in before):
            return True
    return False


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
