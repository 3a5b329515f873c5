"""The power fails everywhere at the moment of an acknowledgement, while every sync takes long."""

from collections.abc import Iterable
from contextlib import ExitStack

import pytest

from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import EblaError
from ebla.sim.disk import DiskFault
from ebla.sim.scenarios.rows import build_load, is_settled, start_nodes, stop_load, wait_until
from ebla.sim.workloads.rows_client import RowsClient
from ebla.sim.world import World

SYNC_MS = 300.0
WRITES = 4


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_acknowledged_outlives_the_power(seed: int) -> None:
    async def run(world: World) -> None:
        load = build_load(world)
        cluster = load.cluster
        driver = await start_nodes(load, cluster.nodes[0])
        await stop_load(load)
        client = RowsClient(world.scenario_environment("client"), load, "client")
        with ExitStack() as faults:
            for node in cluster.nodes:
                faults.enter_context(node.control.machine.disk.inject(DiskFault(sync_ms=SYNC_MS)))
            await _write(client, load.tables)
        acknowledged = load.ledger.acknowledged
        for unit in cluster.units():
            unit.crash()
        for unit in [*cluster.units(), driver]:
            unit.start()
        await wait_until(lambda: is_settled(cluster), world, "the cluster does not come back")
        world.check(acknowledged > 0, "nothing was acknowledged")
        for table in sorted(load.tables):
            world.check(await client.scan(table, Level.QUORUM, 50), "it cannot be read")

    World(seed=seed, seconds=30.0).run(run)


async def _write(client: RowsClient, tables: Iterable[str]) -> None:
    for table in sorted(tables) * WRITES:
        try:
            await client._write(table, 2)
        except EblaError:
            client.move()
