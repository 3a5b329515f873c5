"""Control processes only: bulk-job sessions are opened and closed on all of them at once, requested again and too late,
and abandoned, under every fault."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ebla.model.errors import EblaError, Refused
from ebla.model.identity import JobId, SessionId, TableId, TopologyVersion
from ebla.ports.environment import Environment
from ebla.sim.checkers.sessions import SessionsRecord
from ebla.sim.clients import ClientLoad, start_clients
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.scenarios.schema import CALM_S, SAMPLE_S, ControlCluster, build_cluster, wait_agreement
from ebla.sim.workloads.schema_client import COLUMNS, KEYSPACES, SchemaClient, SchemaLoad
from ebla.sim.world import World
from ebla.wire.schema_messages import CreateKeyspaceRequest, CreateTableRequest
from ebla.wire.transfer_messages import CloseSessionAnswer, CloseSessionRequest, OpenSessionRequest
from ebla.wire.verbs import CLOSE_SESSION, OPEN_SESSION

NODES = 3
CLIENTS = ("j1", "j2", "j3", "j4")
PAUSE_S = 1.0
DEADLINE_MS = 3_000
TRIES = 6
WORK_S = 0.6
SHORT_LIFE_MS, LONG_LIFE_MS = 3_000, 40_000

OnSessionClosed = Callable[[SessionId, CloseSessionAnswer], None]


@dataclass(slots=True, kw_only=True)
class SessionsLoad(ClientLoad):
    cluster: ControlCluster
    table: TableId
    record: SessionsRecord = field(default_factory=SessionsRecord)

    def known_version(self) -> TopologyVersion:
        return max((snapshot.version for snapshot in self.cluster.snapshots().values()), default=TopologyVersion(0))

    def begin(self) -> OnSessionClosed:
        """Called before each close. INV-XFER-1: a node that stays up from now on does not list the session when the
        answer comes."""
        stays_up = self.cluster.watch_controls()

        def closed(session: SessionId, answer: CloseSessionAnswer) -> None:
            for node in stays_up():
                snapshot = node.snapshot
                if node.host not in answer.down and (snapshot is None or session in snapshot.sessions):
                    name = node.control.name
                    self.cluster.world.fail(f"INV-XFER-1: {name} does not know that session {session} is closed")

        return closed


class SessionsClient:
    def __init__(self, environment: Environment, name: str, load: SessionsLoad) -> None:
        self._rng = environment.rng
        self._load = load
        self._connect = partial(load.cluster.connection, environment, name)

    async def run(self) -> None:
        await self._load.keep_calling(self._job, self._rng, WORK_S)

    async def _job(self) -> None:
        life_ms = self._rng.choice((SHORT_LIFE_MS, LONG_LIFE_MS))
        session, job = SessionId(self._rng.uuid()), JobId(self._rng.uuid())
        asking = OpenSessionRequest(
            session=session, table=self._load.table, job=job, life_ms=life_ms, known_version=self._load.known_version()
        )
        async with asyncio.TaskGroup() as asked:
            # The owner does not wait for these: they may be answered after the session was closed.
            for _ in range(self._rng.randrange(0, 3)):
                asked.create_task(self._ask_late(asking))
            if not await self._open(asking):
                return
            await asyncio.sleep(self._rng.random() * WORK_S)
            if self._rng.random() < 0.8 and await self._close(session):
                await self._must_stay_closed(asking)

    async def _ask_late(self, asking: OpenSessionRequest) -> None:
        await asyncio.sleep(self._rng.random() * WORK_S * 2)
        try:
            await self._ask_open(asking)
        except EblaError:
            pass  # a repetition may fail, but must not open the session again

    async def _open(self, asking: OpenSessionRequest) -> bool:
        for _ in range(TRIES):
            try:
                await self._ask_open(asking)
            except Refused:
                return False
            except EblaError:
                continue
            self._load.record.opened += 1
            return True
        return False

    async def _close(self, session: SessionId) -> bool:
        for _ in range(TRIES):
            nodes = self._connect()
            try:
                await nodes.open()
                closed = self._load.begin()
                answer = await nodes.call(CLOSE_SESSION, CloseSessionRequest(session), DEADLINE_MS)
            except EblaError:
                continue
            finally:
                nodes.leave()
            self._load.record.closed += 1
            closed(session, answer)
            return True
        return False

    async def _must_stay_closed(self, asking: OpenSessionRequest) -> None:
        try:
            await self._ask_open(asking)
        except Refused:
            self._load.record.refused_late += 1
        except EblaError:
            pass

    async def _ask_open(self, asking: OpenSessionRequest) -> None:
        nodes = self._connect()
        try:
            await nodes.call(OPEN_SESSION, asking, DEADLINE_MS)
        finally:
            nodes.leave()


# ---- the scenario


async def run(world: World) -> None:
    cluster = build_cluster(world, NODES)
    for unit in cluster.units():
        unit.start()
    await cluster.wait_all_normal()
    load = SessionsLoad(cluster=cluster, table=await _table(world, cluster))
    async with asyncio.TaskGroup() as tasks:
        sampling = tasks.create_task(_sample(world, cluster, load))
        start_clients(world, CLIENTS, lambda environment, name: SessionsClient(environment, name, load))
        await harsh(world, cluster.units(), world.seconds, pause_s=PAUSE_S)
        await _judge(world, cluster, load)
        sampling.cancel()


async def _table(world: World, cluster: ControlCluster) -> TableId:
    load = SchemaLoad(cluster=cluster, begin=cluster.begin)
    client = SchemaClient(world.scenario_environment("operator"), "operator", load)
    keyspace = KEYSPACES[0]
    await client.submit(CreateKeyspaceRequest(keyspace), int(CALM_S * 1000))
    answer = await client.submit(
        CreateTableRequest(keyspace=keyspace.name, name="t", columns=COLUMNS), int(CALM_S * 1000)
    )
    assert answer.table is not None
    return answer.table


async def _sample(world: World, cluster: ControlCluster, load: SessionsLoad) -> None:
    while True:
        shown = {
            (node.control.name, node.control.start_count): node.snapshot
            for node in cluster.nodes
            if node.snapshot is not None
        }
        problem = load.record.check_snapshots(shown)
        if problem is not None:
            world.fail(problem)
        await asyncio.sleep(SAMPLE_S)


async def _judge(world: World, cluster: ControlCluster, load: SessionsLoad) -> None:
    """Long enough for the leader to close abandoned sessions, also those whose deadline is by a fast clock."""
    await load.stop(world, CALM_S)
    await world.wait_for(lambda: not _open(cluster), CALM_S + LONG_LIFE_MS / 1000)
    await wait_agreement(world, cluster)
    left = _open(cluster)
    world.check(not left, f"sessions are open long after their time: {left}")
    record = load.record
    world.check(record.opened > 0, "no session was ever opened")
    world.check(record.closed > 0, "no session was ever closed")
    world.log(
        "scenario",
        f"{record.opened} sessions opened, {record.closed} closed, {record.refused_late} late openings refused",
    )


def _open(cluster: ControlCluster) -> list[SessionId]:
    return sorted({session for snapshot in cluster.snapshots().values() for session in snapshot.sessions})


SCENARIO = Scenario(
    name="sessions", summary="bulk-job sessions end when they are closed, and for good", seconds=40.0, run=run
)
