"""Owners of bulk jobs that open and close sessions on any node, retry without an answer, come too late, and
disappear."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ebla.model.errors import EblaError, Refused
from ebla.model.identity import Address, HostId, JobId, SessionId, TableId, TopologyVersion
from ebla.observe.event_reporter import discard_event
from ebla.ports.environment import Environment
from ebla.sim.checkers.sessions import SessionsRecord
from ebla.sim.clusters.nodes import CONTROL_PORT, WIRE, SimCluster
from ebla.wire.client_connection import ConnectionTarget
from ebla.wire.frames import Lane
from ebla.wire.peers import PeersContext, connect
from ebla.wire.transfer_messages import (
    CloseSessionAnswer,
    CloseSessionRequest,
    OpenSessionAnswer,
    OpenSessionRequest,
)
from ebla.wire.verbs import CLOSE_SESSION, OPEN_SESSION

DEADLINE_MS = 3_000
TRIES = 6
WORK_S = 0.6
SHORT_LIFE_MS, LONG_LIFE_MS = 3_000, 40_000

OnSessionClosed = Callable[[SessionId, CloseSessionAnswer], None]


@dataclass(slots=True, kw_only=True)
class SessionsLoad:
    cluster: SimCluster
    table: TableId
    version: Callable[[], TopologyVersion]
    """A version that is already known."""
    begin: Callable[[], OnSessionClosed]
    """Called before each close. Its result is called with the answer."""
    record: SessionsRecord = field(default_factory=SessionsRecord)
    stopping: bool = False
    running: int = 0


class SessionsClient:
    def __init__(self, environment: Environment, name: str, load: SessionsLoad) -> None:
        self._rng = environment.rng
        self._load = load
        self._context = PeersContext(
            transport=environment.transport,
            rng=environment.rng,
            introduction=load.cluster.introduction(HostId(environment.rng.uuid()), name),
            limits=WIRE,
            report=discard_event,
        )

    async def run(self) -> None:
        while not self._load.stopping:
            self._load.running += 1
            await self._job()
            self._load.running -= 1
            await asyncio.sleep(self._rng.random() * WORK_S)
        await asyncio.Event().wait()

    async def _job(self) -> None:
        life_ms = self._rng.choice((SHORT_LIFE_MS, LONG_LIFE_MS))
        session, job = SessionId(self._rng.uuid()), JobId(self._rng.uuid())
        asking = OpenSessionRequest(
            session=session, table=self._load.table, job=job, life_ms=life_ms, known_version=self._load.version()
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
            try:
                caller, _ = await connect(self._context, self._node(), ConnectionTarget(Lane.CONTROL))
            except EblaError:
                continue
            closed = self._load.begin()
            try:
                answer = await caller.call(CLOSE_SESSION, CloseSessionRequest(session), DEADLINE_MS)
            except EblaError:
                continue
            finally:
                caller.close("asked")
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

    async def _ask_open(self, asking: OpenSessionRequest) -> OpenSessionAnswer:
        caller, _ = await connect(self._context, self._node(), ConnectionTarget(Lane.CONTROL))
        try:
            return await caller.call(OPEN_SESSION, asking, DEADLINE_MS)
        finally:
            caller.close("asked")

    def _node(self) -> Address:
        return self._rng.choice(self._load.cluster.nodes).control.address(CONTROL_PORT)
