"""Four nodes: jobs write and read whole tables through brokers, beside clients that write and read rows, while tablets
move and versions change, under every fault."""

import asyncio

from ebla.model.consistency import ConsistencyLevel as Level
from ebla.ports.environment import Environment
from ebla.sim.clusters.broker_nodes import build_cluster
from ebla.sim.faults.fault import heal
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.scenarios.rows import add_driver, is_settled, record_deaths, start_clients, wait_all_normal, wait_until
from ebla.sim.scenarios.transfers import FAULTS, find_problem_after_repair, require
from ebla.sim.workloads.rows_client import RowsClient, RowsLoad
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
    for shard in cluster.shards():
        record_deaths(world, load, shard)
    for unit in cluster.units():
        unit.start()
    await wait_all_normal(world, cluster)
    driver = add_driver(world, load, cluster.nodes[DRIVEN_FROM])
    driver.start()
    await wait_until(lambda: len(load.tables) == 2, world, "the tables are not there")
    start_clients(world, load, CLIENTS, WORKERS)
    clients = [_add_jobs(world, jobs, number) for number in range(JOB_CLIENTS)]
    struck = [*cluster.units(), driver, *clients]
    await harsh(world, struck, world.seconds, faults=FAULTS, pause_s=PAUSE_S)
    heal(world, struck)
    await _judge(world, jobs)


def _add_jobs(world: World, jobs: WriteJobsLoad, number: int) -> Unit:
    own_unit: list[Unit] = []

    async def main(environment: Environment) -> None:
        jobs.running = {act for act in jobs.running if act[0] != own_unit[0].name}
        async with asyncio.TaskGroup() as tasks:
            for _ in range(JOB_WORKERS):
                tasks.create_task(WriteJobsClient(environment, jobs, own_unit[0]).run())

    unit = world.unit(f"j{number + 1}", main)
    own_unit.append(unit)
    unit.start()
    return unit


# ---- at the end


async def _judge(world: World, jobs: WriteJobsLoad) -> None:
    load, cluster, ledger = jobs.rows, jobs.cluster, jobs.cluster.write_jobs
    load.stopping = True
    await wait_until(lambda: not load.running, world, "calls of clients are still open long after all was healed")
    await wait_until(lambda: not jobs.running, world, "jobs still run long after all was healed")
    await wait_until(lambda: is_settled(cluster), world, "the topology does not settle")
    reader = WriteJobsClient(world.scenario_environment("judge"), jobs, cluster.nodes[0].control)
    for table in (ON_TABLETS, ON_VNODES):
        await require(world, await _read(reader, table), f"{table} cannot be read as a whole at ALL")
    client = RowsClient(world.scenario_environment("judge"), load, "judge")
    for table in sorted(load.tables):
        await client.scan(table, Level.ALL, 40)
    problem = await find_problem_after_repair(cluster, load, client)
    await require(world, problem is None, str(problem))
    cluster.ledger.check_files()
    await require(world, ledger.done * 10 > world.seconds, f"only {ledger.done} jobs were done")
    await require(world, jobs.reads > 0, "no table was read")
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
