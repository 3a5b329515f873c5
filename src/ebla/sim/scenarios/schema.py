"""Control processes alone: first nodes get into the ring from any order of starts, then clients change the schema on
all of them at once, both under every fault."""

import asyncio
import functools
from dataclasses import dataclass, field

from ebla.control.control_process import ControlConfig, ControlProcess
from ebla.control.group0.formation import FormationLimits
from ebla.control.group0.node import Group0Config
from ebla.control.liveness.heartbeats import LivenessLimits
from ebla.group0.members import Member, MemberRole
from ebla.journal.segmented_log import LogFailed
from ebla.model.errors import DiskFull, Refused
from ebla.model.identity import Address, ClusterId, HostId
from ebla.observe.event_reporter import EventReporter
from ebla.ports.environment import Environment
from ebla.sim.checkers.schema import find_partial_change
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.workloads.schema_client import KEYSPACES, OnSchemaAnswer, SchemaClient, SchemaLoad
from ebla.sim.world import Unit, World
from ebla.topology.snapshot import Snapshot
from ebla.topology.states import NodeState
from ebla.wire.frames import Introduction
from ebla.wire.limits import WireLimits
from ebla.wire.schema_messages import CreateKeyspaceRequest, SchemaAnswer
from ebla.wire.verbs import ProcessStatus

PORT = 7000
SOCKET = Address("/data/run/control.sock")
CLIENTS = ("c1", "c2", "c3", "c4", "c5")
PAUSE_S = 1.5
"""Between two faults while the schema changes: a change waits for every node, and most should come through."""
SAMPLE_S = 0.2
CALM_S = 60.0


class NoSupervisor:
    def heard(self, name: str, pid: int) -> None:
        pass

    def statuses(self) -> tuple[ProcessStatus, ...]:
        return ()


@dataclass(slots=True, kw_only=True)
class ControlNode:
    """What outlives the node's crashes, for the scenario to look at."""

    unit: Unit
    host: HostId
    process: ControlProcess | None = None
    """Of the life below; only to be read."""
    incarnation: int = 0

    @property
    def snapshot(self) -> Snapshot | None:
        """What it shows now; None while it is down, or has only just begun."""
        here = self.process if not self.unit.down and self.incarnation == self.unit.start_count else None
        return None if here is None else here.topology.snapshot


@dataclass(slots=True)
class ControlCluster:
    world: World
    introduction: Introduction
    nodes: list[ControlNode] = field(default_factory=list)

    def snapshots(self) -> dict[str, Snapshot]:
        return {node.unit.name: node.snapshot for node in self.nodes if node.snapshot is not None}

    def begin(self) -> OnSchemaAnswer:
        """INV-SCHEMA-2: who has been up since now has, when the answer comes, what it tells of."""
        start_count = [node.unit.start_count if not node.unit.down else None for node in self.nodes]

        def answered(answer: SchemaAnswer) -> None:
            for node, incarnation in zip(self.nodes, start_count, strict=True):
                if node.unit.down or node.unit.start_count != incarnation or node.host in answer.unreached:
                    continue
                snapshot = node.snapshot
                if snapshot is None or snapshot.version < answer.version:
                    self.world.fail(f"INV-SCHEMA-2: {node.unit.name} lacks version {answer.version}")

        return answered


async def run(world: World) -> None:
    cluster = build_cluster(world, world.rng.randrange(3, 6))
    units = [node.unit for node in cluster.nodes]
    async with asyncio.TaskGroup() as tasks:
        sampling = tasks.create_task(_sample(world, cluster))
        for unit in units:
            tasks.create_task(_start_later(world, unit))
        await harsh(world, units, world.seconds / 2)
        await until_all_normal(world, cluster)
        load = SchemaLoad(
            addresses={unit.name: unit.address(PORT) for unit in units},
            introduction=cluster.introduction,
            begin=cluster.begin,
        )
        await _create_keyspaces(world, load)
        for name in CLIENTS:
            world.unit(name, functools.partial(_client, name=name, load=load)).start()
        await harsh(world, units, world.seconds / 2, pause_s=PAUSE_S)
        await _judge(world, cluster, load)
        sampling.cancel()


def build_cluster(world: World, count: int) -> ControlCluster:
    """Nodes that are not yet started."""
    cluster = ControlCluster(
        world, Introduction(host=HostId(world.rng.uuid()), cluster=ClusterId(world.rng.uuid()), cluster_name="sim")
    )
    for number in range(count):
        host = HostId(world.rng.uuid())
        unit = world.unit(f"n{number}", functools.partial(_node, cluster=cluster, number=number), host_id=host)
        unit.expected_errors = (DiskFull, OSError, Refused, LogFailed)
        cluster.nodes.append(ControlNode(unit=unit, host=host))
    return cluster


