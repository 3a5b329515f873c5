"""Nodes die, freeze and are cut off in every shape for long enough to be excluded, automatically and by operators, and
are recovered, while clients write and read rows."""

import asyncio
from collections.abc import Sequence

import msgspec

from ebla.group0.operations import Operation, OperationKind
from ebla.model.errors import EblaError
from ebla.model.identity import ClusterId, ShardNumber
from ebla.ports.environment import Environment
from ebla.settings_store.registry import AUTO_FAILOVER, AutoFailoverSettings
from ebla.sim.checkers.failover import SAMPLE_S, FailoverChecker
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.clusters.nodes import LIMITS, SimCluster, SimNode
from ebla.sim.faults import links
from ebla.sim.faults.harsh import InjectedFault, harsh
from ebla.sim.scenario import Scenario
from ebla.sim.scenarios.rows import CALM_S, check_replicas, is_settled, start_row_clients, wait_until
from ebla.sim.workloads.rows_client import RowsLoad
from ebla.sim.workloads.rows_table import COLUMNS
from ebla.sim.workloads.topology_driver import TopologyDriver
from ebla.sim.world import Unit, World
from ebla.wire.failover_messages import FailoverStatusRequest
from ebla.wire.operation_messages import OperateRequest
from ebla.wire.schema_messages import CreateKeyspaceRequest, CreateTableRequest
from ebla.wire.settings_messages import SettingChange, SettingsWriteRequest
from ebla.wire.verbs import FAILOVER_STATUS, OPERATE, SETTINGS_WRITE

AFTER_MS = 5_000
OUTAGE_S = 14.0
"""On average: silence and `AFTER_MS` pass, and sometimes the wait for leases of a dead leader."""
PAUSE_S = 7.0
OPERATE_MS = 30_000
CALL_MS = 5_000
THINK_S = 6.0
RECOVER_S = 120.0
CLIENTS = 2
WORKERS = 3


class TableMaker(TopologyDriver):
    """Creates the tables and changes nothing afterwards: a move would wait for nodes that are down."""

    async def _create_tables(self) -> None:
        for keyspace in self.keyspaces:
            await self._change_schema(CreateKeyspaceRequest(keyspace, if_not_exists=True))
            await self._change_schema(
                CreateTableRequest(keyspace=keyspace.name, name="t", columns=COLUMNS, if_not_exists=True)
            )
        self._learn(await self._observe())

    async def _step(self) -> None:
        await asyncio.sleep(1.0)


