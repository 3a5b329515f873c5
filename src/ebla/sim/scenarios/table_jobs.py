"""Four nodes: jobs write and read whole tables through brokers, beside clients that write and read rows, while tablets
move and versions change, under every fault."""

import asyncio

from ebla.model.consistency import ConsistencyLevel as Level
from ebla.ports.environment import Environment
from ebla.sim.clusters.broker_nodes import build_cluster
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.scenarios.rows import check_replicas, start_nodes, start_row_clients, stop_load, wait_until
from ebla.sim.scenarios.transfers import FAULTS
from ebla.sim.workloads.rows_client import RowsLoad
from ebla.sim.workloads.table_jobs_client import WriteJobsClient, WriteJobsLoad
from ebla.sim.workloads.topology_driver import ON_TABLETS, ON_VNODES
from ebla.sim.world import Unit, World

CLIENTS, WORKERS = 2, 2
JOB_CLIENTS, JOB_WORKERS = 3, 3
DRIVEN_FROM = 2
PAUSE_S = 3.0
READ_TRIES = 20


async def run(world: World) -> None:
    cluster = build_cluster(world)
    load = RowsLoad(cluster=cluster)
    jobs = WriteJobsLoad(rows=load, cluster=cluster)
    driver = await start_nodes(load, cluster.nodes[DRIVEN_FROM])
    start_row_clients(load, CLIENTS, WORKERS)
    clients = [_start_jobs(world, jobs, f"j{number + 1}") for number in range(JOB_CLIENTS)]
    await harsh(world, [*cluster.units(), driver, *clients], world.seconds, faults=FAULTS, pause_s=PAUSE_S)
    await _judge(world, jobs)


def _start_jobs(world: World, jobs: WriteJobsLoad, name: str) -> Unit:
    async def main(environment: Environment) -> None:
        jobs.running = {act for act in jobs.running if act[0] != name}
        async with asyncio.TaskGroup() as tasks:
            for _ in range(JOB_WORKERS):
                tasks.create_task(WriteJobsClient(environment, jobs, world.units[name]).run())

    unit = world.unit(name, main)
    unit.start()
    return unit


# ---- at the end


async def _judge(world: World, jobs: WriteJobsLoad) -> None:
    load, cluster, ledger = jobs.rows, jobs.cluster, jobs.cluster.write_jobs
    load.stopping = True
    await wait_until(lambda: not jobs.running, world, "jobs still run long after all was healed")
    await stop_load(load)
    reader = WriteJobsClient(world.scenario_environment("judge"), jobs, cluster.nodes[0].control)
    for table in (ON_TABLETS, ON_VNODES):
        world.check(await _read(reader, table), f"{table} cannot be read as a whole at ALL")
    await check_replicas(load)
    cluster.ledger.check_files()
    world.check(ledger.done > 1, f"only {ledger.done} jobs were done")
    world.check(jobs.reads > 0, "no table was read")
    world.log(
        "scenario",
        f"{len(jobs.jobs)} jobs in {sum(job.runs for job in jobs.jobs)} runs: {ledger.done} done, "
        f"{ledger.given_up} runs given up, {ledger.lacking} copies sent later; "
        f"{cluster.ledger.adoptions} layers adopted, {cluster.ledger.merged_rows} rows merged; "
        f"{jobs.reads} reads of tables, {jobs.failed_reads} failed; {load.ledger.acknowledged} writes acknowledged",
    )


async def _read(reader: WriteJobsClient, table: str) -> bool:
    for _ in range(READ_TRIES):
        if await reader.read(table, Level.ALL):
            return True
        await asyncio.sleep(0.5)
    return False


SCENARIO = Scenario(
    name="table_jobs",
    summary="jobs write and read whole tables while tablets move and everything fails",
    seconds=30.0,
    run=run,
)