async def _node(environment: Environment, cluster: ControlCluster, number: int) -> None:
    node = cluster.nodes[number]
    introduction = Introduction(
        host=node.host, cluster=cluster.introduction.cluster, cluster_name=cluster.introduction.cluster_name
    )
    assert introduction.cluster is not None
    own = node.unit.address(PORT)
    contacts = tuple(other.unit.address(PORT) for other in cluster.nodes)
    group0 = Group0Config(
        member=Member(host=node.host, role=MemberRole.LEARNER, address=own, rack=f"rack{number % 3}"),
        cluster=introduction.cluster,
        cluster_name=introduction.cluster_name,
        contacts=contacts,
        folder="/data/group0",
        snapshot_entries_max=40,
        kept_entries=10,
        formation=FormationLimits(ask_again_ms=300),
    )
    setup = ControlConfig(
        introduction=introduction,
        address=own,
        local_address=SOCKET,
        group0=group0,
        liveness=LivenessLimits(),
        wire=WireLimits(),
        report=_report(cluster.world, node.unit.name),
        pid=number,
        release="sim",
        shard_count=2,
        bulk_job_life_ms=int(CALM_S * 1000),
    )
    stop = asyncio.Event()
    node.process = process = ControlProcess(environment, setup, NoSupervisor(), stop)
    node.incarnation = node.unit.start_count
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(process.run())
        await stop.wait()
        serving.cancel()
        raise Refused(process.gave_up or "asked to stop")


def _report(world: World, name: str) -> EventReporter:
    def log(event: str, details: object) -> None:
        world.log(name, f"{event} {details}")

    return log


async def _client(environment: Environment, name: str, load: SchemaLoad) -> None:
    await SchemaClient(environment, name, load).run()


async def _start_later(world: World, unit: Unit) -> None:
    await asyncio.sleep(world.rng.random() * world.seconds / 3)
    if unit.down:
        unit.start()


async def _sample(world: World, cluster: ControlCluster) -> None:
    """INV-SCHEMA-3, of whatever any node shows at any time."""
    while True:
        for name, snapshot in cluster.snapshots().items():
            problem = find_partial_change(snapshot)
            if problem is not None:
                world.fail(f"{name}: {problem}")
        await asyncio.sleep(SAMPLE_S)


async def until_all_normal(world: World, cluster: ControlCluster) -> None:
    for _ in range(int(CALM_S * 2)):
        if _all_normal(cluster):
            return
        await asyncio.sleep(0.5)
    shown = {name: [node.state.value for node in each.members()] for name, each in cluster.snapshots().items()}
    world.fail(f"not every node is in the ring: {shown}")


def _all_normal(cluster: ControlCluster) -> bool:
    snapshots = list(cluster.snapshots().values())
    return len(snapshots) == len(cluster.nodes) and all(
        [node.state for node in snapshot.members()] == [NodeState.NORMAL] * len(cluster.nodes) for snapshot in snapshots
    )


async def _create_keyspaces(world: World, load: SchemaLoad) -> None:
    """Time enough for a leader to be found and the last connections of the storm to be given up."""
    client = SchemaClient(world.scenario_environment("operator"), "operator", load)
    for keyspace in KEYSPACES:
        answer = await client.ask(CreateKeyspaceRequest(keyspace), int(CALM_S * 1000))
        world.check(answer.changed, f"keyspace {keyspace.name} was there already")


async def _judge(world: World, cluster: ControlCluster, load: SchemaLoad) -> None:
    load.stopping = True
    for _ in range(int(CALM_S * 2)):
        if not load.running and nodes_agree(cluster):
            break
        await asyncio.sleep(0.5)
    world.check(not load.running, "calls are still open long after all was healed")
    world.check(nodes_agree(cluster), "the nodes do not come to show the same")
    problem = load.record.problem(cluster.snapshots())
    world.check(problem is None, str(problem))
    world.check(load.record.answered > 0, "no change was ever answered")
    world.log("scenario", f"{load.record.answered} changes of the schema are right")


def nodes_agree(cluster: ControlCluster) -> bool:
    shown = list(cluster.snapshots().values())
    return len(shown) == len(cluster.nodes) and all(one == shown[0] for one in shown)


SCENARIO = Scenario(
    name="schema", summary="first nodes get in, and changes of the schema have one order", seconds=60.0, run=run
)