class FailoverOperator:
    """Excludes, recovers and resets at random, by commands to any node."""

    def __init__(self, environment: Environment, cluster: SimCluster) -> None:
        self._rng = environment.rng
        self._environment = environment
        self._cluster = cluster
        self._nodes = cluster.connection(environment, "operator")
        self.is_calm = False
        """After the faults: recovers only."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._rng.random() * (1.0 if self.is_calm else 2 * THINK_S))
            self._nodes.leave()
            self._nodes = self._cluster.connection(self._environment, "operator")
            try:
                await self._act()
            except EblaError:
                continue

    async def _act(self) -> None:
        excluded = sorted({host for one in self._cluster.snapshots().values() for host in one.excluded_hosts})
        kind = self._rng.randrange(0, 100)
        if excluded and (self.is_calm or kind < 45):
            await self._operate(OperationKind.INCLUDE, self._rng.choice(excluded))
        elif self.is_calm:
            return
        elif kind < 85:
            host = self._rng.choice([node.host for node in self._cluster.nodes])
            await self._operate(OperationKind.EXCLUDE, host, is_forced=self._rng.random() < 0.2)
        else:
            await self._nodes.call(FAILOVER_STATUS, FailoverStatusRequest(reset=True), CALL_MS)

    async def _operate(self, kind: OperationKind, host: object, *, is_forced: bool = False) -> None:
        hosts = tuple(node.host for node in self._cluster.nodes if node.host == host)
        operation = Operation(id=self._rng.uuid(), kind=kind, hosts=hosts, is_forced=is_forced)
        await self._nodes.call(OPERATE, OperateRequest(operation, forward=True), OPERATE_MS)


async def run(world: World) -> None:
    settings = AutoFailoverSettings(enabled=True, after_ms=AFTER_MS, max_count=world.rng.randrange(1, 3))
    cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail))
    for _ in range(world.rng.randrange(3, 6)):
        cluster.add_node(shards=(ShardNumber(0),))
    load = RowsLoad(cluster=cluster)
    checker = FailoverChecker(world, cluster.nodes, settings, LIMITS.feed_silence_ms)
    operator = await _start(world, load, settings)
    async with asyncio.TaskGroup() as tasks:
        sampling = tasks.create_task(_sample(checker))
        controls = [node.control for node in cluster.nodes]
        await harsh(world, controls, world.seconds, faults=_outages(cluster), pause_s=PAUSE_S)
        for unit in cluster.units():
            if unit.down:
                unit.start()
        operator.is_calm = True
        await _judge(world, load)
        sampling.cancel()
    ledger = load.ledger
    world.check(ledger.acknowledged > world.seconds, f"only {ledger.acknowledged} writes were acknowledged")
    world.log(
        "scenario",
        f"{checker.excluded} exclusions, {checker.included} recoveries, {checker.resets} resets; "
        f"{ledger.acknowledged} writes acknowledged, {ledger.reads} reads",
    )


async def _start(world: World, load: RowsLoad, settings: AutoFailoverSettings) -> FailoverOperator:
    cluster = load.cluster
    for shard in cluster.shards():
        _note_deaths(load, shard.unit)
    for unit in cluster.units():
        unit.start()
    await cluster.wait_all_normal()

    async def make_tables(environment: Environment) -> None:
        async with asyncio.TaskGroup() as tasks:
            await TableMaker(environment, load, cluster.nodes[0], tasks).run()

    maker = cluster.start_beside(cluster.nodes[0], "driver", make_tables)
    await wait_until(lambda: len(load.tables) == 2, world, "the tables are not there")
    maker.kill()
    operators: list[FailoverOperator] = []

    async def operate(environment: Environment) -> None:
        connection = cluster.connection(environment, "operator")
        change = SettingChange(AUTO_FAILOVER.name, msgspec.json.encode(settings).decode())
        await connection.call(SETTINGS_WRITE, SettingsWriteRequest(changes=(change,)), CALL_MS)
        connection.leave()
        operators.append(FailoverOperator(environment, cluster))
        await operators[-1].run()

    world.unit("operator", operate).start()
    await wait_until(lambda: bool(operators), world, "the setting is not written")
    start_row_clients(load, CLIENTS, WORKERS)
    return operators[-1]


def _note_deaths(load: RowsLoad, unit: Unit) -> None:
    end = unit.end

    def ended(*, with_machine: bool) -> None:
        load.ledger.died(load.cluster.world.now())
        end(with_machine=with_machine)

    unit.end = ended  # type: ignore[method-assign]  # a unit reports no death itself


async def _sample(checker: FailoverChecker) -> None:
    while True:
        checker.sample()
        await asyncio.sleep(SAMPLE_S)


async def _judge(world: World, load: RowsLoad) -> None:
    """Every node is recovered, serves, and has or gets every acknowledged row."""
    cluster = load.cluster

    def is_recovered() -> bool:
        snapshots = cluster.snapshots()
        return len(snapshots) == len(cluster.nodes) and not any(one.state.exclusions for one in snapshots.values())

    world.check(await world.wait_for(is_recovered, RECOVER_S), "not every node is recovered")
    await load.stop(world, CALM_S)
    await wait_until(lambda: is_settled(cluster), world, "the topology does not settle")
    await check_replicas(load)


# ---- outages of nodes, long enough to be acted on


def _outages(cluster: SimCluster) -> tuple[InjectedFault, ...]:
    def draw(world: World) -> SimNode:
        return world.rng.choice(cluster.nodes)

    async def stop(world: World, _units: Sequence[Unit]) -> None:
        """One node loses its power, and is started later."""
        node = draw(world)
        if not node.control.down:
            node.control.crash()
        try:
            await asyncio.sleep(world.rng.exponential(OUTAGE_S))
        finally:
            for unit in node.units():
                if unit.down:
                    unit.start()

    async def flap(world: World, _units: Sequence[Unit]) -> None:
        """Control is killed again and again, and is down for about as long as automatic failover waits."""
        node = draw(world)
        for _ in range(world.rng.randrange(2, 5)):
            if not node.control.down:
                node.control.kill()
            try:
                await asyncio.sleep(world.rng.exponential(AFTER_MS / 1000))
            finally:
                if node.control.down:
                    node.control.start()
            await asyncio.sleep(world.rng.exponential(2.0))

    async def freeze(world: World, _units: Sequence[Unit]) -> None:
        node = draw(world)
        units = [unit for unit in node.units() if unit.running]
        for unit in units:
            unit.pause()
        try:
            await asyncio.sleep(world.rng.exponential(OUTAGE_S))
        finally:
            for unit in units:
                unit.resume()

    async def part(world: World, _units: Sequence[Unit]) -> None:
        """Any split of the nodes, in both directions or in one."""
        side = world.rng.sample(cluster.nodes, world.rng.randrange(1, len(cluster.nodes)))
        await _cut(world, cluster, side, [node for node in cluster.nodes if node not in side])

    async def part_from_one(world: World, _units: Sequence[Unit]) -> None:
        """Some nodes cannot reach one, and others can."""
        one, *others = world.rng.sample(cluster.nodes, len(cluster.nodes))
        await _cut(world, cluster, [one], others[: world.rng.randrange(1, len(others) + 1)])

    return (
        InjectedFault("stop", 3.0, stop),
        InjectedFault("flap", 2.0, flap),
        InjectedFault("freeze", 2.0, freeze),
        InjectedFault("part", 3.0, part),
        InjectedFault("part from one", 3.0, part_from_one),
        InjectedFault("reset", 1.0, links.reset),
    )


async def _cut(world: World, cluster: SimCluster, side: Sequence[SimNode], other: Sequence[SimNode]) -> None:
    """Between all processes of both sides. Clients reach every node."""
    assert cluster.nodes, "there are nodes to cut"
    one = [unit.name for node in side for unit in node.units()]
    two = [unit.name for node in other for unit in node.units()]
    forth = [(here, there) for here in one for there in two]
    back = [(there, here) for here, there in forth]
    pairs = world.rng.choice((forth + back, forth + back, forth, back))
    await links.cut(world, pairs, world.rng.exponential(OUTAGE_S))


SCENARIO = Scenario(
    name="failover",
    summary="dead nodes are excluded and recovered by a majority only, and no acknowledged row is lost",
    seconds=90.0,
    run=run,
)
